"""A gateway for one test, and a real PostgreSQL for the tests of surfaces that want one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres_server import postgres_dsn, postgres_server
from tests.surfaces.served import FAST, Served, served

__all__ = ["postgres_dsn", "postgres_server"]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "state", policy=FAST) as here:
        yield here
