"""Spawn: count, decide and insert in one transaction, root and parent locked.

All spawn calls of one model answer come in one transaction, in the order of the answer, each admitted
or refused on its own. The key of a call makes a repeated one find its task instead of a duplicate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

from clutch.core import authority as authority_rules
from clutch.core import budget, checks, compaction, ids, messages
from clutch.core import spawn as spawn_rules
from clutch.core.budget import BudgetKind
from clutch.core.events import Admitted, Reserved, Transition
from clutch.core.fair_share import Queue
from clutch.core.forecast import BudgetLeft, Forecast
from clutch.core.lifecycle import step
from clutch.core.messages import Message
from clutch.core.model import Lane, Phase, Plan, SessionId, Task, TaskId, Thinking, Workspace
from clutch.core.policy import Limits, Policy
from clutch.core.run import SHELL
from clutch.core.schedule import origin
from clutch.core.spawn import Context, SpawnCounts, Spawner, SpawnRefusal, SpawnRequest, Terms
from clutch.core.text import prompts
from clutch.store.transaction import HINT, ManyRows, Row, Tx
from clutch.transactions import authority as authority_tx
from clutch.transactions import inbox, outbox, sessions, tasks, transcript, usage
from clutch.transactions.conditions import IS_WORKING, WORKING_PHASES
from clutch.transactions.read import forecast
from clutch.transactions.sessions import ParentRow

# --------------------------------------------------------------------------------------------------
# What a session has already, counted before it gets more; and what leaves its quota for it.
#
# Counted from the rows, under the lock of root and parent. What the numbers allow is `core/spawn`.

_COUNT = (
    f"SELECT (SELECT COUNT(*) FROM tasks WHERE requester_id = ? AND {IS_WORKING}),"  # noqa: S608 (constant words)
    f" (SELECT COUNT(*) FROM (SELECT 1 FROM tasks WHERE root_id = ? AND {IS_WORKING} LIMIT ?) a),"
    " (SELECT COUNT(*) FROM (SELECT 1 FROM tasks WHERE requester_id = ? AND retained = 1 LIMIT ?) b),"
    " (SELECT COUNT(*) FROM (SELECT 1 FROM tasks WHERE root_id = ? AND delivery = 'undelivered' LIMIT ?) d),"
    " (SELECT COUNT(*) FROM tasks WHERE requester_id = ? AND idem {any})"
)
_EVICTABLE = (
    "SELECT COUNT(*) FROM (SELECT 1 FROM tasks WHERE requester_id = ? AND retained = 1 AND phase = 'completed'"
    " LIMIT ?) c"
)


def count(parent: ParentRow, limits: Limits, agents: frozenset[str], idems: list[str]) -> Tx[SpawnCounts]:
    """Nothing is counted further than its limit.

    `idems`: the keys of what is wanted. What could leave the quota is only counted where it would not fit into it."""
    rows = yield (
        _COUNT,
        (
            parent.id, parent.root_id, limits.descendants_max, parent.id, limits.retained_max, parent.root_id,
            max(1, limits.undelivered_max), parent.id, idems,
        ),
    )  # fmt: skip
    children, descendants, retained, undelivered, repeated = rows[0]
    evictable = 0
    if retained + max(1, len(idems)) > limits.retained_max:
        evictable = int((yield _EVICTABLE, (parent.id, limits.retained_max))[0][0])
    depth_max = min(limits.depth_max, authority_rules.from_text(parent.rights).depth_max)
    if depth_max > parent.depth + 1:
        children += yield from _ended_with_live_descendants(parent)
    return SpawnCounts(
        agent_id=parent.agent_id,
        depth=parent.depth,
        depth_max=depth_max,
        is_closed=bool(parent.closed),
        children=children,
        descendants=descendants,
        retained=retained,
        evictable=evictable,
        undelivered=undelivered,
        repeated=repeated,
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


# --------------------------------------------------------------------------------------------------
# One child: what it may do, where it works, what it may spend, what it begins with. Nothing is written here.


@dataclass(frozen=True, slots=True)
class ChildRequest:
    """One wanted child. Ids come from outside, so that a transaction that runs again makes the same ones."""

    idem: str
    child_id: int
    uuid: str
    request: SpawnRequest
    place: int  #: among the calls of its answer


class NewChild(NamedTuple):
    """All that is decided about one, before anything is written."""

    order: ChildRequest
    admitted: spawn_rules.SpawnAdmission
    key: str
    rights: authority_rules.Rights
    terms: Terms
    queue: Queue
    born: Transition
    forked: Sequence[Message] | None = None  #: what its transcript begins with
    purse: tuple[int | None, Decimal | None] | None = None  #: limits of a budget of its own
    hops: tuple[int, ...] = ()  #: of the talk between agents in which it was asked for


def decide(
    now: float,
    policy: Policy,
    parent: ParentRow,
    order: ChildRequest,
    admitted: spawn_rules.SpawnAdmission,
    *,
    is_agent: bool,
) -> Tx[NewChild | SpawnRefusal]:
    request, agent_id = order.request, admitted.agent_id
    queue = spawn_rules.queue_of(request, Queue(parent.priority, parent.share), is_agent=is_agent)
    if isinstance(queue, SpawnRefusal):
        return queue
    asked = authority_rules.Request(
        request.tools, sandbox=request.needs_sandbox, read_only=parent.plan == Plan.DRAFTING
    )
    rights = _given(parent.rights, policy.grant(agent_id), policy.tools, asked)
    if isinstance(rights, authority_rules.NoSandbox):
        return SpawnRefusal(rights.reason, {"key": "sandbox"})
    caller = Spawner(parent.agent_id, parent.model, _thinking(parent.thinking), parent.workspace)
    terms = spawn_rules.terms(request, agent_id, caller, policy)
    refused = _refused(request, agent_id, rights, terms, policy)
    if refused is not None:
        return refused
    key = str(ids.subagent_key(agent_id, order.uuid))
    event = Reserved(now) if request.has_side_work else Admitted(now)
    born = step(_task(parent, order), event, policy)
    return (yield from _equipped(policy, parent, NewChild(order, admitted, key, rights, terms, queue, born)))


def _refused(
    request: SpawnRequest, agent_id: str, rights: authority_rules.Rights, terms: Terms, policy: Policy
) -> SpawnRefusal | None:
    if rights.read_only and request.runtime != spawn_rules.OWN_RUNTIME:
        return SpawnRefusal(
            f"runtime: {request.runtime[:64]!r} keeps to no filter of tools, and a plan is made without"
        )
    if request.workspace is Workspace.ISOLATED and policy.agent(agent_id).sandbox is False:
        return SpawnRefusal(
            f'workspace "isolated" requires the sandbox, which is off for agent "{agent_id}": set sandbox.mode, '
            'or use workspace "inherit"',
            {"key": "sandbox"},
        )
    if not rights.permits_tool(SHELL, is_read_only=False) and any(one.command for one in request.checks):
        return SpawnRefusal(
            "checks: a command runs with the rights of the child, and it would have no shell: leave the command out, or"
            " let the child use shell",
            {"key": "checks"},
        )
    if not rights.permits_model(terms.model):
        return SpawnRefusal(
            f"model {terms.model[:80]!r} is not among those allowed here", {"key": "agents.list[].models"}
        )
    return None


def _task(parent: ParentRow, order: ChildRequest) -> Task:
    request = order.request
    return Task(
        id=TaskId(order.child_id),
        requester_id=SessionId(parent.id),
        timeout_s=request.run_timeout_s or 0.0,
        expects_completion=request.expects_completion,
        notify_parent=request.notify_parent,
        has_cleanup=_has_cleanup(request),
        plan=Plan.DRAFTING if request.plan_mode else Plan.NONE,
        stays=request.mode is spawn_rules.Mode.SESSION,
    )


def _has_cleanup(request: SpawnRequest) -> bool:
    """What was given to a session that stays is needed after the end of its task, too."""
    is_read_later = request.mode is spawn_rules.Mode.SESSION
    return request.cleanup is spawn_rules.CleanupPolicy.DELETE or (
        bool(request.attachments) and not is_read_later
    )


def _equipped(policy: Policy, parent: ParentRow, child: NewChild) -> Tx[NewChild | SpawnRefusal]:
    """With what the store must be asked for, which is asked only where it matters."""
    request = child.order.request
    if parent.purses or request.budget is not None:
        purse = yield from _purse(parent, request)
        if isinstance(purse, SpawnRefusal):
            return purse
        child = child._replace(purse=purse)
    if policy.peers.enabled:
        child = child._replace(hops=(yield from authority_tx.of_run(parent)))
    if request.context is Context.FORK:
        child = child._replace(forked=(yield from _forked(policy, parent, child.admitted.agent_id)))
    return child


_THINKING = {level.value: level for level in Thinking}


def _thinking(stored: str | None) -> Thinking | None:
    return None if stored is None else _THINKING[stored]


@lru_cache(maxsize=1024)  # a fan-out asks the same of the same parent again and again
def _given(
    stored: str,
    grant: authority_rules.AgentGrant,
    tools: authority_rules.ToolPolicy,
    asked: authority_rules.Request,
) -> authority_rules.Rights | authority_rules.NoSandbox:
    return authority_rules.child_rights(authority_rules.from_text(stored), grant, asked, tools)


def _purse(
    parent: ParentRow, request: SpawnRequest
) -> Tx[tuple[int | None, Decimal | None] | SpawnRefusal | None]:
    """The limits of its own budget, within what those above have left; None = it only draws on theirs."""
    chain = yield from usage.chain(parent)
    tokens_left, usd_left = budget.remaining(chain)
    if tokens_left == 0 or usd_left == 0:
        return SpawnRefusal("the budget is used up; nothing is left for a child", {"key": "budget"})
    asked = request.budget
    return None if asked is None else budget.child_limits(asked.tokens, asked.usd, chain)


def _forked(policy: Policy, parent: ParentRow, agent_id: str) -> Tx[Sequence[Message] | None]:
    """None: too long, or another agent's; the child starts without it."""
    if agent_id != parent.agent_id:
        return None
    rows = yield (
        "SELECT kind, body FROM messages WHERE session_id = ? AND seq > ? ORDER BY seq",
        (parent.id, parent.base),
    )
    said = [messages.load(kind, body) for kind, body in rows]
    return compaction.forked(said, parent.base, policy.context.fork_bytes_max)


