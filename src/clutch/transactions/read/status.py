"""Numbered lists for a chat, the status of a session, and the state of the gateway's work.

What a list shows and what its numbers mean from then on is one transaction. Apart from `lists`, because `clutch ps`
reads a store with those and loads no policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from clutch.core import ids
from clutch.core.authority import Denied, Target, Verb, can
from clutch.core.families import in_families
from clutch.core.ids import CANDIDATES_MAX, SessionKey, parse_session_key
from clutch.core.model import Delivery, Phase
from clutch.core.policy import Policy
from clutch.core.status import list_order
from clutch.core.text.tasks import info_text, list_text
from clutch.core.views import NOTHING_USED, LaneView, Tally, TaskView, WorkState
from clutch.errors import AmbiguousTarget, Forbidden, NotFound
from clutch.store.transaction import Tx
from clutch.transactions import idempotency
from clutch.transactions.conditions import IS_OPEN, IS_UNTOLD, IS_WORKING
from clutch.transactions.read import lists, targets, tasks
from clutch.transactions.read.inbox import unread_replies
from clutch.transactions.read.lists import LIMIT_MAX, TaskFilter, task_page
from clutch.transactions.read.targets import ResolvedTarget, Standpoint


def children(now: float, policy: Policy, viewer: str, session_id: int) -> Tx[str]:
    """The children that are active or ended lately, and undelivered results. Alone: the numbers are stored."""
    wanted = TaskFilter(requester_id=session_id, ended_after=now - policy.list_recent_s)
    page = yield from task_page(now, wanted, limit=LIMIT_MAX)
    return (yield from _numbered(now, viewer, page.tasks, "Subagents (this session)"))


def tree(now: float, policy: Policy, viewer: str, session_id: int) -> Tx[str]:
    """The same for everything below, each child after its parent."""
    since = now - policy.list_recent_s
    below = yield from tasks.below(now, session_id)
    shown = [view for view in below if _is_shown(view, since)]
    return (yield from _numbered(now, viewer, _families(shown), "Subagents (tree)"))


def _is_shown(view: TaskView, since: float) -> bool:
    is_recent = view.ended_at is None or view.ended_at >= since
    return is_recent or view.delivery.state is Delivery.UNDELIVERED


def _families(shown: Sequence[TaskView]) -> list[TaskView]:
    ordered = sorted(shown, key=list_order)
    placed = in_families(ordered, attrgetter("task_id"), attrgetter("requester_id"))
    return [view for _, view in placed]


def _numbered(now: float, viewer: str, shown: Sequence[TaskView], title: str) -> Tx[str]:
    yield from idempotency.remember(now, viewer, [view.task_id for view in shown])
    return list_text(shown, title)


def about(now: float, policy: Policy, task_id: int) -> Tx[str]:
    """Everything about one task."""
    found = yield from tasks.info(now, task_id, policy.keeping.archive_after_s)
    if found is None:
        raise NotFound(f"there is no task {ids.task_id(task_id)}")
    return info_text(found.view, found.contract)


def alive(now: float, session_id: int | None) -> Tx[list[int]]:
    """The children of a session that work, or have descendants that do. None: of all main sessions."""
    del now
    of_one = "= ?" if session_id is not None else "IN (SELECT id FROM sessions WHERE is_task = 0)"
    rows = yield (
        f"WITH RECURSIVE below(top, id) AS (SELECT id, id FROM tasks WHERE requester_id {of_one}"  # noqa: S608
        " UNION SELECT b.top, t.id FROM tasks t JOIN below b ON t.requester_id = b.id)"
        f" SELECT DISTINCT b.top FROM below b JOIN tasks t ON t.id = b.id WHERE {IS_WORKING} ORDER BY b.top",
        () if session_id is None else (session_id,),
    )
    return [int(row[0]) for row in rows]


# ---- which session is meant -----------------------------------------------------------------------------


def meant(now: float, text: str, who: Standpoint) -> Tx[ResolvedTarget]:
    """Any target. The full key of another agent's session is refused by the rule that hides it."""
    try:
        return (yield from targets.resolve(now, text, who))
    except NotFound:
        key = parse_session_key(text.strip())
        if isinstance(key, SessionKey):
            _must_reach(who, key.agent_id)
        raise


def labelled(now: float, label: str, agent_id: str, who: Standpoint) -> Tx[ResolvedTarget]:
    """Exactly this label, of this agent. The label of a chat session is the name in its key."""
    del now
    rows = yield (
        "SELECT t.id, s.key, t.id FROM tasks t JOIN sessions s ON s.id = t.id WHERE t.label = ? AND s.agent_id = ?"
        " UNION ALL SELECT s.id, s.key, NULL FROM sessions s WHERE s.key = ? AND s.closed = 0 ORDER BY 1 DESC",
        (label, agent_id, f"agent:{agent_id}:chat:{label}"),
    )
    sight = yield from targets.sight(who.caller)
    found = [ResolvedTarget(*row) for row in rows if sight.sees(row[0], agent_id)]
    if not found:
        _must_reach(who, agent_id)
        raise NotFound(
            f"there is no session labelled {label[:80]!r} of the agent {agent_id[:64]!r}",
            (yield from targets.proposals(who)),
        )
    if len(found) > 1:
        shown = [one.session_key or "" for one in found[:CANDIDATES_MAX]]
        raise AmbiguousTarget(f"{label[:80]!r} is the label of {len(found)} sessions", shown)
    return found[0]


