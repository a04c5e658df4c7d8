"""Spawns of programs and surfaces in a session's name: the same arguments and answers as the tool's.

Unlike an agent, a program may wait for room: first come, first served, for each requester. What the arguments mean
is decided in `Kit.wanted`, what is admitted in the transaction."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias, TypedDict

from clutch.api.actions import KEY_CHARS_MAX, camel
from clutch.api.views import Object
from clutch.api.wait import PAUSE_S, TaskWaiter
from clutch.core import delivery, ids
from clutch.core.agents import OnFull
from clutch.core.checks import TaskCheck, said_of
from clutch.core.ids import BadKey, KeyKind, SessionKey
from clutch.core.policy import Limits
from clutch.core.spawn import KEY, SpawnRefusal, SpawnRequest
from clutch.engine import spawn
from clutch.engine.actions import check_text
from clutch.engine.services import Services
from clutch.engine.spawn import Spawned
from clutch.errors import IdempotencyConflict, InvalidInput, NotFound, SpawnRefused
from clutch.transactions.spawn import ChildRequest

# --------------------------------------------------------------------------------------------------
# The form of what a program gives: text, keys, names. Raises InvalidInput in Python's spelling of the field.
#
# Whether something is allowed is not decided here, and the arguments of a spawn have their own rules in the
# toolbox; what it says of them in the spelling of the surfaces is translated here.

_TASK_ID = re.compile(r"t_[0-9A-Za-z]+")
#: Parameters of a spawn that Python calls by another name than the tool.
PYTHON_NAMES: Mapping[str, str] = {"task": "prompt"}
_CAMEL = re.compile(r"(?<![.\w])[a-z]+(?:[A-Z][a-z]+)+(?![.\w])")  #: a parameter, and no part of a config key


def check_place(channel: str, account: str, thread: str, channels: Collection[str]) -> None:
    """A thread of a channel of this gateway, and the account that wrote there. Raises InvalidInput for what cannot be
    one, NotFound for a channel that is not among `channels`."""
    if not delivery.CHANNEL_NAME.fullmatch(channel) or channel in delivery.INTERNAL_CHANNELS - {
        delivery.LOCAL_CHANNEL
    }:
        raise InvalidInput(
            "channel", "must be the name of a channel: a-z 0-9, then also _ -, at most 32 in all"
        )
    check_text("thread", thread, KEY_CHARS_MAX)
    if account:
        check_text("account", account, KEY_CHARS_MAX)
    if channel not in channels and channel != delivery.LOCAL_CHANNEL:
        known = ", ".join(sorted(set(channels) - delivery.INTERNAL_CHANNELS)) or "none"
        raise NotFound(f"channel {channel!r} is not configured here; configured: {known}")


def main_session(session: object, agents: Collection[str]) -> SessionKey:
    """`agents`: the configured ones, to name the one that a wrong id may have meant."""
    if not isinstance(session, str):
        raise InvalidInput("session", "must be text")
    parsed = ids.parse_session_key(session, agents)
    if isinstance(parsed, BadKey):
        raise InvalidInput("session", parsed.message)
    if parsed.kind is KeyKind.SUBAGENT:
        raise InvalidInput("session", "must be a main or chat session; a child is reached through its task")
    return parsed


def task_number(task_id: object) -> int:
    if not isinstance(task_id, str):
        raise InvalidInput("task_id", "must be text")
    number = ids.parse_task_id(task_id)
    if number is not None:
        return number
    if _TASK_ID.fullmatch(task_id):
        raise NotFound(f"there is no task {task_id[: ids.SHOWN_INPUT_MAX]!r}")
    raise InvalidInput("task_id", "must be a task id as printed: t_ and letters and digits")


def as_given(attachments: object) -> object:
    """Return the files of a program as an agent would write them; anything else is left for the tool to refuse."""
    if not isinstance(attachments, Mapping):
        return attachments
    return [
        {"name": name, "content": base64.b64encode(content).decode(), "encoding": "base64"}
        if isinstance(content, bytes)
        else {"name": name, "content": content}
        for name, content in attachments.items()
    ]


def in_python_spelling(field: str, rule: str) -> InvalidInput:
    """Return the error in Python's spelling; its rule may name other parameters."""
    return InvalidInput(
        PYTHON_NAMES.get(field) or snake(field), _CAMEL.sub(lambda name: snake(name[0]), rule)
    )


