"""Short stories of one task: a fresh row, a few events, and what became of it.

Knows how to bring a task into every phase and one example of every event. It decides nothing: all that
happens to a task here happens through `step`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from clutch.core import events as ev
from clutch.core.events import Effect, Move
from clutch.core.lifecycle import step
from clutch.core.model import Path, Phase, Plan, Reason, SessionId, Task, TaskId
from clutch.core.policy import Policy

POLICY = Policy()


@dataclass(frozen=True, slots=True)
class Story:
    """A task, its whole timeline, and the effects of the last event alone."""

    task: Task
    policy: Policy = POLICY
    moves: tuple[Move, ...] = ()
    effects: tuple[Effect, ...] = ()

    def then(self, *events: ev.Event) -> Story:
        story = self
        for event in events:
            result = step(story.task, event, story.policy)
            story = replace(story, task=result.task, moves=story.moves + result.moves, effects=result.effects)
        return story

    @property
    def phase(self) -> Phase:
        return self.task.phase

    def did(self, kind: type[Effect]) -> bool:
        return any(isinstance(effect, kind) for effect in self.effects)


def new(policy: Policy = POLICY, **contract: Any) -> Story:
    return Story(Task(TaskId(7), SessionId(1), **contract), policy)


def running(policy: Policy = POLICY, **contract: Any) -> Story:
    """Admitted and started at 0."""
    return new(policy, **contract).then(ev.Admitted(0), ev.Started(0))


def announcing(policy: Policy = POLICY, *, text: str = "done", **contract: Any) -> Story:
    """Ended at 2 with a result."""
    return running(policy, **contract).then(ev.Ended(2, text))


def deferred(policy: Policy = POLICY, *, text: str = "so far", **contract: Any) -> Story:
    """Ended at 2 while a child works."""
    return running(policy, **contract).then(ev.Ended(2, text, untold=1))


def drafting(policy: Policy = POLICY, **contract: Any) -> Story:
    return running(policy, plan=Plan.DRAFTING, **contract)


def awaiting(policy: Policy = POLICY, **contract: Any) -> Story:
    """Wrote its plan at 2."""
    return drafting(policy, **contract).then(ev.Ended(2, "the plan"))


def delivered(at: float = 3, generation: int = 1) -> ev.Delivered:
    return ev.Delivered(at, Path.DIRECT, generation)


def refused(at: float = 3, generation: int = 1, *, is_permanent: bool = False) -> ev.DeliveryFailed:
    return ev.DeliveryFailed(at, "model overloaded", generation, is_permanent)


def in_every_phase(policy: Policy = POLICY, **contract: Any) -> dict[str, Story]:
    """One story per phase; `announce_deferred` and `announcing` have two reasons or states each."""
    return {
        "spawning": new(policy, **contract),
        "queued": new(policy, **contract).then(ev.Admitted(0)),
        "running": running(policy, **contract),
        "paused": running(policy, **contract).then(ev.Paused(2)),
        "yielded": running(policy, **contract).then(ev.Yielded(2)),
        "awaiting_approval": awaiting(policy, **contract),
        "ending": running(policy, **contract).then(ev.Failed(2, "boom", "half")),
        "deferred": deferred(policy, **contract),
        "announcing": announcing(policy, **contract),
        "missing": announcing(policy, **contract).then(ev.RequesterGone(3, 1)),
        "cleanup_pending": announcing(policy, **contract | {"has_cleanup": True}).then(delivered()),
        "completed": announcing(policy, **contract).then(delivered()),
        "completed_giveup": announcing(policy, **contract).then(refused(is_permanent=True)),
    }


def every_event(at: float, generation: int = 1) -> tuple[ev.Event, ...]:
    """One example of each, two where a flag decides."""
    return (
        ev.Reserved(at),
        ev.Admitted(at),
        ev.Started(at),
        ev.Resumed(at, lost_s=3, step=2),
        ev.Thawed(at, lost_s=3),
        ev.Parked(at, Reason.QUOTA),
        ev.Yielded(at),
        ev.Ended(at, "new words"),
        ev.Ended(at, "new words", untold=2),
        ev.Ended(at, "ANNOUNCE_SKIP"),
        ev.Failed(at, "boom", "half"),
        ev.Failed(at, "crash loop", "half", is_final=True),
        ev.Killed(at),
        ev.Steered(at),
        ev.Steered(at, taken=True),
        ev.Paused(at),
        ev.Unpaused(at),
        *(ev.Decided(at, verdict, "because") for verdict in ev.PlanVerdict),
        delivered(at, generation),
        refused(at, generation),
        refused(at, generation, is_permanent=True),
        ev.Unconfirmed(at, generation),
        ev.Deferred(at, Reason.BUSY, generation),
        ev.Read(at, generation),
        ev.RequesterGone(at, generation),
        ev.RequesterBack(at),
        ev.RequesterKilled(at, generation),
        ev.Dropped(at),
        ev.SessionEnded(at, "unfocused"),
        ev.Cleaned(at),
        ev.CleanupFailed(at, "busy", failed=1),
        ev.Abandoned(at, Reason.DELETED),
        ev.Orphaned(at),
        ev.Orphaned(at, is_pruned=True),
        ev.Again(at, Reason.RETRY),
        ev.Again(at, Reason.CONTINUE),
        ev.Redelivered(at),
        ev.Dismissed(at),
        ev.Late(at, "old words"),
        ev.Noted(at, "somebody looked"),
        ev.Woke(at, partial="half"),
        ev.Woke(at, is_owned=False),
    )
