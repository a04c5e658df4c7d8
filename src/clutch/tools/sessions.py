"""What a caller may say when it spawns or yields: the form of the arguments, not whether they are allowed.

Admission (`core.admission`) decides about limits and rights. Here a stranger's words become a `SpawnRequest`
or an `InvalidInput` that names the field and the rule. The engine carries both tools out itself.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from clutch.core.admission import Cleanup, SpawnRequest
from clutch.core.keys import main_key
from clutch.core.policy import Limits
from clutch.errors import InvalidInput
from clutch.tools.arguments import Arguments, checked

#: A child that chose its own audience could be talked into sending results to a stranger.
DELIVERY_FIELDS = ("channel", "to", "threadId", "replyTo", "transport", "target")
SECONDS_MAX = 1e9  # about thirty years; beyond it a deadline is no date any more
MODEL_CHARS_MAX = 200
#: They make a label read otherwise than it is written. Other invisible ones hold emoji together.
TURNS_TEXT = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


Seconds = Annotated[float, Field(ge=0, le=SECONDS_MAX, allow_inf_nan=False)]


class SpawnArguments(Arguments):
    """What the model is told; rules that count bytes or look at characters are checked by `request_of`."""

    model_config = ConfigDict(alias_generator=to_camel)

    task: str = Field(description="What the child shall do, complete: it sees nothing else of this talk.")
    label: str | None = Field(None, description="A short name to show.")
    agent_id: str | None = Field(None, description="Another agent, if allowed.")
    model: str | None = Field(None, description="Another model than the default.")
    run_timeout_seconds: Seconds | None = Field(None, description="0 means no limit.")
    timeout_seconds: Seconds | None = Field(None, description="Another name of runTimeoutSeconds.")
    # Strict mode knows no strings for an enum, and arguments are JSON.
    cleanup: Cleanup = Field(
        Cleanup.KEEP, description="delete: its transcript may go once told; for now it stays.", strict=False
    )
    plan_mode: bool = Field(False, description="The child writes a plan first and waits for a decision.")
    expects_completion: bool = Field(True, description="false: tell me when convenient.")


class YieldArguments(Arguments):
    """Nothing to say: the caller waits for all its children."""


def request_of(args: Mapping[str, Any], limits: Limits) -> SpawnRequest:
    for name in DELIVERY_FIELDS:
        if name in args:
            raise InvalidInput(name, "is not accepted: the child never chooses where results go")
    said = checked(SpawnArguments, args)
    _check_task(said.task, limits)
    _check_label(said.label, limits)
    _check_agent_id(said.agent_id)
    _check_model(said.model)
    seconds = said.timeout_seconds if said.run_timeout_seconds is None else said.run_timeout_seconds
    return SpawnRequest(
        task=said.task,
        label=said.label,
        agent_id=said.agent_id,
        model=said.model,
        run_timeout_s=seconds,
        cleanup=Cleanup.KEEP if said.plan_mode else said.cleanup,
        plan_mode=said.plan_mode,
        expects_completion=said.expects_completion,
    )


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


def _check_agent_id(agent_id: str | None) -> None:
    if agent_id is None:
        return
    try:
        main_key(agent_id)
    except ValueError as error:
        raise InvalidInput("agentId", "must match ^[a-z0-9][a-z0-9_-]{0,63}$, taken as written") from error


def _check_model(model: str | None) -> None:
    if model is not None and (len(model) > MODEL_CHARS_MAX or not model.isprintable() or not model.strip()):
        raise InvalidInput("model", f"must be a name of at most {MODEL_CHARS_MAX} printable characters")
