"""A run's troubles: which failures are tried again and when, and when a crash is one too many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.model import Reason
from clutch.core.policy import Life
from clutch.core.run import (
    TRIAL_S,
    Admission,
    Counters,
    GiveUp,
    Park,
    admission,
    is_crash_loop,
    provider_failed,
    since,
    suspect_from,
    taken_over,
)

LIFE = Life()
FRESH = Counters()
COUNTERS = st.builds(Counters, st.integers(0, 5), st.integers(0, 40), st.integers(0, 3))


def failed(
    counters: Counters = FRESH,
    head: int = 0,
    *,
    at: float = 100.0,
    is_retryable: bool = True,
    retry_at: float | None = None,
    life: Life = LIFE,
    is_limited: bool = True,
) -> Park | GiveUp:
    return provider_failed(
        counters,
        head,
        at=at,
        error="503 overloaded",
        is_retryable=is_retryable,
        retry_at=retry_at,
        life=life,
        is_limited=is_limited,
    )


def fails_until_it_gives_up(retry_after_s: float | None, life: Life = LIFE) -> tuple[list[float], GiveUp]:
    """Asks again exactly when told to; the waits and the last word."""
    counters, at = Counters(), 100.0
    waits: list[float] = []
    for _ in range(1000):
        retry_at = None if retry_after_s is None else at + retry_after_s
        decision = failed(counters, at=at, retry_at=retry_at, life=life)
        if isinstance(decision, GiveUp):
            return waits, decision
        waits.append(decision.until - at)
        counters, at = decision.counters, decision.until
    raise AssertionError("it never gives up")


def test_retryable_failure_waits_1_4_and_15_seconds_then_is_an_error() -> None:
    waits, last = fails_until_it_gives_up(None)
    assert waits == [1, 4, 15]
    assert last.error == "503 overloaded (4 times)"


def test_failure_that_cannot_pass_is_not_tried_again() -> None:
    assert failed(is_retryable=False, retry_at=101.0) == GiveUp("503 overloaded", is_permanent=True)


@given(COUNTERS, st.integers(0, 3), st.one_of(st.none(), st.floats(0, 2000)), st.booleans())
def test_an_error_is_permanent_exactly_when_the_provider_will_never_answer(
    counters: Counters, head: int, retry_at: float | None, is_retryable: bool
) -> None:
    decision = failed(counters, head, retry_at=retry_at, is_retryable=is_retryable)
    if isinstance(decision, GiveUp):
        assert decision.is_permanent is not is_retryable


def test_provider_that_names_a_time_is_believed() -> None:
    assert failed(retry_at=160.0) == Park(160.0, Reason.QUOTA, Counters(0, 1, 0))
    assert failed(retry_at=50.0) == Park(100.0, Reason.QUOTA, Counters(0, 1, 0))
    assert failed() == Park(101.0, Reason.PROVIDER, Counters(0, 1, 0))


def test_a_provider_in_trouble_is_no_rate_limit_whatever_time_was_named() -> None:
    assert failed(retry_at=160.0, is_limited=False) == Park(160.0, Reason.PROVIDER, Counters(0, 1, 0))


@pytest.mark.parametrize(("wait_s", "parks"), [(900.0, True), (900.1, False)])
def test_longest_wait_for_a_quota_is_15_minutes(wait_s: float, parks: bool) -> None:
    decision = failed(retry_at=100 + wait_s)
    assert isinstance(decision, Park) is parks
    if isinstance(decision, GiveUp):
        assert decision.error == "503 overloaded; the wait until 00:16:40 UTC is longer than models.maxWait"


def test_longest_wait_of_zero_means_for_ever() -> None:
    assert isinstance(failed(retry_at=1e9, life=Life(quota_wait_max_s=0)), Park)


def test_provider_that_says_later_for_ever_does_not_park_a_run_for_ever() -> None:
    waits, last = fails_until_it_gives_up(60.0)
    assert waits == [60.0] * 30
    assert "31 times" in last.error


def test_grown_transcript_starts_the_tries_anew() -> None:
    tired = Counters(crashes=2, failures=3, progress_head=7)
    assert isinstance(failed(tired, head=7), GiveUp)
    assert failed(tired, head=8) == Park(101.0, Reason.PROVIDER, Counters(0, 1, 8))


def test_third_crash_without_progress_is_a_loop() -> None:
    counters = Counters()
    verdicts = []
    for _ in range(3):
        counters = taken_over(counters, head=5, was_executing=True)
        verdicts.append(is_crash_loop(counters, LIFE))
    assert verdicts == [False, False, True]


def test_crashes_with_progress_in_between_never_are_a_loop() -> None:
    counters = Counters()
    for head in range(100):
        counters = taken_over(taken_over(counters, head, was_executing=True), head, was_executing=True)
        assert not is_crash_loop(counters, LIFE)


@given(COUNTERS, st.integers(0, 3))
def test_crash_and_failure_do_not_hide_each_other(counters: Counters, head: int) -> None:
    now = since(counters, head)
    assert taken_over(counters, head, was_executing=True) == Counters(now.crashes + 1, now.failures, head)
    decision = failed(counters, head)
    if isinstance(decision, Park):
        assert decision.counters == Counters(now.crashes, now.failures + 1, head)


@given(COUNTERS, st.integers(0, 3), st.one_of(st.none(), st.floats(0, 2000)), st.booleans())
def test_park_is_never_in_the_past_nor_beyond_the_longest_wait(
    counters: Counters, head: int, retry_at: float | None, is_retryable: bool
) -> None:
    decision = failed(counters, head, retry_at=retry_at, is_retryable=is_retryable)
    if isinstance(decision, Park):
        assert 100 <= decision.until <= 1000


@given(st.lists(st.booleans(), max_size=20))
def test_only_deaths_in_which_its_code_was_executing_are_counted(deaths: list[bool]) -> None:
    """However often its neighbours end the process while it waits for a model."""
    counters = Counters()
    for was_executing in deaths:
        counters = taken_over(counters, head=5, was_executing=was_executing)
    assert counters.crashes == sum(deaths)
    assert is_crash_loop(counters, LIFE) == (sum(deaths) >= LIFE.crash_limit)


MOMENTS = st.one_of(st.none(), st.floats(0, 1000))


@given(st.floats(0, 1000), MOMENTS, MOMENTS, st.booleans())
def test_a_suspect_has_company_only_after_a_bounded_time(
    now: float, tried_since: float | None, waits_since: float | None, is_idle: bool
) -> None:
    """And neither a suspect nor the others wait for longer than that, except for another suspect."""
    decided = admission(now, tried_since=tried_since, waits_since=waits_since, is_idle=is_idle)
    if decided is Admission.SUSPECT:
        assert tried_since is None  # one at a time
        assert waits_since is not None
        assert is_idle or not 0 <= now - waits_since < TRIAL_S  # also when the clock was put back
    if decided is Admission.NOTHING:
        since_when = waits_since if tried_since is None else tried_since
        assert since_when is not None
        assert 0 <= now - since_when < TRIAL_S
    if decided is Admission.OTHERS:
        assert waits_since is None or tried_since is not None


@given(st.integers(1, 10))
def test_a_run_is_tried_alone_before_the_death_that_ends_it(limit: int) -> None:
    """Except where the limit leaves no room for it: one or two deaths. A death is counted when the run resumes, after
    it was claimed, alone or beside others."""
    life, counters, tried = Life(crash_limit=limit), FRESH, 0
    while True:
        is_alone = counters.crashes >= suspect_from(life)
        counters = taken_over(counters, 0, was_executing=True)
        if is_crash_loop(counters, life):
            break
        tried += is_alone
    assert (tried > 0) == (limit > 2)
