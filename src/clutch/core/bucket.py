"""How often somebody may ask: a bucket that fills at a steady rate and holds a burst."""

from __future__ import annotations

from typing import NamedTuple


class Bucket(NamedTuple):
    """What was in it, and when."""

    level: float
    at: float

    def taken(self, now: float, rate: float, burst: float) -> Bucket:
        """One less, if there was one; else what it holds now. A clock that went back fills nothing."""
        level = min(burst, self.level + rate * max(0.0, now - self.at))
        return Bucket(level - 1 if level >= 1 else level, now)

    def wait_s(self, now: float, rate: float, burst: float) -> float:
        """Until there is one; 0 = now."""
        level = min(burst, self.level + rate * max(0.0, now - self.at))
        return 0.0 if level >= 1 else (1 - level) / rate
