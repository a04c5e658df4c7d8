"""The store on PostgreSQL: batches in lockstep on one connection, `alone` and `read` on others.

    tx()    ──▶ queue ──▶ pump: BEGIN, rounds of grouped statements, COMMIT ──▶ callers, listeners, NOTIFY
    alone() ──▶ queue ──▶ pumps that take one at a time
    read()  ──▶ a reader: one snapshot, read-only

Import this module only when a PostgreSQL address is given: it needs the driver of the extra `postgres`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from clutch.errors import StoreError, StoreLost
from clutch.store import migrations
from clutch.store.dialect import Dialect
from clutch.store.door import DoorStats, Keys, Listener, P, T, TxFunction
from clutch.store.jobs import Job, Mode, Outcome, Spoiled, deliver, function_name, new_job, tell
from clutch.store.lockstep import Start
from clutch.store.postgres_hints import HintExchange
from clutch.store.postgres_link import (
    BEGIN_READING,
    Link,
    PostgresSettings,
    Unsent,
    connect_patiently,
    refuse_unsuitable_server,
)
from clutch.store.postgres_lives import PostgresLives
from clutch.store.postgres_pump import JobQueue, Pump

if TYPE_CHECKING:
    from clutch.ports import Clock

#: Any number will do, as long as every gateway takes the same one.
_MIGRATION_LOCK: Final = 0x_C1_07_C4

#: How long the second of two gateways waits while the first one changes the schema.
_MIGRATION_S: Final = 600.0

#: A read changes nothing, so after a broken connection it is simply tried again.
_READ_TRIES: Final = 3


class PostgresStore:
    """Open it with `async with`, or `open()` and `close()`. Any number of processes may use one database."""

    def __init__(
        self,
        dsn: str,
        clock: Clock,
        *,
        schema: Path = migrations.SCHEMA,
        settings: PostgresSettings | None = None,
    ) -> None:
        self.stats = DoorStats()
        self._dsn = dsn
        self._clock = clock
        self._schema = schema
        self._settings = settings or PostgresSettings()
        self._listeners: list[Listener] = []
        self._shared = JobQueue()
        self._alone = JobQueue()
        self._idle_readers: list[Link] = []
        self._reader_slots = asyncio.Semaphore(self._settings.readers)
        self._hints = HintExchange(self._connect, self._tell_listeners)
        self.lives = PostgresLives(self._connect)
        self._tasks: list[asyncio.Task[None]] = []
        self._is_open = False

    async def open(self) -> Self:
        """Check the server, migrate, then start serving. Returns when hints of others are heard."""
        await self._prepare()
        listening = asyncio.Event()
        pumps = [self._pump(self._shared, self._settings.batch_max) for _ in range(self._settings.pumps)]
        pumps += [self._pump(self._alone, 1) for _ in range(self._settings.alone_connections)]
        # They outlive the caller of any one transaction; close() ends them and waits for them.
        self._tasks = [asyncio.create_task(pump.run(), name="clutch-pump") for pump in pumps]
        self._tasks.append(asyncio.create_task(self._hints.run(listening), name="clutch-hints"))
        self._is_open = True
        await listening.wait()
        return self

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def tx(self, keys: Keys, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._refuse_closed()
        job, future = new_job(Mode.SHARED, keys, function_name(fn), lambda now: fn(now, *args, **kwargs))
        self._shared.add(job)
        return await future

    async def alone(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._refuse_closed()
        job, future = new_job(Mode.ALONE, (), function_name(fn), lambda now: fn(now, *args, **kwargs))
        self._alone.add(job)
        return await future

    async def read(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._refuse_closed()
        outcome = await self._look(lambda now: fn(now, *args, **kwargs))
        if outcome.error is not None:
            raise outcome.error
        value: T = outcome.value
        return value

    def listen(self, callback: Listener) -> None:
        self._listeners.append(callback)

    async def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._shared.close()
        self._alone.close()
        await asyncio.gather(*self._tasks[:-1])
        self._hints.close()
        await self._tasks[-1]
        await self.lives.close()
        for _ in range(self._settings.readers):
            await self._reader_slots.acquire()
        for link in self._idle_readers:
            await link.close()

    def _refuse_closed(self) -> None:
        if not self._is_open:
            raise StoreError("the store is closed")

    async def _connect(self) -> Link:
        return await connect_patiently(self._dsn, self._settings)

    async def _prepare(self) -> None:
        patient = replace(
            self._settings,
            lock_timeout_s=_MIGRATION_S,
            statement_timeout_s=_MIGRATION_S,
            transaction_s=_MIGRATION_S,
        )
        link = await connect_patiently(self._dsn, patient)
        try:
            await refuse_unsuitable_server(link)
            # Of several gateways that start at once one migrates; the others find it done.
            await link.raw.execute(f"SELECT pg_advisory_lock({_MIGRATION_LOCK})")
            known = migrations.load(self._schema, Dialect.POSTGRES)
            for migration in await _must(link, partial(migrations.missing, migrations=known)):
                await _must(link, partial(migrations.apply, migration=migration))
        finally:
            await link.close()

    def _pump(self, queue: JobQueue, batch_max: int) -> Pump:
        return Pump(
            queue,
            self._connect,
            self._deliver,
            clock=self._clock,
            stats=self.stats,
            batch_max=batch_max,
            retries=self._settings.retries,
        )

    def _deliver(self, batch: Sequence[Job], outcomes: Sequence[Outcome]) -> None:
        if hints := deliver(batch, outcomes, self.stats):
            self._tell_listeners(hints)
            self._hints.tell(hints)

    def _tell_listeners(self, hints: Sequence[Any]) -> None:
        tell(self._listeners, hints)

    async def _look(self, start: Start) -> Outcome:
        for _ in range(_READ_TRIES):
            async with self._reader() as link:
                try:
                    (outcome,) = await link.transact([start], self._clock.now(), BEGIN_READING)
                except Spoiled as spoiled:
                    return Outcome(error=spoiled.cause)
                except (Unsent, StoreLost):
                    continue
                return outcome
        return Outcome(error=StoreLost("the connection to the database was lost while reading; try again"))

    @asynccontextmanager
    async def _reader(self) -> AsyncIterator[Link]:
        async with self._reader_slots:
            link = self._idle_readers.pop() if self._idle_readers else await self._connect()
            try:
                yield link
            finally:
                if link.is_lost:
                    self._forget_idle_readers()
                else:
                    self._idle_readers.append(link)

    def _forget_idle_readers(self) -> None:
        """What broke one connection has mostly broken all."""
        while self._idle_readers:
            self._idle_readers.pop().drop()


async def _must(link: Link, start: Start) -> Any:
    try:
        (outcome,) = await link.transact([start], 0.0)
    except Spoiled as spoiled:
        raise spoiled.cause from spoiled
    if outcome.error is not None:
        raise outcome.error
    return outcome.value
