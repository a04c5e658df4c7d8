"""What can happen to a task. Time arrives inside the event; nothing here asks a clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from clutch.core.model import Delivery, Outcome, Path
from clutch.core.reason import Reason


@dataclass(frozen=True, slots=True)
class Admitted:
    """The side work of the spawn is done."""

    at: float


@dataclass(frozen=True, slots=True)
class Reserved:
    """Admitted, and its side work begins: files are being made."""

    at: float


@dataclass(frozen=True, slots=True)
class Started:
    """A run of its session begins, or goes on after a park."""

    at: float


@dataclass(frozen=True, slots=True)
class Resumed:
    """Another owner took over the open run. `lost_s`: how long nobody was working on it."""

    at: float
    lost_s: float
    step: int


@dataclass(frozen=True, slots=True)
class Thawed:
    """The process that works on the run was frozen for `lost_s`, and goes on."""

    at: float
    lost_s: float


@dataclass(frozen=True, slots=True)
class Parked:
    """The run waits for a quota or an answer and holds no slot; it stays open."""

    at: float
    reason: Reason


@dataclass(frozen=True, slots=True)
class Yielded:
    """The run ended because the model wants to sleep until its children have settled."""

    at: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The run came to its natural end. `at`: when the answer arrived, which may be before the commit.

    `untold`: children whose results have not reached the task yet."""

    at: float
    text: str | None
    untold: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """The run ended in a failure that is not retried. `text`: what it had said until then.

    `is_final` skips the grace: nobody will start this again (crash loop, lost, loop guard)."""

    at: float
    error: str
    text: str | None = None
    is_final: bool = False
    outcome: Outcome = Outcome.ERROR


@dataclass(frozen=True, slots=True)
class Killed:
    at: float
    reason: str = "killed"


@dataclass(frozen=True, slots=True)
class Steered:
    """A new instruction supersedes what runs. `taken`: the requester already has the result in its transcript."""

    at: float
    taken: bool = False


@dataclass(frozen=True, slots=True)
class Paused:
    at: float


@dataclass(frozen=True, slots=True)
class Unpaused:
    at: float


class PlanVerdict(StrEnum):
    APPROVE = "approve"
    REVISE = "revise"
    END = "end"


@dataclass(frozen=True, slots=True)
class Decided:
    """The requester or a person decided about the plan."""

    at: float
    verdict: PlanVerdict
    text: str = ""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The model of the requester has answered after reading the letter."""

    at: float
    path: Path
    generation: int


@dataclass(frozen=True, slots=True)
class Deferred:
    """Its requester does not read the letter now: it is in a turn, or asleep until `until`."""

    at: float
    reason: Reason
    generation: int
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """A run of the requester has taken the letter, and its model has not answered yet."""

    at: float
    generation: int


@dataclass(frozen=True, slots=True)
class DeliveryFailed:
    """A run that had taken the letter failed before its model answered."""

    at: float
    error: str
    generation: int
    is_permanent: bool = False


@dataclass(frozen=True, slots=True)
class Unheard:
    """It was sent to a person as it is, and nobody knows whether it arrived. A second send might be one too many."""

    at: float
    generation: int
    why: str = "no answer"  #: which channel, and what happened


@dataclass(frozen=True, slots=True)
class RequesterGone:
    """Nobody up the chain can take the letter now."""

    at: float
    generation: int


@dataclass(frozen=True, slots=True)
class RequesterBack:
    at: float


@dataclass(frozen=True, slots=True)
class RequesterKilled:
    """Whoever asked was killed before taking the letter: nobody is left who wants to hear."""

    at: float
    generation: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """The inbox was over its cap and the policy drops."""

    at: float


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """Session mode is over: unfocused, deleted, idle or old."""

    at: float
    reason: str


@dataclass(frozen=True, slots=True)
class Cleaned:
    at: float


@dataclass(frozen=True, slots=True)
class CleanupFailed:
    """Something could not be removed. `failed`: how often before."""

    at: float
    error: str
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The parent was deleted: a result that it has not received becomes a dead letter."""

    at: float
    reason: Reason


@dataclass(frozen=True, slots=True)
class Orphaned:
    """The row of its session is gone, and with it every way to go on. `is_pruned`: nobody wants to hear of it."""

    at: float
    is_pruned: bool = False


@dataclass(frozen=True, slots=True)
class Again:
    """Retry or continue: a finished task gets a new run."""

    at: float
    how: Reason  #: RETRY or CONTINUE
    is_being_read: bool = False  #: its result stands in a turn of its requester that has not answered yet


@dataclass(frozen=True, slots=True)
class Redelivered:
    at: float


@dataclass(frozen=True, slots=True)
class Dismissed:
    at: float


@dataclass(frozen=True, slots=True)
class Late:
    """A run that has no say any more reported an end. Kept, never acted upon."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Noted:
    """An action that moves nothing leaves a line that says who did what."""

    at: float
    text: str = ""
    reason: Reason = Reason.NOTE


@dataclass(frozen=True, slots=True)
class Woke:
    """The timer of the task is due.

    `is_owned`: a live worker holds its session; without one the run's clock stands still.
    `progress_at`: latest progress of any descendant. `person_waits`: one of them needs a person.
    `partial`: what a run cut at its deadline leaves behind.
    """

    at: float
    is_owned: bool = True
    progress_at: float | None = None
    person_waits: bool = False
    partial: str | None = None


Event = (
    Admitted
    | Reserved
    | Started
    | Resumed
    | Thawed
    | Parked
    | Yielded
    | Ended
    | Failed
    | Killed
    | Steered
    | Paused
    | Unpaused
    | Decided
    | Delivered
    | Deferred
    | Read
    | DeliveryFailed
    | Unheard
    | RequesterGone
    | RequesterBack
    | RequesterKilled
    | Dropped
    | SessionEnded
    | Cleaned
    | CleanupFailed
    | Abandoned
    | Orphaned
    | Again
    | Redelivered
    | Dismissed
    | Late
    | Noted
    | Woke
)


# --------------------------------------------------------------------------------------------------
# What must be done next, in the same transaction as the change that asks for it.


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
    reason: Reason
    next_at: float | None = None


@dataclass(frozen=True, slots=True)
class NotifyUser:
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
class NotifyEnded:
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
    | NotifyUser
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
    | NotifyEnded
    | Cleanup
    | Unmake
)
