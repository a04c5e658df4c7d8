"""Spawn: count (`census`) and insert in one transaction, with the root and the parent locked.

All spawn calls of one model answer come in one transaction, in the order of the answer, each admitted
or refused on its own. The key of a call makes a repeated one find its task instead of a twin.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

from clutch.core import admission, authority, budget, choosing, context, keys, messages, wording
from clutch.core.admission import Context, Refused, SpawnRequest
from clutch.core.budget import PurseKind
from clutch.core.choosing import Spawner, Terms
from clutch.core.events import Admitted, Reserved
from clutch.core.lifecycle import Step, step
from clutch.core.messages import Message
from clutch.core.model import Lane, LetterKind, Phase, Plan, SessionId, Task, TaskId, Thinking, Workspace
from clutch.core.policy import Policy
from clutch.protocol import census, hooks, hops, sessions, task_rows, usage
from clutch.protocol import context as stored
from clutch.protocol.sessions import ParentRow, Stale
from clutch.store.door import HINT, Many, Tx

_INSERT_TASK = (
    f"INSERT INTO tasks({task_rows.COLUMNS}, root_id, depth, spawn_order, idem, label, task, spec, created_at)"
    f" VALUES({', '.join('?' * 32)})"
)


NOT_FORKED = "context: this talk is too long or another agent's; the child starts without it"


@dataclass(frozen=True, slots=True)
class Order:
    """One wanted child. Ids come from outside, so that a transaction that runs again makes the same ones."""

    idem: str
    child_id: int
    uuid: str
    request: SpawnRequest
    place: int  #: among the calls of its answer


class Accepted(NamedTuple):
    task_id: int
    session_key: str
    label: str
    is_new: bool = True
    is_spawning: bool = False  #: its side work is to be done before it is queued
    workspace: str | None = None  #: where it works, or what its own is made from
    model: str | None = None
    thinking: str | None = None
    context: Context = Context.ISOLATED
    warnings: tuple[str, ...] = ()
    is_dry: bool = False  #: it would have been accepted; there is no such task


class _Child(NamedTuple):
    order: Order
    admitted: admission.Admitted
    key: str
    rights: authority.Rights
    terms: Terms
    born: Step
    forked: Sequence[Message] | None = None  #: what its transcript begins with
    purse: tuple[int | None, Decimal | None] | None = None  #: limits of a budget of its own
    hops: tuple[int, ...] = ()  #: of the talk between agents that it is asked for in


def spawn(
    now: float, policy: Policy, session_id: int, root_id: int, fence: int | None, orders: Sequence[Order]
) -> Tx[list[Accepted | Refused]]:
    """`fence`: the caller's run; None when a person or a program spawns in the session's name."""
    if root_id != session_id:
        yield from sessions.lock(root_id)
    parent = yield from sessions.lock_parent(session_id)
    if parent is None or (fence is not None and (parent.owner is None or parent.fence != fence)):
        raise Stale(f"session {session_id} is owned by somebody else now")
    limits = policy.limits_of(parent.agent_id)
    idems = [order.idem for order in orders]
    counted = yield from census.count(parent, limits, choosing.known_agents(policy), idems)
    known = (yield from _known(session_id, idems)) if counted.repeated else {}
    answers: list[Accepted | Refused] = []
    children: list[_Child] = []
    for order in orders:
        if order.idem in known:
            answers.append(_same(order, *known[order.idem]))
            continue
        verdict = admission.admit(order.request, admission.counting(counted, len(children)), limits)
        child = (
            verdict
            if isinstance(verdict, Refused)
            else (yield from _child(now, policy, parent, order, verdict))
        )
        if isinstance(child, Refused):
            answers.append(child)
            continue
        answers.append(accepted := _accepted(child))
        if not order.request.dry_run:
            children.append(child)
            if order.request.digest:  # somebody may use a key twice in one answer
                known[order.idem] = (accepted._replace(is_new=False), order.request.digest)
    if children:
        yield from _insert(now, policy, parent, children)
    return answers


def _same(order: Order, found: Accepted, digest: str) -> Accepted | Refused:
    """The task of this key; a key that meant something else is a mistake and not an answer."""
    if order.request.digest == digest:
        return found
    error = (
        f"idempotencyKey: it was used for {keys.task_id(found.task_id)}, which was asked for in other words"
    )
    return Refused(error, is_conflict=True)


def _accepted(child: _Child) -> Accepted:
    request = child.order.request
    is_forked = child.forked is not None
    not_forked = (NOT_FORKED,) if request.context is Context.FORK and not is_forked else ()
    return Accepted(
        child.order.child_id,
        child.key,
        child.admitted.label,
        is_spawning=request.has_side_work and not request.dry_run,
        workspace=child.terms.directory,
        model=child.terms.model,
        thinking=child.terms.thinking,
        context=Context.FORK if is_forked else Context.ISOLATED,
        warnings=(*request.warnings, *not_forked),
        is_dry=request.dry_run,
    )


def _forked(policy: Policy, parent: ParentRow, agent_id: str) -> Tx[Sequence[Message] | None]:
    """None: too long, or another agent's; the child starts without it."""
    if agent_id != parent.agent_id:
        return None
    rows = yield (
        "SELECT kind, body FROM messages WHERE session_id = ? AND seq > ? ORDER BY seq",
        (parent.id, parent.base),
    )
    said = [messages.load(kind, body) for kind, body in rows]
    return context.forked(said, parent.base, policy.context.fork_bytes_max)


