"""What must hold, as SQL over the tables. Every query returns the rows that break the promise: none, ever.

`{touched}` stands for the rows a commit may have changed, so that a check after every commit looks at those
only; without a list it looks at all. Limits are filled in from the policy. Each group of
queries has its constant below; failures reported of other systems are in `reported`. Checks that need a commit, the
limits of a policy or the end of a simulated world are in `clutch.testing`.

T1 to T18 and N1 to N33 are the names under which the project lists its promises."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from clutch.core.agents import Heartbeat
from clutch.core.model import RunState
from clutch.core.policy import Policy
from clutch.transactions.conditions import IS_ANSWERED, IS_DEAD, IS_OPEN, IS_VOID, WORKING_PHASES

# --------------------------------------------------------------------------------------------------
# What a promise looks like: a query that returns the rows that break it, when it is asked, and how it is filled in.


class InvariantScope(StrEnum):
    """When a query is asked, and what `{touched}` names in it."""

    TASK = "task"  #: after every commit: tasks it wrote, or whose letter it wrote
    LIFE = "life"  #: after every commit: those, and tasks whose session it wrote
    SESSION = "session"  #: after every commit: sessions
    BIRTH = "birth"  #: after a commit with new tasks: their requesters
    MOVE = "move"  #: after every commit: tasks it changed
    FENCE = "fence"  #: after every commit: sessions it gave another owner or fence
    STEER = "steer"  #: after a commit that steered tasks: those
    GUARDED = "guarded"  #: after every write by an owner: its session is ?1, its worker ?2, its fence ?3
    CUT = "cut"  #: after a commit that took sessions from owners that had not released them: those
    READ = "read"  #: after a commit that put letters into transcripts: those letters
    UNDONE = "undone"  #: after a commit that took tasks away: those
    PURSE = "purse"  #: after a commit that reserved or charged something: the names of the budgets
    OWNERS = "owners"  #: after a commit that changed who owns what: everything
    CALM = "calm"  #: again and again while nothing goes wrong
    END = "end"  #: when all is over


@dataclass(frozen=True, slots=True)
class InvariantQuery:
    invariant: str
    scope: InvariantScope
    promise: str
    sql: str  #: selects a number and, as text, what is wrong with it
    also: str = ""  #: another promise that says the same


#: May still do something. An ended task that waits for its requester to come back may not.
IS_ALIVE: Final = f"{{0}}.phase IN {WORKING_PHASES} AND {{0}}.outcome IS NULL"


def filled(
    query: InvariantQuery,
    policy: Policy,
    *,
    touched: str = "IS NOT NULL",
    now: str = "0",
    blob: str = "BLOB",
    alive: str = "IS NOT NULL",
    fixed_depth: str = "0",
) -> str:
    """The SQL with the numbers of this policy. They are numbers, never text of a user.

    `fixed_depth`: from which depth on rights have stayed as they were; those of main sessions follow the config.
    `alive`: which workers are alive, where the caller knows better than their leases, whose clocks may differ."""
    work = policy.work
    words = {
        **{f"{{{alias}_is_alive}}": IS_ALIVE.format(alias) for alias in "tcgh"},
        "{touched}": touched,
        "{now}": now,
        "{alive}": alive,
        "{fixed_depth}": fixed_depth,
        "{patience_s}": str(work.lease_s + 3 * work.tick_s),
        "{children_max}": str(policy.limits.children_max),
        "{descendants_max}": str(policy.limits.descendants_max),
        "{retained_max}": str(policy.limits.retained_max),
        "{depth_max}": str(policy.limits.depth_max),
        "{result_bytes_max}": str(policy.life.result_bytes_max),
        "{inline_chars_max}": str(policy.announcing.inline_chars_max),
        "{events_max}": str((policy.defaults.heartbeat or Heartbeat()).events_max),
        "{blob}": blob,
    }
    sql = query.sql
    for word, value in words.items():
        sql = sql.replace(word, value)
    return sql


QUERIES: Final[tuple[InvariantQuery, ...]] = (
    InvariantQuery(
        "T1",
        InvariantScope.TASK,
        "a generation has one outcome",
        "SELECT e.task_id, 'generation ' || e.generation || ' is ' || MIN(e.outcome) || ' and ' || MAX(e.outcome)"
        " FROM events e WHERE e.task_id {touched} GROUP BY e.task_id, e.generation"
        " HAVING MIN(e.outcome) <> MAX(e.outcome)",
    ),
    InvariantQuery(
        "T1",
        InvariantScope.TASK,
        "a task has an outcome exactly when it has finished",
        "SELECT t.id, t.phase || ' with outcome ' || COALESCE(t.outcome, 'none') FROM tasks t WHERE t.id {touched}"
        " AND (t.outcome IS NULL) <> (t.phase IN ('spawning', 'queued', 'running', 'paused', 'awaiting_approval',"
        " 'ending') OR (t.phase = 'announce_deferred' AND t.reason = 'descendants-active'))",
    ),
    InvariantQuery(
        "N5",
        InvariantScope.MOVE,
        "whatever works has not failed, whatever became of it before",
        "SELECT t.id, t.phase || ', and still says ' || t.error FROM tasks t WHERE t.id {touched}"
        " AND t.error IS NOT NULL AND t.phase IN ('spawning', 'queued', 'running', 'paused', 'awaiting_approval')",
    ),
    InvariantQuery(
        "T2",
        InvariantScope.TASK,
        "a finished task has left exactly one letter in this generation",
        "SELECT t.id, t.phase || ' ' || t.outcome || ' without a letter, or with two' FROM tasks t"
        " WHERE t.id {touched} AND t.outcome IS NOT NULL AND 1 <> (SELECT COUNT(*) FROM inbox i"
        " WHERE i.task_id = t.id AND i.kind = 'announce' AND i.generation = t.generation)",
    ),
    InvariantQuery(
        "T2",
        InvariantScope.TASK,
        "what a task says about its delivery is what its letter says",
        "SELECT t.id, t.delivery || ' but its letter has state ' || i.state || ', silent ' || i.silent"  # noqa: S608
        " FROM tasks t JOIN inbox i ON i.task_id = t.id AND i.kind = 'announce' AND i.generation = t.generation"
        f" WHERE t.id {{touched}} AND NOT CASE t.delivery WHEN 'delivered' THEN i.{IS_ANSWERED} AND i.silent = 0"
        f" WHEN 'unsure' THEN i.{IS_ANSWERED} WHEN 'undelivered' THEN i.{IS_DEAD}"
        f" WHEN 'waiting' THEN i.{IS_OPEN} AND i.silent = 0 WHEN 'deferred' THEN i.{IS_OPEN}"
        f" WHEN 'skipped' THEN i.silent = 1 OR i.{IS_DEAD} OR i.{IS_VOID} ELSE 1 = 0 END",
    ),
    InvariantQuery(
        "N10",
        InvariantScope.TASK,
        "a task ends delivered, skipped, or as a dead letter, and its phase says so",
        "SELECT t.id, t.phase || ' but ' || t.delivery FROM tasks t WHERE t.id {touched} AND NOT CASE t.phase"
        " WHEN 'announcing' THEN t.delivery = 'waiting'"
        " OR (t.delivery = 'deferred' AND t.delivery_reason IN ('requester-busy', 'quiet-hours'))"
        " WHEN 'completed' THEN t.delivery IN ('delivered', 'skipped', 'unsure')"
        " WHEN 'completed_giveup' THEN t.delivery IN ('undelivered', 'skipped')"
        " WHEN 'cleanup_pending' THEN t.delivery IN ('delivered', 'skipped', 'undelivered', 'unsure')"
        " WHEN 'announce_deferred' THEN t.delivery = 'deferred' ELSE t.delivery = 'none' END",
    ),
    InvariantQuery(
        "T2",
        InvariantScope.TASK,
        "a result that is pending delivery has no newer run of its task beside it",
        "SELECT t.id, 'waits to be told and works in run ' || r.id FROM tasks t JOIN runs r ON r.session_id = t.id"
        " WHERE t.id {touched} AND t.phase = 'announcing' AND t.stays = 0 AND r.ended_at IS NULL",
    ),
    InvariantQuery(
        "T3",
        InvariantScope.OWNERS,
        "no lane runs more sessions than it has room for",
        "SELECT l.cap, 'is the room of lane ' || l.name || ', and more are owned' FROM lanes l"
        " WHERE (SELECT COUNT(*) FROM sessions s WHERE s.lane = l.name AND s.owner IS NOT NULL) > l.cap",
    ),
    InvariantQuery(
        "T4",
        InvariantScope.OWNERS,
        "the owner of a session is alive in the tables",
        "SELECT s.id, 'is owned by ' || s.owner || ', who is buried' FROM sessions s"
        " WHERE s.owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM workers w WHERE w.id = s.owner)",
    ),
    InvariantQuery(
        "N17",
        InvariantScope.SESSION,
        "a session has at most one open run, and knows it",
        "SELECT s.id, 'thinks its run is ' || COALESCE(s.run_id, 0) FROM sessions s WHERE s.id {touched}"
        " AND COALESCE(s.run_id, 0) <> COALESCE((SELECT MAX(r.id) FROM runs r"
        " WHERE r.session_id = s.id AND r.ended_at IS NULL), 0)",
    ),
    InvariantQuery(
        "T5",
        InvariantScope.TASK,
        "nothing lives below a killed task",
        "SELECT t.id, 'was killed and has something alive below' FROM tasks t WHERE t.id {touched}"
        " AND t.outcome = 'killed' AND EXISTS (SELECT 1 FROM tasks c LEFT JOIN tasks g ON g.requester_id = c.id"
        " LEFT JOIN tasks h ON h.requester_id = g.id WHERE c.requester_id = t.id"
        " AND (({c_is_alive}) OR ({g_is_alive}) OR ({h_is_alive})))",
    ),
    InvariantQuery(
        "T5",
        InvariantScope.TASK,
        "nothing is spawned below a killed task",
        "SELECT t.id, 'lives below a killed task' FROM tasks t JOIN tasks c ON c.id = t.requester_id"
        " LEFT JOIN tasks g ON g.id = c.requester_id LEFT JOIN tasks h ON h.id = g.requester_id"
        " WHERE t.id {touched} AND {t_is_alive} AND 'killed' IN (c.outcome, g.outcome, h.outcome)",
    ),
    InvariantQuery(
        "N19",
        InvariantScope.SESSION,
        "a closed session runs nothing, owns nothing, waits for nothing",
        "SELECT s.id, 'is closed and still active' FROM sessions s WHERE s.id {touched} AND s.closed = 1"
        " AND (s.owner IS NOT NULL OR s.run_id IS NOT NULL OR s.due IS NOT NULL OR s.hold = 1)",
    ),
    InvariantQuery(
        "N19",
        InvariantScope.TASK,
        "a killed task sends no letter",
        "SELECT t.id, 'was killed, but its letter is not silent' FROM tasks t JOIN inbox i ON i.task_id = t.id"
        " WHERE t.id {touched} AND t.outcome = 'killed' AND i.kind = 'announce'"
        " AND i.generation = t.generation AND i.silent = 0",
    ),
    InvariantQuery(
        "N19",
        InvariantScope.LIFE,
        "the session of a finished task is closed, that of a living one is open",
        "SELECT t.id, t.phase || ' but closed is ' || s.closed FROM tasks t JOIN sessions s ON s.id = t.id"
        " WHERE t.id {touched} AND (s.closed = 1) <> (t.outcome IS NOT NULL AND t.stays = 0)",
    ),
    InvariantQuery(
        "T6",
        InvariantScope.CALM,
        "timers are rows, and a worker fires them soon",
        "SELECT t.id, 'was to be woken ' || ROUND({now} - t.wake_at) || ' s ago' FROM tasks t"
        " WHERE t.wake_at < {now} - {patience_s}",
    ),
    InvariantQuery(
        "N2",
        InvariantScope.BIRTH,
        "one call makes one task, however often it is repeated",
        "SELECT t.requester_id, COUNT(*) || ' tasks of one call' FROM tasks t WHERE t.requester_id {touched}"
        " AND t.idem LIKE t.requester_id || ':%' GROUP BY t.requester_id, t.spawn_order HAVING COUNT(*) > 1",
    ),
    InvariantQuery(
        "N2",
        InvariantScope.BIRTH,
        "a child that no person asked for is that of a call, which was made",
        "SELECT t.id, 'of ' || t.idem || ' was never asked for' FROM tasks t JOIN sessions s ON s.id = t.requester_id"
        " WHERE t.requester_id {touched} AND t.idem LIKE t.requester_id || ':%' AND s.deleted_at IS NULL"
        " AND NOT EXISTS (SELECT 1 FROM calls c WHERE c.session_id = s.id AND c.name = 'sessions_spawn'"
        " AND t.idem = c.session_id || ':' || c.seq || ':' || c.idx)",
    ),
    InvariantQuery(
        "T8",
        InvariantScope.CALM,
        "what a dead worker held is taken back within a lease and two ticks",
        "SELECT s.id, 'is held by a worker whose lease ended ' || ROUND({now} - w.lease_until) || ' s ago'"
        " FROM sessions s JOIN workers w ON w.id = s.owner WHERE w.lease_until < {now} - {patience_s}",
    ),
    InvariantQuery(
        "T8",
        InvariantScope.OWNERS,
        "what a dead worker was sending is sent by others",
        "SELECT o.id, 'is held by ' || o.owner || ', who is gone' FROM outbox o"
        " WHERE o.owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM workers w WHERE w.id = o.owner)",
    ),
    InvariantQuery(
        "T10",
        InvariantScope.TASK,
        "the last line of the timeline is where the row stands",
        "SELECT t.id, t.phase || ' but the timeline ends at ' || COALESCE(e.to_phase, 'nothing') FROM tasks t"
        " LEFT JOIN events e ON e.task_id = t.id AND e.seq = t.seq WHERE t.id {touched}"
        " AND (e.to_phase IS NULL OR e.to_phase <> t.phase OR e.generation <> t.generation"
        " OR COALESCE(e.outcome, '') <> COALESCE(t.outcome, ''))",
    ),
    InvariantQuery(
        "T13",
        InvariantScope.TASK,
        "an attempt is counted only when telling failed",
        "SELECT t.id, t.attempts || ' attempts counted' FROM tasks t WHERE t.id {touched} AND t.archived_at IS NULL"
        " AND t.attempts >"
        " (SELECT COUNT(*) FROM deliveries d WHERE d.task_id = t.id AND d.generation = t.generation"
        " AND d.outcome = 'failed')",
    ),
    InvariantQuery(
        "N6",
        InvariantScope.LIFE,
        "an unfinished task has an owner or a time at which something happens",
        "SELECT t.id, t.phase || ' (' || t.reason || ') and nothing will happen' FROM tasks t"
        " JOIN sessions s ON s.id = t.id WHERE t.id {touched} AND NOT CASE"
        " WHEN t.phase IN ('queued', 'running') OR (t.phase = 'paused' AND t.reason NOT IN ('children', 'pause'))"
        " THEN s.owner IS NOT NULL OR s.due IS NOT NULL OR (s.paused = 1 AND t.phase = 'paused')"
        " OR (t.reason = 'needs-you' AND EXISTS (SELECT 1 FROM questions q"
        " WHERE q.session_id = t.id AND q.answered_at IS NULL))"
        " WHEN t.phase = 'paused' AND t.reason = 'children' THEN s.hold = 1"
        " WHEN t.phase = 'paused' THEN s.paused = 1"
        " WHEN t.phase IN ('spawning', 'ending', 'announce_deferred', 'cleanup_pending') THEN t.wake_at IS NOT NULL"
        " ELSE 1 = 1 END",
    ),
    InvariantQuery(
        "N16",
        InvariantScope.SESSION,
        "a session without an owner that has something to read or to continue is due",
        "SELECT s.id, 'has mail or a run and no time' FROM sessions s WHERE s.id {touched} AND s.owner IS NULL"  # noqa: S608
        " AND s.due IS NULL AND s.closed = 0 AND s.paused = 0"
        " AND NOT EXISTS (SELECT 1 FROM questions q WHERE q.session_id = s.id AND q.answered_at IS NULL)"
        f" AND (s.run_id IS NOT NULL OR EXISTS (SELECT 1 FROM inbox i WHERE i.session_id = s.id AND i.{IS_OPEN}"
        " AND i.taken_run IS NULL AND i.seen = 1"
        " AND (i.kind <> 'announce' OR (i.silent = 0 AND (i.taken_seq IS NOT NULL OR s.hold = 0)))))",
    ),
    InvariantQuery(
        "N16",
        InvariantScope.SESSION,
        "a parent that waits for its children is resumed when none works any more",
        "SELECT s.id, 'waits for nobody' FROM sessions s WHERE s.id {touched} AND s.hold = 1 AND s.owner IS NULL"
        # The wait may end in the very moment in which it expires.
        " AND (s.due IS NULL OR (s.due = s.hold_until AND s.due > 1 + (SELECT MAX(e.at) FROM events e)))"
        " AND s.closed = 0 AND s.paused = 0 AND s.run_id IS NULL"
        " AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.requester_id = s.id AND {t_is_alive})"
        " AND NOT EXISTS (SELECT 1 FROM inbox i WHERE i.session_id = s.id AND i.seen = 0)",
    ),
    InvariantQuery(
        "N16",
        InvariantScope.SESSION,
        "a letter without a reader moves up, or its sender knows",
        "SELECT s.id, 'is closed and keeps letter ' || i.id FROM sessions s JOIN inbox i ON i.session_id = s.id"  # noqa: S608
        f" JOIN tasks t ON t.id = i.task_id WHERE s.id {{touched}} AND s.closed = 1 AND i.{IS_OPEN} AND i.seen = 1"
        " AND i.kind = 'announce' AND i.silent = 0 AND t.generation = i.generation AND t.phase = 'announcing'",
    ),
    InvariantQuery(
        "N16",
        InvariantScope.SESSION,
        "a session with an owner has no due time",
        "SELECT s.id, 'is owned and due' FROM sessions s"
        " WHERE s.id {touched} AND s.owner IS NOT NULL AND s.due IS NOT NULL",
    ),
    InvariantQuery(
        "N22",
        InvariantScope.SESSION,
        "a transcript has no gap",
        "SELECT s.id, 'has head ' || s.head FROM sessions s WHERE s.id {touched} AND s.head <>"
        " (SELECT COUNT(*) FROM messages m WHERE m.session_id = s.id AND m.seq BETWEEN 1 AND s.head)",
    ),
    InvariantQuery(
        "N22",
        InvariantScope.SESSION,
        "a transcript continues only when every call has its result",
        "SELECT s.id, 'went on past open call ' || c.seq || '.' || c.idx FROM sessions s"
        " JOIN calls c ON c.session_id = s.id AND c.seq > s.base AND c.seq < s.head WHERE s.id {touched}"
        " AND NOT EXISTS (SELECT 1 FROM messages m"
        " WHERE m.session_id = s.id AND m.seq = c.seq + 1 AND m.kind = 'results')",
    ),
)


# --------------------------------------------------------------------------------------------------
# What is promised about sessions that look up by themselves, talk to each other, or stay: no rows, ever.

BACKGROUND_QUERIES: Final[tuple[InvariantQuery, ...]] = (
    InvariantQuery(
        "N28",
        InvariantScope.SESSION,
        "whatever happened since, one heartbeat waits to be read and not two",
        "SELECT s.id, 'has several heartbeats' FROM sessions s WHERE s.id {touched} AND 1 < (SELECT COUNT(*)"  # noqa: S608
        f" FROM inbox i WHERE i.session_id = s.id AND i.kind = 'heartbeat' AND i.{IS_OPEN} AND i.taken_run IS NULL)",
    ),
    InvariantQuery(
        "N28",
        InvariantScope.SESSION,
        "a child never looks up by itself",
        "SELECT s.id, 'has a heartbeat' FROM sessions s WHERE s.id {touched} AND s.is_task = 1"
        " AND (s.heartbeat_at IS NOT NULL"
        " OR EXISTS (SELECT 1 FROM inbox i WHERE i.session_id = s.id AND i.kind = 'heartbeat'))",
    ),
    InvariantQuery(
        "N19",
        InvariantScope.LIFE,
        "a session that outlives its task has a thread, and one that was ended has none",
        "SELECT t.id, 'stays is ' || t.stays || ', bound is ' || s.bound FROM tasks t JOIN sessions s ON s.id = t.id"
        " WHERE t.id {touched} AND t.outcome IS NOT NULL AND t.stays = 1 AND (s.closed = 1 OR s.bound = 0"
        " OR NOT EXISTS (SELECT 1 FROM bindings b WHERE b.session_id = s.id))",
    ),
)


# --------------------------------------------------------------------------------------------------
# What may go and what must stay, as SQL: cleanup and archive touch only what is over and delivered. No rows, ever.

IS_OVER: Final = "t.phase IN ('completed', 'completed_giveup') AND t.delivery <> 'undelivered'"
#: Of a task `t`: a line after the last one that says it was archived is not there.
_ARCHIVED_AT: Final = (
    "COALESCE((SELECT MAX(a.seq) FROM events a WHERE a.task_id = t.id"
    " AND a.reason IN ('archived', 'deleted')), 0)"
)
LACKS_LINES: Final = (
    f"t.seq - {_ARCHIVED_AT} <>"  # noqa: S608 (constant words)
    f" (SELECT COUNT(*) FROM events e WHERE e.task_id = t.id AND e.seq > {_ARCHIVED_AT})"
)
#: A person may delete by force what was not delivered: a dead letter stays, which keeps the result.
_IS_OVER_OR_DELETED: Final = (
    f"({IS_OVER}) OR (t.outcome IS NOT NULL AND EXISTS (SELECT 1 FROM events e WHERE e.task_id = t.id"  # noqa: S608
    " AND e.actor <> 'clutch' AND e.reason IN ('archived', 'deleted')))"
)
_WORDS: Final = " OR ".join(
    f"EXISTS (SELECT 1 FROM {table} w WHERE w.session_id = s.id)"  # noqa: S608 (constant words)
    for table in ("messages", "calls", "questions", "system_events", "bindings", "doing")
)

LEAVING: Final[tuple[InvariantQuery, ...]] = (
    InvariantQuery(
        "N24",
        InvariantScope.SESSION,
        "the transcript of a task goes only after delivery, discard or kill, or by force",
        "SELECT s.id, 'was deleted while its task is ' || t.phase || ', ' || t.delivery FROM sessions s"  # noqa: S608
        f" JOIN tasks t ON t.id = s.id WHERE s.id {{touched}} AND s.deleted_at IS NOT NULL"
        f" AND NOT ({_IS_OVER_OR_DELETED})",
    ),
    InvariantQuery(
        "N24",
        InvariantScope.SESSION,
        "a deleted session has no words left and works no more",
        "SELECT s.id, 'is deleted and has words' FROM sessions s WHERE s.id {touched}"  # noqa: S608
        f" AND s.deleted_at IS NOT NULL AND (s.closed = 0 OR (s.head = 0 AND ({_WORDS})))",
    ),
    InvariantQuery(
        "N24",
        InvariantScope.TASK,
        "nothing undelivered is archived except by force, nothing that works is, and what is archived fills no quota",
        "SELECT t.id, 'is archived, ' || t.phase || ', ' || t.delivery || ', retained ' || t.retained"  # noqa: S608
        f" FROM tasks t WHERE t.id {{touched}} AND t.archived_at IS NOT NULL"
        f" AND (t.retained = 1 OR NOT ({_IS_OVER_OR_DELETED}))",
    ),
    InvariantQuery(
        "N24",
        InvariantScope.SESSION,
        "the record of a deleted session is in no list and fills no quota",
        "SELECT s.id, 'is deleted, and its record is retained or listed' FROM sessions s JOIN tasks t ON t.id = s.id"
        " WHERE s.id {touched} AND s.deleted_at IS NOT NULL AND (t.retained = 1 OR t.archived_at IS NULL)",
    ),
)


# --------------------------------------------------------------------------------------------------
# What is promised to and by people who are asked, as SQL. No rows, ever.

_IS_OPEN: Final = "EXISTS (SELECT 1 FROM questions q WHERE q.session_id = s.id AND q.answered_at IS NULL)"

USER_QUERIES: Final[tuple[InvariantQuery, ...]] = (
    InvariantQuery(
        "N31",
        InvariantScope.SESSION,
        "a run waits for a person, without an owner, exactly as long as a question is open",
        "SELECT s.id, 'has a run that is ' || COALESCE(r.state, 'not there') FROM sessions s"  # noqa: S608
        " LEFT JOIN runs r ON r.id = s.run_id WHERE s.id {touched}"
        f" AND (COALESCE(r.state, '') = '{RunState.ASKING}' AND s.owner IS NULL) <> {_IS_OPEN}",
    ),
)


# --------------------------------------------------------------------------------------------------
# What budgets promise, as SQL: budgets are the sums of the calls they paid for, not overdrawn. No rows, ever.

OF_PURSE: Final = (
    "FROM sessions s JOIN usage u ON u.session_id = s.id"
    " WHERE REPLACE(' ' || s.purses || ' ', ' ' || p.name || ' ', '') <> ' ' || s.purses || ' '"
)
OF_DAY: Final = "FROM usage u WHERE STRFTIME('%Y-%m-%d', u.at, 'unixepoch') = SUBSTR(p.name, 5)"
_SUMS: Final = (
    "SELECT COALESCE(SUM(CASE u.state WHEN 1 THEN u.input + u.output WHEN 2 THEN u.reserved_tokens ELSE 0 END), 0),"
    " COALESCE(SUM(CASE u.state WHEN 0 THEN u.reserved_tokens ELSE 0 END), 0)"
)
PURSE: Final = "p.name, 'has ' || p.tokens_spent || ' spent and ' || p.tokens_reserved || ' reserved of '"
LIMIT: Final = "COALESCE(CAST(p.tokens_max AS TEXT), 'any')"


def balanced(scope: InvariantScope, which: str, calls: str) -> InvariantQuery:
    return InvariantQuery(
        "T16",
        scope,
        "what is spent and reserved is the sum of the calls",
        f"SELECT {PURSE} || {LIMIT} || ', and its calls say otherwise' FROM purses p WHERE {which}"  # noqa: S608
        f" AND (p.tokens_spent, p.tokens_reserved) <> ({_SUMS} {calls})",
    )


def _within(scope: InvariantScope, which: str, calls: str) -> InvariantQuery:
    """The last call that was let through may have wanted more than was left."""
    return InvariantQuery(
        "T16",
        scope,
        "no more is spent and reserved than the limit and less than one call",
        f"SELECT {PURSE} || {LIMIT} FROM purses p WHERE {which} AND p.tokens_spent + p.tokens_reserved >="  # noqa: S608
        f" p.tokens_max + (SELECT MAX(u.reserved_tokens) {calls})",
        also="N27",
    )


SPENDING: Final[tuple[InvariantQuery, ...]] = (
    balanced(InvariantScope.PURSE, "p.name {touched} AND p.kind <> 'day'", OF_PURSE),
    _within(InvariantScope.PURSE, "p.name {touched} AND p.kind <> 'day'", OF_PURSE),
    balanced(InvariantScope.PURSE, "p.name {touched} AND p.kind = 'day'", OF_DAY),
    _within(InvariantScope.PURSE, "p.name {touched} AND p.kind = 'day'", OF_DAY),
)
