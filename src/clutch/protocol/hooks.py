"""What hooks are told, written into the outbox in the transaction in which it happens; nothing where nobody listens.

The key of a row is the fact it tells, so a fact is told once, however often it is found, and a hook that hears it
twice after a crash can know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from clutch.core import keys, routes
from clutch.core.hooks import Hook, Removal
from clutch.core.model import Task
from clutch.core.policy import Policy
from clutch.protocol import outbox
from clutch.store.door import Tx

CHANNEL = "hook"


def ended(now: float, task: Task, reason: str) -> Tx[None]:
    rows = yield (
        "SELECT s.key, r.key, s.route, s.bound, (SELECT MAX(n.id) FROM runs n WHERE n.session_id = t.id) FROM tasks t"
        " LEFT JOIN sessions s ON s.id = t.id LEFT JOIN sessions r ON r.id = t.requester_id WHERE t.id = ?",
        (task.id,),
    )
    session, requester, route, bound, run = rows[0]
    told = {
        "task": keys.task_id(task.id),
        "generation": task.generation,
        "run": None if run is None else keys.run_id(run),
        "session": session,
        "requester": requester,
        "reason": reason,
        "outcome": task.outcome,
        "error": task.error,
        "endedAt": _moment(task.ended_at),
        "account": routes.from_text(route).account if route else None,
        "sendFarewell": bool(bound),
    }
    yield from _post(now, task.id, Hook.ENDED, f"{task.id}:{task.generation}", told)


def never_began(now: float, policy: Policy, task_id: int, session_key: str, why: str) -> Tx[None]:
    """A thread was made for a spawn that was undone: whoever keeps it should let it go."""
    if Hook.ENDED in policy.hooks:
        told = {
            "task": keys.task_id(task_id),
            "generation": 1,
            "run": None,
            "session": session_key,
            "requester": None,
            "reason": "spawn-failed",
            "outcome": "error",
            "error": why,
            "endedAt": _moment(now),
            "account": None,
            "sendFarewell": False,
        }
        yield from _post(now, task_id, Hook.ENDED, f"{task_id}:1", told)


def spawned(now: float, policy: Policy, task_ids: Sequence[int]) -> Tx[None]:
    if Hook.SPAWNED not in policy.hooks:
        return
    rows = yield (
        "SELECT t.id, s.key, r.key, s.agent_id, t.label, t.depth FROM tasks t JOIN sessions s ON s.id = t.id"
        " JOIN sessions r ON r.id = t.requester_id WHERE t.id {any} ORDER BY t.id",
        (list(task_ids),),
    )
    for task_id, session, requester, agent_id, label, depth in rows:
        told = {
            "task": keys.task_id(task_id),
            "session": session,
            "requester": requester,
            "agentId": agent_id,
            "label": label,
            "depth": depth,
        }
        yield from _post(now, task_id, Hook.SPAWNED, f"{task_id}", told)


def removed(
    now: float, policy: Policy, task_id: int, session_key: str, reason: Removal, workspace: str | None
) -> Tx[None]:
    """For memory systems: what they know of this session has no source any more."""
    if Hook.REMOVED in policy.hooks:
        told = {
            "session": session_key,
            "task": keys.task_id(task_id),
            "reason": reason,
            "workspace": workspace,
        }
        yield from _post(now, task_id, Hook.REMOVED, f"{task_id}", told)


def needs_me(now: float, policy: Policy, session_id: int, kind: str, fact: str) -> Tx[None]:
    """Somebody waits for a person. `fact`: tells one question of this session from the next."""
    if Hook.NEEDS_ME not in policy.hooks:
        return
    rows = yield (
        "SELECT s.key, s.is_task, t.label FROM sessions s LEFT JOIN tasks t ON t.id = s.id WHERE s.id = ?",
        (session_id,),
    )
    key, is_task, label = rows[0] if rows else (None, 0, None)  # the house has no session
    told = {
        "task": keys.task_id(session_id) if is_task else None,
        "session": key,
        "label": label,
        "kind": kind,
        "command": "clutch inbox",
    }
    yield from _post(now, session_id, Hook.NEEDS_ME, f"{session_id}:{fact}", told)


def _post(now: float, task_id: int, hook: Hook, fact: str, told: Mapping[str, Any]) -> Tx[None]:
    body = json.dumps(told, ensure_ascii=False)
    yield from outbox.post(now, task_id, f"hook:{hook}:{fact}", f"{CHANNEL}:{hook}", body)


def _moment(at: float | None) -> str | None:
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
