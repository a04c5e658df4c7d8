"""One world per test, on each database, checked against every invariant when the test is over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from clutch.core.policy import Limits, Policy
from clutch.store.door import Door
from clutch.store.postgres import PostgresStore
from clutch.store.sqlite import SqliteStore
from clutch.testing.clock import FakeClock
from clutch.testing.postgres import PostgresServer, temporary_server
from tests.protocol import invariants
from tests.protocol.emptying import empty
from tests.protocol.world import World

POLICY = Policy(limits=Limits(depth_max=3))


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """Nothing here is about power cuts, so it need not wait for the disk."""
    server = temporary_server(fsync=False)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def postgres_clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="session")
async def shared_postgres(server: PostgresServer, postgres_clock: FakeClock) -> AsyncIterator[PostgresStore]:
    async with PostgresStore(server.dsn(), postgres_clock) as store:
        yield store


@pytest.fixture
async def postgres_door(server: PostgresServer, shared_postgres: PostgresStore) -> Door:
    """The same open store for every test; a new database would cost more than all its transactions."""
    connection = await asyncpg.connect(server.dsn())
    await empty(connection)
    await connection.close()
    return shared_postgres


@pytest.fixture
async def file_door(tmp_path: Path, sqlite_clock: FakeClock) -> AsyncIterator[Door]:
    async with SqliteStore(tmp_path / "clutch.db", sqlite_clock) as store:
        yield store


@pytest.fixture
async def memory_door(sqlite_clock: FakeClock) -> AsyncIterator[Door]:
    async with SqliteStore(":memory:", sqlite_clock) as store:
        yield store


@pytest.fixture
def sqlite_clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["file", "memory", "postgres"])
def door(request: pytest.FixtureRequest) -> Door:
    store: Door = request.getfixturevalue(f"{request.param}_door")
    return store


@pytest.fixture
def clock(door: Door, request: pytest.FixtureRequest) -> FakeClock:
    name = "postgres_clock" if isinstance(door, PostgresStore) else "sqlite_clock"
    chosen: FakeClock = request.getfixturevalue(name)
    return chosen


@pytest.fixture
async def world(door: Door, clock: FakeClock) -> AsyncIterator[World]:
    """With one worker. Whatever the test did, afterwards the rows make sense."""
    world = World(door, clock, POLICY)
    await world.hire()
    yield world
    await invariants.check(world)
    await world.mail()
    await invariants.nobody_sleeps_through_mail(world)


@pytest.fixture
async def main(world: World) -> int:
    return await world.main()
