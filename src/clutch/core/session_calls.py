"""What an agent can ask for with the session tools, as data. The form of the words is the toolbox's business,
who may do it the guard's, and what happens the engine's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from clutch.core.keys import KeyKind

#: The tools whose calls are these; `sessions_spawn` and `sessions_yield` have their own ways.
TOOLS = frozenset(
    {
        "subagents",
        "sessions_list",
        "sessions_history",
        "sessions_send",
        "sessions_subagent_remove",
        "agents_list",
        "session_status",
    }
)
EVERYBODY = "all"  #: in the place of a target: all children of the caller


class Action(StrEnum):
    LIST = "list"
    KILL = "kill"
    STEER = "steer"
    SEND = "send"
    APPROVE = "approve"
    REJECT = "reject"
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"
    CONTINUE = "continue"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Act:
    """`subagents`. `text`: instruction, message, reason, whatever the action wants."""

    action: Action
    target: str = ""
    text: str = ""
    plan_hash: str = ""
    wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class SendTo:
    """Either a target or a label, of the caller's agent unless another is named."""

    text: str
    target: str | None = None
    label: str | None = None
    agent_id: str | None = None
    wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class ListSessions:
    kinds: tuple[KeyKind, ...] = ()
    limit: int | None = None
    active_s: float | None = None
    message_limit: int = 0


@dataclass(frozen=True, slots=True)
class ReadHistory:
    """`of_result`: what its task ended with, in place of what was said. `offset`: where to begin in one text."""

    target: str
    limit: int | None = None
    before: int | None = None
    with_tools: bool = False
    offset: int = 0
    of_result: bool = False


@dataclass(frozen=True, slots=True)
class ListAgents:
    pass


@dataclass(frozen=True, slots=True)
class ShowStatus:
    target: str = "current"


SessionCall = Act | SendTo | ListSessions | ReadHistory | ListAgents | ShowStatus
