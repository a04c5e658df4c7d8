"""One store per test, on each database, with a clock that names batches and ways to hold a store up."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import pytest

from clutch.store.postgres import PostgresStore
from clutch.store.sqlite import SqliteStore
from tests.patience import PATIENCE_S
from tests.postgres_server import postgres_dsn, postgres_server
from tests.store.transactions import blocked, create

__all__ = ["postgres_dsn", "postgres_server"]

SCHEMA = Path(__file__).parent / "schema"

Store: TypeAlias = SqliteStore | PostgresStore
Stall: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]


class TickingClock:
    """Never the same twice, so two transactions with the same `now` were in one batch."""

    def __init__(self) -> None:
        self._ticks = itertools.count(1)

    def now(self) -> float:
        return float(next(self._ticks))


@pytest.fixture(params=["sqlite file", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def make_store(kind: str, request: pytest.FixtureRequest, memory_path: Path) -> Callable[[], Store]:
    """Every store it makes is on the same database. A database in memory is the one of the tests of the engine."""
    match kind:
        case "postgres":
            dsn: str = request.getfixturevalue("postgres_dsn")
            return lambda: PostgresStore(dsn, TickingClock(), schema=SCHEMA)
        case _:
            return lambda: SqliteStore(memory_path / "test.db", TickingClock(), schema=SCHEMA)


@pytest.fixture
async def store(make_store: Callable[[], Store]) -> AsyncIterator[Store]:
    """With counters 1 to 9 at nought."""
    async with make_store() as opened:
        await opened.alone(create, *range(1, 10))
        yield opened


@pytest.fixture
def stall(store: Store, request: pytest.FixtureRequest) -> Stall:
    """Inside it the writer is stuck in a transaction; what is asked meanwhile has to wait."""
    if isinstance(store, SqliteStore):
        return lambda: stalled_sqlite(store)
    dsn: str = request.getfixturevalue("postgres_dsn")
    return lambda: stalled_postgres(store, dsn)


@asynccontextmanager
async def stalled_sqlite(store: SqliteStore) -> AsyncIterator[None]:
    entered, released = threading.Event(), threading.Event()
    holder = asyncio.ensure_future(store.alone(blocked, entered, released))
    assert await asyncio.to_thread(entered.wait, 30)
    try:
        yield
    finally:
        released.set()
        await holder


@asynccontextmanager
async def stalled_postgres(store: PostgresStore, dsn: str) -> AsyncIterator[None]:
    """Counter 1000 is locked by a stranger, and the pump waits for it."""
    stranger = await asyncpg.connect(dsn)
    try:
        await store.alone(create, 1000)
        async with stranger.transaction():
            await stranger.execute("SELECT * FROM counters WHERE id = 1000 FOR UPDATE")
            holder = asyncio.ensure_future(store.tx(1000, _touch_stalled))
            await until_waiting(stranger)
            yield
        await holder
    finally:
        await stranger.close()


def _touch_stalled(now: float) -> Any:
    yield "SELECT value FROM counters WHERE id = 1000 {lock}", ()


async def until_waiting(stranger: asyncpg.Connection, count: int = 1) -> None:
    """Returns when so many connections to the server wait for a lock. (Activity would be a snapshot.)"""
    async with asyncio.timeout(PATIENCE_S):
        while await stranger.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted") < count:
            pass


async def together(stall: Stall, *calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """Ask all while the writer is busy, so that they wait side by side; results or exceptions."""
    async with stall():
        tasks = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0)  # each has put its transaction into the queue
    return await asyncio.gather(*tasks, return_exceptions=True)


async def settled(awaitable: Awaitable[Any]) -> Any:
    """Its value or its exception, within a time that only a lost signal exceeds."""
    async with asyncio.timeout(PATIENCE_S):
        return (await asyncio.gather(awaitable, return_exceptions=True))[0]


@pytest.fixture
async def stranger(postgres_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_dsn)
    yield connection
    await connection.close()
