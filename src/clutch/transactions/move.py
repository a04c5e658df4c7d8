"""The rows of a move: the record of each end, and pages of whole tables.

The only module that writes tables it does not own: a copy has no meaning of its own, and needs every table. Every write
compares the record that the mover has read with the one that is there, so that of two movers one stops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from clutch.core import move
from clutch.core.move import EndState, MoveRecord
from clutch.errors import InvalidInput, SchemaTooNew, StateDirectoryInUse, StoreError
from clutch.store.transaction import ManyRows, Row, Tx
from clutch.transactions import sessions, workers

#: Written by a gateway that starts, or for a browser that subscribes: no task is in them.
_OF_GATEWAYS: Final = frozenset({"workers", "push_keys", "mcp_servers", "trace_exporter", "provider_limits"})


class TableShape(NamedTuple):
    """`key`: its primary key. `is_numbered`: the database numbers its rows. `is_seeded`: a new database has rows."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    is_numbered: bool
    is_seeded: bool
    page_rows: int


def shapes(now: float) -> Tx[list[TableShape]]:
    """Return all tables that are moved, from a new SQLite database. PostgreSQL has the same from the same files."""
    del now
    found = yield (
        "SELECT name, instr(sql, 'AUTOINCREMENT') > 0 FROM sqlite_schema"
        " WHERE type = 'table' AND name <> 'meta' AND substr(name, 1, 7) <> 'sqlite_' ORDER BY name",
        (),
    )
    tables = []
    for name, is_numbered in found:
        columns = yield "SELECT name, pk, type FROM pragma_table_info(?) ORDER BY cid", (name,)
        key = [column for column, place, _ in sorted(columns, key=lambda one: int(one[1])) if place]
        seeds = yield f"SELECT 1 FROM {name} LIMIT 1", ()  # noqa: S608
        names, kinds = tuple(one[0] for one in columns), [one[2] for one in columns]
        page_rows = move.PAGE_FILES if "BLOB" in kinds else move.PAGE_ROWS
        tables.append(TableShape(name, names, tuple(key), bool(is_numbered), bool(seeds), page_rows))
    return tables


def change(now: float, was: MoveRecord, new: MoveRecord) -> Tx[None]:
    """Replace the record. Raises StoreError if another process has changed it."""
    del now
    yield (
        "INSERT INTO meta(name, value) VALUES('move', ?) ON CONFLICT(name) DO NOTHING",
        (move.record_text(MoveRecord()),),
    )
    rows = yield "SELECT value FROM meta WHERE name = 'move' {lock}", ()
    if move.read_record(rows[0][0]) != was:
        raise StoreError(
            "another `clutch move` works on this database; wait for its end, then repeat the command"
        )
    yield "UPDATE meta SET value = ? WHERE name = 'move'", (move.record_text(new),)


def check_version(now: float, known: int) -> Tx[None]:
    """Refuse tables with columns that this Clutch does not know: gateways may work beside them, a copy loses them."""
    del now
    rows = yield "SELECT value FROM meta WHERE name = 'schema_version'", ()
    if int(rows[0][0]) != known:
        raise SchemaTooNew(
            f"the database has schema version {rows[0][0]}, this Clutch copies version {known}: upgrade Clutch on this"
            " machine"
        )


def receive(
    now: float, tables: Sequence[TableShape], was: MoveRecord, new: MoveRecord, *, has_leases: bool
) -> Tx[None]:
    """Reserve the target and empty it."""
    yield from change(now, was, new)
    yield from _refuse_gateways(now, has_leases=has_leases)
    if was.state is EndState.OPEN and not (yield from is_empty(now, tables)):
        raise InvalidInput("--to", "the target holds tasks already; name an empty database")
    yield from unseal(now, tables)
    yield from empty(now, tables)


def empty(now: float, tables: Sequence[TableShape]) -> Tx[None]:
    """Delete every row, also those that a new database has."""
    del now
    for table in tables:
        yield f"DELETE FROM {table.name}", ()  # noqa: S608


def fence(
    now: float, tables: Sequence[TableShape], was: MoveRecord, new: MoveRecord, *, has_leases: bool
) -> Tx[None]:
    """Stop the source. A process that still works on it, e.g. one that was frozen, can write nothing any more."""
    yield from change(now, was, new)
    yield from _refuse_gateways(now, has_leases=has_leases)
    yield from evict(now)
    for table in tables:
        yield f"{{alter}} {table.name} {{seal}}", ()


def evict(now: float) -> Tx[None]:
    """Declare every worker dead."""
    yield from workers.bury_all_but(now, -1)
    yield from sessions.raise_fences()


