"""Is the gateway well: how much runs, how much waits, and how much could not be told."""

from __future__ import annotations

from dataclasses import dataclass

from clutch.store.door import Tx


@dataclass(frozen=True, slots=True)
class Health:
    schema: int
    workers: int
    running: int  #: sessions somebody works on at this moment
    queued: int  #: tasks that wait for their turn
    undelivered: int


def health(now: float) -> Tx[Health]:
    del now
    rows = yield (
        "SELECT (SELECT value FROM meta WHERE name = 'schema_version'),"
        " (SELECT COUNT(*) FROM workers),"
        " (SELECT COUNT(*) FROM sessions WHERE owner IS NOT NULL),"
        # The other phases repeat the condition of the index of what is alive.
        " (SELECT COUNT(*) FROM tasks WHERE phase = 'queued'"
        " AND phase <> 'cleanup_pending' AND phase <> 'completed' AND phase <> 'completed_giveup'),"
        " (SELECT COUNT(*) FROM tasks WHERE delivery = 'undelivered')",
        (),
    )
    return Health(*map(int, rows[0]))
