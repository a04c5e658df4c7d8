"""Backoff and active hours: the figures of the promise, and what must hold for all others."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.agents import is_active, minutes_until_active, next_delay, opens_at, parse_minute

MINUTES = st.integers(0, 1439)


def test_three_quick_tries_wait_one_and_two_seconds() -> None:
    assert [next_delay(attempt, slow=False) for attempt in (1, 2, 3)] == [1.0, 2.0, None]


def test_more_quick_tries_double_up_to_eight_seconds() -> None:
    delays = [next_delay(attempt, fast_tries=7, slow=False) for attempt in range(1, 8)]
    assert delays == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0, None]


def test_slow_tries_follow_from_15_seconds_to_5_minutes() -> None:
    delays = [next_delay(attempt, jitter=0, until_s=10_000) for attempt in range(1, 11)]
    assert delays == [1, 2, 15, 30, 60, 120, 240, 300, 300, 300]


@pytest.mark.parametrize(("until_s", "tries"), [(1800, 12), (300, 7)])
def test_it_gives_up_when_the_waits_handed_out_reach_the_limit(until_s: float, tries: int) -> None:
    delays = [next_delay(attempt, until_s=until_s, jitter=0) for attempt in range(1, 20)]
    assert delays.index(None) == tries - 1
    assert set(delays[tries - 1 :]) == {None}
    assert sum(delay for delay in delays if delay is not None) <= until_s


@given(st.integers(1, 60), st.integers(0, 2**62), st.integers(0, 8))
def test_jitter_stays_within_a_fifth_and_is_the_same_every_time(
    attempt: int, seed: int, fast_tries: int
) -> None:
    def delay(jitter: float) -> float:
        answer = next_delay(attempt, fast_tries=fast_tries, jitter=jitter, seed=seed, until_s=1e9)
        assert answer is not None
        return answer

    assert delay(0.2) == delay(0.2)
    assert 0.8 * delay(0) <= delay(0.2) <= 1.2 * delay(0)


def test_letters_that_failed_together_come_back_spread_out() -> None:
    delays = [next_delay(3, seed=seed) or 0.0 for seed in range(1000)]
    assert len(set(delays)) > 990
    assert min(delays) < 12.1
    assert max(delays) > 17.9
    assert 14.7 < sum(delays) / len(delays) < 15.3


@given(st.integers(1, 40), st.floats(1, 4000), st.integers(0, 1000))
def test_once_given_up_it_stays_given_up(attempt: int, until_s: float, seed: int) -> None:
    if next_delay(attempt, until_s=until_s, seed=seed) is None:
        assert next_delay(attempt + 1, until_s=until_s, seed=seed) is None


def test_a_very_late_attempt_is_no_overflow() -> None:
    assert next_delay(3000, jitter=0, until_s=1e9) == 300


@pytest.mark.parametrize("wrong", [{"first_s": 0}, {"slow_first_s": -1}, {"jitter": 1.0}])
def test_a_curve_that_never_waits_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        next_delay(1, **wrong)  # type: ignore[arg-type]  # one bad figure at a time
    with pytest.raises(ValueError, match="count from 1"):
        next_delay(0)


@pytest.mark.parametrize(("text", "minute"), [("00:00", 0), ("08:30", 510), ("23:59", 1439)])
def test_times_are_read(text: str, minute: int) -> None:
    assert parse_minute(text, "activeHours.start") == minute
    assert parse_minute(text, "activeHours.end", is_end=True) == minute


def test_midnight_at_the_end_of_the_day_is_an_end_only() -> None:
    assert parse_minute("24:00", "activeHours.end", is_end=True) == 1440
    with pytest.raises(ValueError, match=r"activeHours\.start"):
        parse_minute("24:00", "activeHours.start")


@pytest.mark.parametrize(
    "text", ["", "8:30", "08:60", "24:01", "25:00", "08:30 ", "08:30\n", "08.30", "-1:00",
    "\u0660\u0668:30", "0830"]
)  # fmt: skip
def test_an_invalid_time_names_its_field(text: str) -> None:
    with pytest.raises(ValueError, match=r"activeHours\.end: "):
        parse_minute(text, "activeHours.end", is_end=True)


def test_the_day_has_its_start_and_not_its_end() -> None:
    assert [is_active(minute, 480, 1080) for minute in (479, 480, 1079, 1080)] == [False, True, True, False]


def test_hours_may_run_over_midnight() -> None:
    active = [is_active(minute, 1320, 360) for minute in (1319, 1320, 1439, 0, 359, 360)]
    assert active == [False, True, True, True, True, False]


@given(MINUTES, MINUTES)
def test_equal_hours_are_never_and_a_whole_day_is_always(minute: int, start: int) -> None:
    assert not is_active(minute, start, start)
    assert minutes_until_active(minute, start, start) is None
    assert is_active(minute, 0, 1440)


@given(MINUTES, MINUTES, st.integers(0, 1440))
def test_the_wait_ends_at_the_first_active_minute(minute: int, start: int, end: int) -> None:
    wait = minutes_until_active(minute, start, end)
    active = [later for later in range(1440) if is_active((minute + later) % 1440, start, end)]
    assert wait == (active[0] if active else None)


# ---- the hours of an agent -------------------------------------------------------------------------------


@given(
    MINUTES,
    MINUTES,
    st.floats(1_600_000_000, 1_900_000_000),
    st.sampled_from(["Europe/Berlin", "America/New_York"]),
)
def test_a_deferred_moment_lies_ahead_whatever_the_clocks_do_that_night(
    start: int, end: int, now: float, name: str
) -> None:
    zone = ZoneInfo(name)
    opens = opens_at(now, zone, start, end)
    if opens is None:
        assert start == end
        return
    assert now <= opens <= now + 49 * 3600
    if opens > now:  # in the night when an hour is missing, its start may be the hour after
        local = datetime.fromtimestamp(opens, zone)
        assert (local.hour * 60 + local.minute - start) % 1440 in (0, 60)
