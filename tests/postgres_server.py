"""Fixtures for a real PostgreSQL server: one per test process, one fresh database per test.

A folder's conftest imports `postgres_server` and `postgres_dsn` from here. Every xdist worker starts its own
server: a second each, and no worker can disturb another.
"""

from __future__ import annotations

import atexit
import itertools
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

import pytest

from clutch.testing.postgres import PostgresServer, temporary_server
from tests.patience import PATIENCE_S
from tests.store.pooler import pooled, pooler, through

_numbers = itertools.count(1)


@cache
def _running_server() -> PostgresServer:
    """One for all folders of tests, though each imports the fixtures for itself.

    No test cuts the power, so it need not wait for the disk.
    """
    server = temporary_server(fsync=False)
    server.start()
    atexit.register(server.stop)
    return server


@pytest.fixture(scope="session")
def postgres_server() -> PostgresServer:
    return _running_server()


@cache
def _running_pooler(mode: str) -> str:
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(pooler(_running_server(), mode, ignored=("direct",)))


@pytest.fixture
def postgres_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    """With POOLER=session or POOLER=transaction in the environment, a PgBouncer in this mode stands between."""
    name, mode = f"test_{next(_numbers)}", os.environ.get("POOLER")
    postgres_server.execute(f"CREATE DATABASE {name}")
    direct = postgres_server.dsn(name)
    if mode is None:
        yield direct
    else:
        yield (through if mode == "session" else pooled)(_running_pooler(mode), direct)
    postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    """A running server that streams from `primary`: `promote()` makes it the new primary, `primary.demote()` leaves the
    old one up and read-only. `caught_up(primary, standby)` between the two loses no commit."""
    copy = primary.standby()
    copy.start()
    try:
        yield copy
    finally:
        copy.stop()


def caught_up(primary: PostgresServer, copy: PostgresServer) -> None:
    """Return when the standby has replayed all that the primary has written until now."""
    written = primary.execute("SELECT pg_current_wal_lsn()").strip()
    give_up_at = time.monotonic() + PATIENCE_S
    while copy.execute(f"SELECT pg_last_wal_replay_lsn() >= '{written}'").strip() != "t":
        assert time.monotonic() < give_up_at, "the standby does not catch up"
