"""How long a test waits for a signal from a thread, a process or a task.

Only a lost signal takes as long. The bound is generous because machines are busy: it ends a hang and measures nothing.
"""

from __future__ import annotations

from typing import Final

PATIENCE_S: Final = 60.0
