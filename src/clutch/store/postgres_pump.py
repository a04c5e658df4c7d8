"""Takes batches from a queue and settles them on one connection: retries, reconnects, never stops.

A transaction in flight when the connection breaks may or may not be committed: its caller gets StoreLost. One
that has not been sent waits for a new connection, and gets StoreLost only if there is none for too long.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from clutch.errors import StoreBusy, StoreLost
from clutch.store.door import DoorStats
from clutch.store.jobs import Job, Outcome, Spoiled, Waiting
from clutch.store.postgres_link import Link, Unsent

if TYPE_CHECKING:
    from clutch.ports import Clock

#: Before the next try after a deadlock; grows with every one, and is different for everybody.
_FIRST_PAUSE_S: Final = 0.01


#: Connections found dead at their first word before callers are told: one was idle through a restart, the
#: next one may have met its end.
_CONNECTIONS_MAX: Final = 3


class JobQueue:
    """Waiting jobs for any number of pumps on one event loop."""

    def __init__(self) -> None:
        self._waiting = Waiting()
        self._changed = asyncio.Event()
        self._is_closing = False

    def add(self, job: Job) -> None:
        self._waiting.add(job)
        self._changed.set()

    def close(self) -> None:
        self._is_closing = True
        self._changed.set()

    async def take(self, limit: int) -> list[Job]:
        """The next batch; empty when the queue is closed and everything is taken."""
        while True:
            if batch := self._waiting.take(limit):
                return batch
            if self._is_closing and not self._waiting:
                return []
            self._changed.clear()
            await self._changed.wait()

    def finished(self, batch: Sequence[Job]) -> None:
        self._waiting.finished(batch)
        self._changed.set()


class Pump:
    def __init__(
        self,
        queue: JobQueue,
        connect: Callable[[], Awaitable[Link]],
        deliver: Callable[[Sequence[Job], Sequence[Outcome]], None],
        *,
        clock: Clock,
        stats: DoorStats,
        batch_max: int,
        retries: int,
    ) -> None:
        self._queue = queue
        self._connect = connect
        self._deliver = deliver
        self._clock = clock
        self._stats = stats
        self._batch_max = batch_max
        self._retries = retries
        self._link: Link | None = None

    async def run(self) -> None:
        """Until the queue is closed and empty."""
        while batch := await self._queue.take(self._batch_max):
            # Batches of all processes lock their sessions in the same order, parents before children.
            batch.sort(key=_keys)
            began = time.perf_counter()
            outcomes = await self._settle(batch)
            self._stats.batch_s += time.perf_counter() - began
            self._queue.finished(batch)
            self._deliver(batch, outcomes)
        if self._link is not None:
            await self._link.close()

    async def _settle(self, batch: Sequence[Job]) -> list[Outcome]:
        self._stats.batches += 1
        if len(batch) == 1:
            return [await self._by_itself(batch[0])]
        try:
            return await self._transact(batch)
        except Spoiled:
            self._stats.redone += len(batch)
            return [await self._by_itself(job) for job in batch]
        except Exception as error:  # noqa: BLE001 - the pump must live on, and every caller must hear of it
            return [Outcome(error=error) for _ in batch]

    async def _by_itself(self, job: Job) -> Outcome:
        for attempt in range(self._retries):
            outcome = await self._try_by_itself(job)
            if not isinstance(outcome.error, StoreBusy):
                return outcome
            await asyncio.sleep(_pause(attempt))
        return await self._try_by_itself(job)

    async def _try_by_itself(self, job: Job) -> Outcome:
        try:
            (outcome,) = await self._transact([job])
        except Spoiled as spoiled:
            return Outcome(error=spoiled.cause)
        except Exception as error:  # noqa: BLE001 - as above
            return Outcome(error=error)
        return outcome

    async def _transact(self, batch: Sequence[Job]) -> list[Outcome]:
        starts = [job.start for job in batch]
        for _ in range(_CONNECTIONS_MAX):
            link = await self._linked()
            try:
                outcomes = await link.transact(starts, self._clock.now())
            except Unsent:
                continue
            self._stats.commits += 1
            return outcomes
        raise StoreLost("the database drops every new connection; nothing was written")

    async def _linked(self) -> Link:
        if self._link is None or self._link.is_lost:
            self._link = await self._connect()
        return self._link


def _keys(job: Job) -> tuple[int, ...]:
    return job.keys


def _pause(attempt: int) -> float:
    spread = random.uniform(0.5, 1.5)  # noqa: S311 - keeps rivals apart, hides nothing
    return spread * _FIRST_PAUSE_S * float(2**attempt)
