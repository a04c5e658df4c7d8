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


def info(now: float, task_id: int) -> Tx[Info | None]:
    view = yield from views.one(now, task_id)
    if view is None:
        return None
    rows = yield (
        "SELECT t.task, t.spec, s.thinking, s.workspace, t.archived_at, t.result, t.result_sha,"
        " (SELECT MIN(e.at) FROM events e WHERE e.task_id = t.id AND e.to_phase = ?),"
        " (SELECT p.label FROM tasks p WHERE p.id = t.requester_id)"
        " FROM tasks t LEFT JOIN sessions s ON s.id = t.id WHERE t.id = ?",
        (Phase.QUEUED.value, task_id),
    )
    task, spec, thinking, workspace, archived_at, result, sha, queued_at, label = rows[0]
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
        None,
        None if result is None else len(result.encode()),
        sha,
        tuple((name, size) for name, size, _ in asked.get("attachments", ())),
    )
    return Info(view, contract)