def snake(name: str) -> str:
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


#: These free a place when a child ends or its result is delivered. The others stay full until a user acts.
FREED_BY_TIME = frozenset(KEY + name for name in ("maxChildrenPerAgent", "maxDescendants", "maxRetained"))
Try: TypeAlias = Callable[[], Awaitable[list[Spawned]]]
OnFullWord: TypeAlias = Literal["queue", "reject"]


class SpawnOptions(TypedDict, total=False):
    """Parameters of a spawn; `Clutch.spawn` says what each means."""

    label: str | None
    agent_id: str | None
    model: str | None
    thinking: str | None
    run_timeout_seconds: float | None
    timeout_seconds: float | None
    cleanup: Literal["keep", "delete"]
    plan_mode: bool
    mode: Literal["run", "session"] | None
    thread: bool
    expects_completion: bool
    notify_parent: bool | None
    context: Literal["isolated", "fork"]
    workspace: Literal["inherit", "isolated"] | None
    cwd: str | None
    sandbox: Literal["inherit", "require"]
    tools: Sequence[str] | None
    budget: Mapping[str, Any] | None
    output_schema: Mapping[str, Any] | None
    checks: Sequence[TaskCheck | Mapping[str, Any]] | None
    runtime: str
    share: str | None
    priority: Literal["low", "normal", "high"] | None
    attachments: Mapping[str, str | bytes] | None
    idempotency_key: str | None


#: What each parameter means, for OpenAPI and MCP.
MEANINGS: Mapping[str, str] = {
    "task": "What to do, in full: the child sees nothing else of this conversation.",
    "label": "A name to show; without one, the beginning of the task.",
    "agent_id": "The agent that works on it; without one, that of the session. The policy must allow it.",
    "model": "Another model than the agent's, e.g. anthropic:claude-sonnet-4-5.",
    "thinking": "off, minimal, low, medium, high or max.",
    "run_timeout_seconds": "Time limit of one run in seconds; 0: none.",
    "timeout_seconds": "Another name of runTimeoutSeconds.",
    "cleanup": "delete: forget the child once its result is delivered.",
    "plan_mode": "The child writes a plan first and waits for its approval.",
    "mode": "run: it ends with its result; session: it stays for follow-ups.",
    "thread": "Bind a thread of a channel to it.",
    "expects_completion": "false: the result is optional and delivered when convenient.",
    "notify_parent": "true: the parent agent has a turn with the result; false: the result is only kept."
    " Default: false, and true with thread.",
    "context": "fork: start it with a copy of the session's conversation.",
    "workspace": "isolated: a directory of its own; inherit: that of the session.",
    "cwd": "Where its commands start, inside the workspace.",
    "sandbox": "require: refuse an agent whose tools run outside of the sandbox.",
    "tools": "Only these tools, by name.",
    "budget": "{tokens, usd} for it and all of its descendants.",
    "output_schema": "A JSON schema that its result must satisfy.",
    "checks": "What must be true before its result counts as done, at most 16: {file, minBytes, maxBytes, matches},"
    " {command, timeoutSeconds}, {calls, minCalls}, {agent, prompt} or {schema, file}.",
    "runtime": "What does the work instead of the built-in agent loop, e.g. acp:claude.",
    "share": "Key of a tenant or project: free slots are divided between shares by weight. Default: the parent's.",
    "priority": "low, normal or high: which tasks of a share start first. Default: the parent's.",
    "attachments": "Files for the child, which it reads as /task/in/NAME: [{name, content, encoding}].",
    "idempotency_key": "The same key gives the same task, never a duplicate.",
    "dry_run": "Check everything and create nothing; the answer says what would be and what it would cost.",
    "count": "With dryRun: forecast the cost of so many tasks like this one.",
}


