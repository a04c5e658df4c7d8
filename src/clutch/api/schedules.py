"""Schedules as programs and clients see them: the parameters of a new one, its object, and the reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from clutch.core import ids
from clutch.core import schedule as rules
from clutch.core.schedule import SKIP_TEXTS, Missed, Overlap, ScheduleSpec, SkipReason
from clutch.errors import InvalidInput
from clutch.store.transaction import Tx
from clutch.transactions import schedules
from clutch.transactions.schedules import SlotRecord, SlotState, StoredSchedule

if TYPE_CHECKING:
    from clutch.api import objects

STARTED_SHOWN = 10  #: slots of the history beside its schedule in a list


def spec_of(name: str, given: Mapping[str, Any]) -> ScheduleSpec:
    """The schedule that these parameters of a program describe. Raises InvalidInput."""
    renamed = {
        "every_seconds": "every_s",
        "jitter_seconds": "jitter_s",
        "run_timeout_seconds": "run_timeout_s",
    }
    known = {one.name for one in fields(ScheduleSpec)}
    said = {renamed.get(key, key): value for key, value in given.items() if value is not None}
    for key in ("every_s", "jitter_s", "run_timeout_s"):
        if isinstance(said.get(key), int) and not isinstance(said[key], bool):
            said[key] = float(said[key])
    for key, kind in (("missed", Missed), ("overlap", Overlap)):
        if key in said:
            said[key] = _word(key, said[key], kind)
    for key in ("run_usd", "total_usd"):
        if key in said:
            said[key] = _money(key, said[key])
    return ScheduleSpec(name, **{key: value for key, value in said.items() if key in known})


def _word(field: str, said: object, kind: type[Missed] | type[Overlap]) -> Missed | Overlap:
    try:
        return kind(str(said))
    except ValueError:
        raise InvalidInput(field, f"must be one of: {', '.join(kind)}") from None


def _money(field: str, said: object) -> Decimal:
    try:
        return Decimal(str(said))
    except InvalidOperation:
        raise InvalidInput(field, f'must be an amount in dollars such as "0.50", not {said!r}') from None


# ---- reading -----------------------------------------------------------------------------------------


def listed(now: float) -> Tx[objects.Schedules]:
    shown = []
    for one in (yield from schedules.listed(now)):
        shown.append(shown_of(now, one, (yield from schedules.history(now, one.id, STARTED_SHOWN))))
    return {"schedules": shown}


def one(now: float, name: str) -> Tx[objects.ScheduleObject]:
    found = yield from schedules.find(now, name)
    return shown_of(now, found, (yield from schedules.history(now, found.id)))


def shown_of(now: float, found: StoredSchedule, slots: list[SlotRecord]) -> objects.ScheduleObject:
    spec = found.schedule
    return {
        "name": found.name,
        "owner": found.owner.value,
        "status": "paused" if found.paused else "ended" if found.next_at is None else "active",
        "when": rules.rhythm(spec),
        "timezone": spec.timezone,
        "nextTimes": found.next_times(now),
        "waitingSlots": [rules.local(spec, slot) for slot in found.state.queue],
        "missed": spec.missed.value,
        "catchUp": spec.catch_up,
        "overlap": spec.overlap.value,
        "delaySeconds": spec.delay_s,
        "maxRuns": spec.max_runs,
        "runs": found.state.runs,
        "task": spec.task,
        "session": spec.session,
        "label": spec.label or spec.name,
        "agentId": spec.agent_id,
        "model": spec.model,
        "lastTaskId": None if found.task_id is None else ids.task_id(found.task_id),
        "history": [_slot(spec, one) for one in slots],
    }


def _slot(spec: ScheduleSpec, one: SlotRecord) -> objects.SlotObject:
    is_skipped = one.state is SlotState.SKIPPED
    return {
        "slot": rules.local(spec, one.slots.first),
        "until": rules.local(spec, one.slots.last),
        "slots": one.slots.count,
        "state": one.state.value,
        "reason": one.reason or None,
        "detail": (one.detail or SKIP_TEXTS[SkipReason(one.reason)]) if is_skipped else None,
        "taskId": None if one.task_id is None else ids.task_id(one.task_id),
        "outcome": one.outcome,
    }
