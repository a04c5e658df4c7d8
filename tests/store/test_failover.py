"""A standby takes over while the old primary stays up: no connection stays behind, and no lock is lost for good."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from clutch.errors import StoreLost
from clutch.store.postgres import PostgresStore
from clutch.store.postgres_address import parse_address
from clutch.store.postgres_connection import PostgresSettings, connect
from clutch.testing.postgres import PostgresServer, temporary_server
from tests.patience import PATIENCE_S
from tests.postgres_server import caught_up, standby
from tests.store import transactions as t
from tests.store.conftest import SCHEMA, TickingClock
from tests.store.test_postgres import Heard, hint_much

pytestmark = pytest.mark.anyio


@pytest.fixture
def servers() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A primary and its standby."""
    primary = temporary_server(fsync=False)
    primary.start()
    try:
        with standby(primary) as copy:
            yield primary, copy
    finally:
        primary.stop()


def both(primary: PostgresServer, copy: PostgresServer) -> str:
    """The standby first: it must not be taken for the primary."""
    hosts = ",".join(server.dsn().partition("host=")[2] for server in (copy, primary))
    return f"postgresql://postgres@/postgres?host={hosts}&target_session_attrs=read-write"


async def until_left(server: PostgresServer) -> None:
    """Returns when no connection of ours is on this server."""
    left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'clutch'"
    while (await asyncio.to_thread(server.execute, left)).strip() != "0":
        pass


async def until_dead(store: PostgresStore, asked: list[int], dead: list[int]) -> None:
    """Returns when of the asked workers these count as dead."""
    async with asyncio.timeout(PATIENCE_S):
        while await store.lives.dead(asked) != dead:
            await store.read(t.value_of, 1)


async def test_everything_moves_to_the_promoted_standby(
    servers: tuple[PostgresServer, PostgresServer],
) -> None:
    primary, copy = servers
    dsn, often = both(primary, copy), PostgresSettings(ping_s=0.1)
    async with (
        PostgresStore(dsn, TickingClock(), schema=SCHEMA, settings=often) as one,
        PostgresStore(dsn, TickingClock(), schema=SCHEMA, settings=often) as other,
    ):
        heard = Heard()
        other.listen(heard)
        await one.alone(t.create, 1)
        await one.tx(1, t.bump, 1)
        await other.read(t.value_of, 1)
        await one.lives.hold(1)
        await other.lives.hold(2)
        await asyncio.to_thread(primary.demote)
        await asyncio.to_thread(caught_up, primary, copy)
        await asyncio.to_thread(copy.promote)
        async with asyncio.timeout(15):
            for each in (one, other):
                await asyncio.gather(each.tx(1, t.bump, 1), each.alone(t.bump, 1), each.alone(t.bump, 1))
            assert [await each.read(t.value_of, 1) for each in (one, other)] == [7, 7]
            await until_left(primary)
            await one.alone(hint_much, 1)
            while ("mail", 0) not in await heard.next():
                await one.alone(hint_much, 1)  # until both listen to the new server
            await until_dead(one, [2, 3], [3])
            await until_dead(other, [1, 3], [3])


async def acknowledged(store: PostgresStore, writer: int, witness: set[tuple[int, int]]) -> None:
    """Write one row after the other until the task ends. `witness` has those whose commit was acknowledged."""
    for number in itertools.count(1):
        with contextlib.suppress(StoreLost):  # committed or not: it was not acknowledged
            await store.tx(writer, t.note, writer, str(number))
            witness.add((writer, number))


async def written(store: PostgresStore, witness: set[tuple[int, int]], count: int) -> None:
    while len(witness) < count:
        with contextlib.suppress(StoreLost):
            await store.read(t.value_of, 1)


async def test_a_primary_that_dies_takes_no_acknowledged_commit_with_it(
    servers: tuple[PostgresServer, PostgresServer],
) -> None:
    """The standby is synchronous: the test does not wait until it has caught up."""
    primary, copy = servers
    await asyncio.to_thread(
        primary.execute, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"
    )
    state = "SELECT sync_state FROM pg_stat_replication"
    while (await asyncio.to_thread(primary.execute, state)).strip() != "sync":
        pass
    witness: set[tuple[int, int]] = set()
    often = PostgresSettings(ping_s=0.1)
    async with PostgresStore(both(primary, copy), TickingClock(), schema=SCHEMA, settings=often) as store:
        async with asyncio.timeout(PATIENCE_S):
            writers = [asyncio.create_task(acknowledged(store, number, witness)) for number in range(8)]
            await written(store, witness, 200)
            primary.crash()
            before = len(witness)
            await asyncio.to_thread(copy.promote)
            await written(store, witness, before + 200)
            for writer in writers:
                writer.cancel()
            await asyncio.wait(writers)
        kept = {
            (counter, int(body))
            for counter, body in await store.read(t.select, "SELECT counter, body FROM notes")
        }
    assert witness <= kept


async def test_a_standby_alone_is_refused_with_the_reason(
    servers: tuple[PostgresServer, PostgresServer],
) -> None:
    _, copy = servers
    hurried = PostgresSettings(patience_s=0.2)
    with pytest.raises(StoreLost, match="standby or read-only"):
        await PostgresStore(copy.dsn(), TickingClock(), schema=SCHEMA, settings=hurried).open()


async def test_a_server_that_does_not_answer_leaves_time_for_the_next(postgres_dsn: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = f"127.0.0.1,{postgres_dsn.partition('host=')[2]}&port={silent.getsockname()[1]},5432"
        address = parse_address(f"{postgres_dsn.partition('host=')[0]}host={hosts}")
        link = await connect(address, PostgresSettings(connect_timeout_s=0.3))
        await link.close()


@pytest.fixture
async def holders(postgres_dsn: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """Workers 1 and 2."""
    async with (
        PostgresStore(postgres_dsn, TickingClock(), schema=SCHEMA) as one,
        PostgresStore(postgres_dsn, TickingClock(), schema=SCHEMA) as other,
    ):
        await one.lives.hold(1)
        await other.lives.hold(2)
        yield one, other


async def test_a_lost_lock_is_taken_again(
    holders: tuple[PostgresStore, PostgresStore], stranger: asyncpg.Connection
) -> None:
    one, other = holders
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted"
    ended = await stranger.fetchval(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2"
    )
    assert ended == 2
    async with asyncio.timeout(PATIENCE_S):
        while await stranger.fetchval(locks) != 2:
            await one.read(t.value_of, 1)
    await until_dead(one, [2, 3], [3])
    await until_dead(other, [1, 3], [3])
    await one.lives.close()
    await until_dead(other, [1, 3], [1, 3])
