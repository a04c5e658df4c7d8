"""What only PostgreSQL can do to us: other processes, locks, deadlocks, hints from elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from clutch.errors import DiskFull, StoreBusy, StoreError, UnsupportedStore
from clutch.store.postgres import PostgresStore
from clutch.store.postgres_connection import PostgresSettings
from clutch.store.transaction import HINT, LOOK, Tx
from clutch.testing.postgres import PostgresServer
from tests.patience import PATIENCE_S
from tests.store import transactions as t
from tests.store.conftest import SCHEMA, TickingClock, settled, stalled_postgres, until_waiting

pytestmark = pytest.mark.anyio

HURRIED = PostgresSettings(lock_timeout_s=0.05, retries=2)


@pytest.fixture
async def store(postgres_dsn: str) -> AsyncIterator[PostgresStore]:
    async with PostgresStore(postgres_dsn, TickingClock(), schema=SCHEMA) as opened:
        await opened.alone(t.create, *range(1, 10))
        yield opened


@pytest.fixture
async def other(store: PostgresStore, postgres_dsn: str) -> AsyncIterator[PostgresStore]:
    """A second gateway on the same database."""
    async with PostgresStore(postgres_dsn, TickingClock(), schema=SCHEMA) as opened:
        yield opened


async def test_a_caller_that_leaves_does_not_stop_a_transaction_that_runs(
    store: PostgresStore, stranger: asyncpg.Connection
) -> None:
    async with stranger.transaction():
        await stranger.execute("SELECT * FROM counters WHERE id = 1 FOR UPDATE")
        leaving = asyncio.ensure_future(store.tx(1, t.bump, 1))
        await until_waiting(stranger)
        leaving.cancel()
    await store.tx(1, t.bump, 1)
    assert await store.read(t.value_of, 1) == 2


def asleep(now: float) -> Tx[None]:
    del now
    yield "SELECT pg_sleep(25) IS NULL", ()


async def test_a_read_whose_caller_has_gone_ends_on_the_server(
    store: PostgresStore, stranger: asyncpg.Connection
) -> None:
    count = (
        "SELECT COUNT(*) FROM pg_stat_activity WHERE state = 'active'"
        " AND query LIKE 'SELECT q.* FROM (SELECT pg_sleep(25)%'"
    )

    async def until_active(number: int) -> None:
        async with asyncio.timeout(10):
            while await stranger.fetchval(count) != number:
                await stranger.execute("SELECT pg_sleep(0.01)")

    leaving = asyncio.ensure_future(store.read(asleep))
    await until_active(1)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await until_active(0)
    assert await store.read(t.value_of, 1) == 0


async def test_two_gateways_lose_no_update_of_one_counter(store: PostgresStore, other: PostgresStore) -> None:
    calls = [each.tx(1, t.bump, 1) for each in (store, other) for _ in range(20)]
    calls += [each.alone(t.bump, 1) for each in (store, other) for _ in range(5)]
    await asyncio.gather(*calls)
    assert await store.read(t.value_of, 1) == 50


async def test_opposite_lock_orders_end_well(store: PostgresStore, other: PostgresStore) -> None:
    """Each with its first row locked: a real deadlock, which the server ends after a second."""
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(store.alone(t.bump_both, 1, 2))
            group.create_task(other.alone(t.bump_both, 2, 1))
    assert [await store.read(t.value_of, counter) for counter in (1, 2)] == [4, 4]


async def test_a_row_that_stays_locked_fails_its_own_caller_only(
    store: PostgresStore, stranger: asyncpg.Connection, postgres_dsn: str
) -> None:
    async with (
        PostgresStore(postgres_dsn, TickingClock(), schema=SCHEMA, settings=HURRIED) as hurried,
        stranger.transaction(),
    ):
        await stranger.execute("SELECT * FROM counters WHERE id = 2 FOR UPDATE")
        first, busy, last = await asyncio.gather(
            *[hurried.tx(counter, t.bump, counter) for counter in (1, 2, 3)], return_exceptions=True
        )
    assert isinstance(busy, StoreBusy)
    assert isinstance(first, float)
    assert isinstance(last, float)
    assert await store.tx(2, t.bump, 2)
    assert await store.read(t.value_of, 2) == 1


def add(now: float, counter: int) -> Tx[int]:
    """One statement."""
    del now
    rows = yield "UPDATE counters SET value = value + 1 WHERE id = ? RETURNING value", (counter,)
    return int(rows[0][0])


async def test_an_urgent_statement_waits_for_no_batch_and_no_full_pool(
    store: PostgresStore, stranger: asyncpg.Connection
) -> None:
    assert await store.urgent(add, 2) == 1, "without a lock of its own"
    await store.lives.hold(1)
    async with stranger.transaction():
        await stranger.execute("SELECT * FROM counters WHERE id = 1 FOR UPDATE")
        calls = [
            store.tx(1, t.bump, 1),
            store.alone(t.bump, 1),
            store.alone(t.bump, 1),
            store.alone(t.bump, 1),
        ]
        waiting = [asyncio.ensure_future(call) for call in calls]
        await until_waiting(stranger, 3)
        async with asyncio.timeout(PATIENCE_S):
            assert await store.urgent(add, 2) == 2
        assert not any(one.done() for one in waiting)
    await asyncio.gather(*waiting)
    with pytest.raises(t.Refused):
        await store.urgent(t.refuse_stale, 1)
    await stranger.fetch(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2"
    )
    assert await store.urgent(add, 2) == 3, "without its session it takes another one"


async def test_skip_leaves_out_what_others_have_locked(
    store: PostgresStore, stranger: asyncpg.Connection
) -> None:
    async with stranger.transaction():
        await stranger.execute("SELECT * FROM counters WHERE id IN (1, 3) FOR UPDATE")
        rows = await store.alone(t.write, "SELECT id FROM counters WHERE id < 5 ORDER BY id {skip}")
    assert rows == [(2,), (4,)]


async def test_the_settings_safety_depends_on_are_in_force(store: PostgresStore, postgres_dsn: str) -> None:
    names = ["idle_in_transaction_session_timeout", "statement_timeout", "lock_timeout", "synchronous_commit"]
    sql = "SELECT name, setting FROM pg_settings WHERE name {any}"
    for ask in (store.tx(1, t.write, sql, (names,)), store.alone(t.write, sql, (names,))):
        assert dict(await ask) == dict(zip(names, ["5000", "30000", "2000", "on"], strict=True))
    assert dict(await store.read(t.select, sql, names))["statement_timeout"] == "30000"


async def test_a_database_that_acknowledges_too_early_is_corrected(
    stranger: asyncpg.Connection, postgres_dsn: str
) -> None:
    name = await stranger.fetchval("SELECT current_database()")
    await stranger.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    async with PostgresStore(postgres_dsn, TickingClock(), schema=SCHEMA) as store:
        assert await store.tx(1, t.write, "SHOW synchronous_commit") == [("on",)]


async def test_a_full_disk_is_named(store: PostgresStore, stranger: asyncpg.Connection) -> None:
    await stranger.execute("""
        CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
          $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$;
        CREATE TRIGGER full_disk BEFORE INSERT ON notes FOR EACH ROW EXECUTE FUNCTION fail()
    """)
    full, neighbour = await asyncio.gather(
        store.tx(1, t.note, 1, "x"), store.tx(2, t.bump, 2), return_exceptions=True
    )
    assert isinstance(full, DiskFull)
    assert isinstance(neighbour, float)


async def test_a_statement_that_takes_too_long_is_stopped(store: PostgresStore, postgres_dsn: str) -> None:
    impatient = PostgresSettings(statement_timeout_s=0.05)
    async with PostgresStore(postgres_dsn, TickingClock(), schema=SCHEMA, settings=impatient) as hurried:
        with pytest.raises(StoreError, match="took too long"):
            await hurried.alone(t.write, "SELECT 1 FROM pg_sleep(10)")
        assert await hurried.alone(t.bump, 1)


async def test_rule_checked_at_commit_fails_its_own_caller_only(
    store: PostgresStore, stranger: asyncpg.Connection
) -> None:
    await stranger.execute(
        "ALTER TABLE counters ADD CONSTRAINT one UNIQUE(name) DEFERRABLE INITIALLY DEFERRED"
    )
    name = "UPDATE counters SET name = ? WHERE id = ?"
    await store.tx(1, t.write, name, ("taken", 1))
    failed, neighbour = await asyncio.gather(
        store.tx(2, t.write, name, ("taken", 2)), store.tx(3, t.bump, 3), return_exceptions=True
    )
    assert isinstance(failed, StoreError)
    assert isinstance(neighbour, float)
    assert await store.read(t.value_of, 3) == 1


def hint_much(now: float, count: int) -> Tx[None]:
    yield "SELECT 1", ()
    for number in range(count):
        yield HINT, ("mail", number)


async def test_hints_reach_other_gateways_once_and_as_tuples(
    store: PostgresStore, other: PostgresStore
) -> None:
    here, there = Heard(), Heard()
    store.listen(here)
    other.listen(there)
    await store.alone(hint_much, 2)
    assert await there.next() == [("mail", 0), ("mail", 1)]
    await other.alone(hint_much, 1)
    assert await here.next() == [("mail", 0), ("mail", 1)]
    assert await here.next() == [("mail", 0)], "and nobody hears his own twice"
    assert here.queue.empty()


async def test_hints_too_many_to_carry_become_one_to_look(store: PostgresStore, other: PostgresStore) -> None:
    there = Heard()
    other.listen(there)
    await store.alone(hint_much, 2000)
    assert await there.next() == [LOOK]


class Heard:
    def __init__(self) -> None:
        self.queue: asyncio.Queue[Sequence[Any]] = asyncio.Queue()

    def __call__(self, hints: Sequence[Any]) -> None:
        self.queue.put_nowait(hints)

    async def next(self) -> Sequence[Any]:
        async with asyncio.timeout(PATIENCE_S):
            return await self.queue.get()


async def test_gateways_that_start_at_once_migrate_once(postgres_dsn: str, tmp_path: Path) -> None:
    schema = await asyncio.to_thread(one_insert, tmp_path)
    stores = [PostgresStore(postgres_dsn, TickingClock(), schema=schema) for _ in range(4)]
    await asyncio.gather(*[store.open() for store in stores])
    assert await stores[0].read(t.select, "SELECT COUNT(*) FROM a") == [(1,)]
    await asyncio.gather(*[store.close() for store in stores])


def one_insert(folder: Path) -> Path:
    (folder / "0001.sql").write_text("CREATE TABLE a(id {identity}, b {big});\nINSERT INTO a(b) VALUES(1);\n")
    return folder


async def test_batches_never_outgrow_their_limit(store: PostgresStore, postgres_dsn: str) -> None:
    small = PostgresSettings(batch_max=3)
    async with PostgresStore(postgres_dsn, TickingClock(), schema=SCHEMA, settings=small) as limited:
        nows = await asyncio.gather(*[limited.tx(counter, t.bump, counter) for counter in range(1, 10)])
    assert max(nows.count(now) for now in nows) == 3


async def test_several_pumps_keep_the_order_of_a_key(store: PostgresStore, postgres_dsn: str) -> None:
    several = PostgresSettings(pumps=3, batch_max=2)
    async with PostgresStore(postgres_dsn, TickingClock(), schema=SCHEMA, settings=several) as busy:
        await asyncio.gather(*[busy.tx(n % 3, t.note, n % 3, str(n)) for n in range(30)])
    for key in range(3):
        bodies = [int(body) for body, _ in await store.read(t.notes_of, key)]
        assert bodies == list(range(key, 30, 3))


async def test_a_wrong_address_is_told_at_once(postgres_server: PostgresServer) -> None:
    with pytest.raises(StoreError, match="refuses the connection"):
        await PostgresStore(postgres_server.dsn("nowhere"), TickingClock(), schema=SCHEMA).open()


async def test_a_database_in_another_encoding_is_refused(postgres_server: PostgresServer) -> None:
    create = "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'"
    await asyncio.to_thread(postgres_server.execute, create)
    with pytest.raises(UnsupportedStore, match="LATIN1"):
        await PostgresStore(postgres_server.dsn("latin"), TickingClock(), schema=SCHEMA).open()


async def test_reading_goes_on_while_every_writer_waits(store: PostgresStore, postgres_dsn: str) -> None:
    async with stalled_postgres(store, postgres_dsn):
        values = [settled(store.read(t.value_of, counter)) for counter in range(1, 10)]
        assert await asyncio.gather(*values) == [0] * 9
