"""What the paths answer, as models: what an OpenAPI document and the tools of MCP promise.

No answer is made from them: `api/objects.py` does that, for everybody. Real answers are held against them in the
tests. Fields may be added, so what is not named here is no error to a reader."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from clutch.core.diagnosis import Gate
from clutch.core.model import Delivery, Outcome, Path, Phase, Thinking
from clutch.core.spawn import Context, Mode

# --------------------------------------------------------------------------------------------------
# What all answers have in common, and the one that says what is wrong.

Money = str | None  #: a decimal; null = not known
Moment = str  #: RFC 3339, UTC


class Answer(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)


class Said(Answer):
    code: str
    message: str
    field: str | None = None
    rule: str | None = None
    remedy: str | None = None
    candidates: list[str] = []
    retry_after_seconds: float | None = None


class ProblemAnswer(Answer):
    error: Said


# --------------------------------------------------------------------------------------------------
# One task, in full.


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


# --------------------------------------------------------------------------------------------------
# As OpenAI's clients read it.


class Theirs(Answer):
    model_config = ConfigDict(alias_generator=None)


class Model(Theirs):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class Models(Theirs):
    object: Literal["list"]
    data: list[Model]


class Spoken(Theirs):
    role: Literal["assistant"]
    content: str


class Choice(Theirs):
    index: int
    message: Spoken
    finish_reason: Literal["stop"]


class CachedTokens(Theirs):
    cached_tokens: int


class CompletionUsage(Theirs):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class Completion(Theirs):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: CompletionUsage | None


# --------------------------------------------------------------------------------------------------
# What is read of tasks: lists, trees, results, transcripts, why something happened.


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


class Unsent(Answer):
    """A message to a channel that is not sent again by itself."""

    id: str
    key: str
    session_key: str | None
    task_id: str | None
    channel: str
    target: str
    text: str
    outcome: Literal["failed", "refused", "unsure"]
    error: str
    attempts: int
    tried_at: Moment | None


class Why(Answer):
    task: Task
    timeline: list[Happened]
    deliveries: list[Attempt]
    stuck: Stuck | None
    messages: list[Unsent]
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


# --------------------------------------------------------------------------------------------------
# The gateway itself: its agents, its spending, its health, its end, who is let in, its document.


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


class HealthNotice(Answer):
    subject: str = Field(
        description="Stable name of what it is about: `config-loaded`, `mcp NAME`, `import-path`, `planted-file`,"
        " `unread-instructions`."
    )
    detail: str = Field(description="What is wrong, in one sentence.")
    remedy: str = Field(description="What the operator can do about it.")
    is_error: bool = Field(description="False: everything works, and the setting is probably a mistake.")


class Health(Answer):
    status: Literal["ok", "draining"]
    version: str
    schema_: int = Field(alias="schema")
    database: Literal["sqlite", "postgresql"]
    workers: int
    running: int
    queued: int
    undelivered: int
    problems: list[HealthNotice] = Field(
        description="What the gateway knows to be wrong now: a config file that is not loaded (`config-loaded`),"
        " MCP servers that do not start. Empty: nothing."
    )


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


# --------------------------------------------------------------------------------------------------
# Sessions, and what is said to and by a main one.


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


# --------------------------------------------------------------------------------------------------
# What is said to whoever acts on a task or answers a question.


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
    still_stopping: list[NotStopped]
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
    unsent: list[Unsent]


class MessageDecided(Answer):
    """What becomes of a message that was not sent, or may not have arrived."""

    status: Literal["sending", "dismissed"]
    id: str


class Answered(Answer):
    status: Literal["answered", "approved", "revising", "ended"]
    task_id: str | None


__all__ = [
    "Agents", "Answer", "Answered", "Changed", "Code", "CommandText", "Completion", "Decided", "Deleted",
    "Document", "Ending", "FileContent", "Halted", "Health", "Inbox", "Journal", "Killed", "LetIn",
    "Letter", "MessageDecided", "Messages", "Model", "Models", "NextWords", "Notified", "ProblemAnswer", "Result",
    "Sent",
    "Sessions", "Settled", "SpawnRefused", "Spawned", "Spending", "Steered", "Swept", "Task", "Tasks",
    "Tree", "Waited", "Why", "Woken",
]  # fmt: skip
