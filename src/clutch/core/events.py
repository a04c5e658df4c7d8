"""What can happen to a task. Time arrives inside the event; nothing here asks a clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from clutch.core.model import Outcome, Path


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
class Parked:
    """The run waits for a quota or an answer and holds no slot; it stays open."""

    at: float
    reason: str


@dataclass(frozen=True, slots=True)
class Yielded:
    """The run ended because the model wants to sleep until its children have settled."""

    at: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The run came to its natural end. `untold`: children whose results the task has not heard yet."""

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


class Verdict(StrEnum):
    APPROVE = "approve"
    REVISE = "revise"
    END = "end"


@dataclass(frozen=True, slots=True)
class Decided:
    """The requester or a person decided about the plan."""

    at: float
    verdict: Verdict
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
    reason: str
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
    """Whoever could be told was deleted: what nobody has heard becomes a dead letter."""

    at: float
    reason: str


@dataclass(frozen=True, slots=True)
class Orphaned:
    """The row of its session is gone, and with it every way to go on. `is_pruned`: nobody wants to hear of it."""

    at: float
    is_pruned: bool = False


@dataclass(frozen=True, slots=True)
class Again:
    """Retry or continue: a finished task gets a new run."""

    at: float
    how: str
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
    """Somebody did something that moves nothing: a line that says who and what."""

    at: float
    text: str


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
