"""How a process of our own keeps its memory. A program that opens a `Clutch` decides that for itself."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from typing import Final

#: Of new objects before the youngest are looked through. A transaction leaves a few cycles at most, and a batch of
#: them holds thousands of objects that are about to go by themselves: the default of 700 took 4 % of the writer's time.
YOUNG_MAX: Final = 10_000

#: Looks through the youngest before what outlived them is looked through. Of that nearly nothing is garbage, and with
#: hundreds who watch it took 70 ms each minute, in which nobody was answered.
OLDER_AFTER: Final = 100

M_ARENA_MAX: Final = -8  #: of glibc's `mallopt`


def share_one_heap() -> None:
    """Before there are threads: each would get a heap of its own, and what one has free no other can use. Only one
    of them runs at a time anyway. Elsewhere than on glibc it changes nothing."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def collect_rarely() -> None:
    """Once everything is loaded: it stays, and to look through it again stops all turns for a tenth of a second."""
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, OLDER_AFTER)
