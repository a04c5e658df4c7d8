"""What only a simulated world can be asked, as SQL: limits that never changed, and what holds when all is over.

`clutch doctor` does not ask these: a live database may hold what earlier limits allowed, and its work is not over."""

from __future__ import annotations

from typing import Final

from clutch.transactions.conditions import IS_OPEN
from clutch.transactions.invariants.core import (
    IS_OVER,
    LACKS_LINES,
    LIMIT,
    OF_DAY,
    OF_PURSE,
    PURSE,
    InvariantQuery,
    InvariantScope,
    balanced,
)

_SAID: Final = "JSON_EXTRACT(m.body, '$.text')"
_TOKENS: Final = "('NO_REPLY', 'ANNOUNCE_SKIP', 'REPLY_SKIP', 'HEARTBEAT_OK')"

#: In SQL that PostgreSQL understands, too.
BOTH_DATABASES: Final[tuple[InvariantQuery, ...]] = (
    InvariantQuery(
        "T1",
        InvariantScope.END,
        "every accepted task has ended",
        "SELECT t.id, t.phase || ' ' || t.reason FROM tasks t"
        " WHERE t.phase NOT IN ('completed', 'completed_giveup') OR t.outcome IS NULL",
    ),
    InvariantQuery(
        "T3",
        InvariantScope.BIRTH,
        "no requester has more children at work than allowed",
        "SELECT s.id, 'has more than {children_max} children at work' FROM sessions s WHERE s.id {touched}"
        " AND (SELECT COUNT(*) FROM tasks t WHERE t.requester_id = s.id AND {t_is_alive}) > {children_max}",
    ),
    InvariantQuery(
        "T3",
        InvariantScope.BIRTH,
        "no root has more descendants alive than allowed",
        "SELECT s.root_id, 'has more than {descendants_max} descendants alive' FROM sessions s WHERE s.id {touched}"
        " AND (SELECT COUNT(*) FROM tasks t WHERE t.root_id = s.root_id AND {t_is_alive}) > {descendants_max}",
    ),
    InvariantQuery(
        "N4",
        InvariantScope.BIRTH,
        "no requester keeps more records than allowed",
        "SELECT s.id, 'keeps more than {retained_max} records' FROM sessions s WHERE s.id {touched} AND"
        " (SELECT COUNT(*) FROM tasks t WHERE t.requester_id = s.id AND t.retained = 1) > {retained_max}",
    ),
    InvariantQuery(
        "N4",
        InvariantScope.TASK,
        "no session is deeper than allowed, and a child is one level below its parent",
        "SELECT t.id, 'at depth ' || t.depth FROM tasks t JOIN sessions s ON s.id = t.id"
        " LEFT JOIN sessions p ON p.id = t.requester_id WHERE t.id {touched}"
        " AND (t.depth > {depth_max} OR s.depth <> t.depth OR p.depth + 1 <> t.depth)",
    ),
    InvariantQuery(
        "T9",
        InvariantScope.TASK,
        "a result is not larger than allowed, and has a hash exactly when there is one",
        "SELECT t.id, 'has a result of ' || LENGTH(CAST(t.result AS {blob})) || ' bytes' FROM tasks t"
        " WHERE t.id {touched} AND (LENGTH(CAST(t.result AS {blob})) > {result_bytes_max}"
        " OR (t.result IS NULL) <> (t.result_sha IS NULL))",
    ),
    InvariantQuery(
        "N26",
        InvariantScope.END,
        "every answer of a model is in the books, once",
        "SELECT s.id, 'has other usage than answers' FROM sessions s"
        " WHERE s.deleted_at IS NULL AND"
        " (SELECT COALESCE(SUM(u.calls), 0) FROM usage u WHERE u.session_id = s.id AND u.state = 1)"
        " <> (SELECT COUNT(*) FROM messages m WHERE m.session_id = s.id AND m.kind = 'answer')",
    ),
    InvariantQuery(
        "N10",
        InvariantScope.END,
        "no letter is left behind",
        "SELECT i.id, 'of kind ' || i.kind || ' lies in session ' || i.session_id FROM inbox i"  # noqa: S608
        " JOIN sessions s ON s.id = i.session_id"
        f" WHERE i.seen = 0 OR (s.closed = 0 AND i.{IS_OPEN} AND i.silent = 0)",
    ),
    InvariantQuery(
        "N16",
        InvariantScope.END,
        "no session is owned, due, held or running any more",
        "SELECT s.id, 'is not at rest' FROM sessions s WHERE s.owner IS NOT NULL OR s.run_id IS NOT NULL"
        " OR (s.closed = 0 AND (s.due IS NOT NULL OR s.hold = 1))",
    ),
)