def _known(session_id: int, idems: list[str]) -> Tx[dict[str, tuple[Accepted, str]]]:
    """What there is of these keys, and what was asked for under each."""
    rows = yield (
        "SELECT t.idem, t.id, s.key, t.label, t.phase, s.workspace, s.model, s.thinking, t.spec FROM tasks t"
        " LEFT JOIN sessions s ON s.id = t.id WHERE t.requester_id = ? AND t.idem {any}",
        (session_id, idems),
    )
    return {idem: _found(*row) for idem, *row in rows}


def _found(
    task_id: int,
    key: str | None,
    label: str,
    phase: str,
    workspace: str | None,
    model: str | None,
    thinking: str | None,
    spec: str,
) -> tuple[Accepted, str]:
    asked = json.loads(spec)
    context = Context(asked.get("context", Context.ISOLATED))
    is_spawning = phase == Phase.SPAWNING
    found = Accepted(task_id, key or "", label, False, is_spawning, workspace, model, thinking, context)
    return found, asked.get("digest", "")


def _child(
    now: float, policy: Policy, parent: ParentRow, order: Order, admitted: admission.Admitted
) -> Tx[_Child | Refused]:
    """Everything there is to decide; nothing is written yet."""
    request, agent_id = order.request, admitted.agent_id
    is_planned = parent.plan == Plan.DRAFTING
    asked = authority.Request(request.tools, sandbox=request.needs_sandbox, read_only=is_planned)
    rights = _given(parent.rights, policy.grant(agent_id), policy.tools, asked)
    if isinstance(rights, authority.NoSandbox):
        return Refused(rights.reason, {"key": "sandbox"})
    if rights.read_only and request.runtime != admission.OWN_RUNTIME:
        return Refused(
            f"runtime: {request.runtime[:64]!r} keeps to no filter of tools, and a plan is made without"
        )
    if request.workspace is Workspace.ISOLATED and policy.agent(agent_id).sandbox is False:
        return Refused(
            f"workspace: isolated needs walls, and agent {agent_id!r} works without", {"key": "sandbox"}
        )
    caller = Spawner(parent.agent_id, parent.model, _thinking(parent.thinking), parent.workspace)
    terms = choosing.terms(request, agent_id, caller, policy)
    if not rights.permits_model(terms.model):
        return Refused(
            f"model {terms.model[:80]!r} is not among those allowed here", {"key": "agents.list[].models"}
        )
    task = Task(
        id=TaskId(order.child_id),
        requester_id=SessionId(parent.id),
        timeout_s=request.run_timeout_s or 0.0,
        expects_completion=request.expects_completion,
        has_cleanup=_has_cleanup(request),
        plan=Plan.DRAFTING if request.plan_mode else Plan.NONE,
        stays=request.mode is admission.Mode.SESSION,
    )
    key = str(keys.subagent_key(agent_id, order.uuid))
    event = Reserved(now) if request.has_side_work else Admitted(now)
    child = _Child(order, admitted, key, rights, terms, step(task, event, policy))
    if parent.purses or request.budget is not None:
        purse = yield from _purse(parent, request)
        if isinstance(purse, Refused):
            return purse
        child = child._replace(purse=purse)
    if policy.peers.enabled:
        child = child._replace(hops=(yield from hops.of_run(parent)))
    if request.context is Context.FORK:
        child = child._replace(forked=(yield from _forked(policy, parent, agent_id)))
    return child


_THINKING = {level.value: level for level in Thinking}


def _thinking(stored: str | None) -> Thinking | None:
    return None if stored is None else _THINKING[stored]


@lru_cache(maxsize=1024)  # a fan-out asks the same of the same parent again and again
def _given(
    stored: str, grant: authority.AgentGrant, tools: authority.ToolPolicy, asked: authority.Request
) -> authority.Rights | authority.NoSandbox:
    return authority.child_rights(authority.from_text(stored), grant, asked, tools)


def _purse(
    parent: ParentRow, request: SpawnRequest
) -> Tx[tuple[int | None, Decimal | None] | Refused | None]:
    """The limits of its own budget, within what those above have left; None = it only draws on theirs."""
    chain = yield from usage.chain(parent)
    tokens_left, usd_left = budget.remaining(chain)
    if tokens_left == 0 or usd_left == 0:
        return Refused("the budget is used up; nothing is left for a child", {"key": "budget"})
    asked = request.budget
    return None if asked is None else budget.child_limits(asked.tokens, asked.usd, chain)


