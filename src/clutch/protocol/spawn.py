"""Spawn: count (`census`), decide (`children`) and insert (`births`) in one transaction, root and parent locked.

All spawn calls of one model answer come in one transaction, in the order of the answer, each admitted
or refused on its own. The key of a call makes a repeated one find its task instead of a twin.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from clutch.core import admission, authority, choosing, keys
from clutch.core.admission import Context, Refused
from clutch.core.model import Phase
from clutch.core.policy import Policy
from clutch.protocol import births, census, sessions
from clutch.protocol.children import Child, Order, decide
from clutch.protocol.sessions import Stale
from clutch.store.door import Tx

__all__ = ["NOT_FORKED", "Accepted", "Order", "rights_text", "spawn"]

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
    children: list[Child] = []
    for order in orders:
        if order.idem in known:
            answers.append(_same(order, *known[order.idem]))
            continue
        verdict: admission.Admitted | Child | Refused
        verdict = admission.admit(order.request, admission.counting(counted, len(children)), limits)
        if isinstance(verdict, admission.Admitted):
            verdict = yield from decide(now, policy, parent, order, verdict)
        if isinstance(verdict, Refused):
            answers.append(verdict)
            continue
        answers.append(accepted := _accepted(verdict))
        if not order.request.dry_run:
            children.append(verdict)
            if order.request.digest:  # somebody may use a key twice in one answer
                known[order.idem] = (accepted._replace(is_new=False), order.request.digest)
    if children:
        yield from births.insert(now, policy, parent, children)
    return answers


def _same(order: Order, found: Accepted, digest: str) -> Accepted | Refused:
    """The task of this key; a key that meant something else is a mistake and not an answer."""
    if order.request.digest == digest:
        return found
    error = (
        f"idempotencyKey: it was used for {keys.task_id(found.task_id)}, which was asked for in other words"
    )
    return Refused(error, is_conflict=True)


def _accepted(child: Child) -> Accepted:
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


def rights_text(rights: authority.Rights) -> str:
    return authority.to_text(rights)
