"""Is the gateway well: how much runs, how much waits, and how much could not be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clutch.core.model import Phase
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


@dataclass(frozen=True, slots=True)
class Counts:
    """For whoever watches the gateway over months."""

    tasks: int  #: ever
    phases: Mapping[str, int]  #: of those that are not over
    letters: int  #: open: nobody has answered them yet
    needs_you: int


def counts(now: float) -> Tx[Counts]:
    del now
    phases = yield (
        "SELECT phase, COUNT(*) FROM tasks"
        " WHERE phase <> 'cleanup_pending' AND phase <> 'completed' AND phase <> 'completed_giveup'"
        " GROUP BY phase ORDER BY phase",
        (),
    )
    rows = yield (
        "SELECT (SELECT COUNT(*) FROM tasks), (SELECT COUNT(*) FROM inbox WHERE state = 0),"
        " (SELECT COUNT(*) FROM questions WHERE answered_at IS NULL)",
        (),
    )
    total, letters, asking = map(int, rows[0])
    known = {str(phase): int(count) for phase, count in phases}
    return Counts(total, known, letters, asking + known.get(Phase.AWAITING_APPROVAL, 0))
