"""What `Task.info` and `Task.why` return: the JSON objects of `api/objects.py` as frozen dataclasses.

Times are aware datetimes in UTC, money is a Decimal, and an unknown value is None. A field is called
as in JSON, in Python's spelling, unless its metadata names another one."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from clutch.api.actions import camel
from clutch.core.checks import CheckState
from clutch.core.fair_share import Priority
from clutch.core.model import DeliveryStatus, Outcome, TaskStatus

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Model calls, their tokens and what they cost. `usd` is None if no call has a price."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    calls: int
    usd: Decimal | None
    unpriced_calls: int


@dataclass(frozen=True, slots=True)
class TaskUsage:
    """What a task has used itself, and together with all tasks below it."""

    own: TokenCount
    subtree: TokenCount


@dataclass(frozen=True, slots=True)
class RunningTool:
    """The tool call that a task makes now."""

    name: str
    arg: str | None
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Expense:
    """Tokens and dollars; None: there is no limit of this kind."""

    tokens: int | None
    usd: Decimal | None


@dataclass(frozen=True, slots=True)
class BudgetInfo:
    """The limits of a task and all tasks below it, what is spent, and what calls under way have reserved."""

    tokens: int | None
    usd: Decimal | None
    spent: Expense
    reserved: Expense


@dataclass(frozen=True, slots=True)
class DeliveryInfo:
    """Where the result is on its way to the parent agent. `text` is the status with its reason, as people read it."""

    status: DeliveryStatus | None  #: None before there is a result
    text: str  #: "delivered", "skipped (not requested; the caller reads it)"; empty before there is a result
    state: str  #: the stored state, finer than `status`
    path: str | None
    reason: str | None
    attempts: int
    next_at: datetime | None
    at: datetime | None


@dataclass(frozen=True, slots=True)
class PlanInfo:
    """The plan of a task in plan mode. `hash` is what `Task.approve` needs."""

    state: str
    hash: str | None
    round: int


@dataclass(frozen=True, slots=True)
class WorkEvidence:
    """What a finished run has done."""

    tool_calls: int
    files_touched: tuple[str, ...]
    children_joined: int
    children_missing: tuple[str, ...]
    stop_reason: str | None


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """One check of a result."""

    name: str
    state: CheckState
    detail: str | None  #: what is wrong


@dataclass(frozen=True, slots=True)
class CheckInfo:
    """How the checks of the present result came out. `text` is what every surface shows: "checked 4/4"."""

    passed: int
    total: int
    text: str
    results: tuple[CheckOutcome, ...]


@dataclass(frozen=True, slots=True)
class ChildCount:
    """The direct children of a task."""

    active: int
    total: int


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """A task as every surface shows it, at one moment."""

    task_id: str
    label: str
    status: TaskStatus  #: "running", "needs approval", "done" …: the state that every surface shows
    doing_now: str  #: one line, never empty: "thinking · step 4", "waiting for 3 of 8 subagents", the error
    doing_since: datetime | None
    group: str  #: who has to act: "needs attention", "active", "undelivered", "finished"
    activity: str | None  #: "queued", "thinking", "tool" …; None when it does nothing any more
    outcome: Outcome | None  #: None until the task has ended
    error: str | None
    error_text: str | None  #: the error in one line
    delivery: DeliveryInfo
    usage: TaskUsage
    budget: BudgetInfo | None
    plan: PlanInfo | None
    evidence: WorkEvidence | None
    checks: CheckInfo | None  #: None: no checks have run for this result
    children: ChildCount
    current_tool: RunningTool | None
    agent_id: str | None
    model: str | None  #: that answered
    model_requested: str | None
    share: str | None  #: None: the default share
    priority: Priority
    session_key: str | None
    requester_key: str | None  #: the session of its parent
    root_key: str | None
    parent_task_id: str | None
    depth: int
    role: str | None
    run_id: str | None
    worker_id: str | None
    phase: str  #: of the state machine, finer than `status`
    reason: str | None
    generation: int  #: the attempt at the task, from 1: retry, continue, steer and approval begin a new one
    attempt: int
    step: int
    resumes: int  #: how often it resumed after its worker was lost
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    last_progress_at: datetime | None
    deadline_at: datetime | None
    paused_until: datetime | None


# ---- why ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """One change of a task. `text` says it in a sentence."""

    seq: int
    at: datetime
    actor: str | None
    event: str
    before: str = field(metadata={"json": "from"})  #: its phase before and after
    after: str = field(metadata={"json": "to"})
    reason: str | None
    text: str
    late: bool


@dataclass(frozen=True, slots=True)
class SkippedPath:
    """A way to deliver that was not taken, and why."""

    path: str
    left: str | None


@dataclass(frozen=True, slots=True)
class DeliveryTry:
    """One attempt to deliver the result, or the decision to defer or skip it."""

    key: str
    to_session: str | None
    to_depth: int | None
    why: str | None
    route_mode: str | None
    tried: tuple[SkippedPath, ...]
    path: str | None
    attempt: int
    at: datetime | None
    next_at: datetime | None
    outcome: str | None
    reason: str | None
    run_id: str | None
    transcript_seq: int | None


@dataclass(frozen=True, slots=True)
class BlockedOn:
    """What blocks a task or its result, and what to type about it."""

    reason: str = field(
        metadata={"json": "gate"}
    )  #: a fixed word: "lane-full", "descendants-active", "needs-you" …
    text: str  #: what blocks it and what unblocks it, in words
    since: datetime | None
    waiting_for: tuple[str, ...]
    unblocks_when: str = field(metadata={"json": "opensWhen"})
    command: str | None


@dataclass(frozen=True, slots=True)
class UnsentNotice:
    """A message to a channel that was not sent or may not have arrived, and is not sent again by itself."""

    id: str
    key: str
    session_key: str | None
    task_id: str | None
    channel: str
    target: str
    text: str
    outcome: str
    error: str
    attempts: int
    tried_at: datetime | None


@dataclass(frozen=True, slots=True)
class Why:
    """How a task came to its status, and what blocks it. `text` is what `clutch why` prints."""

    task: TaskInfo
    timeline: tuple[TimelineEvent, ...]
    deliveries: tuple[DeliveryTry, ...]
    blocked_on: BlockedOn | None = field(metadata={"json": "stuck"})
    messages: tuple[UnsentNotice, ...]
    text: str


# ---- from JSON ---------------------------------------------------------------------------------------


def read_object(kind: type[T], said: Mapping[str, Any]) -> T:
    """Return a JSON object as this dataclass. Fields that the class does not have are left out."""
    return kind(
        **{name: _value(hint, said.get(key)) for name, key, hint in _fields(typing.cast("Any", kind))}
    )


@cache
def _fields(kind: Any) -> tuple[tuple[str, str, Any], ...]:
    hints = typing.get_type_hints(kind)
    return tuple(
        (one.name, one.metadata.get("json") or camel(one.name), hints[one.name]) for one in fields(kind)
    )


def _value(hint: Any, said: Any) -> Any:
    if said is None:
        return None
    if isinstance(hint, types.UnionType):
        (hint,) = (one for one in typing.get_args(hint) if one is not types.NoneType)
    if typing.get_origin(hint) is tuple:
        return tuple(_value(typing.get_args(hint)[0], one) for one in said)
    if is_dataclass(hint):
        return read_object(typing.cast("type", hint), said)
    if hint is datetime:
        return datetime.fromisoformat(said)
    return hint(said) if hint is Decimal or issubclass(hint, StrEnum) else said