def arguments(prompt: str, asked: Mapping[str, object]) -> dict[str, object]:
    """Return the parameters of a program as an agent would write them: camelCase, and only what JSON knows."""
    said = {camel(name): _plain(value) for name, value in asked.items()}
    return {"task": prompt, **said} | (
        {"attachments": as_given(asked["attachments"])} if "attachments" in asked else {}
    )


def _plain(value: object) -> object:
    if isinstance(value, TaskCheck):
        return {camel(name): one for name, one in said_of(value).items()}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return list(value) if isinstance(value, set | frozenset) else value


def with_notification(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of a program or a client. It reads the result itself unless it says otherwise: a turn of the
    parent agent would cost a model call that no user reads. The users of a thread do read the parent's reply."""
    if args.get("notifyParent") is not None:
        return args
    return {**args, "notifyParent": args.get("thread") is True}


def check_on_full(said: object) -> None:
    if said not in (None, *OnFull):
        raise InvalidInput("on_full", 'must be "queue" or "reject"')


def accepted(answer: Object) -> Object:
    """Raises InvalidInput, IdempotencyConflict, SpawnRefused."""
    if answer["status"] == "accepted":
        return answer
    if answer.get("code") == "idempotency_conflict":
        raise IdempotencyConflict(answer["error"])
    raise SpawnRefused(sensible(answer)["error"], answer.get("limit"))


def sensible(answer: Object) -> Object:
    """Raises InvalidInput for arguments that make none, in the spelling of a program."""
    if answer.get("code") != "invalid_input":
        return answer
    field = answer["field"]
    raise in_python_spelling(field, answer["error"].removeprefix(f"{field}: "))


class Spawns:
    """`surely` asks again after a lost connection: the order has a key."""

    def __init__(
        self, services: Services, waiting: TaskWaiter, surely: Callable[[Try], Awaitable[list[Spawned]]]
    ) -> None:
        self._services, self._waiting, self._surely = services, waiting, surely
        self._lines: dict[int, asyncio.Lock] = {}  #: by session: who waits, first come first served

    async def spawn(
        self, requester: int, request: SpawnRequest, on_full: OnFullWord | None
    ) -> tuple[ChildRequest, Spawned]:
        policy = self._services.policy
        waits = (on_full or policy.defaults.subagents.on_full) == OnFull.QUEUE and not request.dry_run
        order = spawn.order(self._services, request, f"api:{self._services.ids.uuid4()}")
        ask = self._in_line if waits else self._ask
        got = await ask(requester, order)
        if isinstance(got, SpawnRefusal) and self._has_room_later(got):
            configured = str(policy.defaults.subagents.on_full)  # a later try may find a place
            got = replace(got, limit={**got.limit, "hasRoomLater": True, "onFull": configured})
        return order, got

    async def _ask(self, requester: int, order: ChildRequest) -> Spawned:
        """Ask with a new number for every try: files of an earlier try may still be being removed."""

        def ask() -> Awaitable[list[Spawned]]:
            named = spawn.named_anew(self._services, order)
            return spawn.spawn_all(self._services, requester, requester, None, [named])

        return (await self._surely(ask))[0]

    async def _in_line(self, requester: int, order: ChildRequest) -> Spawned:
        """Wait in line while there is no room. The first in line asks again after every change."""
        line = self._lines.setdefault(requester, asyncio.Lock())
        if not line.locked():
            answer = await self._ask(requester, order)
            if not self._has_room_later(answer):
                return answer
        async with line:
            while True:
                change = self._waiting.next_change
                answer = await self._ask(requester, order)
                if not self._has_room_later(answer):
                    return answer
                await asyncio.sleep(PAUSE_S)
                await self._waiting.until(change)

    def _has_room_later(self, answer: Spawned) -> bool:
        return isinstance(answer, SpawnRefusal) and _frees_up(answer, self._services.policy.limits)


def _frees_up(refused: SpawnRefusal, limits: Limits) -> bool:
    """Whether a full limit frees a place by itself. One that evicts nothing needs a user to remove a record."""
    key = refused.limit.get("key")
    return key in FREED_BY_TIME and (limits.evicts_delivered or key != f"{KEY}maxRetained")
