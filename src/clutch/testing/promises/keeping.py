"""What is kept and what is not, as SQL: accepted tasks for ever, everything that waits only as long as it must.

A world at rest holds its history (transcripts, timelines, deliveries, usage: trimmed by retention, not here)
and nothing that somebody would still have to look at. No rows, ever.
"""

from __future__ import annotations

from typing import Final

from clutch.testing.promises.invariants import Query, Scope

_TOLD: Final = (
    "FROM was.told w LEFT JOIN tasks t"
    " ON t.id = w.task_id AND t.requester_id = w.requester_id AND t.idem = w.idem WHERE t.id IS NULL"
)

KEPT: Final[tuple[Query, ...]] = (
    Query(
        "T7",
        Scope.BIRTH,
        "what was accepted is on disk when it is said",
        f"SELECT w.task_id, 'of ' || w.idem || ' was accepted and is gone' {_TOLD} AND w.requester_id {{touched}}",
    ),
    Query(
        "T7",
        Scope.BIRTH,
        "the same key is always answered with the same task",
        "SELECT w.requester_id, w.idem || ' was answered with ' || COUNT(*) || ' tasks' FROM was.told w"
        " WHERE w.requester_id {touched} GROUP BY w.requester_id, w.idem HAVING COUNT(*) > 1",
    ),
    Query(
        "T7",
        Scope.END,
        "what was accepted is still there",
        f"SELECT w.task_id, 'of ' || w.idem || ' was accepted and is gone' {_TOLD}",
    ),
    Query(
        "T15",
        Scope.CALM,
        "a dead worker is buried soon",
        "SELECT w.id, 'is dead for ' || ROUND({now} - w.lease_until, 1) || ' s and still listed' FROM workers w"
        " WHERE w.lease_until < {now} - {patience_s}",
    ),
    Query(
        "T15",
        Scope.END,
        "no run is open",
        "SELECT r.id, 'of session ' || r.session_id || ' is open' FROM runs r WHERE r.ended_at IS NULL",
    ),
    Query(
        "T15",
        Scope.END,
        "a finished task has no timer",
        "SELECT t.id, t.phase || ' has a timer' FROM tasks t"
        " WHERE t.wake_at IS NOT NULL OR t.deadline_at IS NOT NULL OR t.clock_left_s IS NOT NULL",
    ),
    Query(
        "T15",
        Scope.END,
        "no note outlives its run, and no letter a closed task",
        "SELECT i.id, i.kind || ' is open in session ' || i.session_id FROM inbox i"
        " JOIN sessions s ON s.id = i.session_id"
        " WHERE i.state = 0 AND (i.kind = 'note' OR (s.closed = 1 AND s.is_task = 1))",
    ),
    Query(
        "T15",
        Scope.END,
        "no parcel is held by a worker that is gone",
        "SELECT o.id, 'is held by ' || o.owner FROM outbox o"
        " WHERE o.owner IS NOT NULL AND o.owner NOT IN (SELECT w.id FROM workers w)",
    ),
)
