"""What must be done next, in the same transaction as the change that asks for it."""

from __future__ import annotations

from dataclasses import dataclass

from clutch.core.model import Delivery


@dataclass(frozen=True, slots=True)
class Announce:
    """Put a letter into the requester's inbox. A silent one wakes nobody but a parent that waits for all."""

    generation: int
    silent: bool = False


@dataclass(frozen=True, slots=True)
class GiveBack:
    """The letter waits until then for another try; it is not appended to the transcript again."""

    generation: int
    ready_at: float


@dataclass(frozen=True, slots=True)
class Bury:
    """The letter becomes a dead letter: kept, listed, can be redelivered."""

    generation: int


@dataclass(frozen=True, slots=True)
class Trace:
    """A line in the trace of telling: what was decided about a generation without an attempt to tell it.

    `next_at`: when that may change by itself."""

    generation: int
    outcome: Delivery
    reason: str
    next_at: float | None = None


@dataclass(frozen=True, slots=True)
class TellPerson:
    """One line to the person's channel: a result could not be told."""

    reason: str


@dataclass(frozen=True, slots=True)
class Redrive:
    """A dead letter goes back into the inbox, as if new."""

    generation: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End the open run of the task's session: its owner's fence is broken, what it took is given back."""

    reason: str


@dataclass(frozen=True, slots=True)
class Hold:
    """The session sleeps until its children have settled."""


@dataclass(frozen=True, slots=True)
class Close:
    """The session takes no more letters and spawns no more; what waits in its inbox moves one level up."""


@dataclass(frozen=True, slots=True)
class Stay:
    """The task has ended and its session has not: it waits for nobody, and goes on when somebody writes to it."""


@dataclass(frozen=True, slots=True)
class Unbind:
    """Its thread, if it has one, is nobody's. (After an end in order the reply to its result is posted there first.)"""


@dataclass(frozen=True, slots=True)
class Open:
    """The session lives again."""

    keep_transcript: bool = True


@dataclass(frozen=True, slots=True)
class Schedule:
    """Recompute when the session is due."""


@dataclass(frozen=True, slots=True)
class WrapUp:
    """Tell the running model that its time is nearly over."""

    left_s: float


@dataclass(frozen=True, slots=True)
class KillChildren:
    """`onParentEnd` says the children must not outlive this end."""

    reason: str


@dataclass(frozen=True, slots=True)
class AskApproval:
    """Tell the requester that a plan awaits its decision."""

    generation: int


@dataclass(frozen=True, slots=True)
class Unmake:
    """The spawn did not come about: the task and its session go as if they had never been."""

    reason: str


@dataclass(frozen=True, slots=True)
class TellEnded:
    """Tell the hooks, once for each generation."""

    reason: str


@dataclass(frozen=True, slots=True)
class Cleanup:
    """Remove files and fire hooks outside the transaction, then say `Cleaned`."""


Effect = (
    Announce
    | GiveBack
    | Bury
    | Trace
    | TellPerson
    | Redrive
    | Stop
    | Hold
    | Close
    | Stay
    | Unbind
    | Open
    | Schedule
    | WrapUp
    | KillChildren
    | AskApproval
    | TellEnded
    | Cleanup
    | Unmake
)
