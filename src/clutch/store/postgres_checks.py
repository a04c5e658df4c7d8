"""What is found out about a PostgreSQL before work begins: a pooler, its mode, locks, version, encoding and schema."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Final

import asyncpg

from clutch.errors import StoreError, UnsupportedStore
from clutch.store.postgres_address import PostgresAddress
from clutch.store.postgres_connection import Link, PostgresSettings, connect_patiently

#: 14 is the oldest that its own community still repairs, and has client_connection_check_interval.
_OLDEST_SERVER: Final = 14

#: Of one comparison; other clients of the pooler may take and return the connection that is looked for.
_ROUNDS: Final = 3

_POOLER: Final = (
    "a connection pooler such as PgBouncer answers at this address and gives each transaction another server"
    " connection: the lock that says that this process is alive and the notifications need one of their own. Set"
    " `database.direct` to the address of the PostgreSQL server itself, or use the pooler in session mode"
)
_POOLED_TWICE: Final = (
    "`database.direct` leads to a connection pooler that gives each transaction another server connection: set it to"
    " the address of the PostgreSQL server itself"
)
_NO_LOCKS: Final = (
    "an advisory lock that one connection holds was given to another one: the server has no such locks, or"
    " `database.direct` leads to another database than `database`. Use PostgreSQL, and the same database for both"
)
_NO_SCHEMA: Final = (
    "the schema {schema} does not exist, and the role {role} may not create it:"
    " run CREATE SCHEMA {schema} AUTHORIZATION {role}"
)
_NO_TABLES: Final = (
    "the role {role} may not create tables in the schema {schema}: run"
    " GRANT CREATE, USAGE ON SCHEMA {schema} TO {role}, or set `database.schema` to a schema of its own"
)
_PROCESS: Final = "SELECT pg_backend_pid()"


async def suited(address: PostgresAddress, settings: PostgresSettings) -> PostgresSettings:
    """Return the settings for the way to the server: is it shared by a pooler, which statements may be prepared?

    Raises UnsupportedStore for a pooler without a way around it."""
    if address.direct is not None and await _is_shared(address.direct, settings):
        raise UnsupportedStore(_POOLED_TWICE)
    if not await _is_shared(address, settings):
        return settings
    if address.direct is None:
        raise UnsupportedStore(_POOLER)
    return replace(settings, is_shared=True, cached_statements=0)


async def _is_shared(address: PostgresAddress, settings: PostgresSettings) -> bool:
    bare = replace(settings, is_bare=True, cached_statements=0)
    async with AsyncExitStack() as stack:
        one, other = [(await connected(stack, address, bare)).raw for _ in range(2)]
        return not await is_server(one) and await is_shared(one, other)


async def is_server(one: Any) -> bool:
    """Whether the server itself answers, with the number of its process: a pooler invents one."""
    number: int = one.get_server_pid()
    return await _process(one) == number


async def is_shared(one: Any, other: Any) -> bool:
    """Whether a pooler gives the server connection of a client to others between its transactions."""
    first = await _process(one)
    for _ in range(_ROUNDS):
        # A pool that is a stack gives to `other` what `one` has just returned; a queue gives to `one` another one.
        if await _process(one) != first:
            return True
        async with other.transaction():
            if await other.fetchval(_PROCESS) == first or await _process(one) != first:
                return True
    return False


async def _process(one: Any) -> int:
    async with one.transaction():
        number: int = await one.fetchval(_PROCESS)
    return number


async def connected(stack: AsyncExitStack, address: PostgresAddress, settings: PostgresSettings) -> Link:
    link = await connect_patiently(address, settings)
    stack.push_async_callback(link.close)
    return link


async def check_server(session: Link, work: Link) -> None:
    """`session` keeps its server connection, `work` is one for transactions. Raises UnsupportedStore."""
    major = session.raw.get_server_version().major
    if major < _OLDEST_SERVER:
        raise UnsupportedStore(f"PostgreSQL {major} is too old; {_OLDEST_SERVER} or newer is needed")
    encoding = await session.raw.fetchval("SHOW server_encoding")
    if encoding != "UTF8":
        raise UnsupportedStore(f"the database has encoding {encoding}; create one with ENCODING 'UTF8'")
    if not await locks_hold(session.raw, work.raw):
        raise UnsupportedStore(_NO_LOCKS)


async def locks_hold(session: Any, other: Any) -> bool:
    """Whether a lock that one connection holds is refused to the other: else there are no locks between connections
    (CockroachDB, a pooler), or the two lead to different databases."""
    key = random.getrandbits(62)  # of this call alone
    await session.execute("SELECT pg_advisory_lock($1)", key)
    try:
        async with other.transaction():
            return not await other.fetchval("SELECT pg_try_advisory_xact_lock($1)", key)
    finally:
        await session.execute("SELECT pg_advisory_unlock($1)", key)


async def schema_of(link: Link, wanted: str | None) -> str:
    """The schema of the tables; one that the address names is created later, under the lock of its name."""
    schema: str | None = wanted or await link.raw.fetchval("SELECT current_schema()")
    if schema is None:
        path = await link.raw.fetchval("SHOW search_path")
        raise StoreError(f"no schema of the search_path {path} exists: set `database.schema`")
    return schema


async def ensure_schema(link: Link, schema: str) -> None:
    """Create it if it is missing. Raises StoreError where the role may not."""
    role = await link.raw.fetchval("SELECT current_user")
    if await link.raw.fetchval("SELECT to_regnamespace(quote_ident($1)) IS NULL", schema):
        quoted = await link.raw.fetchval("SELECT quote_ident($1)", schema)
        try:
            await link.raw.execute(f"CREATE SCHEMA {quoted}")
        except asyncpg.InsufficientPrivilegeError as error:
            raise StoreError(_NO_SCHEMA.format(schema=quoted, role=role)) from error
    may = "has_schema_privilege($1, 'CREATE') AND has_schema_privilege($1, 'USAGE')"
    if not await link.raw.fetchval(f"SELECT {may}", schema):
        raise StoreError(_NO_TABLES.format(schema=schema, role=role))
