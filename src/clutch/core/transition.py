"""One change of a task: the edges between phases, the timeline lines of the change, and its effects.

A move along an edge that is not in `EDGES` is a bug and raises. A *move* whose two phases are equal is a note:
a timeline line that changes no phase."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from clutch.core import events as fx
from clutch.core.model import WORKING, Delivery, Outcome, Phase, Task
from clutch.core.policy import Policy
from clutch.core.reason import Reason

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
        (Phase.PAUSED, Phase.RUNNING),
        (Phase.AWAITING_APPROVAL, Phase.QUEUED),
        (Phase.AWAITING_APPROVAL, Phase.ENDING),
        (Phase.ENDING, Phase.RUNNING),
        (Phase.ENDING, Phase.QUEUED),
        (Phase.ENDING, Phase.ANNOUNCING),
        (Phase.ENDING, Phase.ANNOUNCE_DEFERRED),
        (Phase.ANNOUNCING, Phase.ANNOUNCE_DEFERRED),
        (Phase.ANNOUNCING, Phase.QUEUED),
        (Phase.ANNOUNCE_DEFERRED, Phase.ANNOUNCING),
        (Phase.ANNOUNCE_DEFERRED, Phase.QUEUED),
        (Phase.ANNOUNCE_DEFERRED, Phase.RUNNING),
        (Phase.CLEANUP_PENDING, Phase.COMPLETED),
        (Phase.CLEANUP_PENDING, Phase.COMPLETED_GIVEUP),
        (Phase.COMPLETED, Phase.QUEUED),
        (Phase.COMPLETED_GIVEUP, Phase.QUEUED),
        (Phase.COMPLETED_GIVEUP, Phase.ANNOUNCING),
        # A result that was given up stands in the transcript: the next model answer delivers it.
        (Phase.COMPLETED_GIVEUP, Phase.CLEANUP_PENDING),
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
    effects: tuple[fx.Effect, ...] = ()


class Story:
    """A task while one event is applied to it: the task so far, its timeline lines and effects."""

    def __init__(self, task: Task, at: float, policy: Policy) -> None:
        self.task, self.at, self.policy = task, at, policy
        self.moves: list[Move] = []
        self.effects: list[fx.Effect] = []

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

    def do(self, *effects: fx.Effect) -> None:
        self.effects.extend(effects)

    def trace(self, outcome: Delivery, reason: Reason, next_at: float | None = None) -> None:
        self.do(fx.Trace(self.task.generation, outcome, reason, next_at))

    def done(self) -> Transition:
        return Transition(self.task, tuple(self.moves), tuple(self.effects))


_PLACES = {name: place for place, name in enumerate(Task._fields)}


def _changed(task: Task, changes: Mapping[str, Any]) -> Task:
    """Do what `_replace` does. It is called several times per event, and `_replace` looks up every field by name."""
    values = list(task)
    for name, value in changes.items():
        values[_PLACES[name]] = value
    return Task._make(values)
