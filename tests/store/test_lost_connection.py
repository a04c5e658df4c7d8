"""PostgreSQL goes away at the worst moment: nobody is told a lie, and afterwards everything works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import asyncpg
import pytest

from clutch.errors import StoreLost
from clutch.store.postgres import PostgresStore
from clutch.store.postgres_clock import DatabaseClock
from clutch.store.postgres_connection import PostgresSettings
from clutch.store.transaction import LOOK, Tx
from clutch.testing.postgres import PostgresServer, temporary_server
from tests.patience import PATIENCE_S
from tests.store import transactions as t
from tests.store.conftest import SCHEMA, TickingClock, settled, until_waiting
from tests.store.test_postgres import Heard

pytestmark = pytest.mark.anyio

END_THE_WAITING = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE NOT granted"


@pytest.fixture
async def store(postgres_dsn: str) -> AsyncIterator[PostgresStore]:
    async with PostgresStore(postgres_dsn, TickingClock(), schema=SCHEMA) as opened:
        await opened.alone(t.create, *range(1, 10))
        yield opened


async def test_a_connection_lost_inside_a_batch_tells_everybody_in_it(
    store: PostgresStore, stranger: asyncpg.Connection
) -> None:
    async with stranger.transaction():
        await stranger.execute("SELECT * FROM counters WHERE id = 1 FOR UPDATE")
        calls = [asyncio.ensure_future(store.tx(counter, t.bump, counter)) for counter in (1, 2)]
        await until_waiting(stranger)
        waiting = asyncio.ensure_future(store.tx(3, t.bump, 3))
        await asyncio.sleep(0)
        await stranger.execute(END_THE_WAITING)
        results = [await settled(call) for call in calls]
        assert [type(result) for result in results] == [StoreLost, StoreLost]
    assert isinstance(await settled(waiting), float), "what was not sent waits for the next connection"
    assert await store.tx(1, t.bump, 1)
    assert [await store.read(t.value_of, counter) for counter in (1, 2, 3)] == [1, 0, 1]


async def test_alone_and_read_come_back_too(store: PostgresStore, stranger: asyncpg.Connection) -> None:
    await store.read(t.value_of, 1)
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'clutch'"
    await stranger.execute(others)
    assert await settled(store.read(t.value_of, 1)) == 0
    assert isinstance(await settled(store.alone(t.bump, 1)), float)
    assert isinstance(await settled(store.tx(1, t.bump, 1)), float)
    assert await store.read(t.value_of, 1) == 2


async def test_listeners_are_told_to_look_after_a_gap(
    store: PostgresStore, stranger: asyncpg.Connection
) -> None:
    heard = Heard()
    store.listen(heard)
    await stranger.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    )
    assert await heard.next() == [LOOK]


async def test_a_connection_lost_while_committing_leaves_the_outcome_open(
    store: PostgresStore, stranger: asyncpg.Connection
) -> None:
    """The COMMIT itself waits (a check at its end needs a lock) and is cut there: it was not committed."""
    await stranger.execute("""
        CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
          $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER at_commit AFTER UPDATE ON counters
          DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()
    """)
    await stranger.execute("SELECT pg_advisory_lock(7)")
    committing = asyncio.ensure_future(store.tx(1, t.bump, 1))
    await until_waiting(stranger)
    await stranger.execute(END_THE_WAITING)
    assert isinstance(await settled(committing), StoreLost)
    await stranger.execute("SELECT pg_advisory_unlock(7)")
    assert await store.read(t.value_of, 1) == 0
    assert await store.tx(1, t.bump, 1)


async def test_a_commit_whose_answer_is_lost_is_reported_as_unknown(
    store: PostgresStore, postgres_dsn: str
) -> None:
    """The other side of the same coin: it was committed, and the caller must not be told that it failed."""
    folder = Path(postgres_dsn.partition("host=")[2])
    async with cutting_proxy(folder) as (proxy, arm):
        dsn = postgres_dsn.replace(str(folder), str(proxy))
        async with PostgresStore(dsn, TickingClock(), schema=SCHEMA) as through_proxy:
            await through_proxy.tx(1, t.bump, 1)
            arm.set()
            assert isinstance(await settled(through_proxy.tx(1, t.bump, 1)), StoreLost)
            assert await store.read(t.value_of, 1) == 2
            assert await through_proxy.tx(1, t.bump, 1)


@asynccontextmanager
async def cutting_proxy(folder: Path) -> AsyncIterator[tuple[Path, asyncio.Event]]:
    """Carries everything, but once armed swallows the answer to one COMMIT and cuts that connection.

    (A BEGIN says READ COMMITTED, hence the end of the message in the comparison.)"""
    arm = asyncio.Event()

    async def carry(client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        server_in, server_out = await asyncio.open_unix_connection(folder / ".s.PGSQL.5432")
        cut = asyncio.Event()

        async def requests() -> None:
            while data := await client_in.read(65536):
                if arm.is_set() and b"COMMIT\0" in data:
                    arm.clear()
                    cut.set()
                server_out.write(data)
            server_out.close()

        async def answers() -> None:
            while (data := await server_in.read(65536)) and not cut.is_set():
                client_out.write(data)
            client_out.close()

        await asyncio.gather(requests(), answers(), return_exceptions=True)
        server_out.close()

    with TemporaryDirectory() as proxy:
        async with await asyncio.start_unix_server(carry, Path(proxy, ".s.PGSQL.5432")):
            yield Path(proxy), arm


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    server = temporary_server()
    server.start()
    yield server
    server.stop()


class Bumps:
    """Bumps counters until told to stop, and keeps what it was told about each."""

    def __init__(self, store: PostgresStore) -> None:
        self.store = store
        self.acknowledged = dict.fromkeys(range(1, 6), 0)
        self.unknown = dict.fromkeys(range(1, 6), 0)
        self.is_stopping = False

    async def bump(self, counter: int) -> None:
        while not self.is_stopping:
            try:
                await self.store.tx(counter, t.bump, counter)
            except StoreLost:
                self.unknown[counter] += 1
            else:
                self.acknowledged[counter] += 1

    async def until_each_has(self, more: int) -> None:
        goal = {counter: count + more for counter, count in self.acknowledged.items()}
        async with asyncio.timeout(PATIENCE_S):
            while any(self.acknowledged[counter] < count for counter, count in goal.items()):
                await self.store.read(t.value_of, 1)


async def test_after_a_crash_of_the_server_the_acknowledged_is_there_and_work_goes_on(
    own_server: PostgresServer,
) -> None:
    async with PostgresStore(own_server.dsn(), TickingClock(), schema=SCHEMA) as store:
        bumps = Bumps(store)
        await store.alone(t.create, *bumps.acknowledged)
        async with asyncio.TaskGroup() as group:
            for counter in bumps.acknowledged:
                group.create_task(bumps.bump(counter))
            await bumps.until_each_has(20)
            await asyncio.to_thread(own_server.crash)
            await asyncio.to_thread(own_server.start)
            await bumps.until_each_has(20)
            bumps.is_stopping = True
        for counter, acknowledged in bumps.acknowledged.items():
            value = await store.read(t.value_of, counter)
            assert value is not None
            assert acknowledged <= value <= acknowledged + bumps.unknown[counter]


async def test_a_server_that_stays_away_is_told_after_the_patience(own_server: PostgresServer) -> None:
    settings = PostgresSettings(patience_s=0.2)
    store = PostgresStore(own_server.dsn(), TickingClock(), schema=SCHEMA, settings=settings)
    async with store:
        await store.alone(t.create, 1)
        heard = [store.is_hearing]
        await asyncio.to_thread(own_server.crash)
        for call in (store.tx(1, t.bump, 1), store.alone(t.bump, 1)):
            error = await settled(call)
            assert isinstance(error, StoreLost)
            assert error.is_unsent
        assert isinstance(await settled(store.read(t.value_of, 1)), StoreLost)
        assert [*heard, store.is_hearing] == [True, False]
        await asyncio.to_thread(own_server.start)
        assert await store.tx(1, t.bump, 1)


async def until_disconnected(stranger: asyncpg.Connection) -> None:
    """Return when this database has no connection but the stranger's; the server needs a moment to see an end."""
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    async with asyncio.timeout(PATIENCE_S):
        while await stranger.fetchval(others):
            pass


