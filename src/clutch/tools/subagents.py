"""The session tools beside spawn and yield, as models see them, and what their arguments mean.

Every word of a schema is paid for with every request of a main session, so they are few. The engine carries
these tools out: they act on the ledger, under its guard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from clutch.core.keys import ROW_NUMBER_MAX, KeyKind
from clutch.core.session_calls import (
    EVERYBODY,
    Act,
    Action,
    ListAgents,
    ListSessions,
    ReadHistory,
    SendTo,
    SessionCall,
    ShowStatus,
)
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
    # Strict mode knows no strings for an enum, and arguments are JSON.
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


class ListArguments(_Camel):
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
    offset: int = Field(0, ge=0, description="Go on in a long text.")


class RemoveArguments(_Camel):
    target: Target


class NoArguments(Arguments):
    """Nothing to say."""


class StatusArguments(_Camel):
    session_key: Target | None = None


def _spec(name: str, description: str, arguments: type[Arguments], *, reads: bool = False) -> ToolSpec:
    """All may be called again after a crash: what acts carries a key of its call."""
    return ToolSpec(name, description, schema_of(arguments), replay_safe=True, read_only=reads)


SPECS = (
    _spec("subagents", "List your children, or act on one of them.", SubagentsArguments),
    _spec("sessions_list", "Sessions you can see.", ListArguments, reads=True),
    _spec("sessions_history", "What was said in a session.", HistoryArguments, reads=True),
    _spec("sessions_send", "Write to a session and wait for its reply.", SendArguments),
    _spec("sessions_subagent_remove", "Take a finished child off the list.", RemoveArguments),
    _spec("agents_list", "Agents you may spawn.", NoArguments, reads=True),
    _spec("session_status", "Model, usage and children of a session.", StatusArguments, reads=True),
)


def session_call(name: str, args: Mapping[str, Any]) -> SessionCall:
    """Raises InvalidInput naming the field and the rule."""
    return _READERS[name](args)


def _act(args: Mapping[str, Any]) -> Act:
    said = checked(SubagentsArguments, args)
    target, text = said.target or "", (said.text or "").strip()
    if not target and said.action is not Action.LIST:
        raise InvalidInput("target", f"is required to {said.action}")
    if target == EVERYBODY and said.action is not Action.KILL:
        raise InvalidInput("target", "all is for kill alone")
    if not text and said.action in WITH_TEXT:
        raise InvalidInput("text", f"is required to {said.action}")
    if not said.plan_hash and said.action in DECISIONS:
        raise InvalidInput("planHash", "is required: it stands in the message that showed you the plan")
    return Act(said.action, target, text, said.plan_hash or "", said.timeout_seconds)


def _send(args: Mapping[str, Any]) -> SendTo:
    said = checked(SendArguments, args)
    named = [one for one in (said.session_key, said.target, said.label) if one is not None]
    if len(named) != 1:
        raise InvalidInput("sessionKey", "give exactly one of sessionKey and label")
    if said.agent_id is not None and said.label is None:
        raise InvalidInput("agentId", "goes with label")
    if not said.message.strip():
        raise InvalidInput("message", "must not be blank")
    target = said.session_key if said.target is None else said.target
    return SendTo(said.message, target, said.label, said.agent_id, said.timeout_seconds)


def _list(args: Mapping[str, Any]) -> ListSessions:
    said = checked(ListArguments, args)
    minutes = said.active_minutes
    active_s = None if minutes is None else 60 * minutes
    return ListSessions(tuple(KeyKind(kind) for kind in said.kinds), said.limit, active_s, said.message_limit)


def _history(args: Mapping[str, Any]) -> ReadHistory:
    said = checked(HistoryArguments, args)
    return ReadHistory(
        said.session_key, said.limit, said.before, said.include_tools, said.offset, said.result
    )


def _remove(args: Mapping[str, Any]) -> Act:
    return Act(Action.REMOVE, checked(RemoveArguments, args).target)


def _agents(args: Mapping[str, Any]) -> ListAgents:
    checked(NoArguments, args)
    return ListAgents()


def _status(args: Mapping[str, Any]) -> ShowStatus:
    return ShowStatus(checked(StatusArguments, args).session_key or "current")


_READERS: Mapping[str, Callable[[Mapping[str, Any]], SessionCall]] = {
    "subagents": _act,
    "sessions_list": _list,
    "sessions_history": _history,
    "sessions_send": _send,
    "sessions_subagent_remove": _remove,
    "agents_list": _agents,
    "session_status": _status,
}
