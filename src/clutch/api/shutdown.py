"""When a gateway that is a program of its own ends: after a stop, a drain, or a long idle time.

*Stop* interrupts the work; the next gateway resumes it. *Drain* accepts no new work from outside, finishes
the accepted work and what its agents delegate, then stops. *Idle*: no request for a while, and no work ahead that needs
a running gateway. A program that embeds Clutch has none of this.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from clutch.errors import Draining, StoreError
from clutch.transactions import workers
from clutch.transactions.workers import Working

if TYPE_CHECKING:
    from clutch.api.client import Opened

LOOK_S = 0.25  #: while it drains: a person watches
IDLE_LOOK_S = 15.0


class Visits:
    """Requests and streams under way, and when the last one ended."""

    def __init__(self) -> None:
        self.under_way = 0
        self.last = time.monotonic()

    @contextmanager
    def one(self) -> Iterator[None]:
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1
            self.last = time.monotonic()

    @property
    def quiet_s(self) -> float:
        return 0.0 if self.under_way else time.monotonic() - self.last


class Leaving:
    """Ends the gateway: `told` is set when it is time to stop, `why` says why."""

    def __init__(
        self, clutch: Opened, idle_exit_s: float | None = None, *, is_background: bool = False
    ) -> None:
        self._clutch, self._idle_exit_s = clutch, idle_exit_s
        self.is_background = is_background  #: a command started it
        self.told = asyncio.Event()
        self.why = ""
        self._drains = asyncio.Event()
        self._deadline: float | None = None

    @property
    def is_draining(self) -> bool:
        return self._drains.is_set()

    def stop(self, why: str) -> None:
        if not self.told.is_set():
            self.why = why
            self.told.set()

    def drain(self, within_s: float | None) -> None:
        """Begin to drain. A later call replaces the time limit."""
        self._deadline = None if within_s is None else time.monotonic() + within_s
        self._drains.set()

    async def working(self) -> list[Working]:
        services = self._clutch.services
        return await services.db.read(workers.working, services.policy.serving.drain_ahead_s)

    def check_open(self) -> None:
        """Raises Draining."""
        if self.is_draining:
            raise Draining

    async def watch(self) -> None:
        """Until it is time to go."""
        while not self.told.is_set():
            await self._pause()
            try:
                if self.is_draining:
                    await self._look_drained()
                elif self._idle_exit_s and self._clutch.local_gateway.visits.quiet_s >= self._idle_exit_s:
                    await self._look_idle(self._idle_exit_s)
            except StoreError:
                continue  # the worker logs it, and the store may work at the next look

    async def _pause(self) -> None:
        """A drain is begun at once."""
        if self.is_draining:
            await asyncio.sleep(LOOK_S)
            return
        try:
            async with asyncio.timeout(min(IDLE_LOOK_S, self._idle_exit_s or IDLE_LOOK_S)):
                await self._drains.wait()
        except TimeoutError:
            pass

    async def _look_drained(self) -> None:
        if not await self.working():
            self.stop("drained")
        elif self._deadline is not None and time.monotonic() >= self._deadline:
            self.stop("not drained in time: what is left resumes at the next start")

    async def _look_idle(self, idle_s: float) -> None:
        services = self._clutch.services
        if not await services.db.read(workers.is_anything, sorted(services.channels)):
            self.stop(f"no work and no request for {idle_s:.0f} s")
