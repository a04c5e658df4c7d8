"""One world per test, on each database, checked against every invariant when the test is over."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from clutch.core.model import LETTER_MOVES
from clutch.core.policy import Limits, Policy
from clutch.core.run import RUN_MOVES
from clutch.store.postgres import PostgresStore
from clutch.store.sqlite import SqliteStore
from clutch.store.transaction import Database
from clutch.testing.clock import FakeClock
from clutch.testing.postgres import PostgresServer
from tests.postgres_server import postgres_server
from tests.transactions import invariants
from tests.transactions.emptying import empty
from tests.transactions.world import World

__all__ = ["postgres_server"]

POLICY = Policy(limits=Limits(depth_max=3))


@pytest.fixture(scope="session")
def postgres_clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="session")
async def shared_postgres(
    postgres_server: PostgresServer, postgres_clock: FakeClock
) -> AsyncIterator[PostgresStore]:
    async with PostgresStore(postgres_server.dsn(), postgres_clock) as store:
        yield store


@pytest.fixture(scope="session")
async def cleaner(postgres_server: PostgresServer) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_server.dsn())
    yield connection
    await connection.close()


@pytest.fixture
async def postgres_db(cleaner: asyncpg.Connection, shared_postgres: PostgresStore) -> Database:
    """The same open store for every test; a new database would cost more than all its transactions."""
    await empty(cleaner)
    return shared_postgres


@pytest.fixture(scope="session")
async def new_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with all tables and no work. Opening a copy runs no migration.

    It refuses every move of a letter or a run that is not in the tables of the core, whatever statement makes it."""
    made = tmp_path_factory.mktemp("new") / "clutch.db"
    async with SqliteStore(made, FakeClock()):
        pass
    file = sqlite3.connect(made)
    file.executescript(guard("inbox", LETTER_MOVES) + guard("runs", RUN_MOVES))
    file.close()
    return made


def guard(table: str, moves: Mapping[tuple[Any, Any], str]) -> str:
    """Triggers that abort a statement with a move that the table of moves does not have."""
    started = ", ".join(repr(after.value) for before, after in moves if before is None)
    moved = ", ".join(f"({before.value!r}, {after.value!r})" for before, after in moves if before is not None)
    refused = f"BEGIN SELECT RAISE(ABORT, 'no such move in {table}'); END"
    return (
        f"CREATE TRIGGER {table}_started BEFORE INSERT ON {table} WHEN new.state NOT IN ({started}) {refused};"
        f"CREATE TRIGGER {table}_moved BEFORE UPDATE OF state ON {table} WHEN old.state <> new.state"
        f" AND (old.state, new.state) NOT IN (VALUES {moved}) {refused};"
    )


@pytest.fixture
async def file_db(new_file: Path, memory_path: Path, sqlite_clock: FakeClock) -> AsyncIterator[Database]:
    shutil.copyfile(new_file, memory_path / "clutch.db")
    async with SqliteStore(memory_path / "clutch.db", sqlite_clock) as store:
        yield store


@pytest.fixture
def sqlite_clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["file", "postgres"])
def db(request: pytest.FixtureRequest) -> Database:
    store: Database = request.getfixturevalue(f"{request.param}_db")
    return store


@pytest.fixture
def clock(db: Database, request: pytest.FixtureRequest) -> FakeClock:
    name = "postgres_clock" if isinstance(db, PostgresStore) else "sqlite_clock"
    chosen: FakeClock = request.getfixturevalue(name)
    return chosen


@pytest.fixture
async def world(db: Database, clock: FakeClock) -> AsyncIterator[World]:
    """With one worker. Whatever the test did, afterwards the rows make sense."""
    world = World(db, clock, POLICY)
    await world.hire()
    yield world
    await invariants.check(world)
    await world.mail()
    await invariants.nobody_sleeps_through_mail(world)


@pytest.fixture
async def main(world: World) -> int:
    return await world.main()
