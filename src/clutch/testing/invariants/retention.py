"""What is kept and what is not, as SQL: accepted tasks for ever, everything that waits only as long as it must,
and of a spawn that was undone one line.

A world at rest holds its history (transcripts, timelines, deliveries, usage: trimmed by retention, not here)
and no pending work. None of these queries may return rows.
"""

from __future__ import annotations

from typing import Final

from clutch.transactions.invariants.core import InvariantQuery, InvariantScope

_TOLD: Final = (
    "FROM was.told w LEFT JOIN tasks t"
    " ON t.id = w.task_id AND t.requester_id = w.requester_id AND t.idem = w.idem WHERE t.id IS NULL"
)

_LEFT: Final = " UNION ALL ".join(
    f"SELECT undone.id, 'left a row in {table}' FROM {table} JOIN undone ON {column} = undone.id"  # noqa: S608
    for table, column in (
        ("sessions", "sessions.id"),
        ("tasks", "tasks.id"),
        ("inbox", "inbox.session_id"),
        ("inbox", "inbox.task_id"),
        ("messages", "messages.session_id"),
        ("runs", "runs.session_id"),
        ("calls", "calls.session_id"),
        ("usage", "usage.session_id"),
        ("questions", "questions.session_id"),
        ("purses", "SUBSTR(purses.name, 1, 5) = 'task:' AND CAST(SUBSTR(purses.name, 6) AS INTEGER)"),
    )
)
_ONE_LINE: Final = "COUNT(e.seq) <> 1 OR MIN(e.reason) <> 'spawn-failed' OR MIN(e.to_phase) <> 'spawning'"

KEPT: Final[tuple[InvariantQuery, ...]] = (
    InvariantQuery(
        "N9",
        InvariantScope.END,
        "no run fails because of ourselves",
        "SELECT r.session_id, r.stop_reason FROM runs r WHERE r.stop_reason LIKE 'error: internal error:%'",
    ),
    InvariantQuery(
        "N1",
        InvariantScope.UNDONE,
        "only a spawn that was not accepted yet is undone",
        "SELECT b.id, 'was ' || b.phase FROM was.tasks b WHERE b.id {touched} AND b.phase <> 'spawning'",
    ),
    InvariantQuery(
        "N1",
        InvariantScope.UNDONE,
        "a spawn that was undone leaves nothing behind",
        f"WITH undone(id) AS (SELECT value FROM json_each(?1)) {_LEFT}",  # noqa: S608
    ),
    InvariantQuery(
        "N1",
        InvariantScope.UNDONE,
        "a spawn that was undone leaves one line",
        "SELECT v.value, COUNT(e.seq) || ' lines, the first of them ' || COALESCE(MIN(e.reason), '')"  # noqa: S608
        f" FROM json_each(?1) v LEFT JOIN events e ON e.task_id = v.value GROUP BY v.value HAVING {_ONE_LINE}",
    ),
    InvariantQuery(
        "N1",
        InvariantScope.END,
        "whatever has no task has one line, and nothing else",
        "SELECT e.task_id, 'has no task and ' || COUNT(*) || ' lines' FROM events e"  # noqa: S608
        f" WHERE e.task_id NOT IN (SELECT id FROM tasks) GROUP BY e.task_id HAVING {_ONE_LINE}"
        " UNION ALL SELECT s.id, 'is a session without its task' FROM sessions s"
        " WHERE s.is_task = 1 AND s.id NOT IN (SELECT id FROM tasks)"
        " UNION ALL SELECT p.name, 'is nobody''s purse' FROM purses p WHERE SUBSTR(p.name, 1, 5) = 'task:'"
        " AND CAST(SUBSTR(p.name, 6) AS INTEGER) NOT IN (SELECT id FROM tasks)",
    ),
    InvariantQuery(
        "T7",
        InvariantScope.BIRTH,
        "what was accepted is on disk when it is said",
        f"SELECT w.task_id, 'of ' || w.idem || ' was accepted and is gone' {_TOLD} AND w.requester_id {{touched}}",
    ),
    InvariantQuery(
        "T7",
        InvariantScope.BIRTH,
        "the same key is always answered with the same task",
        "SELECT w.requester_id, w.idem || ' was answered with ' || COUNT(*) || ' tasks' FROM was.told w"
        " WHERE w.requester_id {touched} GROUP BY w.requester_id, w.idem HAVING COUNT(*) > 1",
    ),
    InvariantQuery(
        "T7",
        InvariantScope.END,
        "what was accepted is still there",
        f"SELECT w.task_id, 'of ' || w.idem || ' was accepted and is gone' {_TOLD}",
    ),
    InvariantQuery(
        "T15",
        InvariantScope.CALM,
        "a dead worker is buried soon",
        "SELECT w.id, 'is dead for ' || ROUND({now} - w.lease_until, 1) || ' s and still listed' FROM workers w"
        " WHERE w.lease_until < {now} - {patience_s}",
    ),
    InvariantQuery(
        "T15",
        InvariantScope.END,
        "no run is open",
        "SELECT r.id, 'of session ' || r.session_id || ' is open' FROM runs r WHERE r.ended_at IS NULL",
    ),
    InvariantQuery(
        "T15",
        InvariantScope.END,
        "a finished task has no timer, unless it is a dead letter that will expire or its session stays",
        "SELECT t.id, t.phase || ' has a timer' FROM tasks t WHERE t.deadline_at IS NOT NULL"
        " OR t.clock_left_s IS NOT NULL OR (t.wake_at IS NOT NULL) <> (t.delivery = 'undelivered' OR t.stays = 1)",
    ),
    InvariantQuery(
        "N10",
        InvariantScope.END,
        "a caller that waits for an undelivered result is notified of it",
        "SELECT e.task_id, 'was given up, and the person does not know' FROM events e"
        " JOIN tasks g ON g.id = e.task_id WHERE e.to_phase = 'cleanup_pending' AND e.reason = 'undelivered'"
        " AND e.detail <> 'dropped' AND NOT EXISTS (SELECT 1 FROM events n JOIN outbox o"
        " ON o.idem = 'undelivered:' || n.task_id || ':' || n.seq"  # one line for all that are given up together
        " WHERE n.at = e.at AND o.session_id = g.root_id)",
    ),
    InvariantQuery(
        "T15",
        InvariantScope.END,
        "no note outlives its run, and no letter a closed task",
        "SELECT i.id, i.kind || ' is open in session ' || i.session_id FROM inbox i"
        " JOIN sessions s ON s.id = i.session_id"
        " WHERE i.state = 0 AND (i.kind = 'note' OR (s.closed = 1 AND s.is_task = 1))",
    ),
    InvariantQuery(
        "T15",
        InvariantScope.END,
        "no parcel is held, and none waits",
        "SELECT o.id, 'is due ' || COALESCE(o.due, 'never') || ', held by ' || COALESCE(o.owner, 'nobody')"
        " FROM outbox o WHERE o.owner IS NOT NULL OR o.due IS NOT NULL",
    ),
)
