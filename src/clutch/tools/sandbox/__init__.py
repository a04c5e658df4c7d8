"""The box around everything a model makes run on this machine: what is inside, what holds it, what it may use.

`box` describes one, `probe` says what this machine can hold it with, `start` starts a process in it. Tools use
those three; `bubblewrap`, `descent`, `landlock` and `seccomp` are the walls, `watch` counts what no wall can.
"""

from __future__ import annotations
