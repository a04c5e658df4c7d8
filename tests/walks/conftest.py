"""Walks that need several processes share the one PostgreSQL server of the test process."""

from __future__ import annotations

from tests.postgres_server import postgres_dsn, postgres_server

__all__ = ["postgres_dsn", "postgres_server"]
