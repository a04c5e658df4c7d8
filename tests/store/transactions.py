"""Small transactions the store's tests run. The counters stand for sessions, the notes for their rows."""

from __future__ import annotations

import threading
from typing import Any

from clutch.store.transaction import HINT, ManyRows, Row, Tx


class Refused(Exception):
    pass


def create(now: float, *counters: int) -> Tx[None]:
    yield "INSERT INTO counters(id, value) VALUES(?, 0)", ManyRows([(counter,) for counter in counters])


def value_of(now: float, counter: int) -> Tx[int | None]:
    rows = yield "SELECT value FROM counters WHERE id = ?", (counter,)
    return rows[0][0] if rows else None


def bump(now: float, counter: int) -> Tx[float]:
    """Adds one, with a hint. Answers its `now`: the test clock never repeats one, so it names the batch."""
    rows = yield "SELECT value FROM counters WHERE id = ? {lock}", (counter,)
    yield "UPDATE counters SET value = ? WHERE id = ?", (rows[0][0] + 1, counter)
    yield HINT, ("bumped", counter)
    return now


def bump_both(now: float, first: int, second: int) -> Tx[float]:
    yield from bump(now, first)
    yield from bump(now, second)
    return now


def refuse(now: float, counter: int) -> Tx[None]:
    yield "SELECT value FROM counters WHERE id = ? {lock}", (counter,)
    yield HINT, ("refused", counter)
    raise Refused(counter)


def refuse_stale(now: float, counter: int) -> Tx[None]:
    """A guarded update that finds nothing has written nothing."""
    rows = yield "UPDATE counters SET value = 99 WHERE id = ? AND value = -1 RETURNING id", (counter,)
    if not rows:
        raise Refused(counter)


def bump_then_fail(now: float, counter: int) -> Tx[None]:
    yield from bump(now, counter)
    raise Refused(counter)


def note(now: float, counter: int, body: Any, raw: bytes | None = None) -> Tx[int]:
    rows = yield (
        "INSERT INTO notes(counter, at, body, raw) VALUES(?, ?, ?, ?) RETURNING id",
        (counter, now, body, raw),
    )
    identity: int = rows[0][0]
    return identity


def notes_of(now: float, counter: int) -> Tx[list[Row]]:
    return list((yield "SELECT body, raw FROM notes WHERE counter = ? ORDER BY id", (counter,)))


def add_within_limit(now: float, counter: int, limit: int) -> Tx[bool]:
    """Count, then insert: right only when no neighbour does the same between the two."""
    rows = yield "SELECT COUNT(*) FROM notes WHERE counter = ?", (counter,)
    if rows[0][0] >= limit:
        return False
    yield "INSERT INTO notes(counter, at) VALUES(?, ?)", (counter, now)
    return True


def select(now: float, sql: str, *parameters: Any) -> Tx[list[Row]]:
    return list((yield sql, parameters))


def write(now: float, sql: str, parameters: Any = ()) -> Tx[list[Row]]:
    return list((yield sql, parameters))


def blocked(now: float, entered: threading.Event, released: threading.Event) -> Tx[None]:
    """Holds the thread it runs in. For SQLite's writer thread only."""
    entered.set()
    assert released.wait(30)
    yield "SELECT 1", ()
