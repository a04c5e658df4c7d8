"""A worker's lease: renewed by heartbeats, which also measure the database's clock; and the leases of the others.

On SQLite no other process works on the state directory: no heartbeats, and no other worker to watch."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping

from clutch.core import workers as rules
from clutch.core.workers import Peer, Sign
from clutch.engine.services import Services
from clutch.errors import StoreError
from clutch.logs import logger
from clutch.ports import Clock, MeasuredClock
from clutch.transactions import workers
from clutch.transactions.sessions import Stale

log = logger(__name__)


class Lease:
    """`look`: makes the worker's loop look at once, because another worker may be dead."""

    def __init__(
        self, services: Services, clock: Clock, look: Callable[[], None], *, has_leases: bool
    ) -> None:
        self._services, self._look, self._has_leases = services, look, has_leases
        self._server_clock = clock if isinstance(clock, MeasuredClock) else None
        #: until when no other process may declare this one dead, by a clock that nothing can set
        self.until = math.inf
        self._others: dict[int, Peer] = {}
        self._beats = 0  #: own heartbeats; silence of others is counted by them
        self._beat_at = 0.0

    @property
    def length_s(self) -> float:
        return self._services.policy.work.lease_s if self._has_leases else rules.NO_LEASE_S

    def begin(self) -> None:
        """Before the worker registers under a new number."""
        self._extend(self._steady(), self.length_s)
        self._others, self._beat_at = {}, asyncio.get_running_loop().time()

    @property
    def is_over(self) -> bool:
        """Whether another worker may have taken over what this one was about to do, e.g. while it was frozen."""
        return self._steady() > self.until

    def check(self) -> None:
        """Raise Stale if the lease is over."""
        if self.is_over:
            raise Stale(f"the lease of worker {self._services.worker_id} has run out")

    async def keep(self) -> None:
        """Renew it until cancelled. Raises Stale if this worker was declared dead."""
        while self._has_leases:
            pause_s = rules.beat_s(self.length_s)
            try:
                await self._renew()
            except StoreError as error:
                worker_id = self._services.worker_id
                log.warning(
                    "Lease of worker %d not renewed: %s (next try in %g s)", worker_id, error, pause_s
                )
            await asyncio.sleep(pause_s)

    def _steady(self) -> float:
        """The database's clock is no measure: the server may be set, or be another one after a failover."""
        return (
            asyncio.get_running_loop().time() if self._server_clock is None else self._server_clock.steady()
        )

    def _extend(self, asked_at: float, length_s: float) -> None:
        """The lock of this process may be lost without a sign, and then others do not wait for the end of the lease."""
        has_lock = self._has_leases and self._services.lives is not None
        self.until = asked_at + (rules.certain_s(length_s) if has_lock else length_s)

    async def _renew(self) -> None:
        services, loop, length_s = self._services, asyncio.get_running_loop(), self.length_s
        clock = self._server_clock
        offset_s = None if clock is None else clock.wall_offset_s
        asked_at, asked = self._steady(), loop.time()
        answer = await services.db.urgent(workers.heartbeat, services.worker_id, length_s, offset_s)
        self._extend(asked_at, length_s)
        if clock is not None and answer.clock is not None:
            clock.measured(answer.clock, loop.time() - asked)
        if answer.is_draining != services.is_draining:
            services.is_draining = answer.is_draining
            log.warning("Node %s", "drained by an operator" if answer.is_draining else "in service again")
            self._look()
        self._count(answer.others, loop.time(), length_s)

    def _count(self, others: Mapping[int, Sign], at: float, length_s: float) -> None:
        if rules.is_gap(at - self._beat_at, length_s):
            self._others = rules.after_gap(self._others, self._beats)
        self._beats, self._beat_at = self._beats + 1, at
        self._others = rules.observed(self._others, others, self._beats)
        if self._doubtful():
            self._look()

    def _doubtful(self) -> dict[int, Peer]:
        beats, length_s = self._beats, self.length_s
        return {one: peer for one, peer in self._others.items() if rules.is_doubtful(peer, beats, length_s)}

    async def bury(self) -> bool:
        """Release what dead workers held, as the last heartbeat has found them."""
        doubtful, lives = self._doubtful(), self._services.lives
        free = await lives.dead(list(doubtful)) if doubtful and lives is not None else []
        buried: list[int] = []
        for one, peer in doubtful.items():
            if rules.is_dead(peer, self._beats, self.length_s, is_lock_free=one in free):
                buried += await self._services.db.alone(workers.bury, one, peer.sign.mark)
                self._others.pop(one, None)
        return bool(buried)