def reopen(now: float, tables: Sequence[TableShape], was: MoveRecord, new: MoveRecord) -> Tx[None]:
    """Cancel: let gateways work on the source again."""
    yield from change(now, was, new)
    yield from unseal(now, tables)


def unseal(now: float, tables: Sequence[TableShape]) -> Tx[None]:
    del now
    for table in tables:
        yield f"{{alter}} {table.name} {{unseal}}", ()


def commit(now: float, was: MoveRecord, new: MoveRecord) -> Tx[None]:
    """Give the tasks away: from now on they live at the target."""
    yield from change(now, was, new)


def open_target(now: float, was: MoveRecord, new: MoveRecord) -> Tx[None]:
    """Let gateways work on the target."""
    yield from change(now, was, new)


def _refuse_gateways(now: float, *, has_leases: bool) -> Tx[None]:
    living = (yield from live_workers(now)) if has_leases else []
    if living:
        named = ", ".join(f"{host} pid {pid}" for _, host, pid, _ in living)
        raise StateDirectoryInUse(
            f"gateways work on this database ({named}): stop each with `clutch stop` on its machine, then repeat the"
            " command",
            "clutch stop",
        )


def live_workers(now: float) -> Tx[Sequence[Row]]:
    """Return id, host, pid and lease of each worker whose lease has not run out."""
    return (yield "SELECT id, host, pid, lease_until FROM workers WHERE lease_until >= ? ORDER BY id", (now,))


def is_empty(now: float, tables: Sequence[TableShape]) -> Tx[bool]:
    """Return whether a database holds nothing but what a new one has, or what a gateway writes at its start."""
    del now
    for table in tables:
        is_counted = not table.is_seeded and table.name not in _OF_GATEWAYS
        if is_counted and (yield f"SELECT 1 FROM {table.name} LIMIT 1", ()):  # noqa: S608
            return False
    return True


def count(now: float, tables: Sequence[TableShape]) -> Tx[dict[str, int]]:
    """Return the number of rows of each table that has any."""
    del now
    found = {}
    for table in tables:
        rows = yield f"SELECT COUNT(*) FROM {table.name}", ()  # noqa: S608
        if rows[0][0]:
            found[table.name] = int(rows[0][0])
    return found


def page(now: float, table: TableShape, after: Row) -> Tx[Sequence[Row]]:
    """Return the rows that follow a key, as many as a page holds."""
    del now
    columns, key = ", ".join(table.columns), ", ".join(table.key)
    where = f"WHERE ({key}) > ({', '.join('?' for _ in table.key)})" if after else ""
    rows = yield f"SELECT {columns} FROM {table.name} {where} ORDER BY {key} LIMIT {table.page_rows}", after  # noqa: S608
    return [tuple(row) for row in move.page_of(rows)]


def key_of(table: TableShape, row: Row) -> Row:
    """Return the primary key of a row."""
    return tuple(row[table.columns.index(column)] for column in table.key)


def insert(now: float, table: TableShape, rows: Sequence[Row]) -> Tx[None]:
    """Write rows as they are, with their ids."""
    del now
    values = ", ".join("?" for _ in table.columns)
    yield f"INSERT INTO {table.name}({', '.join(table.columns)}) VALUES({values})", ManyRows(rows)


def write_page(
    now: float, was: MoveRecord, new: MoveRecord, table: TableShape, rows: Sequence[Row]
) -> Tx[None]:
    """Write a page and the new cursor in one commit."""
    yield from change(now, was, new)
    yield from insert(now, table, rows)


def numbers(now: float, tables: Sequence[TableShape]) -> Tx[dict[str, int]]:
    """Return the last number that each numbered table has given, also to a row that is deleted."""
    del now
    found = {}
    for table in tables:
        if table.is_numbered:
            rows = yield "SELECT {last_number}", (table.name,)
            found[table.name] = int(rows[0][0] or 0)
    return found


def settle(now: float, was: MoveRecord, new: MoveRecord, given: Mapping[str, int]) -> Tx[None]:
    """Everything has arrived: the target counts on from the last numbers of the source."""
    yield from change(now, was, new)
    yield from set_numbers(now, given)


def set_numbers(now: float, given: Mapping[str, int]) -> Tx[None]:
    del now
    for table, number in given.items():
        if number:
            yield "{set_last_number}", (table, number)


def snapshot(
    now: float, tables: Sequence[TableShape], write: Callable[[TableShape, Sequence[Row]], None]
) -> Tx[dict[str, int]]:
    """Read everything in one transaction, which is not repeated, and give each page to `write`. Return the last
    numbers."""
    for table in tables:
        after: Row = ()
        while rows := (yield from page(now, table, after)):
            write(table, rows)
            after = key_of(table, rows[-1])
    return (yield from numbers(now, tables))
