"""A stage with two connections instead of the door that the other tests have."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from clutch.store.postgres import PostgresStore
from clutch.testing.clock import FakeClock
from clutch.testing.postgres import PostgresServer
from tests.protocol.conftest import POLICY
from tests.protocol.interleavings.two_connections import Stage, open_stage
from tests.protocol.world import World


@pytest.fixture
async def stage(server: PostgresServer, shared_postgres: PostgresStore) -> AsyncIterator[Stage]:
    """With one worker. `shared_postgres` has made the tables."""
    async with open_stage(server.dsn(), FakeClock(), POLICY) as stage:
        await stage.world.hire()
        yield stage


@pytest.fixture
def world(stage: Stage) -> World:
    return stage.world
