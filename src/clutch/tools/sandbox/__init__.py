"""The sandbox of every command and file tool of an agent on this machine.

`policy` describes a sandbox, `process` starts a process in it; `bubblewrap`, `drop_root` and `seccomp` isolate it on
Linux, `seatbelt` on macOS; `protected_files` finds the files it may not see or change.
"""

from __future__ import annotations
