"""Invariants of the stored data, as SQL queries that return violations: the simulator runs them after every commit,
`clutch doctor` on the live database.

`NEEDS` holds what users of other systems reported: results that are not the child's, causes that no surface names, text
that reaches the wrong reader, rights that grow on the way down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from clutch.core.authority import NEVER_FOR_CHILDREN
from clutch.core.model import OWN_REPLY_KINDS
from clutch.core.policy import Policy
from clutch.core.redaction import redact
from clutch.core.text.format import visible
from clutch.store.transaction import Tx
from clutch.transactions.conditions import IS_DEAD, IS_OPEN
from clutch.transactions.invariants.core import (
    BACKGROUND_QUERIES,
    LACKS_LINES,
    LEAVING,
    QUERIES,
    SPENDING,
    USER_QUERIES,
    InvariantQuery,
    InvariantScope,
    filled,
)

_LETTER: Final = "i.task_id = t.id AND i.kind = 'announce' AND i.generation = t.generation"

#: Letters that only the run that took them answers.
_OF_ITS_OWN: Final = ", ".join(sorted(f"'{kind.value}'" for kind in OWN_REPLY_KINDS))
_NEVER: Final = str(tuple(sorted(NEVER_FOR_CHILDREN)))


def _gone_from_child(field: str) -> str:
    theirs, own = (f"JSON_EACH({of}.rights, '$.{field}')" for of in "pc")
    return f"EXISTS (SELECT 1 FROM {theirs} g WHERE g.value NOT IN (SELECT value FROM {own}))"  # noqa: S608


NEEDS: Final[tuple[InvariantQuery, ...]] = (
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
        "a deadline is kept while a worker works on the task",
        "SELECT t.id, 'was to end ' || ROUND({now} - t.deadline_at) || ' s ago' FROM tasks t"
        " JOIN sessions s ON s.id = t.id JOIN workers w ON w.id = s.owner AND w.id {alive} WHERE t.phase = 'running'"
        " AND t.deadline_at < {now} - {patience_s}"
        " AND w.started_at < {now} - {patience_s}",  # else it had no time yet, by clocks that may run backwards
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
        "N14",
        InvariantScope.MOVE,
        "a letter carries the route that was captured at spawn",
        "SELECT t.id, 'was asked for from ' || COALESCE(s.route, 'nowhere') || ', told to ' || i.route"  # noqa: S608
        f" FROM tasks t JOIN sessions s ON s.id = t.id JOIN inbox i ON {_LETTER}"
        " WHERE t.id {touched} AND i.route <> COALESCE(s.route, '')",
    ),
    InvariantQuery(
        "N25",
        InvariantScope.MOVE,
        "a timeline lacks no line after the last one that says it was archived",
        f"SELECT t.id, 'has seq ' || t.seq FROM tasks t WHERE t.id {{touched}} AND {LACKS_LINES}",  # noqa: S608
    ),
    InvariantQuery(
        "N25",
        InvariantScope.LIFE,
        "no line of an undelivered task is deleted",
        "SELECT t.id, 'lacks a line before its line ' || a.seq FROM tasks t JOIN events a ON a.task_id = t.id"
        " AND a.at = t.archived_at AND a.reason IN ('archived', 'deleted') AND a.seq > 1 WHERE t.id {touched}"
        " AND t.delivery = 'undelivered'"
        " AND NOT EXISTS (SELECT 1 FROM events e WHERE e.task_id = t.id AND e.seq = a.seq - 1)",
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
        "the parent is still known while its answer is awaited",
        "SELECT t.id, t.phase || ', and its requester ' || t.requester_id || ' is gone' FROM tasks t"
        " WHERE t.id {touched} AND t.phase NOT IN ('completed', 'completed_giveup')"
        " AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = t.requester_id)",
    ),
)


# --------------------------------------------------------------------------------------------------
# Which invariants can be asked of a database at any moment, and how one is asked. A few need functions that only SQLite
# has, and are asked there only.

EXAMPLE_CHARS_MAX: Final = 200
BROKEN_MAX: Final = 5  #: examples of one broken promise

_ANY_TIME: Final = frozenset(
    {
        InvariantScope.TASK,
        InvariantScope.LIFE,
        InvariantScope.SESSION,
        InvariantScope.BIRTH,
        InvariantScope.MOVE,
        InvariantScope.OWNERS,
        InvariantScope.PURSE,
    }
)
_SQLITE_ONLY: Final = ("JSON_", "STRFTIME")


def standing(*, is_served: bool, is_sqlite: bool = True) -> Iterator[InvariantQuery]:
    """`is_served`: a gateway works on this database, so timers must ring."""
    scopes = _ANY_TIME | {InvariantScope.CALM} if is_served else _ANY_TIME
    unasked = () if is_sqlite else _SQLITE_ONLY
    for query in (*QUERIES, *LEAVING, *USER_QUERIES, *SPENDING, *NEEDS, *BACKGROUND_QUERIES):
        if query.scope in scopes and not any(word in query.sql for word in unasked):
            yield query


def broken(now: float, query: InvariantQuery) -> Tx[list[str]]:
    """What breaks it: nothing, or a few examples."""
    rows = yield filled(query, Policy(), now=repr(now), blob="{blob}", fixed_depth="1"), ()
    return [f"{row[0]} {row[1]}" for row in rows[:BROKEN_MAX]]


@dataclass(frozen=True, slots=True)
class InvariantCheck:
    """An invariant and what breaks it. `is_checked` False: the query took too long."""

    query: InvariantQuery
    examples: tuple[str, ...] = ()
    is_checked: bool = True

    @property
    def state(self) -> Literal["ok", "violated", "not checked"]:
        if not self.is_checked:
            return "not checked"
        return "violated" if self.examples else "ok"


def checked(query: InvariantQuery, examples: Sequence[str] | None) -> InvariantCheck:
    """Return the check as users read it: rows contain texts of models. None: it took too long."""
    shown = (visible(redact(one).text, EXAMPLE_CHARS_MAX) for one in examples or ())
    return InvariantCheck(query, tuple(shown), examples is not None)
