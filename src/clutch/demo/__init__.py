"""`clutch demo`: the demo model surveys a folder in a process that is killed in the middle of it.

`worker` is the process that works. `supervisor` starts it, draws its tasks and kills it; `job` describes the work and
keeps records outside of the database; `report` counts the results, and `command` is the command.
"""

from __future__ import annotations
