"""Read a state directory beside whoever owns it: no lock, no writes, no gateway needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clutch.store.door import Tx
from clutch.store.sqlite_connection import SqliteConnection

DATABASE_FILE = "clutch.db"


@contextmanager
def looking_at(state: Path) -> Iterator[Callable[..., Any]]:
    """Read beside whoever owns the state directory: `look(fn, *args)` runs a transaction that only reads."""
    connection = SqliteConnection(str(state / DATABASE_FILE), read_only=True)

    def look(fn: Callable[..., Tx[Any]], *args: Any) -> Any:
        outcome = connection.look(lambda now: fn(now, *args), time.time())
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    try:
        yield look
    finally:
        connection.close()
