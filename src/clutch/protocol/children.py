"""One child: what it may do, where it works, what it may spend, what it begins with. Nothing is written here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

from clutch.core import admission, authority, budget, choosing, context, keys, messages
from clutch.core.admission import Context, Refused, SpawnRequest
from clutch.core.choosing import Spawner, Terms
from clutch.core.events import Admitted, Reserved
from clutch.core.lifecycle import Step, step
from clutch.core.messages import Message
from clutch.core.model import Plan, SessionId, Task, TaskId, Thinking, Workspace
from clutch.core.policy import Policy
from clutch.protocol import hops, usage
from clutch.protocol.sessions import ParentRow
from clutch.store.door import Tx


@dataclass(frozen=True, slots=True)
class Order:
    """One wanted child. Ids come from outside, so that a transaction that runs again makes the same ones."""

    idem: str
    child_id: int
    uuid: str
    request: SpawnRequest
    place: int  #: among the calls of its answer


class Child(NamedTuple):
    """All that is decided about one, before anything is written."""

    order: Order
    admitted: admission.Admitted
    key: str
    rights: authority.Rights
    terms: Terms
    born: Step
    forked: Sequence[Message] | None = None  #: what its transcript begins with
    purse: tuple[int | None, Decimal | None] | None = None  #: limits of a budget of its own
    hops: tuple[int, ...] = ()  #: of the talk between agents in which it was asked for


def decide(
    now: float, policy: Policy, parent: ParentRow, order: Order, admitted: admission.Admitted
) -> Tx[Child | Refused]:
    request, agent_id = order.request, admitted.agent_id
    asked = authority.Request(
        request.tools, sandbox=request.needs_sandbox, read_only=parent.plan == Plan.DRAFTING
    )
    rights = _given(parent.rights, policy.grant(agent_id), policy.tools, asked)
    if isinstance(rights, authority.NoSandbox):
        return Refused(rights.reason, {"key": "sandbox"})
    caller = Spawner(parent.agent_id, parent.model, _thinking(parent.thinking), parent.workspace)
    terms = choosing.terms(request, agent_id, caller, policy)
    refused = _refused(request, agent_id, rights, terms, policy)
    if refused is not None:
        return refused
    key = str(keys.subagent_key(agent_id, order.uuid))
    event = Reserved(now) if request.has_side_work else Admitted(now)
    born = step(_task(parent, order), event, policy)
    return (yield from _equipped(policy, parent, Child(order, admitted, key, rights, terms, born)))


def _refused(
    request: SpawnRequest, agent_id: str, rights: authority.Rights, terms: Terms, policy: Policy
) -> Refused | None:
    if rights.read_only and request.runtime != admission.OWN_RUNTIME:
        return Refused(
            f"runtime: {request.runtime[:64]!r} keeps to no filter of tools, and a plan is made without"
        )
    if request.workspace is Workspace.ISOLATED and policy.agent(agent_id).sandbox is False:
        return Refused(
            f"workspace: isolated needs walls, and agent {agent_id!r} works without", {"key": "sandbox"}
        )
    if not rights.permits_model(terms.model):
        return Refused(
            f"model {terms.model[:80]!r} is not among those allowed here", {"key": "agents.list[].models"}
        )
    return None


def _task(parent: ParentRow, order: Order) -> Task:
    request = order.request
    return Task(
        id=TaskId(order.child_id),
        requester_id=SessionId(parent.id),
        timeout_s=request.run_timeout_s or 0.0,
        expects_completion=request.expects_completion,
        has_cleanup=_has_cleanup(request),
        plan=Plan.DRAFTING if request.plan_mode else Plan.NONE,
        stays=request.mode is admission.Mode.SESSION,
    )


def _has_cleanup(request: SpawnRequest) -> bool:
    """What was given to a session that stays is needed after the end of its task, too."""
    is_read_later = request.mode is admission.Mode.SESSION
    return request.cleanup is admission.Cleanup.DELETE or (bool(request.attachments) and not is_read_later)


def _equipped(policy: Policy, parent: ParentRow, child: Child) -> Tx[Child | Refused]:
    """With what the store must be asked for, which is asked only where it matters."""
    request = child.order.request
    if parent.purses or request.budget is not None:
        purse = yield from _purse(parent, request)
        if isinstance(purse, Refused):
            return purse
        child = child._replace(purse=purse)
    if policy.peers.enabled:
        child = child._replace(hops=(yield from hops.of_run(parent)))
    if request.context is Context.FORK:
        child = child._replace(forked=(yield from _forked(policy, parent, child.admitted.agent_id)))
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
