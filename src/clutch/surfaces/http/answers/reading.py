"""What is read of tasks: lists, trees, results, transcripts, why something happened."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from clutch.core.gates import Gate
from clutch.core.model import Outcome
from clutch.surfaces.http.answers.base import Answer, Moment, Money
from clutch.surfaces.http.answers.task import Task


class Summary(Answer):
    running: int
    queued: int
    waiting: int
    needs_you: int
    done: int
    failed: int
    timeout: int
    killed: int
    lost: int
    undelivered: int
    replies: int
    replies_in: list[str]
    unsent: int
    usd: Money


class Tasks(Answer):
    cursor: str
    tasks: list[Task]
    summary: Summary
    next: str | None
    stalled_after_seconds: float


class Node(Answer):
    task: Task
    nodes: list[Node]


class Tree(Answer):
    root: Node


class File(Answer):
    name: str
    bytes: int
    sha256: str


class FileContent(Answer):
    name: str
    content: str  #: base64


class Late(Answer):
    text: str
    at: Moment


class Result(Answer):
    task_id: str
    outcome: Outcome | None
    text: str | None
    value: Any
    bytes: int | None
    sha256: str | None
    truncated: bool
    generation: int
    frozen_at: Moment | None
    files: list[File]
    late: Late | None


class Waited(Answer):
    status: Literal["done", "pending", "needs_you"]
    task: Task
    result: Result | None


class Message(Answer):
    seq: int
    at: Moment
    run_id: str | None
    kind: str
    body: Any


class Messages(Answer):
    messages: list[Message]
    next: int | None


class Happened(Answer):
    seq: int
    at: Moment
    actor: str | None
    event: str
    from_: str = Field(alias="from")
    to: str
    reason: str | None
    text: str
    late: bool


class Tried(Answer):
    path: str
    left: str | None


class Attempt(Answer):
    key: str
    to_session: str | None
    to_depth: int | None
    why: str | None
    route_mode: str | None
    tried: list[Tried]
    path: str | None
    attempt: int
    at: Moment | None
    next_at: Moment | None
    outcome: str | None
    reason: str | None
    run_id: str | None
    transcript_seq: int | None


class Stuck(Answer):
    gate: Gate
    since: Moment | None
    waiting_for: list[str]
    opens_when: str
    command: str | None


class Why(Answer):
    task: Task
    timeline: list[Happened]
    deliveries: list[Attempt]
    stuck: Stuck | None
    text: str


class Step(Answer):
    n: int
    at: Moment | None
    kind: str
    seq: int | None
    run_id: str | None
    text: str
    detail: dict[str, Any]


class Journal(Answer):
    steps: list[Step]
    next: int | None
