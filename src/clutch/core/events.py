"""The events of a task, the effects of a step, and one change of a task with its timeline lines.

The time of an event is part of it: no clock is read here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from clutch.core.model import WORKING, Delivery, Outcome, Path, Phase, Reason, Task
from clutch.core.policy import Policy


@dataclass(frozen=True, slots=True)
class Admitted:
    """The files, thread or workspace of the spawn are ready, or it needs none."""

    at: float


@dataclass(frozen=True, slots=True)
class Reserved:
    """The spawn is accepted, and its files, thread or workspace are being created."""

    at: float


@dataclass(frozen=True, slots=True)
class Started:
    """A run of its session begins, or resumes after a park."""

    at: float


@dataclass(frozen=True, slots=True)
class Resumed:
    """Another worker took over the open run. `lost_s`: how long the run had no owner."""

    at: float
    lost_s: float
    step: int


@dataclass(frozen=True, slots=True)
class Thawed:
    """The process of the run was frozen for `lost_s`, and continues."""

    at: float
    lost_s: float


@dataclass(frozen=True, slots=True)
class Parked:
    """The run waits for a quota or an answer and holds no slot; it stays open."""

    at: float
    reason: Reason


@dataclass(frozen=True, slots=True)
class Yielded:
    """The run ended because the model waits for its children to finish."""

    at: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The run came to its natural end. `at`: when the answer arrived, which may be before the commit.

    `untold`: children whose results have not been delivered to the task yet."""

    at: float
    text: str | None
    untold: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """The run ended in a failure that is not retried. `text`: its text until then.

    `is_final` skips the grace period: a new start cannot help (crash loop, lost, loop guard)."""

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
    """A new instruction replaces the work. `taken`: the result stands in the parent's transcript already."""

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
    """The parent agent or the user decided about the plan."""

    at: float
    verdict: PlanVerdict
    text: str = ""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The parent's model has answered a request that contains the letter."""

    at: float
    path: Path
    generation: int


@dataclass(frozen=True, slots=True)
class Deferred:
    """The parent does not read the letter now: it is in a turn, or in quiet hours until `until`."""

    at: float
    reason: Reason
    generation: int
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """A run of the parent has taken the letter, and its model has not answered yet."""

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
class Unconfirmed:
    """The result was sent to a channel, and its arrival is not known. A second send could deliver it twice."""

    at: float
    generation: int
    why: str = "no answer"  #: which channel, and what happened


@dataclass(frozen=True, slots=True)
class RequesterGone:
    """No session above the task can take the letter now."""

    at: float
    generation: int


@dataclass(frozen=True, slots=True)
class RequesterBack:
    at: float


@dataclass(frozen=True, slots=True)
class RequesterKilled:
    """The parent was killed before it took the letter: the result has no receiver."""

    at: float
    generation: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """The inbox is over its cap, and the policy drops letters."""

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
    """Files could not be removed. `failed`: the number of earlier failures."""

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
    """The row of its session is gone, so it cannot resume. `is_pruned`: its result is not delivered."""

    at: float
    is_pruned: bool = False


@dataclass(frozen=True, slots=True)
class Again:
    """Retry or continue: a finished task gets a new run."""

    at: float
    how: Reason  #: RETRY or CONTINUE
    is_being_read: bool = False  #: its result stands in a turn of its parent that has not answered yet


@dataclass(frozen=True, slots=True)
class Redelivered:
    at: float


@dataclass(frozen=True, slots=True)
class Dismissed:
    at: float


@dataclass(frozen=True, slots=True)
class Late:
    """A run that was superseded or killed reported an end. Its text is kept and changes nothing."""

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
    `progress_at`: latest progress of any descendant. `person_waits`: one of them needs the user.
    `partial`: the text of a run that is cut at its deadline.
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
    | Unconfirmed
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
# Effects: what the caller writes in the same transaction as the change.


@dataclass(frozen=True, slots=True)
class Announce:
    """Post a letter to the parent's inbox. A silent one wakes only a parent that waits for all its children."""

    generation: int
    silent: bool = False


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Retry the delivery of the letter then. It is not appended to the transcript again."""

    generation: int
    ready_at: float


@dataclass(frozen=True, slots=True)
class Bury:
    """Make the letter a dead letter: it is kept, listed and can be redelivered."""

    generation: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Record a decision about the delivery of a generation that is no attempt: deferred, or skipped.

    `next_at`: when the deferral may end by itself."""

    generation: int
    outcome: Delivery
    reason: Reason
    next_at: float | None = None


@dataclass(frozen=True, slots=True)
class NotifyUser:
    """Send one line to the user's channel: a result could not be delivered."""

    reason: str


@dataclass(frozen=True, slots=True)
class Redrive:
    """Put a dead letter back into the inbox, as if it were new."""

    generation: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End the open run of the task's session: its owner's fence is broken, and the letters it took are open again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold the session until its children have finished."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close the session: it takes no letters and spawns no children; its open letters move to its parent."""


@dataclass(frozen=True, slots=True)
class Stay:
    """Keep the session open after the end of its task: it resumes when a message arrives."""


@dataclass(frozen=True, slots=True)
class Unbind:
    """Release the thread of the session, if it has one. (After a normal end the reply is posted there first.)"""


@dataclass(frozen=True, slots=True)
class Open:
    """Open the session again."""

    keep_transcript: bool = True


