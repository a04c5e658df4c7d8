"""What a database knows of a move to or from another one. Lists read it, so it loads no rules of tasks."""

from __future__ import annotations

from clutch.core import move
from clutch.core.move import MoveRecord
from clutch.store.transaction import Tx


def move_record(now: float) -> Tx[MoveRecord]:
    """Return the record of a move, during which no worker may register."""
    del now
    rows = yield "SELECT value FROM meta WHERE name = 'move'", ()
    return move.read_record(rows[0][0]) if rows else MoveRecord()


def check_open(now: float) -> Tx[None]:
    """Raise StoreMoved while the database is moved, or was."""
    move.refuse_closed((yield from move_record(now)))
