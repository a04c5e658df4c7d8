"""The contract of schedules: every slot once or skipped with a reason, whatever is late, paused or still at work."""

from __future__ import annotations

import math
from datetime import datetime
from decimal import Decimal
from itertools import islice, pairwise, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from clutch.config.types import parse_duration
from clutch.core.schedule import (
    CATCH_UP_MAX,
    LATE_S,
    LOOK_S,
    SCAN_MAX,
    Missed,
    Overlap,
    ScheduleSpec,
    ScheduleState,
    SkipReason,
    local,
    next_times,
    origin,
    rhythm,
    slot_key,
    slots,
    step,
)
from clutch.errors import InvalidInput

BERLIN = ZoneInfo("Europe/Berlin")
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "Pacific/Apia")
SUBAGENT = "agent:main:subagent:00000000-0000-4000-8000-000000000001"
T0 = 1_800_000_000


def schedule(**given: Any) -> ScheduleSpec:
    when = {} if {"at", "cron", "every_s"} & set(given) else {"every_s": 600.0}
    return ScheduleSpec("nightly", task="work", **{**when, **given})


def moment(text: str, fold: int = 0) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold).timestamp())


def shown(one: ScheduleSpec, after: str, count: int) -> list[str]:
    return [local(one, slot) for slot in islice(slots(one, moment(after)), count)]


# ---- days on which the clock changes -------------------------------------------------------------------


def test_fixed_time_in_the_missing_hour_runs_at_its_end_and_once() -> None:
    one = schedule(cron="30 2 * * *", timezone="Europe/Berlin")
    assert shown(one, "2026-03-28T12:00", 2) == ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]


def test_fixed_time_that_occurs_twice_runs_at_its_first_occurrence_only() -> None:
    one = schedule(cron="30 2 * * *", timezone="Europe/Berlin")
    first = ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]
    assert shown(one, "2026-10-24T12:00", 2) == first


def test_second_occurrence_of_a_fixed_time_is_no_slot_whenever_the_schedule_looks() -> None:
    one = schedule(cron="30 2 * * *", timezone="Europe/Berlin")
    between = moment("2026-10-25T02:10", fold=1)
    assert local(one, next(slots(one, between))) == "2026-10-26T02:30:00+01:00"


def test_every_nth_minute_runs_in_both_of_the_equal_hours() -> None:
    one = schedule(cron="*/30 * * * *", timezone="Europe/Berlin")
    assert shown(one, "2026-10-25T01:45", 5) == [
        "2026-10-25T02:00:00+02:00", "2026-10-25T02:30:00+02:00", "2026-10-25T02:00:00+01:00",
        "2026-10-25T02:30:00+01:00", "2026-10-25T03:00:00+01:00",
    ]  # fmt: skip


def test_two_times_of_the_missing_hour_are_one_slot() -> None:
    one = schedule(cron="15,45 2 * * *", timezone="Europe/Berlin")
    assert shown(one, "2026-03-28T12:00", 2) == ["2026-03-29T03:00:00+02:00", "2026-03-30T02:15:00+02:00"]


def test_at_in_the_missing_hour_is_refused_and_an_ambiguous_one_is_the_first() -> None:
    with pytest.raises(InvalidInput, match="does not exist in Europe/Berlin"):
        schedule(at="2026-03-29T02:30", timezone="Europe/Berlin")
    twice = schedule(at="2026-10-25T02:30", timezone="Europe/Berlin")
    assert next_times(twice, 0) == ["2026-10-25T02:30:00+02:00"]
    assert next_times(schedule(at="2026-10-25T02:30:00+01:00"), 0) == ["2026-10-25T01:30:00+00:00"]


def test_interval_does_not_follow_the_clock_of_the_zone() -> None:
    one = schedule(every_s=3600.0, timezone="Europe/Berlin")
    found = list(islice(slots(one, moment("2026-03-29T00:30")), 5))
    assert {later - earlier for earlier, later in pairwise(found)} == {3600}


CRONS = st.tuples(
    st.sampled_from(("0", "30", "*/20", "15,45", "59")),
    st.sampled_from(("*", "2", "0,2,3", "*/3", "23")),
    st.just("*"), st.just("*"), st.sampled_from(("*", "0", "1-5")),
).map(" ".join)  # fmt: skip


@given(CRONS, st.sampled_from(ZONES), st.integers(T0 - 86400 * 700, T0 + 86400 * 700), st.integers(0, 5000))
def test_slots_of_cron_ascend_and_do_not_depend_on_where_they_are_counted_from(
    cron: str, zone: str, after: int, shift_s: int
) -> None:
    one = schedule(cron=cron, timezone=zone)
    found = list(islice(slots(one, after), 8))
    assert found == sorted(set(found))
    assert found[0] > after
    from_here = [slot for slot in found if slot > after + shift_s]
    assert list(islice(slots(one, after + shift_s), len(from_here))) == from_here


