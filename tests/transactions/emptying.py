"""A PostgreSQL database as it was when it was new, without making a new one."""

from __future__ import annotations

import asyncpg

_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'meta'"
_AS_NEW = (
    "INSERT INTO counters(name, value) VALUES('process', 0), ('mcp', 0)",
    "INSERT INTO lanes(name, cap) VALUES('main', 4), ('subagent', 8)",
)


async def empty(connection: asyncpg.Connection) -> list[str]:
    """The names of its tables."""
    tables = [record[0] for record in await connection.fetch(_TABLES)]
    deleting = [f"DELETE FROM {table}" for table in tables]  # noqa: S608 - our own tables
    await connection.execute(
        "; ".join((*deleting, *_AS_NEW))
    )  # one script is one transaction and one message
    return tables
