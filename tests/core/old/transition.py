"""A task while one event works on it: where it may go, and what is written down on the way.

A move along an edge that is not in `EDGES` is a bug and raises. A *move* whose two phases are equal is a note:
a line in the timeline that changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from clutch.core import events as ev
from clutch.core import events as fx
from clutch.core.model import WORKING, Delivery, Outcome, Phase, Task, Wait
from clutch.core.policy import Policy
from clutch.core.text.prompts import is_progress

EDGES: frozenset[tuple[Phase, Phase]] = frozenset(
    {
        (Phase.SPAWNING, Phase.QUEUED),
        (Phase.QUEUED, Phase.RUNNING),
        (Phase.QUEUED, Phase.PAUSED),
        (Phase.RUNNING, Phase.ENDING),
        (Phase.RUNNING, Phase.PAUSED),
        (Phase.RUNNING, Phase.AWAITING_APPROVAL),
        (Phase.RUNNING, Phase.QUEUED),
        (Phase.PAUSED, Phase.QUEUED),
        (Phase.AWAITING_APPROVAL, Phase.QUEUED),
        (Phase.AWAITING_APPROVAL, Phase.ENDING),
        (Phase.ENDING, Phase.RUNNING),
        (Phase.ENDING, Phase.ANNOUNCING),
        (Phase.ENDING, Phase.ANNOUNCE_DEFERRED),
        (Phase.ANNOUNCING, Phase.ANNOUNCE_DEFERRED),
        (Phase.ANNOUNCING, Phase.QUEUED),
        (Phase.ANNOUNCE_DEFERRED, Phase.ANNOUNCING),
        (Phase.ANNOUNCE_DEFERRED, Phase.QUEUED),
        (Phase.CLEANUP_PENDING, Phase.COMPLETED),
        (Phase.CLEANUP_PENDING, Phase.COMPLETED_GIVEUP),
        (Phase.COMPLETED, Phase.QUEUED),
        (Phase.COMPLETED_GIVEUP, Phase.QUEUED),
        (Phase.COMPLETED_GIVEUP, Phase.ANNOUNCING),
        # A result that was given up stands in the transcript: the next model answer delivers it.
        (Phase.COMPLETED_GIVEUP, Phase.CLEANUP_PENDING),
        # A kill ends every phase that has not been told yet; `ending` and `announcing` also get there
        # by being skipped and by being told.
        *((phase, Phase.CLEANUP_PENDING) for phase in WORKING | {Phase.ANNOUNCING}),
    }
)

#: Why a result is not told yet. Not `child-active`: a newer run of the task overtakes what is not told (`superseded`).
DESCENDANTS = "descendants-active"
MISSING = "missing-requester"
BUSY = "requester-busy"
QUIET_HOURS = "quiet-hours"
#: Why a result is never told.
SUPERSEDED = "superseded"


def has_letter(task: Task) -> bool:
    """It has ended, and its requester has still to hear of it."""
    return task.phase is Phase.ANNOUNCING or (
        task.phase is Phase.ANNOUNCE_DEFERRED and task.reason == MISSING
    )


class Move(NamedTuple):
    """A line of the timeline. Generation and outcome are those after the move, so that the log alone gives the row."""

    from_phase: Phase
    to_phase: Phase
    reason: str
    generation: int
    outcome: Outcome | None


class Transition(NamedTuple):
    task: Task
    moves: tuple[Move, ...] = ()
    effects: tuple[fx.Effect, ...] = ()


class Story:
    """A task while one event works on it."""

    def __init__(self, task: Task, at: float, policy: Policy) -> None:
        self.task, self.at, self.policy = task, at, policy
        self.moves: list[Move] = []
        self.effects: list[fx.Effect] = []

    def to(self, phase: Phase, reason: str, **changes: Any) -> None:
        before = self.task
        if (before.phase, phase) not in EDGES:
            raise AssertionError(f"no edge {before.phase} → {phase} (task {before.id}, {reason})")
        changes |= {"phase": phase, "reason": reason, "seq": before.seq + 1}
        self.task = _changed(before, changes)
        self._line(before.phase, phase, reason)

    def note(self, reason: str, **changes: Any) -> None:
        before = self.task
        changes["seq"] = before.seq + 1
        self.task = _changed(before, changes)
        self._line(before.phase, before.phase, reason)

    def _line(self, before: Phase, phase: Phase, reason: str) -> None:
        after = self.task
        self.moves.append(Move(before, phase, reason, after.generation, after.outcome))

    def change(self, **changes: Any) -> None:
        self.task = _changed(self.task, changes)

    def do(self, *effects: fx.Effect) -> None:
        self.effects.extend(effects)

    def trace(self, outcome: Delivery, reason: str, next_at: float | None = None) -> None:
        self.do(fx.Trace(self.task.generation, outcome, reason, next_at))

    def done(self) -> Transition:
        return Transition(self.task, tuple(self.moves), tuple(self.effects))


_PLACES = {name: place for place, name in enumerate(Task._fields)}


def _changed(task: Task, changes: Mapping[str, Any]) -> Task:
    """What `_replace` does, without asking every field whether it is meant."""
    values = list(task)
    for name, value in changes.items():
        values[_PLACES[name]] = value
    return Task._make(values)


# --------------------------------------------------------------------------------------------------
# The run: admitted, started, parked, paused, steered, and the clock that runs only while it works.


def admitted(story: Story) -> None:
    if story.task.phase is Phase.SPAWNING:
        story.to(Phase.QUEUED, "admitted", wake_at=None)
        story.do(fx.Schedule())


def reserved(story: Story, at: float) -> None:
    if story.task.phase is Phase.SPAWNING:
        story.note("reserved", wake_at=at + story.policy.limits.reservation_s)


def started(story: Story, at: float) -> None:
    task = story.task
    match task.phase:
        case Phase.QUEUED:
            start(story, at, "started")
        case Phase.PAUSED if task.reason != Wait.PERSON:
            story.to(Phase.QUEUED, f"no longer waiting: {task.reason}")
            start(story, at, "started")
        case Phase.ENDING:
            start(story, at, "grace cancelled", error=None)
        case Phase.ANNOUNCE_DEFERRED | Phase.AWAITING_APPROVAL if task.reason != MISSING:
            # With what its children told it, also after the wait for them: a plan is written anew then.
            new_generation(story, "children settled")
            start(story, at, "started")


def start(story: Story, at: float, reason: str, **changes: Any) -> None:
    """The run's clock starts, or goes on with what a park left of it."""
    task = story.task
    left = task.timeout_s if task.clock_left_s is None else task.clock_left_s
    deadline = at + left if task.timeout_s else None
    story.to(
        Phase.RUNNING,
        reason,
        deadline_at=deadline,
        clock_left_s=None,
        wake_at=alarm(task, deadline, at, story.policy),
        started_at=task.started_at if task.started_at is not None else at,
        **changes,
    )