@given(CRONS, st.sampled_from(ZONES), st.integers(T0 - 86400 * 700, T0 + 86400 * 700))
def test_no_local_time_of_a_fixed_hour_is_a_slot_twice(cron: str, zone: str, after: int) -> None:
    assume("*" not in cron.split()[0] and not cron.split()[1].startswith("*"))
    found = [
        local(schedule(cron=cron, timezone=zone), slot)
        for slot in islice(slots(schedule(cron=cron, timezone=zone), after), 12)
    ]
    assert len({text[:19] for text in found}) == len(found)


# ---- the contract --------------------------------------------------------------------------------------


RULES = st.one_of(
    st.tuples(st.sampled_from((Missed.SKIP, Missed.ONCE)), st.sampled_from(Overlap)),
    st.just((Missed.ALL, Overlap.QUEUE)),
)
PASSES = st.lists(
    st.tuples(st.sampled_from((0.0, 1.0, 30.0, 59.5, 61.0, 300.0, 1500.0)), st.booleans()),
    min_size=1,
    max_size=15,
)


@given(
    RULES,
    st.sampled_from(({"every_s": 60.0}, {"every_s": 7.0}, {"cron": "*/5 * * * *", "timezone": "Europe/Berlin"})),
    st.integers(1, CATCH_UP_MAX), st.sampled_from((0.0, 40.0)), st.none() | st.integers(1, 6), PASSES,
    st.integers(0, 20_000),
)  # fmt: skip
def test_every_slot_runs_once_or_is_skipped_with_a_reason(
    rules: tuple[Missed, Overlap],
    when: dict[str, Any],
    catch_up: int,
    jitter_s: float,
    max_runs: int | None,
    passes: list[tuple[float, bool]],
    paused_s: int,
) -> None:
    missed, overlap = rules
    one = schedule(
        missed=missed, overlap=overlap, catch_up=catch_up, jitter_s=jitter_s, max_runs=max_runs, **when
    )
    state, now = ScheduleState(T0, resumed_at=T0 + paused_s), float(T0)
    started: list[int] = []
    skipped: list[tuple[int, int, int]] = []
    is_over = False
    for wait_s, is_busy in passes:
        now += wait_s
        done = step(one, state, now, is_busy=is_busy)
        state = done.state
        started += [] if done.start is None else [done.start]
        skipped += [(piece.slots.first, piece.slots.last, piece.slots.count) for piece in done.skipped]
        assert done.replaces == (overlap is Overlap.REPLACE and is_busy and done.start is not None)
        assert not (is_busy and done.start is not None) or done.replaces
        is_over = is_over or done.next_at is None
        assert is_over or done.next_at is not None
    expected = list(takewhile(lambda slot: slot <= state.cursor, slots(one, T0)))
    covered = [slot for slot in expected if any(first <= slot <= last for first, last, _ in skipped)]
    assert sorted([*started, *covered, *state.queue]) == expected
    assert sum(count for _, _, count in skipped) == len(covered)
    assert all(slot <= now - one.delay_s for slot in started)
    assert len(set(started)) == len(started)
    assert max_runs is None or len(started) <= max_runs
    assert all(slot > T0 + paused_s for slot in started)


def ran(
    one: ScheduleSpec, late_s: float, *, is_busy: bool = False, cursor: int = T0
) -> tuple[int | None, tuple[int, ...]]:
    done = step(one, ScheduleState(cursor), T0 + late_s, is_busy=is_busy)
    return done.start, done.state.queue


def test_a_slot_that_is_a_little_late_is_on_time() -> None:
    one = schedule(every_s=600.0, missed=Missed.SKIP)
    assert ran(one, 600 + LATE_S)[0] == T0 + 600
    assert ran(one, 601 + LATE_S)[0] is None


def test_once_runs_the_latest_missed_slot() -> None:
    one = schedule(missed=Missed.ONCE)
    done = step(one, ScheduleState(T0), T0 + 6 * 600 + 300, is_busy=False)
    assert done.start == T0 + 6 * 600
    assert {piece.reason for piece in done.skipped} == {SkipReason.MISSED}
    assert len(done.skipped) == 5


def test_all_runs_the_newest_missed_slots_one_after_the_other() -> None:
    one = schedule(missed=Missed.ALL, overlap=Overlap.QUEUE, catch_up=3)
    start, queue = ran(one, 6 * 600 + 300)
    assert (start, queue) == (T0 + 4 * 600, (T0 + 5 * 600, T0 + 6 * 600))


def test_slots_that_wait_are_looked_for_soon_and_start_one_at_a_time() -> None:
    one = schedule(overlap=Overlap.QUEUE, missed=Missed.ALL)
    state = ScheduleState(T0 + 1200, queue=(T0 + 600, T0 + 1200))
    busy = step(one, state, T0 + 1210, is_busy=True)
    assert (busy.start, busy.state.queue, busy.next_at) == (None, state.queue, T0 + 1210 + LOOK_S)
    free = step(one, state, T0 + 1210, is_busy=False)
    assert (free.start, free.state.queue) == (T0 + 600, (T0 + 1200,))


