"""Fixtures for tests that run a whole engine, on either database."""

from __future__ import annotations

from tests.postgres_server import postgres_dsn, postgres_server

__all__ = ["postgres_dsn", "postgres_server"]