def is_past(deadline: float | None, at: float) -> bool:
    """Whether a signal of the run came after its deadline. One at the deadline itself came in time."""
    return deadline is not None and at > deadline


def alarm(task: Task, deadline: float | None, at: float, policy: Policy) -> float | None:
    """The next moment the clock of a run has something to say: wrap up, then the end."""
    if deadline is None:
        return None
    wrap_up = deadline - (1 - policy.life.wrap_up_at) * task.timeout_s
    return wrap_up if wrap_up > at else deadline


def resumed(story: Story, event: ev.Resumed) -> None:
    """The time nobody worked on it does not count against it."""
    if story.task.phase is Phase.RUNNING:
        _give_back(story, event, f"resumed @step {event.step}")


def thawed(story: Story, event: ev.Thawed) -> None:
    """The time in which the process was frozen counts like the time without an owner."""
    if story.task.phase is Phase.RUNNING and story.task.deadline_at is not None:
        _give_back(story, event, f"process was frozen for {event.lost_s:.0f} s")


def _give_back(story: Story, event: ev.Resumed | ev.Thawed, reason: str) -> None:
    task = story.task
    deadline = None if task.deadline_at is None else task.deadline_at + event.lost_s
    rings_at = alarm(task, deadline, event.at, story.policy)
    story.note(reason, deadline_at=deadline, wake_at=rings_at)


