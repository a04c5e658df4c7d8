"""A clock for tests. It advances only when the test advances it."""

from __future__ import annotations

START = 1_700_000_000.0  # an arbitrary moment; tests must not depend on it


class FakeClock:
    """A clock that a test sets. It can also be set back, as real clocks are."""

    def __init__(self, now: float = START) -> None:
        self._now = now

    def now(self) -> float:
        """Return the time in seconds since 1970."""
        return self._now

    def set(self, now: float) -> None:
        """Set the time, also to an earlier one."""
        self._now = now

    def advance(self, seconds: float) -> None:
        """Move the time forward."""
        self._now += seconds