def test_queue_is_bounded_and_drops_its_oldest_slots_with_a_reason() -> None:
    one = schedule(overlap=Overlap.QUEUE, missed=Missed.ALL, catch_up=CATCH_UP_MAX)
    full = tuple(range(T0 - 600 * CATCH_UP_MAX, T0, 600))
    done = step(one, ScheduleState(T0, queue=full), T0 + 600, is_busy=True)
    assert done.state.queue == (*full[1:], T0 + 600)
    assert [(piece.slots.first, piece.reason) for piece in done.skipped] == [(full[0], SkipReason.QUEUE_FULL)]


def test_a_long_absence_is_decided_in_bounded_steps() -> None:
    one = schedule(cron="* * * * *", missed=Missed.ONCE)
    state, now, steps = ScheduleState(T0), T0 + 86400.0 * 7, 0
    start = None
    while start is None:
        done = step(one, state, now, is_busy=False)
        assert sum(piece.slots.count for piece in done.skipped) <= SCAN_MAX
        state, start, steps = done.state, done.start, steps + 1
    assert (start, steps) == (math.floor(now) // 60 * 60, 12)
    seconds = step(schedule(every_s=1.0), ScheduleState(0), float(T0), is_busy=False)
    assert seconds.start == T0
    assert sum(piece.slots.count for piece in seconds.skipped) == T0 - 1


def test_a_clock_that_is_set_back_repeats_nothing() -> None:
    done = step(schedule(), ScheduleState(T0 + 600), T0 + 10.0, is_busy=False)
    assert (done.start, done.skipped, done.next_at) == (None, (), T0 + 1200.0)


def test_ends_after_its_last_slot_and_its_last_run() -> None:
    once = schedule(at="2027-01-15T08:00:00+00:00")
    assert step(once, ScheduleState(T0), T0 + 10.0, is_busy=False).next_at is None
    last = step(schedule(max_runs=1), ScheduleState(T0), T0 + 600.0, is_busy=False)
    assert last.start == T0 + 600
    assert step(schedule(max_runs=1), last.state, T0 + 1200.0, is_busy=False).next_at is None


def test_jitter_is_the_same_for_a_name_and_within_its_bound() -> None:
    one = schedule(jitter_s=300.0)
    assert 0 <= one.delay_s <= 300
    assert one.delay_s == schedule(jitter_s=300.0, every_s=60.0).delay_s
    assert len({ScheduleSpec(f"s{n}", every_s=60, task="x", jitter_s=300.0).delay_s for n in range(50)}) > 25
    start, _ = ran(one, 600 + one.delay_s)
    assert start == T0 + 600
    assert one.delay_s == 0 or ran(one, 600 + one.delay_s - 1)[0] is None


# ---- what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"cron": "* * * *"}, "cron"), ({"cron": "0 0 30 2 *"}, "cron"), ({"cron": "61 * * * *"}, "cron"),
        ({"cron": "0 * * * * *"}, "cron"), ({"cron": "x" * 300}, "cron"), ({"every_s": 0.5}, "every"),
        ({"every_s": 60.0, "cron": "* * * * *"}, "cron"), ({"timezone": "Mars/Base"}, "timezone"),
        ({"at": "tomorrow"}, "at"), ({"at": "0001-01-01T00:00:00+14:00"}, "at"),
        ({"at": "9999-12-31T23:59:59", "jitter_s": 600.0}, "at"),
        ({"jitter_s": 90_000.0}, "jitter"), ({"catch_up": 101}, "catchUp"),
        ({"missed": Missed.ALL}, "overlap"), ({"max_runs": 0}, "maxRuns"), ({"run_tokens": 0}, "runTokens"),
        ({"total_usd": Decimal(-1)}, "totalUsd"), ({"run_timeout_s": -1.0}, "runTimeoutSeconds"),
        ({"session": "nowhere"}, "session"), ({"session": SUBAGENT}, "session"),
    ],
)  # fmt: skip
def test_a_schedule_that_makes_no_sense_is_refused_by_the_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        schedule(**given)
    assert refused.value.field == field


@given(st.integers(1, 366 * 86400))
def test_an_interval_is_shown_as_it_is_given(seconds: int) -> None:
    text = rhythm(schedule(every_s=float(seconds)))
    assert parse_duration(text.removeprefix("every ")) == seconds


def test_name_and_task_are_checked() -> None:
    with pytest.raises(InvalidInput, match="name"):
        ScheduleSpec("Nightly Report", every_s=60, task="x")
    with pytest.raises(InvalidInput, match="task"):
        ScheduleSpec("nightly", every_s=60, task=" ")


def test_the_key_of_a_slot_names_its_origin() -> None:
    assert origin(slot_key("nightly", 7, T0)) == ("nightly", "2027-01-15T08:00:00Z")
    assert origin("key:report") is None
