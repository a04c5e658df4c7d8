"""The store on PostgreSQL: batches in lockstep on one connection, `alone` and `read` on others.

    tx()    ──▶ queue ──▶ pump: BEGIN, rounds of grouped statements, COMMIT ──▶ callers, listeners, NOTIFY
    alone() ──▶ queue ──▶ pumps that take one at a time
    read()  ──▶ a reader: one snapshot, read-only

Import this module only when a PostgreSQL address is given: it needs the driver of the extra `postgres`."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from clutch.contain import BackgroundTasks, to_the_end
from clutch.errors import StoreBusy, StoreError, StoreLost
from clutch.ports import Clock
from clutch.store import dialect
from clutch.store.dialect import Dialect, Migration
from clutch.store.jobs import (
    Start,
    TransactionJob,
    TransactionMode,
    TransactionQueue,
    deliver,
    function_name,
    new_job,
    tell,
)
from clutch.store.postgres_address import LockSpace, PostgresAddress, parse_address
from clutch.store.postgres_checks import check_server, connected, ensure_schema, schema_of, suited
from clutch.store.postgres_clock import DatabaseClock
from clutch.store.postgres_connection import (
    BEGIN_READING,
    TROUBLE,
    DeadConnection,
    Link,
    PostgresSettings,
    connect_patiently,
    reason,
)
from clutch.store.postgres_sessions import HintExchange, PostgresLives
from clutch.store.transaction import (
    DatabaseStats,
    Keys,
    Listener,
    P,
    Spoiled,
    T,
    TransactionOutcome,
    TxFunction,
)

# --------------------------------------------------------------------------------------------------
# Takes batches from a queue and commits them on one connection: retries, reconnects, never stops.
#
# A transaction in flight when the connection breaks may or may not be committed: its caller gets StoreLost. One
# that has not been sent waits for a new connection, and gets StoreLost only if there is none for too long.

#: Before the next try after a deadlock; grows with every one, and is different for everybody.
_FIRST_PAUSE_S: Final = 0.01


#: Connections found dead at their first statement before callers get an error: one was idle through a restart, the
#: next one may have met its end.
_CONNECTIONS_MAX: Final = 3


class JobQueue:
    """Waiting jobs for any number of pumps on one event loop."""

    def __init__(self) -> None:
        self._waiting = TransactionQueue()
        self._changed = asyncio.Event()
        self._is_closing = False

    def add(self, job: TransactionJob) -> None:
        self._waiting.add(job)
        self._changed.set()

    def close(self) -> None:
        self._is_closing = True
        self._changed.set()

    async def take(self, limit: int) -> list[TransactionJob]:
        """The next batch; empty when the queue is closed and everything is taken."""
        while True:
            if batch := self._waiting.take(limit):
                return batch
            if self._is_closing and not self._waiting:
                return []
            self._changed.clear()
            await self._changed.wait()

    def finished(self, batch: Sequence[TransactionJob]) -> None:
        self._waiting.finished(batch)
        self._changed.set()


class Pump:
    def __init__(
        self,
        queue: JobQueue,
        connect: Callable[[], Awaitable[Link]],
        deliver: Callable[[Sequence[TransactionJob], Sequence[TransactionOutcome]], None],
        *,
        clock: Clock,
        stats: DatabaseStats,
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

    async def _settle(self, batch: Sequence[TransactionJob]) -> list[TransactionOutcome]:
        self._stats.batches += 1
        if len(batch) == 1:
            return [await self._by_itself(batch[0])]
        try:
            return await self._transact(batch)
        except Spoiled:
            self._stats.redone += len(batch)
            return [await self._by_itself(job) for job in batch]
        except Exception as error:  # noqa: BLE001 - the pump must live on, and every caller must hear of it
            return [TransactionOutcome(error=error) for _ in batch]

    async def _by_itself(self, job: TransactionJob) -> TransactionOutcome:
        for attempt in range(self._retries):
            outcome = await self._try_by_itself(job)
            if not isinstance(outcome.error, StoreBusy):
                return outcome
            await asyncio.sleep(_pause(attempt))
        return await self._try_by_itself(job)

    async def _try_by_itself(self, job: TransactionJob) -> TransactionOutcome:
        try:
            (outcome,) = await self._transact([job])
        except Spoiled as spoiled:
            return TransactionOutcome(error=spoiled.cause)
        except Exception as error:  # noqa: BLE001 - as above
            return TransactionOutcome(error=error)
        return outcome

    async def _transact(self, batch: Sequence[TransactionJob]) -> list[TransactionOutcome]:
        starts = [job.start for job in batch]
        for _ in range(_CONNECTIONS_MAX):
            link = await self._linked()
            try:
                outcomes = await link.transact(starts, self._clock.now())
            except DeadConnection:
                continue
            self._stats.commits += 1
            return outcomes
        raise StoreLost("the database drops every new connection; nothing was written", is_unsent=True)

    async def _linked(self) -> Link:
        if self._link is None or self._link.is_lost:
            self._link = await self._connect()
        return self._link


def _keys(job: TransactionJob) -> tuple[int, ...]:
    return job.keys


def _pause(attempt: int) -> float:
    spread = random.uniform(0.5, 1.5)  # noqa: S311 - keeps rivals apart, hides nothing
    return spread * _FIRST_PAUSE_S * float(2**attempt)


#: How long the second of two gateways waits while the first one changes the schema.
_MIGRATION_S: Final = 600.0
_MIGRATION_POLL_S: Final = 0.2
#: How long a change of a table waits for those who use it, e.g. a backup. All others wait behind it meanwhile, so this
#: is less than they wait for a lock, and then they have the table for as long.
_TABLE_LOCK_S: Final = 1.0
#: How long an index may be built beside writers: it waits for every transaction that has begun, e.g. for a backup.
_INDEX_S: Final = 86_400.0

#: A read changes nothing, so after a broken connection it is simply tried again.
_READ_TRIES: Final = 3


class PostgresStore:
    """Open it with `async with`, or `open()` and `close()`. Any number of processes may use one database.

    Behind a pooler that shares server connections, only hints and lives go around it (`database.direct`)."""

    lives: PostgresLives  #: once it is open
    _hints: HintExchange
    _exchanging: asyncio.Task[None]

    def __init__(
        self,
        dsn: str,
        clock: Clock,
        *,
        schema: Path = dialect.SCHEMA,
        settings: PostgresSettings | None = None,
        stopping: asyncio.Event | None = None,
    ) -> None:
        """`stopping`: from the moment it is set, a server that is away is not waited for."""
        self.stats = DatabaseStats()
        self._address = parse_address(dsn)
        self._clock = clock
        self._schema = schema
        self._settings = self._shared_settings = settings or PostgresSettings()
        self._listeners: list[Listener] = []
        self._shared = JobQueue()
        self._alone = JobQueue()
        self._idle_readers: list[Link] = []
        self._long_reads: set[str] = set()  #: functions that read more than one statement
        self._reader_slots = asyncio.Semaphore(self._settings.readers)
        self._tasks = BackgroundTasks()
        self._pumping: list[asyncio.Task[None]] = []
        self._is_open = False
        self._stopping = stopping or asyncio.Event()

    async def open(self) -> Self:
        """Check the server, migrate, then start serving. Returns when hints of other processes are received."""
        try:
            self._shared_settings = await suited(self._address, self._settings)
            space = await self._prepare()
        except TROUBLE as error:
            raise StoreLost(f"the database failed while it was checked ({reason(error)})") from error
        straight, ping_s = self._connect_directly, self._settings.ping_s
        self._hints = HintExchange(straight, space.channel, self._tell_listeners, ping_s=ping_s)
        # Half a lease: what is left of it is enough to write in another way.
        urgent_s = self._settings.transaction_s / 2
        self.lives = PostgresLives(straight, space.lives, self._tasks, ping_s=ping_s, write_s=urgent_s)
        listening = asyncio.Event()
        pumps = [self._pump(self._shared, self._settings.batch_max) for _ in range(self._settings.pumps)]
        pumps += [self._pump(self._alone, 1) for _ in range(self._settings.alone_connections)]
        # They outlive the caller of any one transaction; close() ends them and waits for them.
        self._pumping = [self._tasks.call(pump.run(), "clutch-pump") for pump in pumps]
        self._exchanging = self._tasks.call(self._hints.run(listening), "clutch-hints")
        self._is_open = True
        try:
            await listening.wait()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def tx(self, keys: Keys, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._refuse_closed()
        job, future = new_job(
            TransactionMode.SHARED, keys, function_name(fn), lambda now: fn(now, *args, **kwargs)
        )
        self._shared.add(job)
        return await future

    async def alone(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._refuse_closed()
        job, future = new_job(
            TransactionMode.ALONE, (), function_name(fn), lambda now: fn(now, *args, **kwargs)
        )
        self._alone.add(job)
        return await future

    async def read(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._refuse_closed()
        outcome = await self._look(function_name(fn), lambda now: fn(now, *args, **kwargs))
        if outcome.error is not None:
            raise outcome.error
        value: T = outcome.value
        return value

    async def urgent(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """On the session that holds the lock of this process; while that is gone, as any other transaction."""
        self._refuse_closed()
        try:
            outcome = await self.lives.write(lambda now: fn(now, *args, **kwargs), self._clock.now())
        except StoreLost:
            return await self.tx((), fn, *args, **kwargs)
        if outcome.error is not None:
            raise outcome.error
        value: T = outcome.value
        return value

    @property
    def is_hearing(self) -> bool:
        return self._is_open and self._hints.is_hearing

    def listen(self, callback: Listener) -> None:
        self._listeners.append(callback)

    async def close(self) -> None:
        """Commit what was asked, then close every connection, also if the caller is cancelled meanwhile.

        A server that is away is not waited for: callers get StoreLost after one more try."""
        if self._is_open:
            self._is_open = False
            await to_the_end(self._end())

    async def _end(self) -> None:
        self._shared.close()
        self._alone.close()
        # A pump ends when its queue is empty. Its commits send hints, so the exchange of hints ends after the pumps.
        await asyncio.gather(*self._pumping)
        self._hints.close()
        await self._exchanging
        await self.lives.close()
        for _ in range(self._settings.readers):
            await self._reader_slots.acquire()
        await asyncio.gather(*(link.close() for link in self._idle_readers))

    def _refuse_closed(self) -> None:
        if not self._is_open:
            raise StoreError("the store is closed")

    async def _connect(self) -> Link:
        return await self._connect_to(self._address, self._shared_settings)

    async def _connect_directly(self) -> Link:
        return await self._connect_to(self._address.session, self._settings)

    async def _connect_to(self, address: PostgresAddress, settings: PostgresSettings) -> Link:
        """Connect, and measure the clock of the server, which may be another one than before."""
        link = await connect_patiently(
            address, settings, lambda: self._is_open and not self._stopping.is_set()
        )
        if isinstance(self._clock, DatabaseClock):
            try:
                await self._clock.measure(link.raw)
            except TROUBLE as error:
                link.drop()
                why = f"the database went away ({error}); nothing was sent"
                raise StoreLost(why, is_unsent=True) from error
            except BaseException:  # a cancelled caller: no other one knows this connection
                link.drop()
                raise
        return link

    async def _prepare(self) -> LockSpace:
        patient = replace(
            self._settings,
            lock_timeout_s=_TABLE_LOCK_S,
            statement_timeout_s=_MIGRATION_S,
            transaction_s=_MIGRATION_S,
        )
        async with AsyncExitStack() as stack:
            link = await connected(stack, self._address.session, patient)
            await check_server(link, await connected(stack, self._address, self._shared_settings))
            schema = await schema_of(link, self._address.schema)
            space = LockSpace.of(schema)
            # Of several gateways that start at once one migrates; the others find it done.
            await _lock_migrations(link, space)
            await ensure_schema(link, schema)
            known = dialect.load(self._schema, Dialect.POSTGRES)
            for migration in await _must(link, partial(dialect.missing, migrations=known)):
                for name, statement in dialect.concurrent_indexes(migration).items():
                    await self._build(name, statement)
                await _apply(link, migration)
            return space

    async def _build(self, name: str, statement: str) -> None:
        """Build an index while others write. One that a crash left half built is invalid, and built again."""
        endless = replace(
            self._settings, lock_timeout_s=_INDEX_S, statement_timeout_s=_INDEX_S, transaction_s=_INDEX_S
        )
        async with AsyncExitStack() as stack:
            link = await connected(stack, self._address.session, endless)
            is_broken = "SELECT NOT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)"
            if await link.raw.fetchval(is_broken, name):
                await link.raw.execute(f"DROP INDEX CONCURRENTLY {name}")
            await link.raw.execute(statement)

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

    def _deliver(self, batch: Sequence[TransactionJob], outcomes: Sequence[TransactionOutcome]) -> None:
        if hints := deliver(batch, outcomes, self.stats):
            self._tell_listeners(hints)
            self._hints.tell(hints)

    def _tell_listeners(self, hints: Sequence[Any]) -> None:
        tell(self._listeners, hints)

    async def _look(self, name: str, start: Start) -> TransactionOutcome:
        # One slot for all tries: close() takes every slot for good, also one that is free between two tries.
        async with self._reader_slots:
            for _ in range(_READ_TRIES):
                async with self._reader() as link:
                    try:
                        outcome = await self._read_on(link, name, start)
                    except Spoiled as spoiled:
                        return TransactionOutcome(error=spoiled.cause)
                    except (DeadConnection, StoreLost):
                        continue
                    return outcome
        return TransactionOutcome(
            error=StoreLost("the connection to the database was lost while reading; try again")
        )

    async def _read_on(self, link: Link, name: str, start: Start) -> TransactionOutcome:
        """One statement has one snapshot without a transaction, too. Behind a pooler its settings come with BEGIN."""
        if not self._shared_settings.is_shared and name not in self._long_reads:
            found = await link.read_at_once(start, self._clock.now())
            if found is not None:
                return found
            self._long_reads.add(name)
        (outcome,) = await link.transact([start], self._clock.now(), BEGIN_READING)
        return outcome

    @asynccontextmanager
    async def _reader(self) -> AsyncIterator[Link]:
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


async def _lock_migrations(link: Link, space: LockSpace) -> None:
    """Take the lock, or ask again. A statement that waits for it would hold a snapshot, and an index that is built
    beside writers waits for all of them."""
    give_up_at = time.monotonic() + _MIGRATION_S
    while not await link.raw.fetchval(f"SELECT pg_try_advisory_lock({space.migration})"):
        if time.monotonic() > give_up_at:
            raise StoreBusy(
                f"another gateway has been changing the tables for {_MIGRATION_S:g} s; start this one again later"
            )
        await asyncio.sleep(_MIGRATION_POLL_S)


async def _apply(link: Link, migration: Migration) -> None:
    """Change the tables at a moment at which no transaction uses them. Raises StoreBusy if there is none for long."""
    give_up_at = time.monotonic() + _MIGRATION_S
    while True:
        try:
            await _must(link, partial(dialect.apply, migration=migration))
        except StoreBusy:
            if time.monotonic() > give_up_at:
                raise
        else:
            return
        await asyncio.sleep(_TABLE_LOCK_S)


async def _must(link: Link, start: Start) -> Any:
    try:
        (outcome,) = await link.transact([start], 0.0)
    except Spoiled as spoiled:
        raise spoiled.cause from spoiled
    if outcome.error is not None:
        raise outcome.error
    return outcome.value
