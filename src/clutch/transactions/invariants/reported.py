"""What people suffered from elsewhere, as SQL: results that are not the child's, causes nobody names, words that
reach the wrong reader, rights that grow on the way down. No rows, ever.

Most are asked when a task changes; what only history can show is asked when all is over.
"""

from __future__ import annotations

from typing import Final

from clutch.core.authority import NEVER_FOR_CHILDREN
from clutch.core.model import OWN_REPLY_KINDS
from clutch.transactions.conditions import IS_DEAD, IS_OPEN
from clutch.transactions.invariants.core import InvariantQuery, InvariantScope

_LETTER: Final = "i.task_id = t.id AND i.kind = 'announce' AND i.generation = t.generation"
_SAID: Final = "JSON_EXTRACT(m.body, '$.text')"
_TOKENS: Final = "('NO_REPLY', 'ANNOUNCE_SKIP', 'REPLY_SKIP', 'HEARTBEAT_OK')"


#: Letters that only the run that took them answers.
_OF_ITS_OWN: Final = ", ".join(sorted(f"'{kind.value}'" for kind in OWN_REPLY_KINDS))
_NEVER: Final = str(tuple(sorted(NEVER_FOR_CHILDREN)))


def _gone_from_child(field: str) -> str:
    theirs, own = (f"JSON_EACH({of}.rights, '$.{field}')" for of in "pc")
    return f"EXISTS (SELECT 1 FROM {theirs} g WHERE g.value NOT IN (SELECT value FROM {own}))"  # noqa: S608


