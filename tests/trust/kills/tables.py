"""The victim's database as another process sees it, right after a death. Reads only, and disturbs nothing.

SQLite's files are copied first: opening the real ones would already be the recovery that the next victim is
there to show.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import apsw

from clutch.core.model import RunState
from clutch.wiring import DATABASE_FILE, SystemClock

Rows = Sequence[tuple[Any, ...]]


class Snapshot(Protocol):
    """One view of the tables; a question is plain SQL that both databases understand."""

    @property
    def troubles(self) -> Sequence[str]:
        """What the database itself finds wrong with its files."""
        ...

    def rows(self, sql: str) -> Rows: ...


class DatabaseReader(Protocol):
    def look(self) -> Snapshot | None:
        """None: there are no tables yet."""
        ...


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that has not ended. `progress_at` and `head` change when a worker takes it over or resumes it."""

    run_id: int
    session_id: int
    owner: int | None
    head: int
    progress_at: float | None
    is_parked: bool


@dataclass(frozen=True, slots=True)
class Death:
    """What a death left behind."""

    open_runs: tuple[OpenRun, ...]
    unfinished: int  #: tasks and letters with work left
    ended: dict[int, int]  #: task and generation of those that have their outcome


_OPEN_RUNS = (
    "SELECT r.id, r.session_id, s.owner, s.head, s.progress_at, r.state FROM runs r"
    " JOIN sessions s ON s.id = r.session_id WHERE r.ended_at IS NULL"
)


def after_death(look: Snapshot) -> Death:
    # The process may have died between two migrations of a new database, before runs have a state; then there are none.
    has_runs = bool(look.rows("SELECT 1 FROM runs LIMIT 1"))
    runs = look.rows(_OPEN_RUNS) if has_runs else []
    left = look.rows(
        "SELECT (SELECT COUNT(*) FROM tasks WHERE phase NOT IN ('completed', 'completed_giveup')),"
        " (SELECT COUNT(*) FROM inbox WHERE state = 0 AND silent = 0)"
    )
    ended = look.rows("SELECT id, generation FROM tasks WHERE outcome IS NOT NULL")
    open_runs = tuple(
        OpenRun(run, session, owner, head, progress_at, state != RunState.RUNNING)
        for run, session, owner, head, progress_at, state in runs
    )
    return Death(open_runs, sum(left[0]), dict(row[:2] for row in ended))


class SqliteSnapshot:
    """A copy in memory, checked page by page while it was made."""

    def __init__(self, connection: apsw.Connection) -> None:
        found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check").fetchall()]
        self.troubles = [] if found == ["ok"] else found
        self._copy = apsw.Connection(":memory:")
        with self._copy.backup("main", connection, "main") as backup:
            backup.step()

    def rows(self, sql: str) -> Rows:
        return self._copy.execute(sql).fetchall()


class SqliteReader:
    def __init__(self, state: Path) -> None:
        self._state = state

    def look(self) -> Snapshot | None:
        if not (self._state / DATABASE_FILE).exists():
            return None
        with tempfile.TemporaryDirectory(prefix="clutch-look-") as place:
            for suffix in ("", "-wal"):
                original = self._state / f"{DATABASE_FILE}{suffix}"
                if original.exists():
                    shutil.copyfile(original, Path(place) / original.name)
            connection = apsw.Connection(str(Path(place) / DATABASE_FILE))
            try:
                return SqliteSnapshot(connection) if _has_tables(connection) else None
            finally:
                connection.close()


def _has_tables(connection: apsw.Connection) -> bool:
    return bool(connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'bindings'").fetchall())


class PostgresReader:
    """Its loop runs only while a question is asked, so that the process can fork in between."""

    troubles = ()  #: the server is not the one that is killed

    def __init__(self, dsn: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._connection = self._loop.run_until_complete(_connect(dsn))

    def look(self) -> Snapshot | None:
        return self

    def rows(self, sql: str) -> Rows:
        found = self._loop.run_until_complete(self._connection.fetch(sql))
        return [tuple(row) for row in found]

    def run(self, sql: str) -> None:
        self._loop.run_until_complete(self._connection.execute(sql))

    def close(self) -> None:
        self._loop.run_until_complete(self._connection.close())
        self._loop.close()


async def _connect(dsn: str) -> Any:
    import asyncpg  # an optional dependency

    return await asyncpg.connect(dsn)


def migrate(dsn: str) -> None:
    """The product's tables in a new database."""
    from clutch.store.postgres import PostgresStore  # an optional dependency

    async def once() -> None:
        async with PostgresStore(dsn, SystemClock()):
            pass

    asyncio.run(once())