class HeldClock(DatabaseClock):
    """Once it is held, no measurement ends."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held, self.asked = False, asyncio.Event()

    async def measure(self, raw: Any) -> None:
        await super().measure(raw)
        if self.is_held:
            self.asked.set()
            await asyncio.Event().wait()


async def test_a_cancelled_close_closes_every_connection(
    postgres_dsn: str, stranger: asyncpg.Connection
) -> None:
    store = await PostgresStore(postgres_dsn, TickingClock(), schema=SCHEMA).open()
    await store.alone(t.create, 1)
    await store.lives.hold(1)
    await asyncio.gather(*(store.read(t.value_of, 1) for _ in range(4)))
    async with stranger.transaction():
        await stranger.execute("SELECT * FROM counters WHERE id = 1 FOR UPDATE")
        last = asyncio.ensure_future(store.tx(1, t.bump, 1))
        await until_waiting(stranger)
        closing = asyncio.ensure_future(store.close())
        for _ in range(2):  # a caller may be cancelled more than once
            await asyncio.sleep(0)
            closing.cancel()
    assert isinstance(await settled(closing), asyncio.CancelledError), "the caller is still cancelled"
    assert isinstance(await settled(last), float), "what was asked before the close is committed"
    await until_disconnected(stranger)


async def test_a_read_that_is_cancelled_while_it_connects_leaves_no_connection(
    postgres_dsn: str, stranger: asyncpg.Connection
) -> None:
    clock = HeldClock()
    async with PostgresStore(postgres_dsn, clock, schema=SCHEMA) as store:
        clock.is_held = True
        reading = asyncio.ensure_future(store.read(t.value_of, 1))
        await clock.asked.wait()
        reading.cancel()
        assert isinstance(await settled(reading), asyncio.CancelledError)
    await until_disconnected(stranger)


def _value_twice(now: float) -> Tx[int | None]:
    """Two statements are a transaction with one snapshot."""
    before = yield from t.value_of(now, 1)
    assert (yield from t.value_of(now, 1)) == before
    return before


async def test_a_read_that_is_cancelled_while_it_begins_leaves_no_snapshot_to_the_next(
    postgres_dsn: str,
) -> None:
    settings = PostgresSettings(readers=1)
    async with PostgresStore(postgres_dsn, TickingClock(), schema=SCHEMA, settings=settings) as store:
        await store.alone(t.create, 1)
        for steps in range(12):  # of the event loop: one of them finds the read between BEGIN and its answer
            await store.read(_value_twice)
            reading = asyncio.ensure_future(store.read(_value_twice))
            for _ in range(steps):
                await asyncio.sleep(0)
            reading.cancel()
            await settled(reading)
            await store.alone(t.bump, 1)
            assert await store.read(_value_twice) == steps + 1


async def test_close_does_not_wait_for_a_server_that_is_away(own_server: PostgresServer) -> None:
    settings = PostgresSettings(patience_s=10 * PATIENCE_S)
    store = await PostgresStore(own_server.dsn(), TickingClock(), schema=SCHEMA, settings=settings).open()
    await store.alone(t.create, 1)
    await asyncio.to_thread(own_server.crash)
    calls = [
        store.tx(1, t.bump, 1),
        store.alone(t.bump, 1),
        store.alone(t.bump, 1),
        store.read(t.value_of, 1),
    ]
    waiting = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0)
    assert await settled(store.close()) is None
    assert [type(await settled(one)) for one in waiting] == [StoreLost] * 4


async def test_a_call_does_not_wait_for_a_server_that_is_away_once_its_process_stops(
    own_server: PostgresServer,
) -> None:
    settings, stopping = PostgresSettings(patience_s=10 * PATIENCE_S), asyncio.Event()
    store = PostgresStore(
        own_server.dsn(), TickingClock(), schema=SCHEMA, settings=settings, stopping=stopping
    )
    async with store:
        await store.alone(t.create, 1)
        await asyncio.to_thread(own_server.crash)
        waiting = asyncio.ensure_future(store.alone(t.bump, 1))
        await asyncio.sleep(0)
        stopping.set()
        assert isinstance(await settled(waiting), StoreLost)
