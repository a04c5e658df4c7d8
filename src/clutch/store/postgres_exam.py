"""Collect facts about a PostgreSQL server for `clutch doctor`; `core/server_exam.py` has the rules.

It changes nothing: it reads catalogs and views, and takes one advisory lock of a number of its own for a moment.
It works on any server, also before Clutch has tables there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

import asyncpg

from clutch.core.server_exam import Connections, DeadRows, OldSnapshot, Pooler, ServerFacts, Slot
from clutch.core.text.format import visible
from clutch.errors import StoreLost
from clutch.store.postgres_address import PostgresAddress, parse_address
from clutch.store.postgres_checks import is_server, is_shared, locks_hold
from clutch.store.postgres_connection import TROUBLE, PostgresSettings

EXAM_S: Final = 10.0  #: for all questions together

_QUESTION_S: Final = 5.0

_ROUND_TRIPS: Final = 5  #: the quickest counts: the others waited for something else

_HOLDER_MAX: Final = 80

#: With one of these off, what the server has acknowledged is not safe. Clutch switches synchronous_commit on itself.
_SAFE_SETTINGS: Final = ("fsync", "full_page_writes")

_BASICS: Final = """
SELECT current_setting('server_version'), current_setting('server_version_num')::int / 10000,
  current_setting('server_encoding'), pg_is_in_recovery(), current_setting('transaction_read_only') = 'on',
  current_schema(), COALESCE(has_schema_privilege(current_schema(), 'CREATE'), false),
  to_regclass(quote_ident(current_schema()) || '.sessions') IS NOT NULL,
  current_setting('autovacuum') = 'on', pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'),
  (SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database())
"""

_SETTINGS: Final = "SELECT name FROM pg_settings WHERE name = ANY($1) AND setting <> 'on' ORDER BY name"

#: The tightest of the limits of server, database and role; a superuser may use the reserved ones too.
_CONNECTIONS: Final = """
SELECT (SELECT COUNT(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
  LEAST(current_setting('max_connections')::int
      - CASE WHEN r.rolsuper THEN 0 ELSE current_setting('superuser_reserved_connections')::int END,
    NULLIF(r.rolconnlimit, -1), NULLIF(d.datconnlimit, -1))
FROM pg_roles r, pg_database d WHERE r.rolname = current_user AND d.datname = current_database()
"""

_SNAPSHOT: Final = """
SELECT extract(epoch FROM clock_timestamp() - since)::float8, holder FROM (
  SELECT xact_start AS since, 'PID ' || pid || ', ' || COALESCE(usename, '') || ', '
    || COALESCE(NULLIF(application_name, ''), 'no application name') AS holder
  FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
  UNION ALL SELECT prepared, 'prepared transaction ' || gid FROM pg_prepared_xacts) AS held
ORDER BY since LIMIT 1
"""

_DEAD_ROWS: Final = """
SELECT relname, n_dead_tup, n_live_tup FROM pg_stat_user_tables
WHERE schemaname = current_schema() AND n_dead_tup > 0 ORDER BY n_dead_tup DESC LIMIT 20
"""

_SLOTS: Final = """
SELECT slot_name, COALESCE(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
  ELSE pg_current_wal_lsn() END, restart_lsn), 0)::bigint
FROM pg_replication_slots WHERE NOT active ORDER BY slot_name LIMIT 20
"""


def examine(dsn: str, settings: PostgresSettings | None = None) -> ServerFacts:
    """Collect the facts. Raises StoreLost when the server does not answer all questions in time."""
    return asyncio.run(_examine(dsn, settings or PostgresSettings()))


async def _examine(dsn: str, settings: PostgresSettings) -> ServerFacts:
    try:
        async with asyncio.timeout(EXAM_S):
            address = parse_address(dsn).session
            first, second = await _connect(address), await _connect(address)
            try:
                # Inside of a transaction only: a pooler would keep it for its other clients.
                await first.execute("BEGIN")
                for name, value in address.settings.items():
                    await first.execute("SELECT set_config($1, $2, true)", name, value)
                tables = await first.fetchrow(_BASICS), await first.fetch(_DEAD_ROWS)
                await first.execute("COMMIT")
                return await _facts(first, second, settings, *tables)
            finally:
                first.terminate()
                second.terminate()
    except TROUBLE as error:
        raise StoreLost(f"the server does not answer: {error or 'no answer in time'}") from error


async def _connect(address: PostgresAddress) -> Any:
    """To the first server that answers, which may be a standby."""
    errors: list[Exception] = []
    for server in address.servers:
        try:
            # Without a cache of prepared statements, which a pooler in transaction mode would mix up.
            return await asyncpg.connect(
                server, timeout=_QUESTION_S / 2, command_timeout=_QUESTION_S, statement_cache_size=0
            )
        except TROUBLE as error:
            errors.append(error)
    raise errors[0]


async def _facts(
    first: Any, second: Any, settings: PostgresSettings, basics: Any, dead_rows: Sequence[Any]
) -> ServerFacts:
    offset_s, round_trip_s = await _clock(first)
    (
        version,
        major,
        encoding,
        is_standby,
        is_read_only,
        schema,
        may_write,
        has_tables,
        autovacuum,
        sees_others,
        frozen_age,
    ) = basics
    used, limit = await first.fetchrow(_CONNECTIONS)
    snapshot = await first.fetchrow(_SNAPSHOT)
    return ServerFacts(
        version=visible(version, _HOLDER_MAX),
        major=major,
        pooler=await _pooler(first, second),
        encoding=encoding,
        is_standby=is_standby,
        is_read_only=is_read_only and not is_standby,
        locks_hold=await locks_hold(first, second),
        may_write=may_write,
        schema=schema,
        has_tables=has_tables,
        unsafe=[f"{row[0]} = off" for row in await first.fetch(_SETTINGS, list(_SAFE_SETTINGS))],
        autovacuum=autovacuum,
        clock_offset_s=offset_s,
        round_trip_s=round_trip_s,
        connections=Connections(used, limit, settings.connections_max),
        snapshot=OldSnapshot(snapshot[0], visible(snapshot[1], _HOLDER_MAX)) if snapshot else None,
        sees_others=sees_others,
        dead_rows=[DeadRows(*row) for row in dead_rows],
        slots=[Slot(*row) for row in await first.fetch(_SLOTS)],
        frozen_age=frozen_age,
    )


async def _clock(connection: Any) -> tuple[float, float]:
    """Return the offset of the server's clock and the round trip in which it was measured."""
    measured = []
    for _ in range(_ROUND_TRIPS):
        began, began_at = time.perf_counter(), time.time()
        server = float(await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8"))
        trip_s = time.perf_counter() - began
        measured.append((trip_s, server - began_at - trip_s / 2))
    trip_s, offset_s = min(measured)
    return offset_s, trip_s


async def _pooler(first: Any, second: Any) -> Pooler:
    if await is_server(first):
        return Pooler.NONE
    return Pooler.TRANSACTION if await is_shared(first, second) else Pooler.SESSION
