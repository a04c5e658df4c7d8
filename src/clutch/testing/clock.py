"""A clock that goes only when told."""

from __future__ import annotations

START = 1_700_000_000.0  # some moment; tests must not depend on which


class FakeClock:
    """Settable, also backwards: real ones are set, too."""

    def __init__(self, now: float = START) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def set(self, now: float) -> None:
        self._now = now

    def advance(self, seconds: float) -> None:
        self._now += seconds
