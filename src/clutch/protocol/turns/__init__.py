"""The transactions of one run: how it begins, its steps, and the ways it stops.

Each is guarded by the owner's fence. Two per step: `respond` commits what the model said and what it
means to do, `results` what came of it together with the letters that arrived meanwhile. So after a
kill -9 the transcript says exactly where to go on.
"""

from __future__ import annotations

from clutch.protocol.turns.beginning import Begun, begin, interrupt
from clutch.protocol.turns.below import person_waits, progress_below
from clutch.protocol.turns.endings import crash, fail, finish, hand_over, stumble, submit, wait
from clutch.protocol.turns.leaving import late, leave, partial
from clutch.protocol.turns.steps import (
    NO_CHILD,
    YIELDED,
    Boundary,
    delegate,
    doing,
    in_order,
    journal,
    remind,
    respond,
    results,
    spoke,
    with_yields,
    yields,
)

__all__ = [
    "NO_CHILD",
    "YIELDED",
    "Begun",
    "Boundary",
    "begin",
    "crash",
    "delegate",
    "doing",
    "fail",
    "finish",
    "hand_over",
    "in_order",
    "interrupt",
    "journal",
    "late",
    "leave",
    "partial",
    "person_waits",
    "progress_below",
    "remind",
    "respond",
    "results",
    "spoke",
    "stumble",
    "submit",
    "wait",
    "with_yields",
    "yields",
]
