"""A bucket lets a burst through at once, and then as many as its rate, whatever the clock does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clutch.core.rate_limit import Bucket


@given(
    gaps=st.lists(st.floats(-5, 5), max_size=200),
    rate=st.floats(0.1, 50),
    burst=st.integers(1, 20),
)
def test_no_more_pass_than_the_burst_and_the_rate_allow(gaps: list[float], rate: float, burst: int) -> None:
    bucket, now, passed, ahead = Bucket(burst, 0.0), 0.0, 0, 0.0
    for gap in gaps:
        now += gap
        ahead += max(0.0, gap)
        passed += bucket.wait_s(now, rate, burst) == 0
        bucket = bucket.taken(now, rate, burst)
    assert passed <= burst + rate * ahead + 1e-6
    assert 0 <= bucket.level <= burst


@given(level=st.floats(0, 0.99), rate=st.floats(0.1, 50))
def test_whoever_waits_as_long_as_it_was_told_passes(level: float, rate: float) -> None:
    bucket = Bucket(level, 0.0)
    wait_s = bucket.wait_s(0.0, rate, 10)
    assert wait_s > 0
    assert bucket.wait_s(wait_s * 1.000001 + 1e-9, rate, 10) == 0
