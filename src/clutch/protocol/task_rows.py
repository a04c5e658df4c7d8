"""A task as its row, and its moves as lines of the timeline. Nothing is decided here."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from itertools import compress
from operator import is_not
from typing import Any

from clutch.core.lifecycle import Move
from clutch.core.model import Delivery, Outcome, Phase, Plan, Task
from clutch.store.door import Row

COLUMNS = (
    "id, requester_id, timeout_s, expects_completion, has_cleanup, seq, phase, reason, generation, outcome, error,"
    " result, fallback, delivery, delivery_reason, attempts, plan, plan_round, wake_at, deadline_at, clock_left_s,"
    " started_at, ended_at, stays"
)
_CONTRACT = 5  # the columns that are fixed at spawn
SIZE = len(Task._fields)
INSERT_EVENT = (
    "INSERT INTO events(task_id, seq, at, actor, from_phase, to_phase, reason, generation, outcome)"
    " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


# Looked up, not called: calling an enum costs ten times as much.
_PHASES = {phase.value: phase for phase in Phase}
_OUTCOMES = {None if outcome is None else outcome.value: outcome for outcome in (None, *Outcome)}
_DELIVERIES = {delivery.value: delivery for delivery in Delivery}
_PLANS = {plan.value: plan for plan in Plan}


def from_row(row: Sequence[Any]) -> Task:
    (
        task_id, requester_id, timeout_s, expects_completion, has_cleanup, seq, phase, reason, generation, outcome,
        error, result, fallback, delivery, delivery_reason, attempts, plan, plan_round, wake_at,
        deadline_at, clock_left_s, started_at, ended_at, stays,
    ) = row  # fmt: skip
    return Task(
        task_id, requester_id, timeout_s, bool(expects_completion), bool(has_cleanup), seq, _PHASES[phase], reason,
        generation, _OUTCOMES[outcome], error, result, fallback, _DELIVERIES[delivery], delivery_reason, attempts,
        _PLANS[plan], plan_round, wake_at, deadline_at, clock_left_s, started_at, ended_at, bool(stays),
    )  # fmt: skip


def to_row(task: Task) -> Row:
    """In the order of COLUMNS, which is that of the fields."""
    return (
        task.id, task.requester_id, task.timeout_s, int(task.expects_completion), int(task.has_cleanup),
        *task[_CONTRACT:],
    )  # fmt: skip


def update(before: Task, task: Task, evidence: str | None) -> tuple[str, Row]:
    """Only what is new: most of a row stays as it is, and with it most of its indexes."""
    is_new = list(map(is_not, before, task))
    names, row = tuple(compress(Task._fields, is_new)), list(compress(task, is_new))
    if task.result is not before.result:
        names, row = (*names, "result_sha"), [*row, result_sha(task)]
    if evidence is not None:
        names, row = (*names, "evidence"), [*row, evidence]
    return _update_text(names), (*row, task.id)


@cache  # a handful: one for every way a step can change a task
def _update_text(names: tuple[str, ...]) -> str:
    return f"UPDATE tasks SET {', '.join(f'{name} = ?' for name in names)} WHERE id = ?"  # noqa: S608 (our own names)


def event_rows(now: float, before: Task, moves: Sequence[Move], actor: str) -> list[Row]:
    return [
        (
            before.id, before.seq + number, now, actor, move.from_phase, move.to_phase, move.reason, move.generation,
            move.outcome,
        )
        for number, move in enumerate(moves, start=1)
    ]  # fmt: skip


def result_sha(task: Task) -> str | None:
    return None if task.result is None else hashlib.sha256(task.result.encode()).hexdigest()
