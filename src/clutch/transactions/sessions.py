"""The session row: lock it, change it in memory, save it once.

Every transaction that touches a session takes its lock first, ancestors before descendants. Saving a
session without an owner recomputes when it is due; there is no other way to set that time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from clutch.core import authority, delivery
from clutch.core.delivery import due
from clutch.core.model import (
    NO_MAIL,
    Mail,
    Route,
    RunState,
    SessionId,
    WorkerId,
)
from clutch.core.policy import Policy
from clutch.errors import ClutchError
from clutch.store.transaction import HINT, ManyRows, Row, Statement, Tx
from clutch.transactions.conditions import IS_OPEN, IS_UNTOLD, IS_WORKING


class Stale(ClutchError):
    """This worker does not own the session any more."""


def stale(session_id: int) -> Stale:
    return Stale(f"session {session_id} is owned by another worker now")


_COLUMNS = (
    "id, head, model, purses, agent_id, key, parent_id, root_id, depth, role, is_task, route, owner, fence, base, hold,"
    " hold_until, paused, closed, run_id, progress_at, idle_at, letter_id, queue, bound"
)


_LOCK = f"SELECT {_COLUMNS} FROM sessions WHERE id = ? {{lock}}"  # noqa: S608 (constant columns)
_LOCK_ALL = f"SELECT {_COLUMNS} FROM sessions WHERE id {{any}} ORDER BY depth, id {{lock}}"  # noqa: S608 (as above)
_LOCK_STEP = "SELECT id, head, model, purses, agent_id, owner, fence FROM sessions WHERE id = ? {lock}"
_LOCK_AT_STEP = (
    "SELECT id, head, model, purses, agent_id, owner, fence, paused, (SELECT COUNT(*) FROM (SELECT 1 FROM inbox"  # noqa: S608
    f" WHERE session_id = sessions.id AND {IS_OPEN} AND taken_run IS NULL LIMIT 1) waiting)"
    " FROM sessions WHERE id = ? {lock}"
)
_LOCK_PARENT = (
    f"SELECT {_COLUMNS}, rights, thinking, workspace, share, priority,"  # noqa: S608 (as above)
    " (SELECT r.route FROM runs r WHERE r.id = sessions.run_id),"
    " (SELECT t.plan FROM tasks t WHERE t.id = sessions.id) FROM sessions WHERE id = ? {lock}"
)


@dataclass(slots=True)
class StepRow:
    """As much of a session as a step of its run needs."""

    id: SessionId
    head: int
    model: str | None
    purses: str  #: names of the budgets it draws on
    agent_id: str


@dataclass(slots=True)
class SessionRow(StepRow):
    """The columns a transaction reads and writes; mutable, and saved once at the end."""

    key: str
    parent_id: SessionId | None
    root_id: SessionId
    depth: int
    role: str
    is_task: int
    route: str | None
    owner: WorkerId | None
    fence: int
    base: int
    hold: int
    hold_until: float | None
    paused: int
    closed: int
    run_id: int | None
    progress_at: float | None
    idle_at: float | None
    letter_id: int | None  #: the letter its latest run answers in a way of its own
    queue: str | None  #: its own way to queue announces
    bound: int  #: a thread of a channel is its own
    #: it has open letters; None: not known yet
    has_mail: bool | None = field(default=None, kw_only=True)


@dataclass(slots=True)
class ParentRow(SessionRow):
    """With what its children inherit."""

    rights: str
    thinking: str | None
    workspace: str | None
    share: str
    priority: int  #: `core.fair_share.RANKS`
    turn_route: (
        str | None
    )  #: where the reply of its turn goes; None: no turn is open, or its reply goes nowhere
    plan: str | None  #: None: it has no task

    @property
    def captured_route(self) -> str | None:
        """What its children keep for the day they are announced."""
        return self.turn_route or self.route


@dataclass(frozen=True, slots=True)
class OwnedRun:
    """The run that a worker has open. Each transaction of its turn gets it.

    The fence proves the ownership: the transactions of a worker that lost the session raise Stale."""

    policy: Policy
    session_id: int
    fence: int
    run_id: int


@dataclass(frozen=True, slots=True)
class LostRun:
    """A run whose worker may have lost the session, and the head of the transcript that this worker knows.

    What such a worker still has to store must not depend on the ownership."""

    policy: Policy
    session_id: int
    fence: int
    run_id: int
    head: int


def lock(session_id: int) -> Tx[SessionRow | None]:
    rows = yield _LOCK, (session_id,)
    return SessionRow(*rows[0]) if rows else None


def lock_all(session_ids: Sequence[int]) -> Tx[list[SessionRow]]:
    """Ancestors first, so that two who lock many never wait for each other."""
    return [SessionRow(*row) for row in (yield _LOCK_ALL, (list(session_ids),))]


def lock_below(session_id: int) -> Tx[list[SessionRow]]:
    """The descendants, locked ancestors first; listed again until no new one was spawned meanwhile.

    A cycle in damaged rows ends the list, and no session is below itself."""
    known: dict[int, SessionRow] = {}
    while True:
        rows = yield (
            "WITH RECURSIVE below(id, depth) AS (SELECT id, depth FROM sessions WHERE parent_id = ?"
            " UNION SELECT s.id, s.depth FROM sessions s JOIN below b ON s.parent_id = b.id)"
            " SELECT id FROM below WHERE id <> ? ORDER BY depth, id",
            (session_id, session_id),
        )
        new = [row[0] for row in rows if row[0] not in known]
        if not new:
            return list(known.values())
        for session in (yield from lock_all(new)):
            known[session.id] = session


def lock_parent(session_id: int) -> Tx[ParentRow | None]:
    rows = yield _LOCK_PARENT, (session_id,)
    return ParentRow(*rows[0]) if rows else None


def own(session_id: int, fence: int) -> Tx[SessionRow]:
    """The guard of every write by an owner: the loser of a takeover meets it at its next write."""
    rows = yield _LOCK, (session_id,)
    session = SessionRow(*rows[0]) if rows else None
    if session is None or not is_owner(session.owner, session.fence, fence):
        raise stale(session_id)
    return session


def own_step(session_id: int, fence: int) -> Tx[StepRow]:
    """The same for a step that only makes the transcript longer."""
    rows = yield _LOCK_STEP, (session_id,)
    if not rows or not is_owner(rows[0][5], rows[0][6], fence):
        raise stale(session_id)
    return StepRow(*rows[0][:5])


def own_at_step(session_id: int, fence: int) -> Tx[tuple[StepRow, bool]]:
    """Between two steps: also, whether there is more to it, because it is paused or letters wait.

    A letter that comes while this waits for the lock is read at the next step."""
    rows = yield _LOCK_AT_STEP, (session_id,)
    if not rows or not is_owner(rows[0][5], rows[0][6], fence):
        raise stale(session_id)
    *step, _, _, paused, waiting = rows[0]
    return StepRow(*step), bool(paused or waiting)


def is_paused(now: float, session_id: int) -> Tx[bool]:
    """A read."""
    del now
    return bool((yield "SELECT 1 FROM sessions WHERE id = ? AND paused = 1", (session_id,)))


def is_owner(owner: int | None, fence: int, mine: int) -> bool:
    return owner is not None and fence == mine


def moved(now: float, step: StepRow) -> Statement:
    """What a step of a run leaves in the row of its session: a longer transcript, and nothing else."""
    return "UPDATE sessions SET head = ?, progress_at = ? WHERE id = ?", (step.head, now, step.id)


def save(now: float, policy: Policy, session: SessionRow) -> Tx[None]:
    """Only a claim gives a session away: while it is owned, owner, fence and due stay, and with them every index."""
    if session.owner is not None:
        yield (
            "UPDATE sessions SET head = ?, base = ?, hold = ?, hold_until = ?, paused = ?, closed = ?, run_id = ?,"
            " progress_at = ?, idle_at = ?, letter_id = ? WHERE id = ?",
            (
                session.head, session.base, session.hold, session.hold_until, session.paused, session.closed,
                session.run_id, session.progress_at, session.idle_at, session.letter_id, session.id,
            ),
        )  # fmt: skip
        return
    moment = yield from _due(now, policy, session)
    yield (
        "UPDATE sessions SET owner = ?, fence = ?, head = ?, base = ?, due = ?, hold = ?, hold_until = ?,"
        " paused = ?, closed = ?, run_id = ?, progress_at = ?, idle_at = ?, letter_id = ? WHERE id = ?",
        (
            session.owner, session.fence, session.head, session.base, moment, session.hold, session.hold_until,
            session.paused, session.closed, session.run_id, session.progress_at, session.idle_at, session.letter_id,
            session.id,
        ),
    )  # fmt: skip
    if moment is not None:
        yield HINT, ("due", moment)


_MAIL = (
    "SELECT MIN(CASE WHEN kind <> 'announce' OR (taken_seq IS NOT NULL AND silent = 0) THEN ready_at END),"  # noqa: S608
    " MIN(CASE WHEN kind = 'announce' AND silent = 0 AND taken_seq IS NULL THEN ready_at END),"
    " MAX(CASE WHEN kind = 'announce' AND silent = 0 AND taken_seq IS NULL THEN ready_at END)"
    f" FROM inbox WHERE session_id = ? AND {IS_OPEN} AND taken_run IS NULL"
)


def reschedule(now: float, policy: Policy, session: SessionRow) -> Tx[None]:
    """Nothing of it has changed, but what waits for it."""
    moment = yield from _due(now, policy, session)
    yield "UPDATE sessions SET due = ? WHERE id = ?", (moment, session.id)
    if moment is not None:
        yield HINT, ("due", moment)


_RUN_STATES = {state.value: state for state in RunState}


def _due(now: float, policy: Policy, session: SessionRow) -> Tx[float | None]:
    mail, run, parked_until, children, is_unbegun = NO_MAIL, None, None, 0, False
    if session.run_id is not None and not session.closed:
        rows = yield "SELECT state, parked_until FROM runs WHERE id = ?", (session.run_id,)
        run, parked_until = _RUN_STATES[rows[0][0]], rows[0][1]
    elif session.paused and not session.closed:
        is_unbegun = yield from _is_unbegun(session)
    elif not session.closed:
        mail = Mail(*(yield _MAIL, (session.id,))[0])
        children = (yield from working(session.id)) if session.hold else 0
    return due(
        mail,
        now=now,
        is_closed=bool(session.closed),
        is_paused=bool(session.paused),
        is_held=bool(session.hold),
        hold_until=session.hold_until,
        working_children=children,
        run=run,
        parked_until=parked_until,
        rules=delivery.applied(policy.announcing, session.queue),
        hours=policy.waking_hours(session.agent_id, session.depth),
        is_unbegun=is_unbegun,
    )


def _is_unbegun(session: SessionRow) -> Tx[bool]:
    """Whether the worker of a paused task died after the claim and before the run."""
    sql = "SELECT 1 FROM tasks WHERE id = ? AND phase = 'queued'"
    return bool(session.is_task) and bool((yield sql, (session.id,)))


def working(session_id: int) -> Tx[int]:
    """Children that have not finished. One that has ended and waits for its parent to be opened again has."""
    sql = f"SELECT COUNT(*) FROM tasks WHERE requester_id = ? AND {IS_WORKING} AND outcome IS NULL"  # noqa: S608
    return int((yield sql, (session_id,))[0][0])


def untold(session_id: int) -> Tx[int]:
    """Children whose result is still to be delivered to this session: a letter that moved up past it is not its own.

    An ended child without any letter counts: in the same batch its letter may be a few statements away."""
    sql = (
        f"SELECT COUNT(*) FROM tasks WHERE requester_id = ? AND {IS_UNTOLD} AND (outcome IS NULL"  # noqa: S608
        " OR NOT EXISTS (SELECT 1 FROM inbox i WHERE i.task_id = tasks.id AND i.session_id <> tasks.requester_id"
        " AND i.kind = 'announce' AND i.generation = tasks.generation))"
    )
    return int((yield sql, (session_id,))[0][0])


# --------------------------------------------------------------------------------------------------
# New rows, and columns that are set on their own. What follows from ownership is in `save`.


def insert_children(rows: ManyRows) -> Tx[None]:
    yield (
        "INSERT INTO sessions(id, key, agent_id, parent_id, root_id, depth, lane, role, is_task, rights, route, model,"
        " thinking, workspace, purses, due, created_at, share, priority)"
        " VALUES(?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        rows,
    )


def insert_imported(row: Row) -> Tx[None]:
    """Closed from the start: the work was done elsewhere."""
    yield (
        "INSERT INTO sessions(id, key, agent_id, parent_id, root_id, depth, lane, role, is_task, rights, route,"
        " workspace, purses, head, closed, progress_at, idle_at, created_at)"
        " VALUES(?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, 1, ?, ?, ?)",
        row,
    )


def insert_adopted(row: Row) -> Tx[None]:
    """The row of a task whose own row is lost. It finds its transcript, but not its rights (`retention.adopt`)."""
    yield (
        "INSERT INTO sessions(id, key, agent_id, parent_id, root_id, depth, lane, role, is_task, rights, route,"
        " created_at, closed, head) VALUES(?, ?, ?, ?, ?, ?, 'subagent', 'leaf', 1, ?, ?, ?, ?,"
        " (SELECT COALESCE(MAX(seq), 0) FROM messages WHERE session_id = ?))",
        (*row, row[0]),
    )


#: Columns on which neither the owner nor the due time depends.
Column: TypeAlias = Literal[
    "bound",
    "compact_at",
    "head",
    "heartbeat_at",
    "history",
    "key",
    "model",
    "place",
    "queue",
    "route",
    "saved",
    "workspace",
]


def set_column(session_id: int, column: Column, value: str | float | None) -> Tx[None]:
    yield f"UPDATE sessions SET {column} = ? WHERE id = ?", (value, session_id)  # noqa: S608


def beat_by(at: float, column: Literal["id", "key"], session: int | str) -> Tx[None]:
    """The next heartbeat of this session comes at this time at the latest."""
    yield (
        f"UPDATE sessions SET heartbeat_at = ? WHERE {column} = ? AND (heartbeat_at IS NULL OR heartbeat_at > ?)",  # noqa: S608
        (at, session, at),
    )


def set_budget(session_id: int, name: str) -> Tx[None]:
    """The budget of a main session; one that it has already stays."""
    yield "UPDATE sessions SET purses = ? WHERE id = ? AND purses = ''", (name, session_id)


def mark_deleted(now: float, session_id: int) -> Tx[None]:
    yield "UPDATE sessions SET deleted_at = COALESCE(deleted_at, ?) WHERE id = ?", (now, session_id)


def delete(session_id: int) -> Tx[None]:
    """Of a spawn that is undone. Other sessions keep their row: it holds the tree together."""
    yield "DELETE FROM sessions WHERE id = ?", (session_id,)


def claim(now: float, worker_id: int, session_ids: Sequence[int]) -> Tx[Sequence[Row]]:
    """Give sessions that are due this owner and a new fence, where no other transaction writes them.

    Returns id, fence, budgets, model and agent of each."""
    return (
        yield (
            # Materialized: PostgreSQL may run a plain subquery again for every row.
            "WITH first AS MATERIALIZED (SELECT id FROM sessions WHERE id {any} AND owner IS NULL AND due <= ? {skip})"
            " UPDATE sessions SET owner = ?, fence = fence + 1, due = NULL, progress_at = COALESCE(progress_at, ?)"
            " WHERE id IN (SELECT id FROM first) RETURNING id, fence, purses, model, agent_id",
            (list(session_ids), now, worker_id, now),
        )
    )


def free(session_ids: Sequence[int]) -> Tx[None]:
    """Take locked sessions from their owner. Interrupted runs go before everything that is merely due."""
    yield "UPDATE sessions SET owner = NULL, fence = fence + 1, due = 0 WHERE id {any}", (list(session_ids),)


def raise_fences() -> Tx[None]:
    """Make every claim stale, also one that was made by a process that is frozen now."""
    yield "UPDATE sessions SET fence = fence + 1", ()


def entitle(now: float, policy: Policy) -> Tx[None]:
    """Give main sessions the rights that the config gives to their agents now; alone.

    At a start and when the config changes. Children keep the rights of their spawn."""
    del now
    rows = yield "SELECT DISTINCT agent_id FROM sessions WHERE depth = 0 AND is_task = 0", ()
    for (agent_id,) in sorted(rows):
        rights = authority.to_text(authority.root_rights(policy.grant(agent_id)))
        yield (
            "UPDATE sessions SET rights = ? WHERE agent_id = ? AND depth = 0 AND is_task = 0 AND rights <> ?",
            (rights, agent_id, rights),
        )


class NewMain(NamedTuple):
    """A main session to open. It gets this number only if its key is new."""

    id: int
    key: str
    agent_id: str
    rights: str
    route: str | None
    workspace: str


def open_session(now: float, main: NewMain) -> Tx[int]:
    """The session of this key, made if it is not there. Alone: its number is not known before."""
    yield (
        "INSERT INTO sessions(id, key, agent_id, root_id, depth, lane, role, is_task, rights, route, workspace,"
        " created_at) VALUES(?, ?, ?, ?, 0, 'main', 'main', 0, ?, ?, ?, ?) ON CONFLICT(key) DO NOTHING",
        (main.id, main.key, main.agent_id, main.id, main.rights, main.route, main.workspace, now),
    )
    return int((yield "SELECT id FROM sessions WHERE key = ?", (main.key,))[0][0])


# --------------------------------------------------------------------------------------------------
# Threads of channels that belong to a session: bound when it is made, used by its users, released when it ends.


ThreadName: TypeAlias = tuple[str, str, str]  #: channel, account, thread


class ThreadTaken(ClutchError):
    """The thread belongs to another session already."""


class Bound(NamedTuple):
    """A thread of a channel that belongs to a session, and the account it was bound for; empty: for none."""

    session_id: int
    account: str


def name(thread: Route) -> ThreadName:
    return thread.channel, thread.account or "", thread.thread or ""


def bind(now: float, session: SessionRow, thread: Route) -> Tx[None]:
    """In a transaction keyed by the session. What a session that has ended kept of a thread is free."""
    named = name(thread)
    rows = yield (
        "SELECT 1 FROM bindings b JOIN sessions s ON s.id = b.session_id"
        " WHERE b.channel = ? AND b.account = ? AND b.thread = ? AND s.closed = 0 AND s.id <> ?",
        (*named, session.id),
    )
    if rows:
        raise ThreadTaken(f"the thread {thread.thread} of {thread.channel} belongs to another session")
    yield (
        "INSERT INTO bindings(channel, account, thread, session_id, bound_at, used_at) VALUES(?, ?, ?, ?, ?, ?)"
        " ON CONFLICT(channel, account, thread) DO UPDATE SET session_id = excluded.session_id,"
        " bound_at = excluded.bound_at, used_at = excluded.used_at",
        (*named, session.id, now, now),
    )
    yield from set_column(session.id, "bound", 1)
    session.bound = 1


def let_go(session: SessionRow, thread: Route) -> Tx[None]:
    """This one; others it may keep."""
    yield (
        "DELETE FROM bindings WHERE channel = ? AND account = ? AND thread = ? AND session_id = ?",
        (*name(thread), session.id),
    )
    if not (yield "SELECT 1 FROM bindings WHERE session_id = ?", (session.id,)):
        yield from unbind(session)


def unbind(session: SessionRow) -> Tx[None]:
    yield from forget_threads(session.id)
    yield from set_column(session.id, "bound", 0)
    session.bound = 0


def forget_threads(session_id: int) -> Tx[None]:
    yield "DELETE FROM bindings WHERE session_id = ?", (session_id,)


def thread_used(now: float, channel: str, account: str, thread: str) -> Tx[None]:
    yield (
        "UPDATE bindings SET used_at = ? WHERE channel = ? AND account = ? AND thread = ?",
        (now, channel, account, thread),
    )


def thread_of(session: SessionRow) -> Tx[Route | None]:
    rows = yield (
        "SELECT channel, account, thread FROM bindings WHERE session_id = ? ORDER BY bound_at DESC LIMIT 1",
        (session.id,),
    )
    return None if not rows else Route(rows[0][0], rows[0][1] or None, None, rows[0][2])


def session_of(now: float, channel: str, account: str, thread: str) -> Tx[int | None]:
    """A read. The thread of a session that has ended is free."""
    del now
    rows = yield (
        "SELECT b.session_id FROM bindings b JOIN sessions s ON s.id = b.session_id"
        " WHERE b.channel = ? AND b.account = ? AND b.thread = ? AND s.closed = 0",
        (channel, account, thread),
    )
    return int(rows[0][0]) if rows else None


def in_thread(now: float, channel: str, account: str, thread: str) -> Tx[Bound | None]:
    """A read. The binding of a thread: that of this account, else the newest one of another account."""
    del now
    rows = yield (
        "SELECT b.session_id, b.account FROM bindings b JOIN sessions s ON s.id = b.session_id"
        " WHERE b.channel = ? AND b.thread = ? AND s.closed = 0"
        " ORDER BY CASE WHEN b.account = ? THEN 0 ELSE 1 END, b.bound_at DESC LIMIT 1",
        (channel, thread, account),
    )
    return Bound(*rows[0]) if rows else None