def _insert(now: float, policy: Policy, parent: ParentRow, children: Sequence[_Child]) -> Tx[None]:
    evicted = max((child.admitted.evict for child in children), default=0)
    if evicted:
        yield from census.evict(parent.id, evicted)
    purses = yield from _purses(parent, children)
    yield (
        "INSERT INTO sessions(id, key, agent_id, parent_id, root_id, depth, lane, role, is_task, rights, route, model,"
        " thinking, workspace, purses, due, created_at) VALUES(?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?)",
        Many(_session_row(now, parent, child, purses[child.key]) for child in children),
    )
    yield (
        _INSERT_TASK,
        Many((*task_rows.to_row(child.born.task), *_contract(now, parent, child)) for child in children),
    )
    yield (
        task_rows.INSERT_EVENT,
        Many(
            row
            for child in children
            for row in task_rows.event_rows(now, _unborn(child.born.task), child.born.moves, "clutch")
        ),
    )
    yield (
        "INSERT INTO inbox(session_id, idem, kind, silent, body, route, at, ready_at, seen)"
        " VALUES(?, ?, ?, 0, ?, '', ?, ?, 1)",
        Many(
            (
                child.order.child_id, f"task:{child.order.child_id}", LetterKind.TASK.value, _first(child),
                now, now,
            )
            for child in children
            if not child.order.request.has_side_work
        ),
    )  # fmt: skip
    for child in children:
        if child.forked is not None:
            yield from stored.fork(now, child.order.child_id, child.forked)
    if policy.hooks:
        born = [child.order.child_id for child in children if not child.order.request.has_side_work]
        yield from hooks.spawned(now, policy, born)
    yield HINT, ("due", now)


def _purses(parent: ParentRow, children: Sequence[_Child]) -> Tx[dict[str, str]]:
    """The budgets each draws on: its parent's, and its own if it has one."""
    drawn = {child.key: parent.purses for child in children}
    for child in children:
        if child.purse is not None:
            own = yield from usage.open_purse(PurseKind.TASK, child.order.child_id, *child.purse)
            drawn[child.key] = f"{parent.purses} {own}".strip()
    return drawn


def _session_row(now: float, parent: ParentRow, child: _Child, purses: str) -> tuple[object, ...]:
    """With side work to do it is not due: `preparing.ready` makes it so."""
    request = child.order.request
    return (
        child.order.child_id, child.key, child.admitted.agent_id, parent.id, parent.root_id, child.admitted.depth,
        Lane.SUBAGENT.value, child.rights.role.value, rights_text(child.rights), parent.captured_route,
        child.terms.model, child.terms.thinking, child.terms.directory, purses,
        None if request.has_side_work else now, now,
    )  # fmt: skip


def rights_text(rights: authority.Rights) -> str:
    return authority.to_text(rights)


def _unborn(task: Task) -> Task:
    return Task(task.id, task.requester_id)


def _first(child: _Child) -> str:
    return wording.first_message(child.order.request.task, child.admitted.depth, child.rights.depth_max)


def _contract(now: float, parent: ParentRow, child: _Child) -> tuple[object, ...]:
    request = child.order.request
    order = parent.head * 1000 + child.order.place
    return (
        parent.root_id, child.admitted.depth, order, child.order.idem, child.admitted.label, request.task,
        _spec(child), now,
    )  # fmt: skip


@lru_cache(maxsize=1024)  # as above; the task itself is no part of it
def _spec_text(known: tuple[tuple[str, object], ...]) -> str:
    return json.dumps(dict(known))


def _spec(child: _Child) -> str:
    """What its runs must know; whatever is as usual is left out."""
    request = child.order.request
    known = {
        "model": request.model,
        "planMode": request.plan_mode or None,
        "cleanup": None if request.cleanup is admission.Cleanup.KEEP else request.cleanup.value,
        "outputSchema": request.output_schema,
        "runtime": None if request.runtime == admission.OWN_RUNTIME else request.runtime,
        "cwd": request.cwd,
        "workspace": Workspace.ISOLATED.value if request.workspace is Workspace.ISOLATED else None,
        "attachments": _listed(request) or None,
        "mode": None if request.mode is admission.Mode.RUN else request.mode.value,
        "context": None if child.forked is None else Context.FORK.value,
        "digest": request.digest or None,
        hops.FIELD: child.hops or None,
    }
    return _spec_text(tuple((name, value) for name, value in known.items() if value is not None))


def _has_cleanup(request: SpawnRequest) -> bool:
    """What was given to a session that stays is needed after the end of its task, too."""
    is_read_later = request.mode is admission.Mode.SESSION
    return request.cleanup is admission.Cleanup.DELETE or (bool(request.attachments) and not is_read_later)


def _listed(request: SpawnRequest) -> tuple[tuple[str, int, str], ...]:
    files = (file.stored for file in request.attachments)
    return tuple((file.name, file.bytes, file.sha256) for file in files)
