"""One task, in full."""

from __future__ import annotations

from clutch.core.model import Delivery, Outcome, Path, Phase
from clutch.surfaces.http.answers.base import Answer, Moment, Money


class Use(Answer):
    input: int
    output: int
    cache_read: int
    cache_write: int
    calls: int
    usd: Money
    unpriced_calls: int


class Uses(Answer):
    own: Use
    subtree: Use


class Tool(Answer):
    name: str
    arg: str | None
    since: Moment | None


class Sum(Answer):
    tokens: int | None
    usd: Money


class BudgetAnswer(Answer):
    tokens: int | None
    usd: Money
    spent: Sum
    reserved: Sum


class DeliveryAnswer(Answer):
    state: Delivery
    path: Path | None
    reason: str | None
    attempts: int
    next_at: Moment | None
    at: Moment | None


class Plan(Answer):
    state: str
    hash: str | None
    round: int


class EvidenceAnswer(Answer):
    tool_calls: int
    files_touched: list[str]
    children_joined: int
    children_missing: list[str]
    stop_reason: str | None


class Children(Answer):
    active: int
    total: int


class Task(Answer):
    task_id: str
    run_id: str | None
    session_key: str | None
    requester_key: str | None
    root_key: str | None
    parent_task_id: str | None
    depth: int
    role: str | None
    agent_id: str | None
    label: str
    phase: Phase
    reason: str | None
    outcome: Outcome | None
    error: str | None
    model_requested: str | None
    model: str | None
    generation: int
    attempt: int
    step: int
    resumes: int
    current_tool: Tool | None
    created_at: Moment
    started_at: Moment | None
    ended_at: Moment | None
    last_progress_at: Moment | None
    deadline_at: Moment | None
    paused_until: Moment | None
    usage: Uses
    budget: BudgetAnswer | None
    delivery: DeliveryAnswer
    plan: Plan | None
    evidence: EvidenceAnswer | None
    worker_id: str | None
    children: Children
