"""The verbs of people and parents on a task, as transactions.

All run alone: they are rare, some write many sessions, and their row locks then order them against
whatever batches do. Authority is checked before (`protocol.guarding`); here only the task's state decides.
Each act leaves a line in the task's timeline with its actor.
"""

from __future__ import annotations

from clutch.protocol.control.again import again, dismiss, redeliver, remove
from clutch.protocol.control.deleting import delete
from clutch.protocol.control.ending import Held, KillReport, StopReport, halt, kill, stop
from clutch.protocol.control.pausing import pause, resume
from clutch.protocol.control.rooms import begin_anew, close_main, open_main, use_model, want_summary
from clutch.protocol.control.state import AlreadyFinished, NotPossible, PlanChanged, UnknownTask
from clutch.protocol.control.words import Steered, decide, decide_as_read, heard, send, spoken_verdict, steer

__all__ = [
    "AlreadyFinished",
    "Held",
    "KillReport",
    "NotPossible",
    "PlanChanged",
    "Steered",
    "StopReport",
    "UnknownTask",
    "again",
    "begin_anew",
    "close_main",
    "decide",
    "decide_as_read",
    "delete",
    "dismiss",
    "halt",
    "heard",
    "kill",
    "open_main",
    "pause",
    "redeliver",
    "remove",
    "resume",
    "send",
    "spoken_verdict",
    "steer",
    "stop",
    "use_model",
    "want_summary",
]