# --------------------------------------------------------------------------------------------------
# The rows of new children: session, task, timeline, first letter. What stands in them was decided in `children`.


def insert(now: float, policy: Policy, parent: ParentRow, children: Sequence[NewChild]) -> Tx[None]:
    evicted = max(child.admitted.evict for child in children)
    if evicted:
        yield from tasks.evict(parent.id, evicted)
    purses = yield from _purses(parent, children)
    yield from sessions.insert_children(
        ManyRows(_session_row(now, parent, child, purses[child.key]) for child in children)
    )
    yield from tasks.insert_children(ManyRows(_task_row(now, parent, child) for child in children))
    yield from tasks.insert_events(ManyRows(row for child in children for row in _event_rows(now, child)))
    queued = [child for child in children if not child.order.request.has_side_work]
    yield from inbox.post_tasks(now, map(_first_message, queued))
    for child in children:
        if child.forked is not None:
            yield from transcript.fork(now, child.order.child_id, child.forked)
    if policy.hooks:
        yield from outbox.spawned(now, policy, [child.order.child_id for child in queued])
    yield HINT, ("due", now)


def _purses(parent: ParentRow, children: Sequence[NewChild]) -> Tx[dict[str, str]]:
    """The budgets each draws on: its parent's, and its own if it has one."""
    drawn = {child.key: parent.purses for child in children}
    for child in children:
        if child.purse is not None:
            own = yield from usage.open_budget(BudgetKind.TASK, child.order.child_id, *child.purse)
            drawn[child.key] = f"{parent.purses} {own}".strip()
    return drawn


