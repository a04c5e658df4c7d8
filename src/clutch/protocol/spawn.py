"""Spawn: count and insert in one transaction, with the root and the parent locked.

All spawn calls of one model answer come in one transaction, in the order of the answer, each admitted
or refused on its own. The key of a call makes a repeated one find its task instead of a twin.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from clutch.core import admission, authority, keys, wording
from clutch.core.admission import Census, Refused, SpawnRequest
from clutch.core.events import Admitted
from clutch.core.lifecycle import Step, step
from clutch.core.model import Lane, LetterKind, Plan, SessionId, Task, TaskId
from clutch.core.policy import Limits, Policy
from clutch.protocol import sessions, tasks
from clutch.protocol.sessions import IS_WORKING, WORKING_PHASES, ParentRow, Stale
from clutch.store.door import HINT, Many, Tx

_COUNT = (
    f"SELECT (SELECT COUNT(*) FROM tasks WHERE requester_id = ? AND {IS_WORKING}),"  # noqa: S608 (constant words)
    f" (SELECT COUNT(*) FROM (SELECT 1 FROM tasks WHERE root_id = ? AND {IS_WORKING} LIMIT ?) a),"
    " (SELECT COUNT(*) FROM (SELECT 1 FROM tasks WHERE requester_id = ? AND retained = 1 LIMIT ?) b),"
    " (SELECT COUNT(*) FROM (SELECT 1 FROM tasks WHERE root_id = ? AND delivery = 'undelivered' LIMIT ?) d)"
)
_EVICTABLE = (
    "SELECT COUNT(*) FROM (SELECT 1 FROM tasks WHERE requester_id = ? AND retained = 1 AND phase = 'completed'"
    " LIMIT ?) c"
)
_INSERT_TASK = (
    f"INSERT INTO tasks({tasks.COLUMNS}, root_id, depth, spawn_order, idem, label, task, spec, created_at)"
    f" VALUES({', '.join('?' * 31)})"
)


@dataclass(frozen=True, slots=True)
class Order:
    """One wanted child. Ids come from outside, so that a transaction that runs again makes the same ones."""

    idem: str
    child_id: int
    uuid: str
    request: SpawnRequest
    place: int  #: among the calls of its answer


@dataclass(frozen=True, slots=True)
class Accepted:
    task_id: int
    session_key: str
    label: str
    is_new: bool = True


@dataclass(frozen=True, slots=True)
class _Child:
    order: Order
    admitted: admission.Admitted
    key: str
    rights: authority.Rights
    queued: Step


def spawn(
    now: float,
    policy: Policy,
    session_id: int,
    root_id: int,
    fence: int | None,
    orders: Sequence[Order],
    agents: frozenset[str] = frozenset(),
) -> Tx[list[Accepted | Refused]]:
    """`fence`: the caller's run; None when a person or a program spawns in the session's name."""
    if root_id != session_id:
        yield from sessions.lock(root_id)
    parent = yield from sessions.lock_parent(session_id)
    if parent is None or (fence is not None and (parent.owner is None or parent.fence != fence)):
        raise Stale(f"session {session_id} is owned by somebody else now")
    rights = authority.from_text(parent.rights)
    limits = policy.limits
    if rights.depth_max < limits.depth_max:
        limits = replace(limits, depth_max=rights.depth_max)
    known = yield from _known(session_id, orders)
    counted = yield from census(parent, limits, agents, len(orders))
    answers: list[Accepted | Refused] = []
    children: list[_Child] = []
    for order in orders:
        if order.idem in known:
            answers.append(known[order.idem])
            continue
        verdict = admission.admit(order.request, admission.counting(counted, len(children)), limits)
        if isinstance(verdict, Refused):
            answers.append(verdict)
            continue
        child = _child(now, policy, parent, order, verdict)
        if isinstance(child, Refused):
            answers.append(child)
            continue
        children.append(child)
        answers.append(Accepted(order.child_id, child.key, verdict.label))
    if children:
        yield from _insert(now, policy, parent, children)
    return answers


def _known(session_id: int, orders: Sequence[Order]) -> Tx[dict[str, Accepted]]:
    rows = yield (
        "SELECT idem, id, (SELECT key FROM sessions s WHERE s.id = tasks.id), label FROM tasks"
        " WHERE requester_id = ? AND idem {any}",
        (session_id, [order.idem for order in orders]),
    )
    return {idem: Accepted(task_id, key or "", label, is_new=False) for idem, task_id, key, label in rows}


def census(parent: ParentRow, limits: Limits, agents: frozenset[str], wanted: int = 1) -> Tx[Census]:
    """Counted from the rows, under the lock; nothing is counted further than its limit.

    What could leave the quota is only counted where `wanted` more would not fit into it."""
    rows = yield (
        _COUNT,
        (
            parent.id, parent.root_id, limits.descendants_max, parent.id, limits.retained_max, parent.root_id,
            max(1, limits.undelivered_max),
        ),
    )  # fmt: skip
    children, descendants, retained, undelivered = rows[0]
    evictable = 0
    if retained + wanted > limits.retained_max:
        evictable = int((yield _EVICTABLE, (parent.id, limits.retained_max))[0][0])
    if limits.depth_max > parent.depth + 1:
        children += yield from _ended_with_live_descendants(parent)
    return Census(
        agent_id=parent.agent_id,
        depth=parent.depth,
        is_closed=bool(parent.closed),
        children=children,
        descendants=descendants,
        retained=retained,
        evictable=evictable,
        undelivered=undelivered,
        configured_agents=agents,
    )


def _ended_with_live_descendants(parent: ParentRow) -> Tx[int]:
    """Climb from what lives further down: an ended child with such descendants still counts."""
    rows = yield (
        "WITH RECURSIVE up(id, requester_id, phase) AS ("  # noqa: S608 (constant words)
        f"SELECT id, requester_id, phase FROM tasks WHERE root_id = ? AND depth >= ? AND {IS_WORKING}"
        " UNION SELECT t.id, t.requester_id, t.phase FROM tasks t JOIN up ON t.id = up.requester_id)"
        f" SELECT COUNT(*) FROM up WHERE requester_id = ? AND phase NOT IN {WORKING_PHASES}",
        (parent.root_id, parent.depth + 2, parent.id),
    )
    return int(rows[0][0])


def _child(
    now: float,
    policy: Policy,
    parent: ParentRow,
    order: Order,
    admitted: admission.Admitted,
) -> _Child | Refused:
    given = _given(parent.rights, policy.limits.depth_max, policy.tools)
    if isinstance(given, authority.NoSandbox):
        return Refused(given.reason)
    request = order.request
    task = Task(
        id=TaskId(order.child_id),
        requester_id=SessionId(parent.id),
        timeout_s=request.run_timeout_s or 0.0,
        expects_completion=request.expects_completion,
        has_cleanup=request.cleanup is admission.Cleanup.DELETE,
        plan=Plan.DRAFTING if request.plan_mode else Plan.NONE,
    )
    key = str(keys.subagent_key(admitted.agent_id, order.uuid))
    return _Child(order, admitted, key, given, step(task, Admitted(now), policy))


@lru_cache(maxsize=1024)  # a fan-out asks the same of the same parent again and again
def _given(
    stored: str, depth_max: int, tools: authority.ToolPolicy
) -> authority.Rights | authority.NoSandbox:
    parent = authority.from_text(stored)
    grant = authority.AgentGrant(depth_max=depth_max, sandbox=parent.sandbox)
    return authority.child_rights(parent, grant, authority.Request(), tools)


def _insert(now: float, policy: Policy, parent: ParentRow, children: Sequence[_Child]) -> Tx[None]:
    evicted = max((child.admitted.evict for child in children), default=0)
    if evicted:
        yield from _evict(parent.id, evicted)
    yield (
        "INSERT INTO sessions(id, key, agent_id, parent_id, root_id, depth, lane, role, is_task, rights, route, model,"
        " workspace, due, created_at) VALUES(?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?)",
        Many(
            (
                child.order.child_id, child.key, child.admitted.agent_id, parent.id, parent.root_id,
                child.admitted.depth, Lane.SUBAGENT.value, child.rights.role.value, rights_text(child.rights),
                parent.route, child.order.request.model or parent.model, parent.workspace, now, now,
            )
            for child in children
        ),
    )  # fmt: skip
    yield (
        _INSERT_TASK,
        Many((*tasks.to_row(child.queued.task), *_contract(now, parent, child)) for child in children),
    )
    yield (
        tasks.INSERT_EVENT,
        Many(
            row
            for child in children
            for row in tasks.event_rows(now, _unborn(child.queued.task), child.queued.moves, "clutch")
        ),
    )
    yield (
        "INSERT INTO inbox(session_id, idem, kind, silent, body, route, at, ready_at, seen)"
        " VALUES(?, ?, ?, 0, ?, '', ?, ?, 1)",
        Many(
            (
                child.order.child_id, f"task:{child.order.child_id}", LetterKind.TASK.value, _first(policy, child),
                now, now,
            )
            for child in children
        ),
    )  # fmt: skip
    yield HINT, ("due", now)


def rights_text(rights: authority.Rights) -> str:
    return authority.to_text(rights)


def _unborn(task: Task) -> Task:
    return Task(task.id, task.requester_id)


def _first(policy: Policy, child: _Child) -> str:
    return wording.first_message(child.order.request.task, child.admitted.depth, policy.limits.depth_max)


def _contract(now: float, parent: ParentRow, child: _Child) -> tuple[object, ...]:
    request = child.order.request
    order = parent.head * 1000 + child.order.place
    return (
        parent.root_id, child.admitted.depth, order, child.order.idem, child.admitted.label, request.task,
        _spec(request.model, request.plan_mode, request.cleanup), now,
    )  # fmt: skip


@lru_cache(maxsize=1024)  # as above
def _spec(model: str | None, plan_mode: bool, cleanup: admission.Cleanup) -> str:
    return json.dumps({"model": model, "planMode": plan_mode, "cleanup": cleanup.value})


def _evict(requester_id: int, count: int) -> Tx[None]:
    """The oldest told records leave the quota; their transcripts stay."""
    yield (
        "UPDATE tasks SET retained = 0 WHERE id IN (SELECT id FROM tasks WHERE requester_id = ? AND retained = 1"
        " AND phase = 'completed' ORDER BY ended_at, id LIMIT ?)",
        (requester_id, count),
    )