@dataclass(frozen=True, slots=True)
class Schedule:
    """Recompute when the session is due."""


@dataclass(frozen=True, slots=True)
class WrapUp:
    """Send the running model a note that its time is nearly over."""

    left_s: float


@dataclass(frozen=True, slots=True)
class KillChildren:
    """Kill the children: `onParentEnd` says that they must not outlive this end."""

    reason: str


@dataclass(frozen=True, slots=True)
class AskApproval:
    """Ask the parent for a decision about the plan."""

    generation: int


@dataclass(frozen=True, slots=True)
class Unmake:
    """Undo the spawn: remove the task and its session."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotifyEnded:
    """Notify the hooks, once for each generation."""

    reason: str


@dataclass(frozen=True, slots=True)
class Cleanup:
    """Remove files outside the transaction, then record `Cleaned`."""


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


# --------------------------------------------------------------------------------------------------
# One change of a task: the edges between phases, the timeline lines of the change, and its effects
#
# A move along an edge that is not in `EDGES` is a bug and raises. A *move* whose two phases are equal is a note: a
# timeline line that changes no phase.


_AFTER: Mapping[Phase, tuple[Phase, ...]] = {
    Phase.SPAWNING: (Phase.QUEUED,),
    Phase.QUEUED: (Phase.RUNNING, Phase.PAUSED, Phase.ENDING),
    Phase.RUNNING: (Phase.ENDING, Phase.PAUSED, Phase.AWAITING_APPROVAL, Phase.QUEUED),
    Phase.PAUSED: (Phase.QUEUED, Phase.RUNNING, Phase.ENDING),
    Phase.AWAITING_APPROVAL: (Phase.QUEUED, Phase.RUNNING, Phase.ENDING),
    Phase.ENDING: (
        Phase.RUNNING, Phase.QUEUED, Phase.AWAITING_APPROVAL, Phase.ANNOUNCING, Phase.ANNOUNCE_DEFERRED,
    ),
    Phase.ANNOUNCING: (Phase.ANNOUNCE_DEFERRED, Phase.QUEUED),
    Phase.ANNOUNCE_DEFERRED: (Phase.ANNOUNCING, Phase.QUEUED, Phase.RUNNING, Phase.AWAITING_APPROVAL),
    Phase.CLEANUP_PENDING: (Phase.COMPLETED, Phase.COMPLETED_GIVEUP),
    Phase.COMPLETED: (Phase.QUEUED,),
    # A result that was given up stands in the transcript: the next model answer delivers it.
    Phase.COMPLETED_GIVEUP: (Phase.QUEUED, Phase.ANNOUNCING, Phase.CLEANUP_PENDING),
}  # fmt: skip
EDGES: frozenset[tuple[Phase, Phase]] = frozenset(
    {
        *((before, after) for before, phases in _AFTER.items() for after in phases),
        # A kill ends every phase before delivery. `ending` also gets here when its result is skipped, `announcing`
        # when its result is delivered or given up.
        *((phase, Phase.CLEANUP_PENDING) for phase in WORKING | {Phase.ANNOUNCING}),
    }
)


class Move(NamedTuple):
    """A timeline line. Generation and outcome are those after the move, so that the timeline alone gives the row."""

    from_phase: Phase
    to_phase: Phase
    reason: Reason
    generation: int
    outcome: Outcome | None
    detail: str = ""


class Transition(NamedTuple):
    task: Task
    moves: tuple[Move, ...] = ()
    effects: tuple[Effect, ...] = ()


class Story:
    """A task while one event is applied to it: the task so far, its timeline lines and effects."""

    def __init__(self, task: Task, at: float, policy: Policy) -> None:
        self.task, self.at, self.policy = task, at, policy
        self.moves: list[Move] = []
        self.effects: list[Effect] = []

    def to(self, phase: Phase, reason: Reason, detail: str = "", **changes: Any) -> None:
        before = self.task
        if (before.phase, phase) not in EDGES:
            raise AssertionError(f"no edge {before.phase} → {phase} (task {before.id}, {reason})")
        changes |= {"phase": phase, "reason": reason, "detail": detail, "seq": before.seq + 1}
        self.task = _changed(before, changes)
        self._line(before.phase, reason, detail)

    def note(self, reason: Reason, detail: str = "", **changes: Any) -> None:
        before = self.task
        changes["seq"] = before.seq + 1
        self.task = _changed(before, changes)
        self._line(before.phase, reason, detail)

    def _line(self, before: Phase, reason: Reason, detail: str) -> None:
        after = self.task
        self.moves.append(Move(before, after.phase, reason, after.generation, after.outcome, detail))

    def change(self, **changes: Any) -> None:
        self.task = _changed(self.task, changes)

    def do(self, *effects: Effect) -> None:
        self.effects.extend(effects)

    def trace(self, outcome: Delivery, reason: Reason, next_at: float | None = None) -> None:
        self.do(Trace(self.task.generation, outcome, reason, next_at))

    def done(self) -> Transition:
        return Transition(self.task, tuple(self.moves), tuple(self.effects))


_PLACES = {name: place for place, name in enumerate(Task._fields)}


def _changed(task: Task, changes: Mapping[str, Any]) -> Task:
    """Do what `_replace` does. It is called several times per event, and `_replace` looks up every field by name."""
    values = list(task)
    for name, value in changes.items():
        values[_PLACES[name]] = value
    return Task._make(values)
