"""Tests of the gateway that need several databases share the one PostgreSQL server of the test process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from clutch.store.postgres import PostgresStore
from clutch.store.sqlite import SqliteStore
from clutch.store.transaction import Database
from tests.engine.house import JumpClock
from tests.postgres_server import postgres_dsn, postgres_server

__all__ = ["postgres_dsn", "postgres_server"]


@pytest.fixture
def clock() -> JumpClock:
    return JumpClock()


@pytest.fixture(params=["sqlite", "postgres"])
async def db(request: pytest.FixtureRequest, clock: JumpClock) -> AsyncIterator[Database]:
    async with AsyncExitStack() as stack:
        if request.param == "sqlite":
            yield await stack.enter_async_context(SqliteStore(":memory:", clock))
        else:
            dsn: str = request.getfixturevalue("postgres_dsn")
            yield await stack.enter_async_context(PostgresStore(dsn, clock))
