"""Fixtures for a real PostgreSQL server: one per test process, one fresh database per test.

A folder's conftest imports `postgres_server` and `postgres_dsn` from here. Every xdist worker starts its own
server: a second each, and no worker can disturb another.
"""

from __future__ import annotations

import atexit
import itertools
from collections.abc import Iterator
from functools import cache

import pytest

from clutch.testing.postgres import PostgresServer, temporary_server

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


@pytest.fixture
def postgres_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    postgres_server.execute(f"CREATE DATABASE {name}")
    yield postgres_server.dsn(name)
    postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)")
