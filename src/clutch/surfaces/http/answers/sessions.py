"""Sessions, and what is said to and by a main one."""

from __future__ import annotations

from typing import Literal

from clutch.surfaces.http.answers.base import Answer, Moment
from clutch.surfaces.http.answers.task import Task


class Session(Answer):
    session_key: str
    kind: str
    agent_id: str
    depth: int
    last_progress_at: Moment | None
    task: Task | None


class Sessions(Answer):
    sessions: list[Session]


class Deleted(Answer):
    status: Literal["archived", "deleted"]
    session_key: str


class Letter(Answer):
    letter_id: str


class NextWords(Answer):
    id: int | None
    reply: str | None
    quiet: bool


class Halted(Answer):
    stopped: bool


class CommandText(Answer):
    text: str


class Notified(Answer):
    is_new: bool


class Woken(Answer):
    status: Literal["accepted"]


class Settled(Answer):
    settled: bool