def _session_row(now: float, parent: ParentRow, child: NewChild, purses: str) -> Row:
    """With side work to do it is not due: `task_files.ready` makes it so."""
    request = child.order.request
    return (
        child.order.child_id, child.key, child.admitted.agent_id, parent.id, parent.root_id, child.admitted.depth,
        Lane.SUBAGENT.value, child.rights.role.value, authority_rules.to_text(child.rights), parent.captured_route,
        child.terms.model, child.terms.thinking, child.terms.directory, purses,
        None if request.has_side_work else now, now, child.queue.share, child.queue.rank,
    )  # fmt: skip


def _task_row(now: float, parent: ParentRow, child: NewChild) -> Row:
    return (*tasks.to_row(child.born.task), *_contract(now, parent, child))


def _contract(now: float, parent: ParentRow, child: NewChild) -> Row:
    request = child.order.request
    order = parent.head * 1000 + child.order.place
    return (
        parent.root_id, child.admitted.depth, order, child.order.idem, child.admitted.label, request.task,
        _spec(child), now,
    )  # fmt: skip


def _spec(child: NewChild) -> str:
    """What its runs must know; whatever is as usual is left out."""
    request = child.order.request
    known = {
        "model": request.model,
        "planMode": request.plan_mode or None,
        "cleanup": None if request.cleanup is spawn_rules.CleanupPolicy.KEEP else request.cleanup.value,
        "outputSchema": request.output_schema,
        "runtime": None if request.runtime == spawn_rules.OWN_RUNTIME else request.runtime,
        "cwd": request.cwd,
        "workspace": Workspace.ISOLATED.value if request.workspace is Workspace.ISOLATED else None,
        "attachments": _listed(request) or None,
        "mode": None if request.mode is spawn_rules.Mode.RUN else request.mode.value,
        "context": None if child.forked is None else Context.FORK.value,
        "digest": request.digest or None,
        checks.FIELD: checks.to_text(request.checks) if request.checks else None,
        authority_tx.FIELD: child.hops or None,
    }
    return _spec_text(tuple((name, value) for name, value in known.items() if value is not None))


