"""The session tools, as models see them, and what their arguments mean.

Every word of a schema is sent with every request of a main session, so there are few. The engine carries these tools
out: they change the store."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from clutch.core.agents import check_model
from clutch.core.attachments import Attachment, AttachmentInput, Encoding, attachments
from clutch.core.checks import CHECKS_MAX, TaskCheck
from clutch.core.fair_share import SHARE, Priority
from clutch.core.forecast import COUNT_MAX
from clutch.core.ids import ROW_NUMBER_MAX, KeyKind
from clutch.core.model import Thinking, Workspace
from clutch.core.policy import Limits
from clutch.core.schedule import ScheduleSpec
from clutch.core.session_tools import (
    ALL_CHILDREN,
    Act,
    Action,
    ChangeSchedule,
    ListAgents,
    ListSessions,
    ReadHistory,
    ScheduleAction,
    SendTo,
    SessionCall,
    ShowStatus,
)
from clutch.core.spawn import OWN_RUNTIME, BudgetRequest, CleanupPolicy, Context, Mode, SpawnRequest
from clutch.errors import InvalidInput
from clutch.ports import ToolSpec
from clutch.tools.arguments import Arguments, checked, schema_of

TEXT_CHARS_MAX = 64 * 1024
TARGET_CHARS_MAX = 300

Target = Annotated[str, Field(min_length=1, max_length=TARGET_CHARS_MAX)]
Text = Annotated[str, Field(max_length=TEXT_CHARS_MAX)]
Wait = Annotated[float, Field(ge=0, allow_inf_nan=False)]

WITH_TEXT = frozenset({Action.STEER, Action.SEND, Action.REJECT})
DECISIONS = frozenset({Action.APPROVE, Action.REJECT})


class _Camel(Arguments):
    model_config = ConfigDict(alias_generator=to_camel)


class SubagentsArguments(_Camel):
    # Not strict: arguments are JSON, where a member of an enum is a string.
    action: Action = Field(Action.LIST, strict=False)
    target: Target | None = Field(None, description="Task id, label, number in the list, last; kill: all.")
    text: Text | None = Field(None, description="Instruction, message or reason.")
    plan_hash: str | None = Field(None, max_length=64)
    timeout_seconds: Wait | None = Field(None, description="send: for a reply; 0: don't wait.")


class SendArguments(_Camel):
    session_key: Target | None = Field(None, description="Key, task id, label or main.")
    target: Target | None = Field(None, description="Another name of sessionKey.")
    label: Target | None = None
    agent_id: str | None = Field(None, description="With label.")
    message: Text
    timeout_seconds: Wait | None = Field(None, description="For a reply; 0: don't wait.")


class ListSessionsArguments(_Camel):
    kinds: list[Literal["main", "chat", "subagent"]] = Field(default_factory=list)
    limit: int | None = Field(None, ge=1)
    active_minutes: float | None = Field(None, gt=0, allow_inf_nan=False)
    message_limit: int = Field(0, ge=0, description="Last messages of each, at most 20.")


class HistoryArguments(_Camel):
    session_key: Target = Field(description="Key, task id or label.")
    limit: int | None = Field(None, ge=1)
    before: int | None = Field(None, ge=1, le=ROW_NUMBER_MAX, description="For older ones.")
    include_tools: bool = False
    result: bool = Field(False, description="Only what the task ended with.")
    offset: int = Field(0, ge=0, description="Continue a long text from this position.")


class RemoveArguments(_Camel):
    target: Target


class NoArguments(Arguments):
    """There are none."""


class StatusArguments(_Camel):
    session_key: Target | None = None


class ScheduleArguments(_Camel):
    action: ScheduleAction = Field(ScheduleAction.ADD, strict=False)
    name: str
    task: Text | None = None
    cron: str | None = Field(None, description="minute hour day month weekday")
    every_seconds: float | None = None
    at: str | None = Field(None, description="2026-12-24T18:00")
    timezone: str | None = None
    max_runs: int | None = None
    agent_id: str | None = None
    notify_parent: bool = True


def _act(said: SubagentsArguments) -> Act:
    target, text = said.target or "", (said.text or "").strip()
    if not target and said.action is not Action.LIST:
        raise InvalidInput("target", f"is required to {said.action}")
    if target == ALL_CHILDREN and said.action is not Action.KILL:
        raise InvalidInput("target", "all is for kill alone")
    if not text and said.action in WITH_TEXT:
        raise InvalidInput("text", f"is required to {said.action}")
    if not said.plan_hash and said.action in DECISIONS:
        raise InvalidInput("planHash", "is required: it stands in the message that showed you the plan")
    return Act(said.action, target, text, said.plan_hash or "", said.timeout_seconds)


def _send(said: SendArguments) -> SendTo:
    named = [one for one in (said.session_key, said.target, said.label) if one is not None]
    if len(named) != 1:
        raise InvalidInput("sessionKey", "give exactly one of sessionKey and label")
    if said.agent_id is not None and said.label is None:
        raise InvalidInput("agentId", "goes with label")
    if not said.message.strip():
        raise InvalidInput("message", "must not be blank")
    target = said.session_key if said.target is None else said.target
    return SendTo(said.message, target, said.label, said.agent_id, said.timeout_seconds)


def _list(said: ListSessionsArguments) -> ListSessions:
    active_s = None if said.active_minutes is None else 60 * said.active_minutes
    return ListSessions(tuple(KeyKind(kind) for kind in said.kinds), said.limit, active_s, said.message_limit)


def _history(said: HistoryArguments) -> ReadHistory:
    return ReadHistory(
        said.session_key, said.limit, said.before, said.include_tools, said.offset, said.result
    )


def _remove(said: RemoveArguments) -> Act:
    return Act(Action.REMOVE, said.target)


def _agents(said: NoArguments) -> ListAgents:
    del said
    return ListAgents()


def _status(said: StatusArguments) -> ShowStatus:
    return ShowStatus(said.session_key or "current")


def _schedule(said: ScheduleArguments) -> ChangeSchedule:
    """The fields of the arguments are those of `ScheduleSpec`, which says what is wrong with them."""
    given = said.model_dump(exclude={"action", "name"}, exclude_none=True)
    if said.action is not ScheduleAction.ADD:
        if others := sorted(said.model_fields_set - {"action", "name"}):
            raise InvalidInput(to_camel(others[0]), "goes with add")
        return ChangeSchedule(said.action, said.name)
    every_s = given.pop("every_seconds", None)
    return ChangeSchedule(said.action, said.name, ScheduleSpec(said.name, every_s=every_s, **given))


A = TypeVar("A", bound=Arguments)


class _SessionTool(NamedTuple):
    spec: ToolSpec
    call: Callable[[Mapping[str, Any]], SessionCall]


def _tool(
    name: str,
    description: str,
    arguments: type[A],
    call: Callable[[A], SessionCall],
    *,
    reads: bool = False,
    asks: bool = False,
) -> _SessionTool:
    """Every session tool may be called again after a crash: those that act carry the key of their call, or change
    nothing the second time. `asks`: the user approves each call."""
    spec = ToolSpec(
        name, description, schema_of(arguments), replay_safe=True, read_only=reads, needs_approval=asks
    )
    return _SessionTool(spec, lambda args: call(checked(arguments, args)))


_TOOLS = (
    _tool("subagents", "List your children, or act on one of them.", SubagentsArguments, _act),
    _tool("sessions_list", "Sessions you can see.", ListSessionsArguments, _list, reads=True),
    _tool("sessions_history", "What was said in a session.", HistoryArguments, _history, reads=True),
    _tool("sessions_send", "Write to a session and wait for its reply.", SendArguments, _send),
    _tool("sessions_subagent_remove", "Take a finished child off the list.", RemoveArguments, _remove),
    _tool("agents_list", "Agents you may spawn.", NoArguments, _agents, reads=True),
    _tool(
        "session_status",
        "Model, usage, children and schedules of a session.",
        StatusArguments,
        _status,
        reads=True,
    ),
    _tool(
        "cron", "Start a task by the clock, again and again or once.", ScheduleArguments, _schedule, asks=True
    ),
)
SPECS = tuple(tool.spec for tool in _TOOLS)
_CALLS = {tool.spec.name: tool.call for tool in _TOOLS}


def session_call(name: str, args: Mapping[str, Any]) -> SessionCall:
    """Raises InvalidInput naming the field and the rule."""
    return _CALLS[name](args)


# --------------------------------------------------------------------------------------------------
# The arguments of spawn and yield: their form, not whether they are allowed.
#
# `core.spawn` decides about limits and rights. Here arguments that a model or a client wrote become a `SpawnRequest`,
# or an `InvalidInput` that names the field and the rule.

#: Refused: a child that chose where its results go could be talked into sending them to an attacker.
DELIVERY_FIELDS = ("channel", "to", "threadId", "replyTo", "transport", "target")
SECONDS_MAX = 1e9  # about thirty years; a later deadline is no valid date
KEY_CHARS_MAX = 200
TOKENS_MAX = 10**12
USD_MAX = 10**9
SCHEMA_CHARS_MAX = 32 * 1024
#: Characters that change the direction of text, so that a label reads otherwise than it is written. Other invisible
#: characters are allowed: they hold emoji together.
TURNS_TEXT = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class SandboxRequirement(StrEnum):
    INHERIT = "inherit"
    REQUIRE = "require"


Seconds = Annotated[float, Field(ge=0, le=SECONDS_MAX, allow_inf_nan=False)]


class BudgetArguments(Arguments):
    tokens: int | None = Field(None, ge=1, le=TOKENS_MAX)
    usd: float | int | str | None = None


class AttachmentArguments(Arguments):
    name: str
    content: str
    encoding: Encoding = Field(Encoding.UTF8, strict=False)


class CheckArguments(_Camel):
    """Names and types; `TaskCheck` has the rules."""

    file: str | None = None
    min_bytes: int | None = None
    max_bytes: int | None = None
    matches: str | None = None
    command: str | None = None
    timeout_seconds: float | None = Field(None, allow_inf_nan=False)
    calls: str | None = None
    min_calls: int | None = None
    agent: str | None = None
    prompt: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    name: str | None = None


class SpawnSchema(BaseModel):
    """The schema that every request carries: names and types only. The arguments are checked as `SpawnArguments`."""

    model_config = ConfigDict(alias_generator=to_camel)

    task: str = Field(description="complete: the child sees nothing else of this talk")
    label: str | None = None
    agent_id: str | None = None
    model: str | None = None
    thinking: str | None = None
    run_timeout_seconds: float | None = None
    plan_mode: bool = False
    context: Context | None = Field(None, description="fork: with a copy of this talk")
    workspace: Workspace | None = None
    tools: list[str] | None = Field(None, description="only these")
    budget: dict[str, Any] | None = Field(None, description="{tokens, usd}")
    output_schema: dict[str, Any] | None = None
    checks: list[dict[str, Any]] | None = Field(None, description="[{file|command|calls|agent}]")
    attachments: list[dict[str, Any]] | None = Field(None, description="[{name, content}]")


class SpawnArguments(_Camel):
    """The accepted arguments; `request_of` checks the rules about bytes and characters."""

    task: str
    label: str | None = None
    agent_id: str | None = None
    model: str | None = None
    # Not strict: arguments are JSON, where a member of an enum is a string.
    thinking: Thinking | None = Field(None, strict=False)
    run_timeout_seconds: Seconds | None = None
    timeout_seconds: Seconds | None = None  # another name of run_timeout_seconds
    cleanup: CleanupPolicy = Field(CleanupPolicy.KEEP, strict=False)
    plan_mode: bool = False
    mode: Mode | None = Field(None, strict=False)
    thread: bool = False
    expects_completion: bool = True
    notify_parent: bool = True
    context: Context = Field(Context.ISOLATED, strict=False)
    workspace: Workspace | None = Field(None, strict=False)
    cwd: str | None = None
    sandbox: SandboxRequirement = Field(SandboxRequirement.INHERIT, strict=False)
    tools: list[str] | None = Field(None, max_length=100)
    budget: BudgetArguments | None = None
    output_schema: dict[str, Any] | None = None
    checks: list[CheckArguments] | None = Field(None, max_length=CHECKS_MAX)
    attachments: list[AttachmentArguments] | None = None
    runtime: str = Field(OWN_RUNTIME, min_length=1, max_length=64)
    share: str | None = None
    priority: Priority | None = Field(None, strict=False)
    dry_run: bool = False
    count: int = Field(1, ge=1, le=COUNT_MAX)
    idempotency_key: str | None = Field(None, min_length=1, max_length=KEY_CHARS_MAX)


def request_of(args: Mapping[str, Any], limits: Limits) -> SpawnRequest:
    for name in DELIVERY_FIELDS:
        if name in args:
            raise InvalidInput(name, "is not accepted: the child never chooses where results go")
    said = checked(SpawnArguments, {name: value for name, value in args.items() if _is_said(name, value)})
    _check_task(said.task, limits)
    _check_label(said.label, limits)
    check_model("model", said.model)
    _check_share(said.share)
    _check_key(said.idempotency_key)
    if said.count > 1 and not said.dry_run:
        raise InvalidInput("count", "is for dryRun only: spawn each task on its own")
    seconds = said.timeout_seconds if said.run_timeout_seconds is None else said.run_timeout_seconds
    return SpawnRequest(
        task=said.task,
        label=said.label,
        agent_id=said.agent_id,
        model=said.model,
        run_timeout_s=seconds,
        cleanup=said.cleanup,
        plan_mode=said.plan_mode,
        expects_completion=said.expects_completion,
        notify_parent=said.notify_parent,
        thinking=said.thinking,
        context=said.context,
        workspace=said.workspace,
        cwd=_cwd(said.cwd),
        tools=None if said.tools is None else frozenset(said.tools),
        needs_sandbox=said.sandbox is SandboxRequirement.REQUIRE,
        budget=_budget(said.budget),
        output_schema=_schema(said.output_schema),
        checks=tuple(_check(number, one) for number, one in enumerate(said.checks or ())),
        runtime=OWN_RUNTIME if said.runtime == "agent" else said.runtime,
        attachments=_attachments(said.attachments or (), limits),
        mode=_mode(said),
        thread=said.thread,
        share=said.share,
        priority=said.priority,
        dry_run=said.dry_run,
        count=said.count,
        idempotency_key=said.idempotency_key,
    )


def _attachments(said: Sequence[AttachmentArguments], limits: Limits) -> tuple[Attachment, ...]:
    given = [AttachmentInput(one.name, one.content, one.encoding) for one in said]
    return attachments(given, limits.attachments)


def _is_said(name: str, value: object) -> bool:
    """Models write null for arguments that they leave out."""
    return value is not None or name == "task" or name not in _NAMES


_NAMES = frozenset(field.alias or name for name, field in SpawnArguments.model_fields.items())


def _mode(said: SpawnArguments) -> Mode:
    if said.mode is Mode.SESSION and not said.thread:
        raise InvalidInput("mode", "session needs thread: true, where its follow-ups come from")
    return said.mode or (Mode.SESSION if said.thread else Mode.RUN)


def _check_task(task: str, limits: Limits) -> None:
    size = len(task.encode())
    if not task.strip():
        raise InvalidInput("task", "must not be blank")
    if "\0" in task:
        raise InvalidInput("task", "must not contain NUL")
    if size > limits.task_bytes_max:
        raise InvalidInput("task", f"has {size} bytes, at most {limits.task_bytes_max} are allowed")


def _check_share(share: str | None) -> None:
    if share is not None and not SHARE.fullmatch(share):
        raise InvalidInput(
            "share",
            "must be a key like tenant-a: letters, digits and . _ : @ / -, at most 64, the first no sign",
        )


def _check_label(label: str | None, limits: Limits) -> None:
    if label is None:
        return
    if not label.strip():
        raise InvalidInput("label", "must not be blank; leave it out to use the beginning of the task")
    if len(label) > limits.label_max:
        raise InvalidInput("label", f"has {len(label)} characters, at most {limits.label_max} are allowed")
    if any(unicodedata.category(char) in ("Cc", "Zl", "Zp") or char in TURNS_TEXT for char in label):
        raise InvalidInput("label", "must not contain control characters")


def _check_key(key: str | None) -> None:
    if key is not None and not (key.strip() and key.isprintable()):
        raise InvalidInput("idempotencyKey", "must be printable and not blank")


def _cwd(cwd: str | None) -> str | None:
    if cwd is None:
        return None
    parts = PurePosixPath(cwd).parts
    if cwd.startswith("/") or ".." in parts or "\0" in cwd or not parts:
        raise InvalidInput("cwd", "must be a directory inside the workspace, relative and without '..'")
    return str(PurePosixPath(*parts))


def _budget(said: BudgetArguments | None) -> BudgetRequest | None:
    if said is None:
        return None
    if said.tokens is None and said.usd is None:
        raise InvalidInput("budget", "names neither tokens nor usd")
    return BudgetRequest(said.tokens, None if said.usd is None else _usd(said.usd))


def _usd(said: float | str) -> Decimal:
    try:
        usd = Decimal(str(said))
    except InvalidOperation as error:
        raise InvalidInput("budget.usd", "must be a decimal number of dollars") from error
    if not usd.is_finite() or not 0 < usd < USD_MAX:
        raise InvalidInput("budget.usd", f"must be more than 0 and less than {USD_MAX}")
    return usd


def _check(number: int, said: CheckArguments) -> TaskCheck:
    """Raises InvalidInput that names the check by its place, in the spelling of the tool."""
    given = said.model_dump()
    schema = given.pop("schema_")
    try:
        _schema(schema, "schema")
        return TaskCheck(**given, schema=schema)
    except InvalidInput as error:
        place = f"checks[{number}]"
        field = place if error.field == "check" else f"{place}.{to_camel(error.field)}"
        raise InvalidInput(field, error.rule) from error


def _schema(schema: dict[str, Any] | None, field: str = "outputSchema") -> str | None:
    """Check a schema here: a broken one is the caller's mistake and must not fail the child."""
    if schema is None:
        return None
    text = json.dumps(schema)
    if len(text) > SCHEMA_CHARS_MAX:
        raise InvalidInput(field, f"has {len(text)} characters, at most {SCHEMA_CHARS_MAX} are allowed")
    from jsonschema import Draft202012Validator, SchemaError  # heavy: loaded when it is needed

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise InvalidInput(field, f"is no JSON schema: {error.message[:200]}") from error
    return text
