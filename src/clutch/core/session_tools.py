"""What an agent can ask for with the session tools, as data. The form of the words is the toolbox's business,
who may do it the guard's, and what happens the engine's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from clutch.core.ids import KeyKind
from clutch.core.schedule import ScheduleSpec
from clutch.core.text.tasks import silence

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
        "cron",
    }
)
ALL_CHILDREN = "all"  #: in the place of a target: all children of the caller


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


class ScheduleAction(StrEnum):
    ADD = "add"
    PAUSE = "pause"
    RESUME = "resume"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class ChangeSchedule:
    """`spec`: of the schedule to add; its session is the one that calls."""

    action: ScheduleAction
    name: str
    spec: ScheduleSpec | None = None


SessionCall = Act | SendTo | ListSessions | ReadHistory | ListAgents | ShowStatus | ChangeSchedule


# --------------------------------------------------------------------------------------------------
# Conversations of chat-completions clients: a request belongs to the conversation whose history it repeats.
#
# Such a client names no session. It sends all that was said so far with each request, so the history is the name.

_OPENING = "[Earlier in this conversation, as the client sent it]"
_CLOSING = "[End of the earlier messages. The message to answer:]"


class ConversationMessage(NamedTuple):
    """One earlier message; `role` is `user` or `assistant`."""

    role: str
    text: str


def digest(owner: str, lines: Sequence[ConversationMessage]) -> str:
    """Return the name of a conversation of this owner after these lines. Clients trim texts, so edges do not count."""
    said = [owner, *((line.role, line.text.strip()) for line in lines)]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def introduced(lines: Sequence[ConversationMessage], text: str, bytes_max: int) -> str:
    """Return the first message of a session that has none of these lines: the newest of them that fit, and the text."""
    kept: list[str] = []
    room = bytes_max - sum(len(part.encode()) for part in (_OPENING, _CLOSING, text)) - 4
    for line in reversed(lines):
        shown = f"{line.role}: {line.text.strip()}"
        room -= len(shown.encode()) + 1
        if room < 0:
            break
        kept.insert(0, shown)
    return "\n".join([_OPENING, *kept, _CLOSING, "", text]) if kept else text


# --------------------------------------------------------------------------------------------------
# Two agents that write to each other: whose turn it is, when it stops, and which way a message may not go.
#
#     request     origin → target
#     reply 1…n   target's answer → origin, its answer → target, …   until one has nothing to say, or n is reached
#     announce    → target: what of this should its person hear?
#
# An `Exchange` is all there is to know about it and travels with every letter, so nothing is kept anywhere else.
# `hops` are the sessions the chain has passed: a message to one of them would close a circle, whatever its shape.

REPLY_SKIP = "REPLY_SKIP"  #: as the whole reply: I have nothing to add


class Stage(StrEnum):
    REQUEST = "request"
    REPLY = "reply"
    ANNOUNCE = "announce"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One letter of a talk between two sessions, with the talk it belongs to."""

    key: str  #: of the first message
    origin_id: int
    target_id: int
    origin: str  #: their session keys
    target: str
    request: str
    hops: tuple[int, ...]  #: the reader may not write to any of these now; its answer goes back by itself
    turns_max: int
    stage: Stage = Stage.REQUEST
    turn: int = 0
    first_reply: str = ""
    latest: str = ""

    @property
    def reader_id(self) -> int:
        return self.origin_id if self.stage is Stage.REPLY and self.turn % 2 else self.target_id

    @property
    def writer(self) -> str:
        return self.target if self.reader_id == self.origin_id else self.origin


def begins(
    key: str,
    origin: tuple[int, str],
    target: tuple[int, str],
    text: str,
    *,
    hops: tuple[int, ...] = (),
    turns_max: int = 5,
) -> Exchange | None:
    """`hops`: of what the sender is answering. None: it would come back to where it has been."""
    passed = tuple(dict.fromkeys((*hops, origin[0])))
    if target[0] in passed:
        return None
    return Exchange(key, origin[0], target[0], origin[1], target[1], text, passed, turns_max)


def answered(exchange: Exchange, reply: str) -> Exchange | None:
    """The letter that follows from the reader's final text; None = the exchange is over."""
    if exchange.stage is Stage.ANNOUNCE or (exchange.stage is Stage.REQUEST and not reply.strip()):
        return None
    both = tuple(dict.fromkeys((*exchange.hops, exchange.target_id)))
    if is_silent(reply):
        return replace(exchange, stage=Stage.ANNOUNCE, hops=both)
    heard = replace(exchange, latest=reply, first_reply=exchange.first_reply or reply, hops=both)
    if exchange.turn >= exchange.turns_max:
        return replace(heard, stage=Stage.ANNOUNCE)
    return replace(heard, stage=Stage.REPLY, turn=exchange.turn + 1)


def is_silent(reply: str) -> bool:
    return not reply.strip() or reply.strip() == REPLY_SKIP or silence(reply) is not None


def dump(exchange: Exchange) -> str:
    return json.dumps(asdict(exchange), ensure_ascii=False)


def load(body: str) -> Exchange:
    known = json.loads(body)
    return Exchange(**(known | {"hops": tuple(known["hops"]), "stage": Stage(known["stage"])}))
