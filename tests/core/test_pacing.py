"""Pacing: nobody asks a closed provider, places are given in order, and a crowd learns from one refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core import rate_limit
from clutch.core.rate_limit import Bounds, Effect, Failure, Pace, Passage

NOW = 1_000_000.0
FREE = Bounds()
REFUSED = Failure(Effect.REFUSED, "rate limit", "slow down", NOW + 30)
BUSY = Failure(Effect.OVERLOADED, "overloaded", "busy")
BROKEN = Failure(Effect.BROKEN, "network", "nobody there")
WRONG = Failure(Effect.NONE, "bad request", "no such field")


def begun(pace: Pace, now: float = NOW, tokens: int = 0) -> tuple[Pace, Passage]:
    return rate_limit.begin(pace, now, tokens)


def after(pace: Pace, failure: Failure, now: float = NOW, bounds: Bounds = FREE) -> Pace:
    pace, passage = begun(pace, now)
    return rate_limit.failed(pace, bounds, passage, failure, now, chance=0.0)


def broken(times: int, now: float = NOW) -> Pace:
    pace = Pace()
    for _ in range(times):
        pace = after(pace, BROKEN, now)
    return pace


# --- refusals ---------------------------------------------------------------------------------------------


def test_a_refusal_closes_the_provider_for_everybody_until_the_reset() -> None:
    pace = after(Pace(), REFUSED)
    held = rate_limit.hold(pace, FREE, NOW + 29.9)
    assert held == rate_limit.ProviderHold(NOW + 30, REFUSED)
    assert rate_limit.hold(pace, FREE, NOW + 30) is None


def test_an_earlier_reset_does_not_open_what_a_later_one_closed() -> None:
    pace = after(after(Pace(), REFUSED), replace(REFUSED, reset_at=NOW + 5), NOW + 1)
    assert rate_limit.hold(pace, FREE, NOW + 20) is not None


def test_a_thousand_failures_of_one_wave_make_nobody_wait_longer_than_the_first() -> None:
    pace, passages = Pace(), []
    for _ in range(1000):
        pace, passage = begun(pace)
        passages.append(passage)
    for passage in passages:
        pace = rate_limit.failed(pace, FREE, passage, replace(REFUSED, reset_at=None), NOW + 1, chance=0.5)
    assert pace.strikes == 1
    assert pace.closed_until == NOW + 1 + 1.25
    assert pace.in_flight == 0


def test_waves_without_a_named_reset_wait_longer_each_time_up_to_a_bound_and_success_forgives() -> None:
    pace, now, waits = Pace(), NOW, []
    for _ in range(9):
        pace = after(pace, BUSY, now, replace(FREE, same_failures_max=1000))
        waits.append(pace.closed_until - now)
        now = pace.closed_until
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    pace, passage = begun(pace, now)
    pace = rate_limit.succeeded(pace, FREE, passage, now + 1, 10)
    assert after(pace, BUSY, now + 2).closed_until == now + 3


@given(
    allowed=st.integers(1, 50),
    crowd=st.integers(2, 200),
    window_s=st.floats(1.0, 60.0),
)
def test_after_one_refusal_a_crowd_stays_below_what_the_provider_took(
    allowed: int, crowd: int, window_s: float
) -> None:
    """All start at once; `allowed` pass, the others are refused until the window is over and come back together."""
    pace, passages = Pace(), []
    for _ in range(allowed + crowd):
        pace, passage = begun(pace)
        passages.append(passage)
    failure = replace(REFUSED, reset_at=NOW + window_s)
    for passage in passages[allowed:]:
        pace = rate_limit.failed(pace, FREE, passage, failure, NOW + 0.01, chance=0.0)
    for passage in passages[:allowed]:  # successes take longer than refusals
        pace = rate_limit.succeeded(pace, FREE, passage, NOW + 0.5, 10)
    reset = NOW + window_s
    starts = []
    for _ in range(crowd):
        pace, at = rate_limit.book(pace, FREE, reset, 0)
        starts.append(at)
    calm = [at for at in starts if at < reset + rate_limit.PACE_CALM_S]
    for start in calm:
        within = [at for at in calm if start <= at < start + window_s]
        assert len(within) <= allowed + 1


def test_the_pace_rises_while_nothing_is_refused() -> None:
    pace, passage = begun(Pace())
    pace = rate_limit.succeeded(pace, FREE, passage, NOW + 1, 0)
    pace = after(pace, REFUSED, NOW + 1)
    pace, _ = rate_limit.book(pace, FREE, NOW + 30, 0)
    early = gap(pace, NOW + 31)
    assert gap(pace, NOW + 30 + 10 * rate_limit.PACE_CALM_S) < early / 50


def gap(pace: Pace, now: float) -> float:
    first, one = rate_limit.book(replace(pace, next_at=now), FREE, now, 0)
    _, two = rate_limit.book(first, FREE, now, 0)
    return two - one


def test_a_refusal_makes_old_places_worthless_and_the_queue_begins_anew() -> None:
    bounds = Bounds(tokens_per_minute=60)
    pace = Pace()
    for _ in range(100):
        pace, _ = rate_limit.book(pace, bounds, NOW, 60)
    pace = after(pace, REFUSED, NOW, bounds)
    assert pace.voided_at == NOW
    _, at = rate_limit.book(pace, bounds, NOW + 30, 60)
    assert at < NOW + 31


# --- tokens per minute -------------------------------------------------------------------------------------

CALLS = st.lists(st.tuples(st.floats(0, 20), st.integers(1, 2000)), min_size=1, max_size=60)


@given(calls=CALLS, per_minute=st.integers(100, 5000))
def test_places_are_given_in_order_and_never_more_than_a_bucket_holds(
    calls: list[tuple[float, int]], per_minute: int
) -> None:
    bounds, pace, now = Bounds(tokens_per_minute=per_minute), Pace(), NOW
    starts: list[tuple[float, int]] = []
    for pause, tokens in calls:
        now += pause
        pace, at = rate_limit.book(pace, bounds, now, tokens)
        assert at >= now
        assert not starts or at >= starts[-1][0]
        starts.append((at, tokens))
    for first in range(len(starts)):
        earlier = 0
        for at, tokens in starts[first:]:
            refilled = (at - starts[first][0]) * per_minute / 60
            assert earlier + min(tokens, per_minute) <= per_minute + refilled + 0.01
            earlier += tokens


def test_tokens_that_were_not_used_are_free_again() -> None:
    bounds = Bounds(tokens_per_minute=60)
    pace, _ = rate_limit.book(Pace(), bounds, NOW, 60)
    pace, passage = begun(pace, NOW, 60)
    assert rate_limit.book(pace, bounds, NOW, 60)[1] == pytest.approx(NOW + 60)
    pace = rate_limit.succeeded(pace, bounds, passage, NOW, 6)
    assert rate_limit.book(pace, bounds, NOW, 60)[1] == pytest.approx(NOW + 6)


def test_a_call_larger_than_a_minute_of_tokens_still_goes() -> None:
    bounds = Bounds(tokens_per_minute=60)
    pace, at = rate_limit.book(Pace(), bounds, NOW, 600)
    assert at == NOW
    assert rate_limit.book(pace, bounds, NOW, 1)[1] == pytest.approx(NOW + 541)


# --- the breaker -------------------------------------------------------------------------------------------


def test_the_same_failure_again_and_again_opens_the_breaker_and_others_do_not() -> None:
    assert rate_limit.hold(broken(4), FREE, NOW) is None
    opened = broken(5)
    assert rate_limit.hold(opened, FREE, NOW + 4.9) == rate_limit.ProviderHold(NOW + 5, BROKEN)
    mixed = Pace()
    for number in range(20):
        mixed = after(mixed, replace(BROKEN, text=f"another {number % 2}"))
    assert rate_limit.hold(mixed, FREE, NOW) is None


def test_a_success_in_between_starts_the_count_anew() -> None:
    pace, passage = begun(broken(4))
    pace = rate_limit.succeeded(pace, FREE, passage, NOW, 0)
    for _ in range(4):
        pace = after(pace, BROKEN)
    assert rate_limit.hold(pace, FREE, NOW) is None


def test_a_wrong_request_says_nothing_about_the_others() -> None:
    pace = Pace()
    for _ in range(50):
        pace = after(pace, WRONG)
    assert rate_limit.hold(pace, FREE, NOW) is None


def test_one_probe_goes_first_and_the_others_wait_for_it() -> None:
    pace, probe = begun(broken(5), NOW + 5)
    assert probe.is_probe
    assert rate_limit.hold(pace, FREE, NOW + 5) is not None
    healed = rate_limit.succeeded(pace, FREE, probe, NOW + 6, 0)
    assert rate_limit.hold(healed, FREE, NOW + 6) is None
    given_up = rate_limit.left(pace, probe)
    assert rate_limit.hold(given_up, FREE, NOW + 6) is None
    assert begun(given_up, NOW + 6)[1].is_probe


def test_each_failed_probe_opens_the_breaker_for_longer_up_to_a_bound() -> None:
    pace, waits, opened_at = broken(5), [], NOW
    for _ in range(9):
        assert pace.breaker is not None
        waits.append(pace.breaker.until - opened_at)
        opened_at = pace.breaker.until
        pace = after(pace, BROKEN, opened_at)
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_a_call_that_was_under_way_before_the_breaker_opened_does_not_close_it() -> None:
    pace, early = begun(Pace())
    for _ in range(5):
        pace = after(pace, BROKEN, NOW + 1)
    pace = rate_limit.succeeded(pace, FREE, early, NOW + 2, 0)
    assert rate_limit.hold(pace, FREE, NOW + 2) is not None


# --- whatever happens --------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "ok", "refused", "busy", "broken", "wrong", "left"]),
        st.floats(0, 30),
        st.floats(0, 1),
    ),
    max_size=80,
)


@given(steps=STEPS)
def test_whatever_happens_calls_are_counted_and_every_hold_ends(
    steps: list[tuple[str, float, float]],
) -> None:
    bounds = Bounds(tokens_per_minute=1000)
    pace, under_way, now = Pace(), list[Passage](), NOW
    failures = {"refused": REFUSED, "busy": BUSY, "broken": BROKEN, "wrong": WRONG}
    for what, pause, chance in steps:
        now += pause
        if what == "begin":
            if rate_limit.hold(pace, bounds, now) is None:
                pace, _ = rate_limit.book(pace, bounds, now, 10)
                pace, passage = rate_limit.begin(pace, now, 10)
                under_way.append(passage)
        elif under_way:
            passage = under_way.pop(0)
            if what == "ok":
                pace = rate_limit.succeeded(pace, bounds, passage, now, 12)
            elif what == "left":
                pace = rate_limit.left(pace, passage)
            else:
                failure = replace(failures[what], reset_at=now + 20 if what == "refused" else None)
                pace = rate_limit.failed(pace, bounds, passage, failure, now, chance=chance)
        assert pace.in_flight == len(under_way)
        assert sum(passage.is_probe for passage in under_way) <= 1
    for passage in under_way:
        pace = rate_limit.left(pace, passage)
    held = rate_limit.hold(pace, bounds, now)
    end = held.until if held is not None else now
    assert end <= now + bounds.breaker_max_s * 1.5
    again = rate_limit.hold(pace, bounds, end)
    assert again is None or rate_limit.hold(pace, bounds, again.until) is None
