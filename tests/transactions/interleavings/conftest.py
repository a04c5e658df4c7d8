"""A stage with two connections instead of the database that the other tests have."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from clutch.store.postgres import PostgresStore
from clutch.testing.clock import FakeClock
from clutch.testing.postgres import PostgresServer
from tests.transactions.conftest import POLICY
from tests.transactions.interleavings.two_connections import Stage, open_stage
from tests.transactions.world import World

ORDERS = "orders"


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """`make test` plays a fifth of the orders, `make trust` all of them."""
    for item in items:
        if "stage" in getattr(item, "fixturenames", ()):
            item.add_marker("scaled")


@pytest.fixture
async def stage(
    postgres_server: PostgresServer,
    shared_postgres: PostgresStore,
    record_property: Callable[[str, object], None],
) -> AsyncIterator[Stage]:
    """With one worker. `shared_postgres` has made the tables."""
    async with open_stage(postgres_server.dsn(), FakeClock(), POLICY) as stage:
        await stage.world.hire()
        yield stage
        record_property(ORDERS, stage.orders)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The reports of the teardown have what a test recorded, also when another process ran it."""
    ended = [report for report in terminalreporter.getreports("") if report.when == "teardown"]
    counts = [count for report in ended for name, count in report.user_properties if name == ORDERS and count]
    terminalreporter.line(f"{len(counts)} pairs of transactions in all {sum(counts)} orders")


@pytest.fixture
def world(stage: Stage) -> World:
    return stage.world
