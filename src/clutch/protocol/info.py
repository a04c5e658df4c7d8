"""Everything about one task: what was asked for at spawn, and what came of it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from clutch.core import keys
from clutch.core.model import Phase
from clutch.core.task_view import TaskView
from clutch.core.wording.lists import Contract
from clutch.protocol import views
from clutch.store.door import Tx


@dataclass(frozen=True, slots=True)
class Info:
    view: TaskView
    contract: Contract


def info(now: float, task_id: int, archive_after_s: float = 0.0) -> Tx[Info | None]:
    """`archive_after_s`: as the policy has it; 0 = what is over is never archived."""
    view = yield from views.one(now, task_id)
    if view is None:
        return None
    rows = yield (
        "SELECT t.task, t.spec, t.expects_completion, s.thinking, s.workspace, t.archived_at, t.result, t.result_sha,"
        " (SELECT MIN(e.at) FROM events e WHERE e.task_id = t.id AND e.to_phase = ?),"
        " (SELECT p.label FROM tasks p WHERE p.id = t.requester_id)"
        " FROM tasks t LEFT JOIN sessions s ON s.id = t.id WHERE t.id = ?",
        (Phase.QUEUED.value, task_id),
    )
    task, spec, is_awaited, thinking, workspace, archived_at, result, sha, queued_at, label = rows[0]
    asked = json.loads(spec) if spec else {}
    named = f"{label} ({keys.task_id(view.requester_id)})" if label else view.requester_key or "(deleted)"
    contract = Contract(
        task,
        named,
        thinking,
        asked.get("mode", "run"),
        asked.get("cleanup", "keep"),
        workspace,
        queued_at,
        archived_at,
        _archive_at(view, 0.0 if asked.get("mode") == "session" else archive_after_s),
        None if result is None else len(result.encode()),
        sha,
        tuple((name, size) for name, size, _ in asked.get("attachments", ())),
        asked.get("context") or "isolated",
        bool(is_awaited),
    )
    return Info(view, contract)


def _archive_at(view: TaskView, after_s: float) -> float | None:
    """Nothing that runs, could not be told or stays for follow-ups is archived."""
    is_told = view.phase is Phase.COMPLETED and view.ended_at is not None
    return (view.ended_at or 0.0) + after_s if is_told and after_s else None