def _must_reach(who: Standpoint, agent_id: str) -> None:
    """A session hidden because it is another agent's is no secret: a caller that names the agent gets the rule."""
    if agent_id == who.agent_id:
        return
    answer = can(who.caller, Verb.SEND, Target(0, agent_id))
    if isinstance(answer, Denied):
        near = ids.hint(agent_id, {who.agent_id, targets.MAIN_AGENT})
        raise Forbidden(answer.rule, answer.reason + near)


# ---- one session -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionStatus:
    key: str
    agent_id: str
    depth: int
    role: str
    model: str | None
    thinking: str | None
    is_running: bool
    waiting: int  #: letters that will be read; that of a killed child is only named in a later message
    children_active: int
    children_total: int
    used: Tally
    phase: Phase | None  #: None: a main session


def status(now: float, session_id: int) -> Tx[SessionStatus]:
    del now
    rows = yield (
        "SELECT key, agent_id, depth, role, model, thinking, owner,"  # noqa: S608 (constant words)
        f" (SELECT COUNT(*) FROM inbox WHERE session_id = sessions.id AND {IS_OPEN} AND taken_run IS NULL"
        " AND silent = 0),"
        f" (SELECT COUNT(*) FROM tasks WHERE requester_id = sessions.id AND {IS_WORKING}),"
        " (SELECT COUNT(*) FROM tasks WHERE requester_id = sessions.id),"
        " (SELECT phase FROM tasks t WHERE t.id = sessions.id) FROM sessions WHERE id = ?",
        (session_id,),
    )
    if not rows:
        raise NotFound("the session was deleted")
    key, agent_id, depth, role, model, thinking, owner, waiting, active, total, phase = rows[0]
    spent = yield (
        f"SELECT {tasks.SPENT} FROM usage u WHERE u.session_id = ? AND {tasks.IS_ENDED_CALL}",  # noqa: S608
        (session_id,),
    )
    return SessionStatus(
        key, agent_id, depth, role, model, thinking, owner is not None, waiting, active, total,
        tasks.tally(spent[0]) if spent[0][4] else NOTHING_USED, None if phase is None else Phase(phase),
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------
# Reads for the health of a gateway: its workers, its queues and the size of its database.

_BYTES = {
    True: "SELECT c.page_count * s.page_size FROM pragma_page_count() c, pragma_page_size() s",
    False: "SELECT pg_database_size(current_database())",
}


def state(now: float, is_sqlite: bool) -> Tx[WorkState]:
    workers = yield from lists.nodes(now)
    lanes = yield (
        "SELECT l.name, l.cap, (SELECT COUNT(*) FROM sessions s WHERE s.lane = l.name AND s.owner IS NOT NULL),"
        " (SELECT COUNT(*) FROM sessions s WHERE s.lane = l.name AND s.owner IS NULL AND s.due IS NOT NULL"
        " AND s.due <= ?) FROM lanes l ORDER BY l.name",
        (now,),
    )
    counted = yield (
        f"SELECT (SELECT COUNT(*) FROM tasks WHERE delivery = ? AND {IS_UNTOLD}),"  # noqa: S608 (constant words)
        f" (SELECT COUNT(*) FROM tasks WHERE delivery = '{Delivery.UNDELIVERED}'),"
        " (SELECT COUNT(*) FROM outbox WHERE due IS NOT NULL)",
        (Delivery.DEFERRED.value,),
    )
    size = yield _BYTES[is_sqlite], ()
    deferred, undelivered, outbox = map(int, counted[0])
    return WorkState(
        workers,
        [LaneView(*row) for row in lanes],
        deferred,
        undelivered,
        outbox,
        (yield from unread_replies(now)).unsent,
        int(size[0][0]),
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """For dashboards that watch the gateway over months."""

    tasks: int  #: ever
    phases: Mapping[str, int]  #: of those that are not over
    letters: int  #: open: not answered yet
    needs_you: int
    leases_expired: int  #: workers that did not renew in time and are not declared dead yet
    oldest_queued_s: float  #: for how long the first task in the queue has waited


def counts(now: float) -> Tx[Counts]:
    phases = yield (
        "SELECT phase, COUNT(*) FROM tasks"
        " WHERE phase <> 'cleanup_pending' AND phase <> 'completed' AND phase <> 'completed_giveup'"
        " GROUP BY phase ORDER BY phase",
        (),
    )
    rows = yield (
        f"SELECT (SELECT COUNT(*) FROM tasks), (SELECT COUNT(*) FROM inbox WHERE {IS_OPEN}),"  # noqa: S608
        " (SELECT COUNT(*) FROM questions WHERE answered_at IS NULL),"
        " (SELECT COUNT(*) FROM workers WHERE lease_until < ?),"
        " (SELECT MIN(e.at) FROM tasks t JOIN events e ON e.task_id = t.id AND e.seq = t.seq WHERE t.phase = 'queued'"
        " AND t.phase <> 'cleanup_pending' AND t.phase <> 'completed' AND t.phase <> 'completed_giveup')",
        (now,),
    )
    total, letters, asking, expired = map(int, rows[0][:4])
    queued_s = 0.0 if rows[0][4] is None else max(0.0, now - rows[0][4])
    known = {str(phase): int(count) for phase, count in phases}
    return Counts(total, known, letters, asking + known.get(Phase.AWAITING_APPROVAL, 0), expired, queued_s)
