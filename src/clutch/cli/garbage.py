"""How a process of our own collects garbage. A program that opens a `Clutch` decides that for itself."""

from __future__ import annotations

import gc
from typing import Final

#: Of new objects before the youngest are looked through. A transaction leaves a few cycles at most, and a batch of
#: them holds thousands of objects that are about to go by themselves: the default of 700 took 4 % of the writer's time.
YOUNG_MAX: Final = 10_000


def collect_rarely() -> None:
    """Once everything is loaded: it stays, and to look through it again stops all turns for a tenth of a second."""
    gc.freeze()
    gc.set_threshold(YOUNG_MAX)