def clock_stops(task: Task, at: float) -> dict[str, Any]:
    left = None if task.deadline_at is None else max(0.0, task.deadline_at - at)
    return {"deadline_at": None, "wake_at": None, "clock_left_s": left}


def parked(story: Story, event: ev.Parked) -> None:
    if story.task.phase is Phase.RUNNING:
        story.to(Phase.PAUSED, event.reason, **clock_stops(story.task, event.at))


def yielded(story: Story) -> None:
    """Waiting for children takes no time, and what comes after is a new run with a new clock."""
    if story.task.phase is Phase.RUNNING:
        story.to(Phase.PAUSED, Wait.CHILDREN, deadline_at=None, wake_at=None, clock_left_s=None)
        story.do(fx.Hold())


def paused(story: Story, at: float) -> None:
    if story.task.phase in (Phase.QUEUED, Phase.RUNNING):
        left = story.task.clock_left_s
        stopped = clock_stops(story.task, at)
        if story.task.phase is Phase.QUEUED:
            stopped["clock_left_s"] = left
        story.to(Phase.PAUSED, Wait.PERSON, **stopped)


def unpaused(story: Story) -> None:
    if story.task.phase is Phase.PAUSED and story.task.reason == Wait.PERSON:
        story.to(Phase.QUEUED, "resumed")
    story.do(fx.Schedule())


def steered(story: Story, event: ev.Steered) -> None:
    task = story.task
    match task.phase:
        case Phase.QUEUED | Phase.PAUSED:
            # A parked run would go on without reading it: the next one reads it first, on a new clock.
            story.note("steered: joins what it reads next", clock_left_s=None)
            story.do(fx.Stop("superseded"), fx.Schedule())
        case Phase.RUNNING:
            supersede(story)
        case Phase.ENDING:
            start(story, event.at, "grace cancelled", error=None)
            supersede(story)
        case Phase.ANNOUNCE_DEFERRED if task.reason == DESCENDANTS:
            overtake(story)
            new_generation(story, "steered")
            story.do(fx.Schedule())
        case Phase.ANNOUNCING | Phase.ANNOUNCE_DEFERRED if not event.taken:
            overtake(story)
            new_generation(story, "steered")
            make_room(story)
            story.do(fx.Open(), fx.Schedule())


def overtake(story: Story) -> None:
    """What this generation had to tell will not be told: the next one makes a new result."""
    story.trace(Delivery.SKIPPED, SUPERSEDED)


def make_room(story: Story) -> None:
    """A session that stayed open may be answering somebody."""
    if story.task.stays:
        story.do(fx.Stop("superseded"))


def supersede(story: Story) -> None:
    new_generation(story, "steered")
    story.do(fx.Stop("superseded"), fx.Schedule())


def _said(result: str | None) -> str | None:
    """A note on how far a run came before it was cut is no text of the child and must not become a result."""
    return None if result is None or is_progress(result) else result


def new_generation(story: Story, reason: str, **changes: Any) -> None:
    """A new run will make a new result. What was said before is kept in case it says nothing."""
    task = story.task
    fresh: dict[str, Any] = {
        "generation": task.generation + 1,
        "fallback": _said(task.result) or task.fallback,
        "result": None,
        "outcome": None,
        "error": None,
        "delivery": Delivery.NONE,
        "delivery_reason": "",
        "attempts": 0,
        "wake_at": None,
        "deadline_at": None,
        "clock_left_s": None,
        "ended_at": None,
    }
    story.to(Phase.QUEUED, reason, **(fresh | changes))