@lru_cache(maxsize=1024)  # the children of a fan-out differ in their task, which is no part of it
def _spec_text(known: tuple[tuple[str, object], ...]) -> str:
    return json.dumps(dict(known))


def _listed(request: SpawnRequest) -> tuple[tuple[str, int, str], ...]:
    files = (file.stored for file in request.attachments)
    return tuple((file.name, file.bytes, file.sha256) for file in files)


def _event_rows(now: float, child: NewChild) -> list[Row]:
    born, slot = child.born, origin(child.order.idem)
    moves = born.moves
    if slot is not None:
        moves = (moves[0]._replace(detail=f"schedule {slot[0]}, slot {slot[1]}"), *moves[1:])
    return tasks.event_rows(now, Task(born.task.id, born.task.requester_id), moves, "clutch")


def _first_message(child: NewChild) -> tuple[int, str]:
    """The session of a child, and the text of its task letter."""
    order = child.order
    first = prompts.first_message(order.request.task, child.admitted.depth, child.rights.depth_max)
    return order.child_id, first


NOT_FORKED = "context: this talk is too long or another agent's; the child starts without it"


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
    price: tuple[Forecast, BudgetLeft] | None = None  #: of a dry run


def spawn(
    now: float,
    policy: Policy,
    session_id: int,
    root_id: int,
    orders: Sequence[ChildRequest],
    *,
    fence: int | None = None,
    budgets: str = "",
) -> Tx[list[Accepted | SpawnRefusal]]:
    """`fence`: the caller's run; None when a person or a program spawns in the session's name. `budgets`: what these
    children draw on beside the budgets of the session."""
    if root_id != session_id:
        yield from sessions.lock(root_id)
    parent = yield from sessions.lock_parent(session_id)
    if parent is None or (fence is not None and (parent.owner is None or parent.fence != fence)):
        raise sessions.stale(session_id)
    if budgets:
        parent = replace(parent, purses=f"{parent.purses} {budgets}".strip())
    limits = policy.limits_of(parent.agent_id)
    idems = [order.idem for order in orders]
    counted = yield from count(parent, limits, spawn_rules.known_agents(policy), idems)
    has_own_list = bool(policy.agent(parent.agent_id).subagents.allow_agents)
    counted = replace(counted, has_own_list=has_own_list) if has_own_list else counted
    known = (yield from _known(session_id, idems)) if counted.repeated else {}
    answers: list[Accepted | SpawnRefusal] = []
    children: list[NewChild] = []
    for order in orders:
        if order.idem in known:
            answers.append(_same(order, *known[order.idem]))
            continue
        verdict: spawn_rules.SpawnAdmission | NewChild | SpawnRefusal
        verdict = spawn_rules.admit(order.request, spawn_rules.counting(counted, len(children)), limits)
        if isinstance(verdict, spawn_rules.SpawnAdmission):
            verdict = yield from decide(now, policy, parent, order, verdict, is_agent=fence is not None)
        if isinstance(verdict, SpawnRefusal):
            answers.append(verdict)
            continue
        accepted = _accepted(verdict)
        if order.request.dry_run:
            accepted = accepted._replace(price=(yield from _price(now, policy, parent, verdict)))
        answers.append(accepted)
        if not order.request.dry_run:
            children.append(verdict)
            if order.request.digest:  # a model may use a key twice in one answer
                known[order.idem] = (accepted._replace(is_new=False), order.request.digest)
    if children:
        yield from insert(now, policy, parent, children)
    return answers


