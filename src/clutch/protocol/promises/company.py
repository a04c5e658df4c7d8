"""What is promised about sessions that look up by themselves, talk to each other, or stay: no rows, ever."""

from __future__ import annotations

from typing import Final

from clutch.protocol.promises.form import Query, Scope

COMPANY: Final[tuple[Query, ...]] = (
    Query(
        "N28",
        Scope.SESSION,
        "whatever happened since, one heartbeat waits to be read and not two",
        "SELECT s.id, 'has several heartbeats' FROM sessions s WHERE s.id {touched} AND 1 < (SELECT COUNT(*)"
        " FROM inbox i WHERE i.session_id = s.id AND i.kind = 'heartbeat' AND i.state = 0 AND i.taken_run IS NULL)",
    ),
    Query(
        "N28",
        Scope.SESSION,
        "a child never looks up by itself",
        "SELECT s.id, 'has a heartbeat' FROM sessions s WHERE s.id {touched} AND s.is_task = 1"
        " AND (s.heartbeat_at IS NOT NULL"
        " OR EXISTS (SELECT 1 FROM inbox i WHERE i.session_id = s.id AND i.kind = 'heartbeat'))",
    ),
    Query(
        "N28",
        Scope.SESSION,
        "no more events wait than are kept",
        "SELECT s.id, 'has more events than {events_max}' FROM sessions s WHERE s.id {touched} AND {events_max} <"
        " (SELECT COUNT(*) FROM system_events e WHERE e.session_id = s.id AND e.taken_run IS NULL)",
    ),
    Query(
        "N29",
        Scope.END,
        "a talk has a request, five replies and an end at most",
        "SELECT MIN(i.id), COUNT(*) || ' letters of one talk' FROM inbox i WHERE i.kind = 'peer'"
        " GROUP BY json_extract(i.body, '$.key') HAVING COUNT(*) > 7",
    ),
    Query(
        "N29",
        Scope.END,
        "nobody is written to by a chain that has passed it",
        "SELECT i.id, 'goes back to ' || i.session_id FROM inbox i WHERE i.kind = 'peer'"
        " AND json_extract(i.body, '$.stage') = 'request'"
        " AND i.session_id IN (SELECT value FROM json_each(json_extract(i.body, '$.hops')))",
    ),
    Query(
        "N19",
        Scope.LIFE,
        "a session that outlives its task has a thread, and one that was ended has none",
        "SELECT t.id, 'stays is ' || t.stays || ', bound is ' || s.bound FROM tasks t JOIN sessions s ON s.id = t.id"
        " WHERE t.id {touched} AND t.outcome IS NOT NULL AND t.stays = 1 AND (s.closed = 1 OR s.bound = 0"
        " OR NOT EXISTS (SELECT 1 FROM bindings b WHERE b.session_id = s.id))",
    ),
)
