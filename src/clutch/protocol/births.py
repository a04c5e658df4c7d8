"""The rows of new children: session, task, timeline, first letter. What stands in them was decided in `children`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

from clutch.core import admission, authority, wording
from clutch.core.admission import Context, SpawnRequest
from clutch.core.budget import PurseKind
from clutch.core.model import Lane, LetterKind, Task, Workspace
from clutch.core.policy import Policy
from clutch.protocol import census, context, hooks, hops, task_rows, usage
from clutch.protocol.children import Child
from clutch.protocol.sessions import ParentRow
from clutch.store.door import HINT, Many, Row, Tx

_INSERT_SESSION = (
    "INSERT INTO sessions(id, key, agent_id, parent_id, root_id, depth, lane, role, is_task, rights, route, model,"
    " thinking, workspace, purses, due, created_at) VALUES(?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_INSERT_TASK = (
    f"INSERT INTO tasks({task_rows.COLUMNS}, root_id, depth, spawn_order, idem, label, task, spec, created_at)"
    f" VALUES({', '.join('?' * 32)})"
)
_INSERT_LETTER = (
    "INSERT INTO inbox(session_id, idem, kind, silent, body, route, at, ready_at, seen)"
    " VALUES(?, ?, ?, 0, ?, '', ?, ?, 1)"
)


def insert(now: float, policy: Policy, parent: ParentRow, children: Sequence[Child]) -> Tx[None]:
    evicted = max(child.admitted.evict for child in children)
    if evicted:
        yield from census.evict(parent.id, evicted)
    purses = yield from _purses(parent, children)
    yield _INSERT_SESSION, Many(_session_row(now, parent, child, purses[child.key]) for child in children)
    yield _INSERT_TASK, Many(_task_row(now, parent, child) for child in children)
    yield task_rows.INSERT_EVENT, Many(row for child in children for row in _event_rows(now, child))
    queued = [child for child in children if not child.order.request.has_side_work]
    yield _INSERT_LETTER, Many(_letter_row(now, child) for child in queued)
    for child in children:
        if child.forked is not None:
            yield from context.fork(now, child.order.child_id, child.forked)
    if policy.hooks:
        yield from hooks.spawned(now, policy, [child.order.child_id for child in queued])
    yield HINT, ("due", now)


def _purses(parent: ParentRow, children: Sequence[Child]) -> Tx[dict[str, str]]:
    """The budgets each draws on: its parent's, and its own if it has one."""
    drawn = {child.key: parent.purses for child in children}
    for child in children:
        if child.purse is not None:
            own = yield from usage.open_purse(PurseKind.TASK, child.order.child_id, *child.purse)
            drawn[child.key] = f"{parent.purses} {own}".strip()
    return drawn


def _session_row(now: float, parent: ParentRow, child: Child, purses: str) -> Row:
    """With side work to do it is not due: `preparing.ready` makes it so."""
    request = child.order.request
    return (
        child.order.child_id, child.key, child.admitted.agent_id, parent.id, parent.root_id, child.admitted.depth,
        Lane.SUBAGENT.value, child.rights.role.value, authority.to_text(child.rights), parent.captured_route,
        child.terms.model, child.terms.thinking, child.terms.directory, purses,
        None if request.has_side_work else now, now,
    )  # fmt: skip


def _task_row(now: float, parent: ParentRow, child: Child) -> Row:
    return (*task_rows.to_row(child.born.task), *_contract(now, parent, child))


def _contract(now: float, parent: ParentRow, child: Child) -> Row:
    request = child.order.request
    order = parent.head * 1000 + child.order.place
    return (
        parent.root_id, child.admitted.depth, order, child.order.idem, child.admitted.label, request.task,
        _spec(child), now,
    )  # fmt: skip


def _spec(child: Child) -> str:
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


@lru_cache(maxsize=1024)  # the children of a fan-out differ in their task, which is no part of it
def _spec_text(known: tuple[tuple[str, object], ...]) -> str:
    return json.dumps(dict(known))


def _listed(request: SpawnRequest) -> tuple[tuple[str, int, str], ...]:
    files = (file.stored for file in request.attachments)
    return tuple((file.name, file.bytes, file.sha256) for file in files)


def _event_rows(now: float, child: Child) -> list[Row]:
    born = child.born
    return task_rows.event_rows(now, Task(born.task.id, born.task.requester_id), born.moves, "clutch")


def _letter_row(now: float, child: Child) -> Row:
    child_id, request = child.order.child_id, child.order.request
    first = wording.first_message(request.task, child.admitted.depth, child.rights.depth_max)
    return child_id, f"task:{child_id}", LetterKind.TASK.value, first, now, now
