"""The needs-you inbox: questions of runs, plans that await approval and tools that changed, from any depth, oldest
first. Reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clutch.core import keys
from clutch.core.keys import plan_hash
from clutch.core.pins import HOUSE
from clutch.protocol.conditions import IS_UNTOLD
from clutch.store.door import Tx

PLAN = "plan"


@dataclass(frozen=True, slots=True)
class Item:
    """`hash` binds the decision to exactly what is shown. A main session asks without a task, the house without a
    session."""

    id: str
    kind: str
    task_id: int | None
    session_key: str | None
    label: str | None
    depth: int
    text: str
    detail: Mapping[str, Any]
    hash: str
    asked_at: float


def waiting(now: float, root_id: int | None = None) -> Tx[list[Item]]:
    """`root_id`: only of that main session and what is below it."""
    del now
    of_one, values = ("", ()) if root_id is None else (" AND s.root_id = ?", (root_id,))
    asked = yield (
        "SELECT q.session_id, q.id, q.kind, t.id, s.key, t.label, s.depth, q.body, q.hash, q.asked_at FROM questions q"  # noqa: S608
        " LEFT JOIN sessions s ON s.id = q.session_id LEFT JOIN tasks t ON t.id = q.session_id"
        f" WHERE q.answered_at IS NULL{of_one}",
        values,
    )
    plans = yield (
        "SELECT t.id, s.key, t.label, t.depth, t.result,"  # noqa: S608 (constant words)
        " (SELECT MAX(e.at) FROM events e WHERE e.task_id = t.id AND e.to_phase = 'awaiting_approval')"
        f" FROM tasks t JOIN sessions s ON s.id = t.id WHERE t.phase = 'awaiting_approval' AND {IS_UNTOLD}"
        f"{of_one}",
        values,
    )
    items = [_question(*row) for row in asked] + [_plan(*row) for row in plans]
    return sorted(items, key=lambda item: (item.asked_at, item.id))


def is_asking(now: float, session_ids: Sequence[int]) -> Tx[bool]:
    """Whether any of them waits for a decision right now. One that was answered may not have moved yet."""
    del now
    asked = yield (
        "SELECT 1 FROM questions WHERE session_id {any} AND answered_at IS NULL LIMIT 1",
        (list(session_ids),),
    )
    plans = yield (
        "SELECT 1 FROM tasks WHERE id {any} AND phase = 'awaiting_approval' LIMIT 1",
        (list(session_ids),),
    )
    return bool(asked or plans)


def _question(
    session_id: int,
    number: int,
    kind: str,
    task_id: int | None,
    key: str | None,
    label: str | None,
    depth: int | None,
    body: str,
    *rest: Any,
) -> Item:
    detail = json.loads(body)
    who = f"MCP server {detail['mcpServer']}" if session_id == HOUSE else label
    return Item(keys.question_id(number), kind, task_id, key, who, depth or 0, _words(detail), detail, *rest)


def _words(detail: Mapping[str, Any]) -> str:
    """Of a call that needs approval its name and arguments, else what was asked."""
    if "tool" in detail:
        return f"{detail['tool']} {json.dumps(detail['args'], ensure_ascii=True, sort_keys=True)}"
    return str(detail.get("question") or detail.get("text") or "")


def _plan(task_id: int, key: str, label: str, depth: int, plan: str | None, asked_at: float | None) -> Item:
    text = plan or ""
    return Item(
        keys.task_id(task_id), PLAN, task_id, key, label, depth, text, {}, plan_hash(text), asked_at or 0.0
    )