NEEDS: Final[tuple[InvariantQuery, ...]] = (
    InvariantQuery(
        "N3",
        InvariantScope.END,
        "every call asks the model that the spawn asked for",
        "SELECT u.session_id, 'asked ' || u.model || ', wanted ' || s.model FROM usage u"
        " JOIN sessions s ON s.id = u.session_id LEFT JOIN tasks t ON t.id = s.id"
        " WHERE u.model <> COALESCE(JSON_EXTRACT(t.spec, '$.model'), s.model, u.model)",
    ),
    InvariantQuery(
        "N7",
        InvariantScope.MOVE,
        "only a clock of its own ends a task, and what it did is kept",
        "SELECT t.id, 'timed out after ' || t.timeout_s || ' s, result ' || COALESCE(t.result, 'none')"
        " FROM tasks t WHERE t.id {touched} AND t.outcome = 'timeout' AND (t.timeout_s <= 0"
        " OR (t.result IS NULL AND EXISTS (SELECT 1 FROM calls c JOIN runs r ON r.id = c.run_id"
        " WHERE c.session_id = t.id AND r.generation = t.generation AND r.stop_reason = 'timeout')))",
    ),
    InvariantQuery(
        "N7",
        InvariantScope.CALM,
        "a deadline is kept while somebody works on the task",
        "SELECT t.id, 'was to end ' || ROUND({now} - t.deadline_at) || ' s ago' FROM tasks t"
        " JOIN sessions s ON s.id = t.id JOIN workers w ON w.id = s.owner AND w.id {alive} WHERE t.phase = 'running'"
        " AND t.deadline_at < {now} - {patience_s}"
        " AND w.started_at < {now} - {patience_s}",  # else it had no time yet, by clocks that may run backwards
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
        "N9",
        InvariantScope.MOVE,
        "a failure has a cause",
        "SELECT t.id, t.outcome || ': no cause' FROM tasks t WHERE t.id {touched}"
        " AND t.outcome IN ('error', 'lost', 'killed') AND COALESCE(t.error, '') = ''",
    ),
    InvariantQuery(
        "N11",
        InvariantScope.MOVE,
        "delivered means: the reader's model has answered after reading it, or the channel of a person has it",
        "SELECT t.id, 'is delivered to ' || i.session_id FROM tasks t"  # noqa: S608 (constant words)
        f" JOIN inbox i ON {_LETTER} WHERE t.id {{touched}} AND t.delivery = 'delivered'"
        " AND EXISTS (SELECT 1 FROM messages m WHERE m.session_id = i.session_id)"
        " AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.session_id = i.session_id AND m.kind = 'answer'"
        " AND m.seq > i.taken_seq)"
        " AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.idem = i.idem AND o.done_at IS NOT NULL)",
    ),
    InvariantQuery(
        "N11",
        InvariantScope.SESSION,
        "the first model answer after a letter delivers it, whichever turn gives it",
        "SELECT s.id, 'has answered letter ' || i.id || ', which has state ' || i.state FROM sessions s"  # noqa: S608
        " JOIN inbox i ON i.session_id = s.id WHERE s.id {touched} AND i.taken_seq IS NOT NULL"
        f" AND i.kind NOT IN ({_OF_ITS_OWN}) AND (i.{IS_OPEN} OR (i.{IS_DEAD} AND EXISTS (SELECT 1 FROM tasks t"
        " WHERE t.id = i.task_id AND t.generation = i.generation AND t.delivery = 'undelivered')))"
        " AND EXISTS (SELECT 1 FROM messages m"
        " WHERE m.session_id = s.id AND m.kind = 'answer' AND m.seq > i.taken_seq"
        # Another runtime reports its calls on the way to its answer. If it fails, it reads the same text again.
        " AND NOT EXISTS (SELECT 1 FROM tasks f JOIN calls c ON c.session_id = f.id AND c.seq = m.seq"
        " WHERE f.id = s.id AND f.spec LIKE '%\"runtime\": %'))",
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
        InvariantScope.MOVE,
        "a letter carries the route that was captured at spawn",
        "SELECT t.id, 'was asked for from ' || COALESCE(s.route, 'nowhere') || ', told to ' || i.route"  # noqa: S608
        f" FROM tasks t JOIN sessions s ON s.id = t.id JOIN inbox i ON {_LETTER}"
        " WHERE t.id {touched} AND i.route <> COALESCE(s.route, '')",
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
        "N25",
        InvariantScope.MOVE,
        "the row knows how many lines its timeline has",
        "SELECT t.id, 'has seq ' || t.seq FROM tasks t WHERE t.id {touched}"
        " AND t.seq <> (SELECT COUNT(*) FROM events e WHERE e.task_id = t.id)",
    ),
    InvariantQuery(
        "N29",
        InvariantScope.END,
        "a talk between two agents has an end, and visits nobody twice",
        "SELECT MIN(i.id), COUNT(*) || ' letters of one talk' FROM inbox i WHERE i.kind = 'peer'"
        " GROUP BY JSON_EXTRACT(i.body, '$.key') HAVING COUNT(*) > JSON_EXTRACT(MIN(i.body), '$.turns_max') + 2",
    ),
    InvariantQuery(
        "N30",
        InvariantScope.BIRTH,
        "a child may do at most what its parent may, and some things no child may",
        "SELECT c.id, 'has more rights than ' || p.id FROM sessions p JOIN sessions c ON c.parent_id = p.id"  # noqa: S608
        " WHERE p.id {touched} AND p.depth >= {fixed_depth}"
        " AND (JSON_EXTRACT(c.rights, '$.depth_max') > JSON_EXTRACT(p.rights, '$.depth_max')"
        " OR JSON_EXTRACT(c.rights, '$.sandbox') < JSON_EXTRACT(p.rights, '$.sandbox')"
        " OR JSON_EXTRACT(c.rights, '$.network') > JSON_EXTRACT(p.rights, '$.network')"
        " OR JSON_EXTRACT(c.rights, '$.read_only') < JSON_EXTRACT(p.rights, '$.read_only')"
        " OR (SELECT COUNT(*) FROM JSON_EACH(c.rights, '$.tools_deny') d"
        f" WHERE d.value IN {_NEVER}) <> {len(NEVER_FOR_CHILDREN)}"
        f" OR {_gone_from_child('tools_deny')} OR {_gone_from_child('tools_allow')} OR {_gone_from_child('models')})",
    ),
    InvariantQuery(
        "N32",
        InvariantScope.MOVE,
        "whoever asked is still known while the answer is awaited",
        "SELECT t.id, t.phase || ', and its requester ' || t.requester_id || ' is gone' FROM tasks t"
        " WHERE t.id {touched} AND t.phase NOT IN ('completed', 'completed_giveup')"
        " AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = t.requester_id)",
    ),
)
