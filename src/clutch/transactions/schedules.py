"""Schedules: their rows, the step that decides the slots that are due, and the history of slots.

A slot is decided in the transaction that spawns its task: the row is locked, its cursor moves on, and the key of the
task names the slot. So a slot has one run at most, however many workers look at it, and a process that dies here
decided nothing.
Transactions that spawn run alone: they may kill the previous run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from typing import NamedTuple

from clutch.core import schedule as rules
from clutch.core.budget import BudgetKind
from clutch.core.ids import task_id as shown_id
from clutch.core.policy import Policy
from clutch.core.schedule import Overlap, ScheduleSpec, ScheduleState, ScheduleStep, SkipReason, SlotRange
from clutch.core.spawn import SpawnRefusal
from clutch.errors import InvalidInput, NotFound
from clutch.store.transaction import HINT, Row, Tx
from clutch.transactions import control, usage
from clutch.transactions.conditions import IS_WORKING
from clutch.transactions.sessions import NewMain
from clutch.transactions.spawn import Accepted, ChildRequest, spawn

SLOTS_KEPT = 100  # of a schedule: a month of nights, or the last hour and a half of minutes
SCHEDULES_MAX = 1000  # each costs a row that every worker looks at
DUE_MAX = 50  # schedules of one look; the next look finds the rest
REFUSAL_CHARS_MAX = 500
ACTOR = "schedule"


class ScheduleOwner(StrEnum):
    USER = "user"
    CONFIG = "config"


class SlotState(StrEnum):
    STARTED = "started"
    SKIPPED = "skipped"
    MANUAL = "manual"  #: a run beside the slots


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    id: int
    schedule: ScheduleSpec
    owner: ScheduleOwner
    state: ScheduleState
    paused: bool
    next_at: float | None
    task_id: int | None
    budget: str
    created_at: float

    @property
    def name(self) -> str:
        return self.schedule.name

    def next_times(self, now: float) -> list[str]:
        """In the zone of the schedule. Without those that are decided: the clock may have been set back."""
        if self.next_at is None:
            return []
        return rules.next_times(self.schedule, max(now, self.state.cursor + self.schedule.delay_s))


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """One slot or several. `outcome`: of its task, while that is kept."""

    at: float
    slots: SlotRange
    state: SlotState
    reason: str
    detail: str
    task_id: int | None
    phase: str | None
    outcome: str | None


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """What a run would be, made before the transaction. `spec`: of the schedule it was made from, so that a schedule
    that changed meanwhile is looked at again."""

    schedule_id: int
    spec: str
    main: NewMain
    order: ChildRequest | SpawnRefusal


class ScheduleStepped(NamedTuple):
    """What a step came to. `answer` is None when no run was started or refused."""

    name: str
    answer: Accepted | SpawnRefusal | None
    skipped: tuple[tuple[SlotRange, SkipReason], ...]


_COLUMNS = "id, spec, source, cursor, queue, runs, resumed_at, paused, next_at, task_id, budget, created_at"


def _stored(row: Row) -> StoredSchedule:
    number, spec, owner, cursor, queue, runs, resumed_at, paused, next_at, task_id, budget, created_at = row
    state = ScheduleState(cursor, tuple(json.loads(queue)), runs, resumed_at)
    return StoredSchedule(
        number,
        rules.load(spec),
        ScheduleOwner(owner),
        state,
        bool(paused),
        next_at,
        task_id,
        budget,
        created_at,
    )


# ---- reading -----------------------------------------------------------------------------------------


def listed(now: float) -> Tx[list[StoredSchedule]]:
    del now
    return [_stored(row) for row in (yield f"SELECT {_COLUMNS} FROM schedules ORDER BY name", ())]  # noqa: S608


def find(now: float, name: str) -> Tx[StoredSchedule]:
    """Raises NotFound."""
    del now
    rows = yield f"SELECT {_COLUMNS} FROM schedules WHERE name = ?", (name,)  # noqa: S608 (constant columns)
    if not rows:
        raise NotFound(f"there is no schedule {name[:64]!r}; `clutch schedule list` shows all")
    return _stored(rows[0])


def due(now: float) -> Tx[list[StoredSchedule]]:
    """Those whose next slot has come. One whose time zone this machine does not know is left to another gateway."""
    rows = yield (
        f"SELECT {_COLUMNS} FROM schedules WHERE next_at <= ? ORDER BY next_at, id LIMIT ?",  # noqa: S608 (as above)
        (now, DUE_MAX),
    )
    found = []
    for row in rows:
        with suppress(InvalidInput):
            found.append(_stored(row))
    return found


def history(now: float, schedule_id: int, limit: int = SLOTS_KEPT) -> Tx[list[SlotRecord]]:
    """The newest first."""
    del now
    rows = yield (
        "SELECT h.at, h.first_slot, h.last_slot, h.slots, h.state, h.reason, h.detail, h.task_id, t.phase, t.outcome"
        " FROM schedule_slots h LEFT JOIN tasks t ON t.id = h.task_id WHERE h.schedule_id = ?"
        " ORDER BY h.seq DESC LIMIT ?",
        (schedule_id, limit),
    )
    return [SlotRecord(row[0], SlotRange(*row[1:4]), SlotState(row[4]), *row[5:]) for row in rows]


#: Before a look at what there is: gateways that start together add the same schedules.
_ONE_AT_A_TIME = "SELECT value FROM counters WHERE name = 'process' {lock}"


# ---- what users change -------------------------------------------------------------------------------


def add(
    now: float, schedule_id: int, schedule: ScheduleSpec, owner: ScheduleOwner = ScheduleOwner.USER
) -> Tx[StoredSchedule]:
    """Alone. The same schedule again is the one that exists. Raises InvalidInput for another one of its name."""
    yield _ONE_AT_A_TIME, ()
    rows = yield "SELECT COUNT(*) FROM schedules", ()
    known = yield f"SELECT {_COLUMNS} FROM schedules WHERE name = ?", (schedule.name,)  # noqa: S608 (as above)
    if known and (found := _stored(known[0])).schedule == schedule:
        return found
    if known:
        raise InvalidInput(
            "name", f"there is another schedule {schedule.name!r}; remove it first or choose another name"
        )
    if rows[0][0] >= SCHEDULES_MAX:
        raise InvalidInput(
            "name", f"there are {SCHEDULES_MAX} schedules, the most that are allowed; remove one"
        )
    next_at = rules.first_at(schedule, math.floor(now))
    if next_at is None:
        raise InvalidInput("at", f"{schedule.at} is in the past")
    budget = yield from _budget(schedule_id, schedule)
    yield (
        "INSERT INTO schedules(id, name, spec, source, cursor, queue, runs, resumed_at, paused, next_at, task_id,"
        " budget, created_at) VALUES(?, ?, ?, ?, ?, '[]', 0, 0, 0, ?, NULL, ?, ?)",
        (
            schedule_id, schedule.name, rules.dump(schedule), owner.value, math.floor(now), next_at, budget, now,
        ),
    )  # fmt: skip
    yield HINT, ("due", next_at)
    return (yield from find(now, schedule.name))


def _budget(schedule_id: int, schedule: ScheduleSpec) -> Tx[str]:
    """The budget of all runs together: each run draws on it, so that catching up cannot exceed it."""
    if schedule.total_tokens is None and schedule.total_usd is None:
        return ""
    limits = (schedule.total_tokens, None if schedule.total_usd is None else Decimal(schedule.total_usd))
    return (yield from usage.open_budget(BudgetKind.SCHEDULE, schedule_id, *limits))


def pause(now: float, name: str) -> Tx[StoredSchedule]:
    """Slots that pass from now on are skipped; a run that works continues."""
    yield "UPDATE schedules SET paused = 1, next_at = NULL WHERE name = ?", (name,)
    return (yield from find(now, name))


def resume(now: float, name: str) -> Tx[StoredSchedule]:
    yield (
        "UPDATE schedules SET paused = 0, resumed_at = ?, next_at = ? WHERE name = ? AND paused = 1",
        (math.floor(now), now, name),
    )
    yield HINT, ("due", now)
    return (yield from find(now, name))


def remove(now: float, name: str) -> Tx[StoredSchedule]:
    """Its runs and their budget stay. Raises InvalidInput for one of the config."""
    found = yield from find(now, name)
    if found.owner is ScheduleOwner.CONFIG:
        raise InvalidInput(
            "name", f"{name!r} belongs to the config; remove it from `schedules` there, or pause it"
        )
    yield from _forget(found.id)
    return found


def _forget(schedule_id: int) -> Tx[None]:
    yield "DELETE FROM schedule_slots WHERE schedule_id = ?", (schedule_id,)
    yield "DELETE FROM schedules WHERE id = ?", (schedule_id,)


def configure(now: float, wanted: Sequence[tuple[int, ScheduleSpec]]) -> Tx[None]:
    """Make the schedules of the config those that are wanted, each with an id in case it is new. Alone.

    One that changes keeps its pause and its runs, and begins with the slots after now."""
    yield _ONE_AT_A_TIME, ()
    names = {schedule.name for _, schedule in wanted}
    known = {one.name: one for one in (yield from listed(now))}
    for one in known.values():
        if one.owner is ScheduleOwner.CONFIG and one.name not in names:
            yield from _forget(one.id)
    for number, schedule in wanted:
        old = known.get(schedule.name)
        if old is None:
            yield from _configured(now, number, schedule)
        elif old.schedule != schedule or old.owner is not ScheduleOwner.CONFIG:
            yield from _changed(now, old, schedule)


def _configured(now: float, number: int, schedule: ScheduleSpec) -> Tx[None]:
    if rules.first_at(schedule, math.floor(now)) is not None:  # a moment of the past stays in a file for long
        yield from add(now, number, schedule, ScheduleOwner.CONFIG)


def _changed(now: float, old: StoredSchedule, schedule: ScheduleSpec) -> Tx[None]:
    next_at = None if old.paused else rules.first_at(schedule, math.floor(now))
    budget = yield from _budget(old.id, schedule)
    if budget and old.budget:
        yield from usage.set_limit(budget, schedule.total_tokens, schedule.total_usd)
    yield (
        "UPDATE schedules SET spec = ?, source = 'config', cursor = ?, queue = '[]', next_at = ?, budget = ?"
        " WHERE id = ?",
        (rules.dump(schedule), math.floor(now), next_at, budget, old.id),
    )
    yield HINT, ("due", next_at or now)


# ---- runs --------------------------------------------------------------------------------------------


def run_due(now: float, policy: Policy, planned: PlannedRun, nonce: str) -> Tx[ScheduleStepped | None]:
    """Decide the slots that are due. Alone. None: another worker did, or the schedule has changed."""
    found = yield from _locked(planned)
    if found is None or found.next_at is None or found.next_at > now:
        return None
    done = rules.step(found.schedule, found.state, now, is_busy=(yield from _is_busy(found)))
    for piece in done.skipped:
        yield from _record(now, found.id, piece.slots, SlotState.SKIPPED, reason=piece.reason)
    skipped = tuple((piece.slots, piece.reason) for piece in done.skipped)
    if done.start is None:
        yield from _save(found, done)
        return ScheduleStepped(found.name, None, skipped)
    slot = SlotRange(done.start, done.start, 1)
    key = rules.slot_key(found.name, found.id, done.start)
    replaced = found.task_id if done.replaces else None
    answer = yield from _spawned(now, policy, found, planned, key, replaced=replaced, nonce=nonce)
    if isinstance(answer, SpawnRefusal):
        done = replace(done, state=replace(done.state, runs=found.state.runs))
        detail = answer.error[:REFUSAL_CHARS_MAX]
        yield from _record(now, found.id, slot, SlotState.SKIPPED, reason=SkipReason.REFUSED, detail=detail)
        yield from _save(found, done)
        return ScheduleStepped(found.name, answer, (*skipped, (slot, SkipReason.REFUSED)))
    yield from _record(now, found.id, slot, SlotState.STARTED, task_id=answer.task_id)
    yield from _save(replace(found, task_id=answer.task_id), done)
    return ScheduleStepped(found.name, answer, skipped)


def run_now(now: float, policy: Policy, planned: PlannedRun, nonce: str) -> Tx[ScheduleStepped | None]:
    """A run beside the slots. Alone. None: the schedule has changed. Raises NotPossible while the last run works."""
    found = yield from _locked(planned)
    if found is None:
        return None
    replaced = found.task_id if (yield from _is_busy(found)) else None
    if replaced is not None and found.schedule.overlap is not Overlap.REPLACE:
        raise control.NotPossible(
            f"the last run of {found.name} has not ended: wait for {shown_id(replaced)}, or kill it"
        )
    key = rules.manual_key(found.name, found.id, nonce)
    answer = yield from _spawned(now, policy, found, planned, key, replaced=replaced, nonce=nonce)
    if isinstance(answer, Accepted):
        here = SlotRange(math.floor(now), math.floor(now), 1)
        yield from _record(now, found.id, here, SlotState.MANUAL, task_id=answer.task_id)
        yield "UPDATE schedules SET task_id = ?, runs = runs + 1 WHERE id = ?", (answer.task_id, found.id)
    return ScheduleStepped(found.name, answer, ())


def _locked(planned: PlannedRun) -> Tx[StoredSchedule | None]:
    rows = yield (
        f"SELECT {_COLUMNS} FROM schedules WHERE id = ? AND spec = ? {{lock}}",  # noqa: S608 (constant columns)
        (planned.schedule_id, planned.spec),
    )
    return _stored(rows[0]) if rows else None


def _is_busy(found: StoredSchedule) -> Tx[bool]:
    if found.task_id is None:
        return False
    rows = yield f"SELECT 1 FROM tasks WHERE id = ? AND {IS_WORKING}", (found.task_id,)  # noqa: S608 (constant)
    return bool(rows)


def _spawned(
    now: float,
    policy: Policy,
    found: StoredSchedule,
    planned: PlannedRun,
    key: str,
    *,
    replaced: int | None,
    nonce: str,
) -> Tx[Accepted | SpawnRefusal]:
    """`replaced`: the run that is killed for it, with its parent locked before it; not for one that is no order."""
    if isinstance(planned.order, SpawnRefusal):
        return planned.order
    root = yield from usage.open_root(now, policy, planned.main)
    yield from control.open_main(now, policy, root)
    if replaced is not None:
        why = f"replaced by the next run of {found.name}"
        yield from control.kill(now, policy, replaced, why, ACTOR, nonce=nonce)
    order = replace(planned.order, idem=key)
    (answer,) = yield from spawn(now, policy, root, root, [order], budgets=found.budget)
    return answer


def _save(found: StoredSchedule, done: ScheduleStep) -> Tx[None]:
    state = done.state
    yield (
        "UPDATE schedules SET cursor = ?, queue = ?, runs = ?, next_at = ?, task_id = ? WHERE id = ?",
        (state.cursor, json.dumps(state.queue), state.runs, done.next_at, found.task_id, found.id),
    )
    if done.next_at is not None:
        yield HINT, ("due", done.next_at)


def _record(
    now: float,
    schedule_id: int,
    slots: SlotRange,
    state: SlotState,
    *,
    reason: str = "",
    detail: str = "",
    task_id: int | None = None,
) -> Tx[None]:
    rows = yield "SELECT MAX(seq) FROM schedule_slots WHERE schedule_id = ?", (schedule_id,)
    seq = (rows[0][0] or 0) + 1
    yield (
        "INSERT INTO schedule_slots(schedule_id, seq, at, first_slot, last_slot, slots, state, reason, detail, task_id)"
        " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            schedule_id, seq, now, slots.first, slots.last, slots.count, state.value, reason, detail, task_id,
        ),
    )  # fmt: skip
    yield "DELETE FROM schedule_slots WHERE schedule_id = ? AND seq <= ?", (schedule_id, seq - SLOTS_KEPT)
