"""The floor, how it writes: bare drivers with group commit, and the tasks of `floor_rows` driven through them.

Whatever waits while a commit is on its way shares the next one, as in the product's stores. PostgreSQL gets the
statements of a batch grouped by their text, one trip each. A guard that does not find its row fails everybody of
the batch: in this traffic none ever does.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeAlias

import apsw
import asyncpg

from benchmarks.floor_rows import Statement, Step, new_parent, of_one_task
from benchmarks.places import Place
from clutch.store.dialect import Dialect, is_reading, numbered, statement_text
from clutch.store.postgres_connection import PostgresSettings
from clutch.store.sqlite import BATCH_MAX

#: As the store opens its own: one thread uses a connection, so no lock around each call is needed.
_FLAGS: Final = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_NOMUTEX
_CHECKPOINT_PAGES: Final = 4000  # the product's
_Job: TypeAlias = tuple[Step, "asyncio.Future[None]"]


class Writer(Protocol):
    commits: int

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def write(self, step: Step) -> None:
        """Back when it is durable."""
        ...


class SqliteWriter:
    """One thread, one connection, synchronous FULL."""

    def __init__(self, path: str) -> None:
        self.commits = 0
        self._path = path
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    async def write(self, step: Step) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        self._jobs.put((step, future))
        await future

    def _serve(self) -> None:
        connection = apsw.Connection(self._path, flags=_FLAGS, statementcachesize=500)
        connection.execute("PRAGMA journal_mode=WAL").fetchall()
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
        cursor, plans = connection.cursor(), _Plans(Dialect.SQLITE)
        while batch := self._next():
            futures = [future for _, future in batch]
            cursor.execute("BEGIN IMMEDIATE")
            for step, _ in batch:
                for sql, parameters in step:
                    text, is_guard = plans[sql]
                    rows = cursor.execute(text, parameters)
                    if is_guard and len(rows.fetchall()) != 1:
                        self._loop.call_soon_threadsafe(_fail, futures, sql)
            cursor.execute("COMMIT")
            self.commits += 1
            self._loop.call_soon_threadsafe(_wake, futures)
        connection.close()

    def _next(self) -> list[_Job]:
        first = self._jobs.get()
        if first is None:
            return []
        batch = [first]
        while len(batch) < BATCH_MAX and not self._jobs.empty():
            job = self._jobs.get()
            if job is None:
                self._jobs.put(None)
                break
            batch.append(job)
        return batch


class PostgresWriter:
    """One task, one connection."""

    def __init__(self, dsn: str) -> None:
        self.commits = 0
        self._dsn = dsn
        self._waiting: list[_Job] = []
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._raw = await asyncpg.connect(self._dsn, server_settings={"jit": "off"}, statement_cache_size=500)
        self._task = asyncio.create_task(self._serve())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._raw.close()

    async def write(self, step: Step) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((step, future))
        self._changed.set()
        await future

    async def _serve(self) -> None:
        limit, plans = PostgresSettings().batch_max, _Plans(Dialect.POSTGRES)
        while True:
            await self._changed.wait()
            batch, self._waiting = self._waiting[:limit], self._waiting[limit:]
            if not self._waiting:
                self._changed.clear()
            futures = [future for _, future in batch]
            await self._raw.execute("BEGIN")
            for sql, rows in _grouped(step for step, _ in batch):
                text, is_guard = plans[sql]
                if not is_guard:
                    await self._raw.executemany(text, rows)
                elif len(await self._raw.fetchmany(text, rows)) != len(rows):
                    _fail(futures, sql)
            await self._raw.execute("COMMIT")
            self.commits += 1
            _wake(futures)


def _grouped(steps: Iterable[Step]) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """No row is written twice in a batch, since a client waits for each step: so any order will do."""
    groups: dict[str, list[tuple[Any, ...]]] = {}
    for step in steps:
        for sql, parameters in step:
            groups.setdefault(sql, []).append(parameters)
    return list(groups.items())


class _Plans(dict[str, tuple[str, bool]]):
    """The driver's text of each statement, and whether it is a guard."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__()
        self._dialect = dialect

    def __missing__(self, sql: str) -> tuple[str, bool]:
        text = statement_text(sql, self._dialect)
        self[sql] = text if self._dialect is Dialect.SQLITE else numbered(text), is_reading(sql)
        return self[sql]


def _fail(futures: Sequence[asyncio.Future[None]], guard: str) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(RuntimeError(f"not one row: {guard}"))


def _wake(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


class Floor:
    """The counterpart of `Traffic`."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._ids = itertools.count(1 << 31)
        self._heads: dict[int, int] = {}

    async def new_parents(self, count: int) -> list[int]:
        numbers = [next(self._ids) for _ in range(count)]
        statements: list[Statement] = [line for number in numbers for line in new_parent(number)]
        await self._writer.write(statements)
        self._heads = dict.fromkeys(numbers, 0)
        return numbers

    async def task(self, parent: int) -> None:
        for step in of_one_task(parent, self._heads[parent], self._ids.__next__):
            await self._writer.write(step)
        self._heads[parent] += 2


def writer(place: Place, address: str) -> Writer:
    return SqliteWriter(address) if place.backend == "sqlite" else PostgresWriter(address)