SIMULATED: Final[tuple[InvariantQuery, ...]] = (
    *BOTH_DATABASES,
    InvariantQuery(
        "N28",
        InvariantScope.SESSION,
        "no more events wait than are kept",
        "SELECT s.id, 'has more events than {events_max}' FROM sessions s WHERE s.id {touched} AND {events_max} <"
        " (SELECT COUNT(*) FROM system_events e WHERE e.session_id = s.id AND e.taken_run IS NULL)",
    ),
    InvariantQuery(
        "N29",
        InvariantScope.END,
        "a talk has a request, five replies and an end at most",
        "SELECT MIN(i.id), COUNT(*) || ' letters of one talk' FROM inbox i WHERE i.kind = 'peer'"
        " GROUP BY json_extract(i.body, '$.key') HAVING COUNT(*) > 7",
    ),
    InvariantQuery(
        "N29",
        InvariantScope.END,
        "a chain of messages passes no session twice",
        "SELECT i.id, 'goes back to ' || i.session_id FROM inbox i WHERE i.kind = 'peer'"
        " AND json_extract(i.body, '$.stage') = 'request'"
        " AND i.session_id IN (SELECT value FROM json_each(json_extract(i.body, '$.hops')))",
    ),
    InvariantQuery(
        "N24",
        InvariantScope.END,
        "outcome and timeline outlive the words",
        "SELECT s.id, 'lost more than its words' FROM sessions s JOIN tasks t ON t.id = s.id"  # noqa: S608
        " WHERE s.deleted_at IS NOT NULL AND (t.outcome IS NULL"
        f" OR {LACKS_LINES})",
    ),
    InvariantQuery(
        "N24",
        InvariantScope.END,
        "what was to be deleted after delivery is deleted",
        "SELECT t.id, 'was told and is still there' FROM tasks t JOIN sessions s ON s.id = t.id"  # noqa: S608
        f' WHERE t.spec LIKE \'%"cleanup": "delete"%\' AND s.deleted_at IS NULL AND {IS_OVER}',
    ),
    InvariantQuery(
        "N31",
        InvariantScope.END,
        "no question is left open",
        "SELECT q.id, q.kind || ' of session ' || q.session_id FROM questions q WHERE q.answered_at IS NULL",
    ),
    InvariantQuery(
        "T16",
        InvariantScope.END,
        "nothing is reserved when no run works",
        f"SELECT {PURSE} || {LIMIT} FROM purses p WHERE p.tokens_reserved <> 0",  # noqa: S608
    ),
    InvariantQuery(
        "N3",
        InvariantScope.END,
        "every call asks the model that the spawn asked for",
        "SELECT u.session_id, 'asked ' || u.model || ', wanted ' || s.model FROM usage u"
        " JOIN sessions s ON s.id = u.session_id LEFT JOIN tasks t ON t.id = s.id"
        " WHERE u.model <> COALESCE(JSON_EXTRACT(t.spec, '$.model'), s.model, u.model)",
    ),
    InvariantQuery(
        "N8",
        InvariantScope.MOVE,
        "a result is something the child said, whole",
        "SELECT t.id, 'never said ' || SUBSTR(t.result, 1, 60) FROM tasks t WHERE t.id {touched}"  # noqa: S608
        " AND t.outcome = 'ok' AND LENGTH(CAST(t.result AS {blob})) < {result_bytes_max} - 200"
        " AND EXISTS (SELECT 1 FROM messages m WHERE m.session_id = t.id)"
        f" AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.session_id = t.id AND TRIM({_SAID}) = TRIM(t.result)"
        " AND m.kind = 'answer')",
    ),
    InvariantQuery(
        "N13",
        InvariantScope.END,
        "an attempt is one run, and a run is at most one attempt",
        "SELECT d.task_id, COUNT(*) || ' attempts in run ' || COALESCE(d.run_id, 'none') FROM deliveries d"
        " WHERE d.outcome = 'failed' GROUP BY d.task_id, d.generation, d.run_id"
        " HAVING COUNT(*) > 1 OR d.run_id IS NULL",
    ),
    InvariantQuery(
        "N14",
        InvariantScope.END,
        "the reply of the turn that took a result goes where it was asked for",
        "SELECT d.task_id, 'was asked for from ' || i.route || ', and the reply goes to ' || r.route"
        " FROM deliveries d JOIN inbox i ON i.idem = d.letter JOIN runs r ON r.id = d.run_id"
        # A result that a failed turn left behind is answered by the next turn, which replies where it was started.
        " WHERE d.to_depth = 0 AND d.route_mode = 'fallback' AND i.route <> '' AND r.route <> i.route"
        " AND i.taken_run = d.run_id",
    ),
    InvariantQuery(
        "N17",
        InvariantScope.END,
        "a turn that a person started is never cancelled for a result",
        "SELECT r.session_id, 'was interrupted in run ' || r.id FROM runs r"
        " WHERE r.by_person = 1 AND r.stop_reason = 'interrupted'",
    ),
    InvariantQuery(
        "N15",
        InvariantScope.END,
        "people hear main agents, and children in their own threads, and never a word that was meant for the runtime",
        "SELECT o.id, 'of session ' || o.session_id || ': ' || SUBSTR(o.body, 1, 40) FROM outbox o"  # noqa: S608
        f" JOIN sessions s ON s.id = o.session_id WHERE UPPER(TRIM(o.body)) IN {_TOKENS}"
        " OR (s.is_task = 1 AND SUBSTR(o.idem, 1, 6) = 'reply:' AND INSTR(o.target, '\"thread\"') = 0)",
    ),
    InvariantQuery(
        "N21",
        InvariantScope.END,
        "an agent acts on what is below it",
        "SELECT e.task_id, 'was changed by ' || e.actor FROM events e JOIN sessions a ON a.key = e.actor"
        " WHERE a.id NOT IN (WITH RECURSIVE up(id) AS (SELECT requester_id FROM tasks WHERE id = e.task_id"
        " UNION SELECT t.requester_id FROM tasks t JOIN up ON t.id = up.id) SELECT id FROM up)",
    ),
    InvariantQuery(
        "N29",
        InvariantScope.END,
        "a talk between two agents has an end, and visits no session twice",
        "SELECT MIN(i.id), COUNT(*) || ' letters of one talk' FROM inbox i WHERE i.kind = 'peer'"
        " GROUP BY JSON_EXTRACT(i.body, '$.key') HAVING COUNT(*) > JSON_EXTRACT(MIN(i.body), '$.turns_max') + 2",
    ),
    balanced(InvariantScope.END, "p.kind <> 'day'", OF_PURSE),
    balanced(InvariantScope.END, "p.kind = 'day'", OF_DAY),
)
