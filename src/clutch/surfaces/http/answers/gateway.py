"""The gateway itself: its agents, its spending, its health, its end, who is let in, its document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from clutch.core.model import Phase
from clutch.surfaces.http.answers.base import Answer
from clutch.surfaces.http.answers.task import Use


class AgentAnswer(Answer):
    agent_id: str
    model: str
    workspace: str | None


class Agents(Answer):
    agents: list[AgentAnswer]


class NamedUse(Use):
    name: str


class Spending(Answer):
    by: Literal["root", "agent", "model", "day"]
    usage: list[NamedUse]


class Health(Answer):
    status: Literal["ok", "draining"]
    version: str
    schema_: int = Field(alias="schema")
    database: Literal["sqlite", "postgresql"]
    workers: int
    running: int
    queued: int
    undelivered: int


class Swept(Answer):
    dry_run: bool
    archived: list[str]
    forgotten: list[str]
    transcript_bytes: int


class WaitedFor(Answer):
    task_id: str | None
    session_key: str
    label: str | None
    phase: Phase | None


class Ending(Answer):
    status: Literal["stopping", "draining"]
    pid: int
    waiting_for: list[WaitedFor] = Field(default=[])


class Code(Answer):
    code: str
    expires_in_seconds: float


class LetIn(Answer):
    status: Literal["open"]
    expires_in_seconds: float


class Document(Answer):
    """This one."""

    openapi: str
    paths: dict[str, Any]
    components: dict[str, Any]
