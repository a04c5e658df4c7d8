"""`clutch demo`: work by the demo model, in a process that can be killed repeatedly.

`worker` is the process that works. `supervisor` starts it, draws its state and kills it; `job` describes the work and
keeps records outside the database; `command` counts the results at the end.
"""

from __future__ import annotations
