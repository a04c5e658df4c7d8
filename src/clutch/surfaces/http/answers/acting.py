"""What is said to whoever acts on a task or answers a question."""

from __future__ import annotations

from typing import Any, Literal

from clutch.core.admission import Context, Mode
from clutch.core.model import Thinking
from clutch.surfaces.http.answers.base import Answer, Moment


class Spawned(Answer):
    status: Literal["accepted"]
    task_id: str | None
    run_id: str | None
    child_session_key: str | None
    label: str
    mode: Mode
    model: str | None
    thinking: Thinking | None
    context: Context
    note: str
    warnings: list[str]


class SpawnRefused(Answer):
    status: Literal["forbidden", "error"]
    error: str
    code: str | None = None
    field: str | None = None
    limit: dict[str, Any] | None = None


class NotStopped(Answer):
    task_id: str
    why: str


class Killed(Answer):
    stopped: list[str]
    already_finished: list[str]
    not_stopped: list[NotStopped]


class Steered(Answer):
    status: Literal["accepted"]
    task_id: str
    run_id: str | None
    supersedes: str | None


class Sent(Answer):
    status: Literal["ok", "accepted", "timeout"]
    reply: str | None = None


class Changed(Answer):
    changed: list[str]


class Decided(Answer):
    status: Literal["approved", "revising", "ended"]
    task_id: str
    run_id: str | None
    round: int


class Item(Answer):
    id: str
    kind: str
    task_id: str | None
    session_key: str | None
    label: str | None
    depth: int
    text: str
    detail: dict[str, Any]
    hash: str
    asked_at: Moment


class Inbox(Answer):
    items: list[Item]
    replies: int
    replies_in: list[str]


class Answered(Answer):
    status: Literal["answered", "approved", "revising", "ended"]
    task_id: str | None
