"""What a caller may say when it spawns or yields: the form of the arguments, not whether they are allowed.

Admission (`core.admission`) decides about limits and rights. Here a stranger's words become a `SpawnRequest`
or an `InvalidInput` that names the field and the rule. The engine carries both tools out itself.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from clutch.core.admission import (
    OWN_RUNTIME,
    BudgetRequest,
    Cleanup,
    Context,
    Mode,
    SpawnRequest,
)
from clutch.core.agents import check_model
from clutch.core.attachments import Attachment, Encoding, Given, attachments
from clutch.core.model import Thinking, Workspace
from clutch.core.policy import Limits
from clutch.errors import InvalidInput
from clutch.tools.arguments import Arguments, checked

#: A child that chose its own audience could be talked into sending results to a stranger.
DELIVERY_FIELDS = ("channel", "to", "threadId", "replyTo", "transport", "target")
SECONDS_MAX = 1e9  # about thirty years; beyond it a deadline is no date any more
KEY_CHARS_MAX = 200
TOKENS_MAX = 10**12
USD_MAX = 10**9
SCHEMA_CHARS_MAX = 32 * 1024
#: They make a label read otherwise than it is written. Other invisible ones hold emoji together.
TURNS_TEXT = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class Sandbox(StrEnum):
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


class ToldArguments(BaseModel):
    """What a model is told in every request: names and kinds. What it writes is checked as `SpawnArguments`, and what
    is wrong with that it is told then."""

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
    attachments: list[dict[str, Any]] | None = Field(None, description="[{name, content}]")


class SpawnArguments(Arguments):
    """What is accepted; rules that count bytes or look at characters are checked by `request_of`."""

    model_config = ConfigDict(alias_generator=to_camel)

    task: str
    label: str | None = None
    agent_id: str | None = None
    model: str | None = None
    # Strict mode knows no strings for an enum, and arguments are JSON.
    thinking: Thinking | None = Field(None, strict=False)
    run_timeout_seconds: Seconds | None = None
    timeout_seconds: Seconds | None = None  # another name of run_timeout_seconds
    cleanup: Cleanup = Field(Cleanup.KEEP, strict=False)
    plan_mode: bool = False
    mode: Mode | None = Field(None, strict=False)
    thread: bool = False
    expects_completion: bool = True
    context: Context = Field(Context.ISOLATED, strict=False)
    workspace: Workspace | None = Field(None, strict=False)
    cwd: str | None = None
    sandbox: Sandbox = Field(Sandbox.INHERIT, strict=False)
    tools: list[str] | None = Field(None, max_length=100)
    budget: BudgetArguments | None = None
    output_schema: dict[str, Any] | None = None
    attachments: list[AttachmentArguments] | None = None
    runtime: str = Field(OWN_RUNTIME, min_length=1, max_length=64)
    dry_run: bool = False
    idempotency_key: str | None = Field(None, min_length=1, max_length=KEY_CHARS_MAX)


class YieldArguments(Arguments):
    """Nothing to say: the caller waits for all its children."""


def request_of(args: Mapping[str, Any], limits: Limits) -> SpawnRequest:
    for name in DELIVERY_FIELDS:
        if name in args:
            raise InvalidInput(name, "is not accepted: the child never chooses where results go")
    said = checked(SpawnArguments, {name: value for name, value in args.items() if _is_said(name, value)})
    _check_task(said.task, limits)
    _check_label(said.label, limits)
    check_model("model", said.model)
    _check_key(said.idempotency_key)
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
        thinking=said.thinking,
        context=said.context,
        workspace=said.workspace,
        cwd=_cwd(said.cwd),
        tools=None if said.tools is None else frozenset(said.tools),
        needs_sandbox=said.sandbox is Sandbox.REQUIRE,
        budget=_budget(said.budget),
        output_schema=_schema(said.output_schema),
        runtime=OWN_RUNTIME if said.runtime == "agent" else said.runtime,
        attachments=_attachments(said.attachments or (), limits),
        mode=_mode(said),
        thread=said.thread,
        dry_run=said.dry_run,
        idempotency_key=said.idempotency_key,
    )


def _attachments(said: Sequence[AttachmentArguments], limits: Limits) -> tuple[Attachment, ...]:
    given = [Given(one.name, one.content, one.encoding) for one in said]
    return attachments(given, limits.attachments)


def _is_said(name: str, value: object) -> bool:
    """Models write null for what they do not want to say."""
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


def _schema(schema: dict[str, Any] | None) -> str | None:
    """The form of the form: a broken schema is the caller's mistake and must not become the child's."""
    if schema is None:
        return None
    text = json.dumps(schema)
    if len(text) > SCHEMA_CHARS_MAX:
        raise InvalidInput(
            "outputSchema", f"has {len(text)} characters, at most {SCHEMA_CHARS_MAX} are allowed"
        )
    from jsonschema import Draft202012Validator, SchemaError  # loaded when somebody wants it

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise InvalidInput("outputSchema", f"is no JSON schema: {error.message[:200]}") from error
    return text
