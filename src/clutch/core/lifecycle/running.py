"""The run: admitted, started, parked, paused, steered, and the clock that runs only while it works."""

from __future__ import annotations

from typing import Any

from clutch.core import effects as fx
from clutch.core import events as ev
from clutch.core.lifecycle.story import DESCENDANTS, MISSING, SUPERSEDED, Story
from clutch.core.model import Delivery, Phase, Task, Wait
from clutch.core.policy import Policy
from clutch.core.wording.prompts import is_progress


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


def alarm(task: Task, deadline: float | None, at: float, policy: Policy) -> float | None:
    """The next moment the clock of a run has something to say: wrap up, then the end."""
    if deadline is None:
        return None
    wrap_up = deadline - (1 - policy.life.wrap_up_at) * task.timeout_s
    return wrap_up if wrap_up > at else deadline


def resumed(story: Story, event: ev.Resumed) -> None:
    """The time nobody worked on it does not count against it."""
    task = story.task
    if task.phase is Phase.RUNNING:
        deadline = None if task.deadline_at is None else task.deadline_at + event.lost_s
        rings_at = alarm(task, deadline, event.at, story.policy)
        story.note(f"resumed @step {event.step}", deadline_at=deadline, wake_at=rings_at)


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
