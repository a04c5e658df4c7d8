"""What must hold, as SQL over the tables. Every query returns the rows that break the promise: none, ever.

`{touched}` stands for the rows a commit may have changed, so that a check after every commit looks at those
only; without a list it looks at all. Limits are filled in from the policy. What may go stands in `leaving`, money
in `spending`, questions in `people`, what broke elsewhere in `needs`, sessions among each other in `company`. What
only a commit or the end of a world can show stands in `testing/promises`.

T1 to T18 and N1 to N33 are the names under which the project lists its promises.
"""

from __future__ import annotations

from typing import Final

from clutch.protocol.promises.form import Query, Scope

QUERIES: Final[tuple[Query, ...]] = (
    Query(
        "T1",
        Scope.TASK,
        "a generation has one outcome",
        "SELECT e.task_id, 'generation ' || e.generation || ' is ' || MIN(e.outcome) || ' and ' || MAX(e.outcome)"
        " FROM events e WHERE e.task_id {touched} GROUP BY e.task_id, e.generation"
        " HAVING MIN(e.outcome) <> MAX(e.outcome)",
    ),
    Query(
        "T1",
        Scope.TASK,
        "a task has an outcome exactly when it has settled",
        "SELECT t.id, t.phase || ' with outcome ' || COALESCE(t.outcome, 'none') FROM tasks t WHERE t.id {touched}"
        " AND (t.outcome IS NULL) <> (t.phase IN ('spawning', 'queued', 'running', 'paused', 'awaiting_approval',"
        " 'ending') OR (t.phase = 'announce_deferred' AND t.reason = 'descendants-active'))",
    ),
    Query(
        "N5",
        Scope.MOVE,
        "whatever works has not failed, whatever became of it before",
        "SELECT t.id, t.phase || ', and still says ' || t.error FROM tasks t WHERE t.id {touched}"
        " AND t.error IS NOT NULL AND t.phase IN ('spawning', 'queued', 'running', 'paused', 'awaiting_approval')",
    ),
    Query(
        "T1",
        Scope.END,
        "every accepted task has ended",
        "SELECT t.id, t.phase || ' ' || t.reason FROM tasks t"
        " WHERE t.phase NOT IN ('completed', 'completed_giveup') OR t.outcome IS NULL",
    ),
    Query(
        "T2",
        Scope.TASK,
        "a settled task has left exactly one letter in this generation",
        "SELECT t.id, t.phase || ' ' || t.outcome || ' without a letter, or with two' FROM tasks t"
        " WHERE t.id {touched} AND t.outcome IS NOT NULL AND 1 <> (SELECT COUNT(*) FROM inbox i"
        " WHERE i.task_id = t.id AND i.kind = 'announce' AND i.generation = t.generation)",
    ),
    Query(
        "T2",
        Scope.TASK,
        "what a task says about its delivery is what its letter says",
        "SELECT t.id, t.delivery || ' but its letter has state ' || i.state || ', silent ' || i.silent"
        " FROM tasks t JOIN inbox i ON i.task_id = t.id AND i.kind = 'announce' AND i.generation = t.generation"
        " WHERE t.id {touched} AND NOT CASE t.delivery WHEN 'delivered' THEN i.state = 1 AND i.silent = 0"
        " WHEN 'unsure' THEN i.state = 1 WHEN 'undelivered' THEN i.state = 2"
        " WHEN 'waiting' THEN i.state = 0 AND i.silent = 0"
        " WHEN 'deferred' THEN i.state = 0 WHEN 'skipped' THEN i.silent = 1 OR i.state IN (2, 3) ELSE 1 = 0 END",
    ),
    Query(
        "N10",
        Scope.TASK,
        "a task ends delivered, skipped, or as a dead letter, and its phase says so",
        "SELECT t.id, t.phase || ' but ' || t.delivery FROM tasks t WHERE t.id {touched} AND NOT CASE t.phase"
        " WHEN 'announcing' THEN t.delivery = 'waiting'"
        " OR (t.delivery = 'deferred' AND t.delivery_reason IN ('requester-busy', 'quiet-hours'))"
        " WHEN 'completed' THEN t.delivery IN ('delivered', 'skipped', 'unsure')"
        " WHEN 'completed_giveup' THEN t.delivery IN ('undelivered', 'skipped')"
        " WHEN 'cleanup_pending' THEN t.delivery IN ('delivered', 'skipped', 'undelivered', 'unsure')"
        " WHEN 'announce_deferred' THEN t.delivery = 'deferred' ELSE t.delivery = 'none' END",
    ),
    Query(
        "T2",
        Scope.TASK,
        "a result that waits to be told has no newer run of its task beside it",
        "SELECT t.id, 'waits to be told and works in run ' || r.id FROM tasks t JOIN runs r ON r.session_id = t.id"
        " WHERE t.id {touched} AND t.phase = 'announcing' AND t.stays = 0 AND r.ended_at IS NULL",
    ),
    Query(
        "T3",
        Scope.BIRTH,
        "no requester has more children at work than allowed",
        "SELECT s.id, 'has more than {children_max} children at work' FROM sessions s WHERE s.id {touched}"
        " AND (SELECT COUNT(*) FROM tasks t WHERE t.requester_id = s.id AND {t_is_alive}) > {children_max}",
    ),
    Query(
        "T3",
        Scope.BIRTH,
        "no root has more descendants alive than allowed",
        "SELECT s.root_id, 'has more than {descendants_max} descendants alive' FROM sessions s WHERE s.id {touched}"
        " AND (SELECT COUNT(*) FROM tasks t WHERE t.root_id = s.root_id AND {t_is_alive}) > {descendants_max}",
    ),
    Query(
        "N4",
        Scope.BIRTH,
        "no requester keeps more records than allowed",
        "SELECT s.id, 'keeps more than {retained_max} records' FROM sessions s WHERE s.id {touched} AND"
        " (SELECT COUNT(*) FROM tasks t WHERE t.requester_id = s.id AND t.retained = 1) > {retained_max}",
    ),
    Query(
        "N4",
        Scope.TASK,
        "nobody lives deeper than allowed, and a child stands one level below its requester",
        "SELECT t.id, 'at depth ' || t.depth FROM tasks t JOIN sessions s ON s.id = t.id"
        " LEFT JOIN sessions p ON p.id = t.requester_id WHERE t.id {touched}"
        " AND (t.depth > {depth_max} OR s.depth <> t.depth OR p.depth + 1 <> t.depth)",
    ),
    Query(
        "T3",
        Scope.OWNERS,
        "no lane runs more sessions than it has room for",
        "SELECT l.cap, 'is the room of lane ' || l.name || ', and more are owned' FROM lanes l"
        " WHERE (SELECT COUNT(*) FROM sessions s WHERE s.lane = l.name AND s.owner IS NOT NULL) > l.cap",
    ),
    Query(
        "T4",
        Scope.OWNERS,
        "whoever owns a session is alive in the tables",
        "SELECT s.id, 'is owned by ' || s.owner || ', who is buried' FROM sessions s"
        " WHERE s.owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM workers w WHERE w.id = s.owner)",
    ),
    Query(
        "N17",
        Scope.SESSION,
        "a session has at most one open run, and knows it",
        "SELECT s.id, 'thinks its run is ' || COALESCE(s.run_id, 0) FROM sessions s WHERE s.id {touched}"
        " AND COALESCE(s.run_id, 0) <> COALESCE((SELECT MAX(r.id) FROM runs r"
        " WHERE r.session_id = s.id AND r.ended_at IS NULL), 0)",
    ),
    Query(
        "T5",
        Scope.TASK,
        "nothing lives below a killed task",
        "SELECT t.id, 'was killed and has something alive below' FROM tasks t WHERE t.id {touched}"
        " AND t.outcome = 'killed' AND EXISTS (SELECT 1 FROM tasks c LEFT JOIN tasks g ON g.requester_id = c.id"
        " LEFT JOIN tasks h ON h.requester_id = g.id WHERE c.requester_id = t.id"
        " AND (({c_is_alive}) OR ({g_is_alive}) OR ({h_is_alive})))",
    ),
    Query(
        "T5",
        Scope.TASK,
        "nothing is born below a killed task",
        "SELECT t.id, 'lives below a killed task' FROM tasks t JOIN tasks c ON c.id = t.requester_id"
        " LEFT JOIN tasks g ON g.id = c.requester_id LEFT JOIN tasks h ON h.id = g.requester_id"
        " WHERE t.id {touched} AND {t_is_alive} AND 'killed' IN (c.outcome, g.outcome, h.outcome)",
    ),
    Query(
        "N19",
        Scope.SESSION,
        "a closed session runs nothing, owns nothing, waits for nothing",
        "SELECT s.id, 'is closed and still active' FROM sessions s WHERE s.id {touched} AND s.closed = 1"
        " AND (s.owner IS NOT NULL OR s.run_id IS NOT NULL OR s.due IS NOT NULL OR s.hold = 1)",
    ),
    Query(
        "N19",
        Scope.TASK,
        "a killed task speaks to nobody",
        "SELECT t.id, 'was killed, but its letter is not silent' FROM tasks t JOIN inbox i ON i.task_id = t.id"
        " WHERE t.id {touched} AND t.outcome = 'killed' AND i.kind = 'announce'"
        " AND i.generation = t.generation AND i.silent = 0",
    ),
    Query(
        "N19",
        Scope.LIFE,
        "the session of a settled task is closed, that of a living one is open",
        "SELECT t.id, t.phase || ' but closed is ' || s.closed FROM tasks t JOIN sessions s ON s.id = t.id"
        " WHERE t.id {touched} AND (s.closed = 1) <> (t.outcome IS NOT NULL AND t.stays = 0)",
    ),
    Query(
        "T6",
        Scope.CALM,
        "timers are rows, and somebody rings them soon",
        "SELECT t.id, 'was to be woken ' || ROUND({now} - t.wake_at) || ' s ago' FROM tasks t"
        " WHERE t.wake_at < {now} - {patience_s}",
    ),
    Query(
        "N2",
        Scope.BIRTH,
        "one call makes one task, however often it is repeated",
        "SELECT t.requester_id, COUNT(*) || ' tasks of one call' FROM tasks t WHERE t.requester_id {touched}"
        " AND t.idem LIKE t.requester_id || ':%' GROUP BY t.requester_id, t.spawn_order HAVING COUNT(*) > 1",
    ),
    Query(
        "N2",
        Scope.BIRTH,
        "a child that no person asked for is that of a call, which was made",
        "SELECT t.id, 'of ' || t.idem || ' was never asked for' FROM tasks t JOIN sessions s ON s.id = t.requester_id"
        " WHERE t.requester_id {touched} AND t.idem LIKE t.requester_id || ':%' AND s.deleted_at IS NULL"
        " AND NOT EXISTS (SELECT 1 FROM calls c WHERE c.session_id = s.id AND c.name = 'sessions_spawn'"
        " AND t.idem = c.session_id || ':' || c.seq || ':' || c.idx)",
    ),
    Query(
        "T8",
        Scope.CALM,
        "what a dead worker held is taken back within a lease and two ticks",
        "SELECT s.id, 'is held by a worker whose lease ended ' || ROUND({now} - w.lease_until) || ' s ago'"
        " FROM sessions s JOIN workers w ON w.id = s.owner WHERE w.lease_until < {now} - {patience_s}",
    ),
    Query(
        "T8",
        Scope.OWNERS,
        "what a dead worker was sending is sent by others",
        "SELECT o.id, 'is held by ' || o.owner || ', who is gone' FROM outbox o"
        " WHERE o.owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM workers w WHERE w.id = o.owner)",
    ),
    Query(
        "T9",
        Scope.TASK,
        "a result is not larger than allowed, and has a hash exactly when there is one",
        "SELECT t.id, 'has a result of ' || LENGTH(CAST(t.result AS {blob})) || ' bytes' FROM tasks t"
        " WHERE t.id {touched} AND (LENGTH(CAST(t.result AS {blob})) > {result_bytes_max}"
        " OR (t.result IS NULL) <> (t.result_sha IS NULL))",
    ),
    Query(
        "T10",
        Scope.TASK,
        "the last line of the timeline is where the row stands",
        "SELECT t.id, t.phase || ' but the timeline ends at ' || COALESCE(e.to_phase, 'nothing') FROM tasks t"
        " LEFT JOIN events e ON e.task_id = t.id AND e.seq = t.seq WHERE t.id {touched}"
        " AND (e.to_phase IS NULL OR e.to_phase <> t.phase OR e.generation <> t.generation"
        " OR COALESCE(e.outcome, '') <> COALESCE(t.outcome, ''))",
    ),
    Query(
        "T13",
        Scope.TASK,
        "an attempt is counted only when telling failed",
        "SELECT t.id, t.attempts || ' attempts counted' FROM tasks t WHERE t.id {touched} AND t.attempts >"
        " (SELECT COUNT(*) FROM deliveries d WHERE d.task_id = t.id AND d.generation = t.generation"
        " AND d.outcome = 'failed')",
    ),
    Query(
        "N6",
        Scope.LIFE,
        "an unfinished task has an owner or a time at which something happens",
        "SELECT t.id, t.phase || ' (' || t.reason || ') and nothing will happen' FROM tasks t"
        " JOIN sessions s ON s.id = t.id WHERE t.id {touched} AND NOT CASE"
        " WHEN t.phase IN ('queued', 'running') OR (t.phase = 'paused' AND t.reason NOT IN ('children', 'pause'))"
        " THEN s.owner IS NOT NULL OR s.due IS NOT NULL OR s.paused = 1"
        " OR (t.reason = 'needs-you' AND EXISTS (SELECT 1 FROM questions q"
        " WHERE q.session_id = t.id AND q.answered_at IS NULL))"
        " WHEN t.phase = 'paused' AND t.reason = 'children' THEN s.hold = 1"
        " WHEN t.phase = 'paused' THEN s.paused = 1"
        " WHEN t.phase IN ('spawning', 'ending', 'announce_deferred', 'cleanup_pending') THEN t.wake_at IS NOT NULL"
        " ELSE 1 = 1 END",
    ),
    Query(
        "N16",
        Scope.SESSION,
        "a session that nobody owns and that has something to read or to go on with is due",
        "SELECT s.id, 'has mail or a run and no time' FROM sessions s WHERE s.id {touched} AND s.owner IS NULL"
        " AND s.due IS NULL AND s.closed = 0 AND s.paused = 0"
        " AND NOT EXISTS (SELECT 1 FROM questions q WHERE q.session_id = s.id AND q.answered_at IS NULL)"
        " AND (s.run_id IS NOT NULL OR EXISTS (SELECT 1 FROM inbox i WHERE i.session_id = s.id AND i.state = 0"
        " AND i.taken_run IS NULL AND i.seen = 1"
        " AND (i.kind <> 'announce' OR (i.silent = 0 AND (i.taken_seq IS NOT NULL OR s.hold = 0)))))",
    ),
    Query(
        "N16",
        Scope.SESSION,
        "a parent that waits for its children is woken when none works any more",
        "SELECT s.id, 'waits for nobody' FROM sessions s WHERE s.id {touched} AND s.hold = 1 AND s.owner IS NULL"
        # The wait may end in the very moment in which it expires.
        " AND (s.due IS NULL OR (s.due = s.hold_until AND s.due > 1 + (SELECT MAX(e.at) FROM events e)))"
        " AND s.closed = 0 AND s.paused = 0 AND s.run_id IS NULL"
        " AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.requester_id = s.id AND {t_is_alive})"
        " AND NOT EXISTS (SELECT 1 FROM inbox i WHERE i.session_id = s.id AND i.seen = 0)",
    ),
    Query(
        "N16",
        Scope.SESSION,
        "a letter that nobody can read is on its way, or its sender knows",
        "SELECT s.id, 'is closed and keeps letter ' || i.id FROM sessions s JOIN inbox i ON i.session_id = s.id"
        " JOIN tasks t ON t.id = i.task_id WHERE s.id {touched} AND s.closed = 1 AND i.state = 0 AND i.seen = 1"
        " AND i.kind = 'announce' AND i.silent = 0 AND t.generation = i.generation AND t.phase = 'announcing'",
    ),
    Query(
        "N16",
        Scope.SESSION,
        "a session that somebody owns has no time of its own",
        "SELECT s.id, 'is owned and due' FROM sessions s"
        " WHERE s.id {touched} AND s.owner IS NOT NULL AND s.due IS NOT NULL",
    ),
    Query(
        "N22",
        Scope.SESSION,
        "a transcript has no gap",
        "SELECT s.id, 'has head ' || s.head FROM sessions s WHERE s.id {touched} AND s.head <>"
        " (SELECT COUNT(*) FROM messages m WHERE m.session_id = s.id AND m.seq BETWEEN 1 AND s.head)",
    ),
    Query(
        "N22",
        Scope.SESSION,
        "a transcript goes on only when every call has its result",
        "SELECT s.id, 'went on past open call ' || c.seq || '.' || c.idx FROM sessions s"
        " JOIN calls c ON c.session_id = s.id AND c.seq > s.base AND c.seq < s.head WHERE s.id {touched}"
        " AND NOT EXISTS (SELECT 1 FROM messages m"
        " WHERE m.session_id = s.id AND m.seq = c.seq + 1 AND m.kind = 'results')",
    ),
    Query(
        "N26",
        Scope.END,
        "every answer of a model is in the books, once",
        "SELECT s.id, 'has other usage than answers' FROM sessions s"
        " WHERE s.deleted_at IS NULL AND (SELECT COUNT(*) FROM usage u WHERE u.session_id = s.id AND u.state = 1)"
        " <> (SELECT COUNT(*) FROM messages m WHERE m.session_id = s.id AND m.kind = 'answer')",
    ),
    Query(
        "N10",
        Scope.END,
        "no letter is left behind",
        "SELECT i.id, 'of kind ' || i.kind || ' lies in session ' || i.session_id FROM inbox i"
        " JOIN sessions s ON s.id = i.session_id"
        " WHERE i.seen = 0 OR (s.closed = 0 AND i.state = 0 AND i.silent = 0)",
    ),
    Query(
        "N16",
        Scope.END,
        "nobody is owned, due, held or running any more",
        "SELECT s.id, 'is not at rest' FROM sessions s WHERE s.owner IS NOT NULL OR s.run_id IS NOT NULL"
        " OR (s.closed = 0 AND (s.due IS NOT NULL OR s.hold = 1))",
    ),
)