def _same(order: ChildRequest, found: Accepted, digest: str) -> Accepted | SpawnRefusal:
    """The task of this key; a key that meant something else is a mistake and not an answer."""
    if order.request.digest == digest:
        return found
    used = f"it was used for {ids.task_id(found.task_id)} with other arguments"
    return SpawnRefusal(f"idempotencyKey: {used}; use a new key", is_conflict=True)


def _accepted(child: NewChild) -> Accepted:
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


def _price(now: float, policy: Policy, parent: ParentRow, child: NewChild) -> Tx[tuple[Forecast, BudgetLeft]]:
    budgets = (policy.budgets, parent.purses)
    return forecast.of_spawn(
        now, child.admitted.agent_id, child.terms.model, child.order.request.count, budgets
    )


def _known(session_id: int, idems: list[str]) -> Tx[dict[str, tuple[Accepted, str]]]:
    """What there is of these keys, and what was asked for under each."""
    rows = yield (
        "SELECT t.idem, t.id, s.key, t.label, t.phase, s.workspace, s.model, s.thinking, t.spec FROM tasks t"
        " LEFT JOIN sessions s ON s.id = t.id WHERE t.requester_id = ? AND t.idem {any}",
        (session_id, idems),
    )
    return {row[0]: _found(row[1:]) for row in rows}


def _found(row: Row) -> tuple[Accepted, str]:
    task_id, key, label, phase, workspace, model, thinking, spec = row
    asked = json.loads(spec)
    context = Context(asked.get("context", Context.ISOLATED))
    is_spawning = phase == Phase.SPAWNING
    found = Accepted(task_id, key or "", label, False, is_spawning, workspace, model, thinking, context)
    return found, asked.get("digest", "")
