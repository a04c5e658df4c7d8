"""Fixtures for tests that run a whole engine: a house on SQLite in memory, and a PostgreSQL for several workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeAlias

import pytest

from clutch.core.policy import Policy
from clutch.store.sqlite import SqliteStore
from tests.engine.house import POLICY, House, JumpClock, Script
from tests.postgres_server import postgres_dsn, postgres_server

__all__ = ["postgres_dsn", "postgres_server"]

Build: TypeAlias = Callable[..., Awaitable[House]]


@pytest.fixture
async def build() -> AsyncIterator[Build]:
    """`await build(script)`: a house whose main session is open; nobody works in it yet."""
    async with AsyncExitStack() as stack:

        async def build(script: Script, policy: Policy = POLICY, *, has_leases: bool = False) -> House:
            clock = JumpClock()
            db = await stack.enter_async_context(SqliteStore(":memory:", clock))
            house = House(db, script, clock, policy, has_leases=has_leases)
            stack.push_async_callback(house.close)
            await house.open()
            return house

        yield build
