"""The clock of the database server, read on this machine without asking.

All processes of a fleet share the server, so they share its clock: a machine whose own clock is wrong harms no other.
The offset between the server's clock and a local one that nothing can set is measured with every new connection and
every heartbeat. A measurement is an interval: the server read its clock between the question and the answer."""

from __future__ import annotations

import time
from typing import Any, Final

#: It counts while the machine is suspended. On macOS the monotonic clock of the system does.
_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

#: How much two clocks drift apart: 200 ppm is more than NTP lets a working one drift.
DRIFT: Final = 2e-4

QUESTION: Final = "SELECT extract(epoch FROM clock_timestamp())::float8"


def steady() -> float:
    return time.clock_gettime(_STEADY)


class DatabaseClock:
    """Implements the port `MeasuredClock`. Until the first measurement it is the clock of this machine."""

    def __init__(self) -> None:
        self._low = self._high = self.wall() - self.steady()
        self._measured_at: float | None = None

    def steady(self) -> float:
        return steady()

    def wall(self) -> float:
        return time.time()

    def now(self) -> float:
        """Seconds since the epoch, by the server's clock."""
        return self.steady() + (self._low + self._high) / 2

    @property
    def wall_offset_s(self) -> float | None:
        """How far the clock of this machine is ahead of the server's. None: not measured yet."""
        return None if self._measured_at is None else self.wall() - self.now()

    @property
    def error_s(self) -> float:
        """The largest error of `now` at the last measurement."""
        return (self._high - self._low) / 2

    def measured(self, server: float, waited_s: float) -> None:
        """Take an answer that arrived just now: the server's clock at some moment of the time waited.

        Answers that agree narrow the offset down. One that contradicts it, after a step of the clock or a failover to
        another server, replaces it."""
        at = self.steady()
        low, high = server - at, server - at + max(0.0, waited_s)
        if self._measured_at is not None:
            drift = DRIFT * (at - self._measured_at)
            low_both, high_both = max(low, self._low - drift), min(high, self._high + drift)
            if low_both <= high_both:
                low, high = low_both, high_both
        self._low, self._high, self._measured_at = low, high, at

    async def measure(self, raw: Any) -> None:
        """Ask the server at the other end of this connection of the driver."""
        asked = self.steady()
        self.measured(await raw.fetchval(QUESTION), self.steady() - asked)
