"""A real PostgreSQL for the tests of surfaces that want one."""

from __future__ import annotations

from tests.postgres_server import postgres_dsn, postgres_server

__all__ = ["postgres_dsn", "postgres_server"]
