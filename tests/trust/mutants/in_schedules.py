"""Planted bugs in schedules: one for each rule of the contract."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import wraps
from typing import Any

from clutch.core.schedule import CATCH_UP_MAX, Missed, Overlap, ScheduleSpec, ScheduleState
from clutch.store.transaction import Statement
from clutch.testing.simulation.schedules import NAME, PROMISE
from tests.trust.mutants.mutant import Mutant
from tests.trust.mutants.statements import answering_only, tampered


def _mutant(name: str, target: str, plant: Any, about: str) -> Mutant:
    return Mutant(name, (f"clutch.{target}",), frozenset({PROMISE}), (NAME,), plant, about)


def _all_missed(chosen: Any) -> tuple[Any, ...]:
    @wraps(chosen)
    def bug(schedule: ScheduleSpec, found: tuple[int, ...], until: int) -> Any:
        del schedule, until
        return found, ()

    return (bug,)


def _first_missed(chosen: Any) -> tuple[Any, ...]:
    @wraps(chosen)
    def bug(schedule: ScheduleSpec, found: tuple[int, ...], until: int) -> Any:
        run, missed = chosen(schedule, found, until)
        if schedule.missed is Missed.ONCE and missed:
            return missed[:1], (*missed[1:], *run)
        return run, missed

    return (bug,)


def _boundless(chosen: Any) -> tuple[Any, ...]:
    @wraps(chosen)
    def bug(schedule: ScheduleSpec, found: tuple[int, ...], until: int) -> Any:
        is_all = schedule.missed is Missed.ALL
        return chosen(replace(schedule, catch_up=CATCH_UP_MAX) if is_all else schedule, found, until)

    return (bug,)


def _late_is_on_time(chosen: Any) -> tuple[Any, ...]:
    @wraps(chosen)
    def bug(schedule: ScheduleSpec, found: tuple[int, ...], until: int) -> Any:
        return chosen(schedule, found, found[-1] if found else until)

    return (bug,)


def _overlapping(instead: Mapping[Overlap, Overlap]) -> Any:
    def plant(started: Any) -> tuple[Any, ...]:
        @wraps(started)
        def bug(
            schedule: ScheduleSpec, state: ScheduleState, wanted: tuple[int, ...], *, is_busy: bool
        ) -> Any:
            if schedule.missed is not Missed.ALL:
                schedule = replace(schedule, overlap=instead.get(schedule.overlap, schedule.overlap))
            return started(schedule, state, wanted, is_busy=is_busy)

        return (bug,)

    return plant


def _endless(started: Any) -> tuple[Any, ...]:
    @wraps(started)
    def bug(schedule: ScheduleSpec, state: ScheduleState, wanted: tuple[int, ...], *, is_busy: bool) -> Any:
        return started(replace(schedule, max_runs=None), state, wanted, is_busy=is_busy)

    return (bug,)


def _spares_the_previous_run(spawned: Any) -> tuple[Any, ...]:
    @wraps(spawned)
    def bug(*args: Any, replaced: int | None, nonce: str) -> Any:
        del replaced
        return spawned(*args, replaced=None, nonce=nonce)

    return (bug,)


def _without_budget(spawned: Any) -> tuple[Any, ...]:
    @wraps(spawned)
    def bug(now: float, policy: Any, found: Any, *args: Any, **named: Any) -> Any:
        return spawned(now, policy, replace(found, budget=""), *args, **named)

    return (bug,)


def _never_paused(step: Any) -> tuple[Any, ...]:
    @wraps(step)
    def bug(schedule: ScheduleSpec, state: ScheduleState, now: float, *, is_busy: bool) -> Any:
        return step(schedule, replace(state, resumed_at=0), now, is_busy=is_busy)

    return (bug,)


def _twice_in_the_fold(cron_slots: Any) -> tuple[Any, ...]:
    @wraps(cron_slots)
    def bug(schedule: ScheduleSpec, after: int) -> Iterator[int]:
        for slot in cron_slots(schedule, after - 3600):
            again = datetime.fromtimestamp(slot, schedule.zone).replace(fold=1)
            yield from (one for one in sorted({slot, int(again.timestamp())}) if one > after)

    return (bug,)


def _same_slot_again(save: Any) -> tuple[Any, ...]:
    @wraps(save)
    def bug(found: Any, done: Any) -> Any:
        if done.start is not None:
            done = replace(done, state=replace(done.state, cursor=found.state.cursor))
        return save(found, done)

    return (bug,)


def _another_key(slot_key: Any) -> tuple[Any, ...]:
    return (wraps(slot_key)(lambda name, schedule_id, slot: f"schedule:{name}:{schedule_id}:{slot // 3600}"),)


def _unpaused(pause: Any) -> tuple[Any, ...]:
    def say(sql: str, parameters: Any) -> Statement:
        return sql.replace(", next_at = NULL", ""), parameters

    return (tampered(pause, say=say),)


MUTANTS: tuple[Mutant, ...] = (
    _mutant(
        "every_missed_slot_runs",
        "core.schedule._chosen",
        _all_missed,
        "the policy of missed slots is ignored",
    ),
    _mutant(
        "oldest_missed_slot_runs", "core.schedule._chosen", _first_missed, "catching up runs a stale slot"
    ),
    _mutant(
        "catching_up_without_bound", "core.schedule._chosen", _boundless, "a long outage is a burst of runs"
    ),
    _mutant(
        "runs_of_a_schedule_overlap",
        "transactions.schedules._is_busy",
        lambda is_busy: (answering_only(is_busy, False),),
        "a run starts beside the previous one",
    ),
    _mutant(
        "late_slots_are_on_time",
        "core.schedule._chosen",
        _late_is_on_time,
        "a slot of an outage runs as if it came now",
    ),
    _mutant(
        "skipped_slot_waits",
        "core.schedule._started",
        _overlapping({Overlap.SKIP: Overlap.QUEUE}),
        "a slot that is to be skipped runs after the previous run",
    ),
    _mutant(
        "queued_slot_is_skipped",
        "core.schedule._started",
        _overlapping({Overlap.QUEUE: Overlap.SKIP}),
        "a slot that is to wait for the previous run is lost",
    ),
    _mutant(
        "replaced_run_works_on",
        "transactions.schedules._spawned",
        _spares_the_previous_run,
        "the run that is replaced is not killed",
    ),
    _mutant(
        "schedule_does_not_end", "core.schedule._started", _endless, "a schedule has more runs than it may"
    ),
    _mutant(
        "runs_without_the_common_budget",
        "transactions.schedules._spawned",
        _without_budget,
        "catching up spends more than the budget of all runs",
    ),
    _mutant(
        "slots_of_a_pause_run", "core.schedule.step", _never_paused, "a resume catches up with the pause"
    ),
    _mutant("paused_schedule_runs", "transactions.schedules.pause", _unpaused, "a pause keeps the timer"),
    _mutant(
        "fold_runs_twice", "core.schedule._cron_slots", _twice_in_the_fold, "an equal local time runs again"
    ),
    _mutant(
        "slot_decided_again", "transactions.schedules._save", _same_slot_again, "the cursor stays behind"
    ),
    _mutant("key_of_an_hour", "core.schedule.slot_key", _another_key, "two slots have one key"),
)
