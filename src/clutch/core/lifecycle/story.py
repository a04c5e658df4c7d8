"""A task while one event works on it: where it may go, and what is written down on the way.

A move along an edge that is not in `EDGES` is a bug and raises. A *move* whose two phases are equal is a note:
a line in the timeline that changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from clutch.core import effects as fx
from clutch.core.model import WORKING, Delivery, Outcome, Phase, Task
from clutch.core.policy import Policy

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


class Step(NamedTuple):
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
        self.task = after = _changed(before, changes)
        self.moves.append(Move(before.phase, phase, reason, after.generation, after.outcome))

    def note(self, reason: str, **changes: Any) -> None:
        before = self.task
        changes["seq"] = before.seq + 1
        self.task = after = _changed(before, changes)
        self.moves.append(Move(before.phase, before.phase, reason, after.generation, after.outcome))

    def change(self, **changes: Any) -> None:
        self.task = _changed(self.task, changes)

    def do(self, *effects: fx.Effect) -> None:
        self.effects.extend(effects)

    def trace(self, outcome: Delivery, reason: str, next_at: float | None = None) -> None:
        self.do(fx.Trace(self.task.generation, outcome, reason, next_at))

    def done(self) -> Step:
        return Step(self.task, tuple(self.moves), tuple(self.effects))


_PLACES = {name: place for place, name in enumerate(Task._fields)}


def _changed(task: Task, changes: Mapping[str, Any]) -> Task:
    """What `_replace` does, without asking every field whether it is meant."""
    values = list(task)
    for name, value in changes.items():
        values[_PLACES[name]] = value
    return Task._make(values)
