"""The store on one SQLite file: one writer thread, many transactions to a commit, readers beside it.

    callers ──▶ queue ──▶ writer thread: BEGIN IMMEDIATE, everything that waits, COMMIT (synced) ──▶ callers
            ──▶ queue ──▶ reader threads: one snapshot each, read-only

While a commit waits for the disk the next batch gathers, so the more callers the fewer commits each needs.
A memory database is private to its connection, so there the writer thread serves the reads too."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from clutch.errors import DiskFull, StoreBusy, StoreError
from clutch.ports import Clock
from clutch.store import dialect
from clutch.store.jobs import (
    Lockstep,
    TransactionJob,
    TransactionMode,
    answer,
    deliver,
    function_name,
    new_job,
    tell,
)
from clutch.store.sqlite_connection import (
    MEMORY,
    SqliteConnection,
    filesystem_of,
    migrate,
    refuse_network_filesystem,
)
from clutch.store.transaction import (
    DatabaseStats,
    Keys,
    Listener,
    P,
    Spoiled,
    T,
    TransactionOutcome,
    Tx,
    TxFunction,
)

# --------------------------------------------------------------------------------------------------
# One commit for many transactions on one SQLite connection, and what happens when one of them fails.
#
#     a batch   [tx 1] [tx 2] [tx 3] | [alone] | [tx 3 again] [tx 4]     one BEGIN, one COMMIT
#               └── a wave: lockstep ┘           └── the next wave ┘
#
# A wave advances in lockstep: the same code runs for all of them in a row, which costs two thirds of running one
# transaction after the other. A transaction that shares a key with one of a wave, or runs alone, waits for the next.


def next_batch(waiting: deque[TransactionJob], limit: int) -> list[TransactionJob]:
    """The oldest, without those whose caller has gone. A read (only a memory database sends it here) is by itself."""
    batch: list[TransactionJob] = []
    while waiting and len(batch) < limit and not (batch and waiting[0].mode is TransactionMode.READ):
        job = waiting.popleft()
        if not job.future.cancelled():
            batch.append(job)
            if job.mode is TransactionMode.READ:
                break
    return batch


def waves(batch: Iterable[TransactionJob]) -> Iterator[list[TransactionJob]]:
    """In the order they came, so that the transactions of a key stay in theirs."""
    wave: list[TransactionJob] = []
    held: set[int] = set()
    for job in batch:
        is_apart = job.mode is not TransactionMode.SHARED or bool(
            wave and wave[-1].mode is not TransactionMode.SHARED
        )
        if wave and (is_apart or not held.isdisjoint(job.keys)):
            yield wave
            wave, held = [], set()
        wave.append(job)
        held.update(job.keys)
    if wave:
        yield wave


class SqliteBatches:
    """Runs batches, one after the other. Every job gets an outcome, whatever happens."""

    def __init__(self, connection: SqliteConnection, clock: Clock, stats: DatabaseStats) -> None:
        self._connection = connection
        self._clock = clock
        self._stats = stats

    def settle(self, batch: Sequence[TransactionJob]) -> list[TransactionOutcome]:
        began = time.perf_counter()
        try:
            return self._settle(batch)
        finally:
            self._stats.batch_s += time.perf_counter() - began

    def _settle(self, batch: Sequence[TransactionJob]) -> list[TransactionOutcome]:
        self._stats.batches += 1
        if len(batch) == 1:
            return [self._by_itself(batch[0])]
        try:
            return self._together(batch)
        except Spoiled:
            self._stats.redone += len(batch)
            return [self._by_itself(job) for job in batch]
        except Exception as error:  # noqa: BLE001 - the writer must live on, and every caller must hear of it
            return [TransactionOutcome(error=error) for _ in batch]

    def _together(self, batch: Sequence[TransactionJob]) -> list[TransactionOutcome]:
        now = self._clock.now()
        self._connection.begin()
        try:
            outcomes = [outcome for wave in waves(batch) for outcome in self._wave(wave, now)]
            self._commit()
        finally:
            self._connection.rollback()
        self._stats.commits += 1
        return outcomes

    def _wave(self, wave: Sequence[TransactionJob], now: float) -> list[TransactionOutcome]:
        if len(wave) == 1:
            return [self._one_of_many(wave[0], now)]
        return Lockstep([job.start for job in wave], now).run(self._connection.send)

    def _one_of_many(self, job: TransactionJob, now: float) -> TransactionOutcome:
        before = self._connection.changes()
        outcome = self._connection.run(job.start, now)
        if outcome.error is not None:
            has_written = self._connection.changes() != before
            # A full disk or an I/O error ends the whole transaction, the neighbours' writes with it.
            if has_written or not self._connection.in_transaction:
                raise Spoiled(outcome.error)
        return outcome

    def _commit(self) -> None:
        try:
            self._connection.control("COMMIT")
        except (DiskFull, StoreBusy) as error:
            # One by one the small ones may still fit. After an I/O error nothing is tried again.
            raise Spoiled(error) from error

    def _by_itself(self, job: TransactionJob) -> TransactionOutcome:
        try:
            return self._look(job) if job.mode is TransactionMode.READ else self._transact(job)
        except Exception as error:  # noqa: BLE001 - as above
            return TransactionOutcome(error=error)

    def _transact(self, job: TransactionJob) -> TransactionOutcome:
        outcome = self._connection.transact(job.start, self._clock.now())
        if outcome.error is None:
            self._stats.commits += 1
        return outcome

    def _look(self, job: TransactionJob) -> TransactionOutcome:
        with self._connection.reading_only():
            return self._connection.look(job.start, self._clock.now())


#: Enough to make the sync cheap for each; more would only make the first of them wait.
BATCH_MAX: Final = 512

_Inbox = queue.SimpleQueue[TransactionJob | None]


class SqliteStore:
    """Open it with `async with`, or `open()` and `close()`. Its threads ask the clock, too."""

    def __init__(
        self,
        path: Path | str,
        clock: Clock,
        *,
        schema: Path = dialect.SCHEMA,
        readers: int = 2,
        batch_max: int = BATCH_MAX,
        busy_timeout_s: float = 5.0,
        filesystem: Callable[[Path], str] = filesystem_of,
    ) -> None:
        self.stats = DatabaseStats()
        self._path = str(path)
        self._clock = clock
        self._schema = schema
        self._batch_max = batch_max
        self._busy_timeout_s = busy_timeout_s
        self._filesystem = filesystem
        self._listeners: list[Listener] = []
        self._writes: _Inbox = queue.SimpleQueue()
        self._reads: _Inbox = queue.SimpleQueue()
        self._reader_count = 0 if self._path == MEMORY else readers
        self._threads: list[threading.Thread] = []
        self._is_open = False

    async def open(self) -> Self:
        """Create or migrate the database, then start serving."""
        self._loop = asyncio.get_running_loop()
        connections = await asyncio.to_thread(self._connect)
        writer, *readers = connections
        self._start("clutch-writer", partial(self._write, writer))
        for reader in readers:
            self._start("clutch-reader", partial(self._read, reader))
        self._is_open = True
        return self

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def tx(self, keys: Keys, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        name, start = function_name(fn), lambda now: fn(now, *args, **kwargs)
        return await self._submit(self._writes, TransactionMode.SHARED, keys, name, start)

    async def alone(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        name, start = function_name(fn), lambda now: fn(now, *args, **kwargs)
        return await self._submit(self._writes, TransactionMode.ALONE, (), name, start)

    async def read(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        inbox = self._reads if self._reader_count else self._writes
        name, start = function_name(fn), lambda now: fn(now, *args, **kwargs)
        return await self._submit(inbox, TransactionMode.READ, (), name, start)

    async def urgent(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """One process has no lease: nothing is urgent."""
        return await self.tx((), fn, *args, **kwargs)

    @property
    def is_hearing(self) -> bool:
        return False  # there are no other processes

    def listen(self, callback: Listener) -> None:
        self._listeners.append(callback)

    async def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        # The readers first: the last connection to close folds the log back into the database file.
        for _ in range(self._reader_count):
            self._reads.put(None)
        await asyncio.to_thread(self._join, self._threads[1:])
        self._writes.put(None)
        await asyncio.to_thread(self._join, self._threads[:1])

    def _submit(
        self, inbox: _Inbox, mode: TransactionMode, keys: Keys, name: str, start: Callable[[float], Tx[T]]
    ) -> asyncio.Future[T]:
        if not self._is_open:
            raise StoreError("the store is closed")
        job, future = new_job(mode, keys, name, start)
        inbox.put(job)
        return future

    # The rest runs in the store's threads.

    def _connect(self) -> list[SqliteConnection]:
        if self._path != MEMORY:
            folder = Path(self._path).absolute().parent
            refuse_network_filesystem(folder, self._filesystem(folder))
        connections = [SqliteConnection(self._path, busy_timeout_s=self._busy_timeout_s)]
        try:
            migrate(connections[0], self._schema)
            for _ in range(self._reader_count):
                connections.append(SqliteConnection(self._path, read_only=True))
        except BaseException:
            for connection in connections:
                connection.close()
            raise
        return connections

    def _start(self, name: str, serve: Callable[[], None]) -> None:
        # A daemon: a program that ends without close() loses no commit that was reported to it.
        thread = threading.Thread(target=serve, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    @staticmethod
    def _join(threads: Sequence[threading.Thread]) -> None:
        for thread in threads:
            thread.join()

    def _read(self, connection: SqliteConnection) -> None:
        while (job := self._reads.get()) is not None:
            is_left = job.future.cancelled
            # A read whose caller has gone ends: there are few readers, and a query over whole tables would keep one.
            if not is_left():
                self._on_loop(answer, job, connection.look(job.start, self._clock.now(), is_left))
        connection.close()

    def _write(self, connection: SqliteConnection) -> None:
        waiting: deque[TransactionJob] = deque()
        batches = SqliteBatches(connection, self._clock, self.stats)
        while self._gather(waiting):
            if batch := next_batch(waiting, self._batch_max):
                self._on_loop(self._deliver, batch, batches.settle(batch))
        connection.close()

    def _gather(self, waiting: deque[TransactionJob]) -> bool:
        """Take in everything that has arrived; wait for it if there is nothing to do. False at the end."""
        try:
            while True:
                job = self._writes.get(block=not waiting)
                if job is None:
                    # Nothing can come after the end mark, so what waits is the rest.
                    self._writes.put(None)
                    return bool(waiting)
                waiting.append(job)
        except queue.Empty:
            return True

    def _on_loop(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            # The program ended without close(): no caller is left.

    def _deliver(self, batch: Sequence[TransactionJob], outcomes: Sequence[TransactionOutcome]) -> None:
        if hints := deliver(batch, outcomes, self.stats):
            tell(self._listeners, hints)
