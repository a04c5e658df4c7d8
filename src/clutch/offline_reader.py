"""Read a state directory or a database server while others work on it: no lock, no writes, no gateway needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from clutch.core.server_exam import ServerFacts
from clutch.errors import InvalidInput, StoreIOError
from clutch.store import dialect
from clutch.store.dialect import Dialect
from clutch.store.sqlite_connection import MEMORY, SqliteConnection, copy_database, library_version
from clutch.store.transaction import P, Spoiled, T, TransactionOutcome, Tx, TxFunction

Start = Callable[[float], Tx[Any]]  #: a transaction that gets the present time


class Look(Protocol):
    """Run a transaction that only reads, and return its value."""

    def __call__(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...


DATABASE_FILE = "clutch.db"
SERVER_S = 5.0  #: for one question to a server that others need


@contextmanager
def looking_at(state: Path) -> Iterator[Look]:
    """Read beside the owner of the state directory: `look(fn, *args)` runs a transaction that only reads.

    Raises SchemaTooNew, and StoreError for tables of an older Clutch."""
    with closing(_readable(state)) as connection:
        look = _look(lambda start: connection.look(start, time.time()))
        look(dialect.check_current, dialect.SCHEMA)
        yield look


@contextmanager
def looking_at_nothing() -> Iterator[Look]:
    """Read an empty database in memory: what a state directory holds before its first gateway."""
    with closing(SqliteConnection(MEMORY)) as connection:
        connection.control(dialect.META)
        for migration in dialect.load(dialect.SCHEMA, Dialect.SQLITE):
            for statement in migration.statements:
                connection.control(statement)
        yield _look(lambda start: connection.look(start, time.time()))


def _readable(state: Path) -> SqliteConnection:
    """Open the database for reading, also where the disk has no room for the index of its log (`clutch.db-shm`)."""
    path = str(state / DATABASE_FILE)
    try:
        return SqliteConnection(path, read_only=True)
    except StoreIOError:
        return SqliteConnection(path, read_only=True, is_sole=True)


@contextmanager
def looking_at_server(dsn: str, limit_s: float = SERVER_S) -> Iterator[Look]:
    """The same on PostgreSQL. The server stops a read that takes longer than the limit: StoreError."""
    import asyncio  # a file is read without it, by commands that should be quick

    from clutch.store.postgres_address import parse_address
    from clutch.store.postgres_clock import DatabaseClock
    from clutch.store.postgres_connection import BEGIN_READING, PostgresSettings, connect_patiently

    hurried = PostgresSettings(
        statement_timeout_s=limit_s,
        transaction_s=2 * limit_s,  # else it ends first, and with it the connection
        patience_s=SERVER_S,
        application_name="clutch doctor",
    )
    with asyncio.Runner() as runner:
        link = runner.run(connect_patiently(parse_address(dsn).session, hurried))
        runner.run((clock := DatabaseClock()).measure(link.raw))

        def ask(start: Start) -> TransactionOutcome:
            try:
                (outcome,) = runner.run(link.transact([start], clock.now(), BEGIN_READING))
            except Spoiled as spoiled:
                return TransactionOutcome(error=spoiled.cause)
            return outcome

        try:
            look = _look(ask)
            look(dialect.check_current, dialect.SCHEMA)
            yield look
        finally:
            runner.run(link.close())


def server_facts(dsn: str) -> ServerFacts:
    """Examine a PostgreSQL server, with or without tables of Clutch. Raises StoreLost."""
    from clutch.store.postgres_exam import examine

    return examine(dsn)


def _look(ask: Callable[[Start], TransactionOutcome]) -> Look:
    def look(fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        outcome = ask(lambda now: fn(now, *args, **kwargs))
        if outcome.error is not None:
            raise outcome.error
        value: T = outcome.value
        return value

    return look


def sqlite_version() -> str:
    """Of the library; one that is too old opens no database."""
    return library_version()


def copy(state: Path, target: Path) -> int:
    """Copy the whole database as it is at this moment, while others write. Return the bytes of the copy.

    Raises InvalidInput when something is there already, StoreMoved when the tasks live elsewhere; half a copy never has
    the name."""
    from clutch.core.move import refuse_copy
    from clutch.transactions.read.move import move_record

    if target.exists():
        raise InvalidInput("FILE", f"{target} is there already; name another")
    with closing(_readable(state)) as connection:
        look = _look(lambda start: connection.look(start, time.time()))
        refuse_copy(look(move_record), str(state))
    part = target.with_name(f".{target.name}.part")
    part.unlink(missing_ok=True)
    copy_database(str(state / DATABASE_FILE), str(part))
    part.rename(target)
    return target.stat().st_size


def integrity(now: float) -> Tx[list[str]]:
    """What SQLite itself finds wrong with the file: nothing, or a few lines."""
    del now
    rows = yield "PRAGMA integrity_check(5)", ()
    return [str(row[0]) for row in rows if row[0] != "ok"]


def newest(now: float) -> Tx[float | None]:
    """When the last thing happened, as it was written down."""
    del now
    rows = yield "SELECT MAX(at) FROM events", ()
    return None if rows[0][0] is None else float(rows[0][0])
