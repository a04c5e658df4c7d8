"""Spawns of programs and surfaces in a session's name: the same arguments and answers as the tool's.

Unlike an agent, a program may wait for room: first come, first served, for each requester. What the arguments mean
is decided in `Kit.wanted`, what is admitted in the transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias, TypedDict

from clutch.core.admission import KEY, Refused, SpawnRequest
from clutch.core.agents import OnFull
from clutch.core.policy import Limits
from clutch.engine import spawning
from clutch.engine.kit import Kit
from clutch.engine.spawning import Spawned
from clutch.errors import IdempotencyConflict, InvalidInput, SpawnRefused
from clutch.gateway.checks import as_given, in_python_spelling
from clutch.gateway.objects import Object
from clutch.gateway.waiting import PAUSE_S, Waiting
from clutch.protocol.spawn import Order

#: These have room again when a child ends or is told. The others stay full until somebody acts.
FREED_BY_TIME = frozenset(KEY + name for name in ("maxChildrenPerAgent", "maxDescendants", "maxRetained"))
Try: TypeAlias = Callable[[], Awaitable[list[Spawned]]]
OnFullWord: TypeAlias = Literal["queue", "reject"]


class Asked(TypedDict, total=False):
    """What a program may say of a child; `Clutch.spawn` tells what each means."""

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
    context: Literal["isolated", "fork"]
    workspace: Literal["inherit", "isolated"] | None
    cwd: str | None
    sandbox: Literal["inherit", "require"]
    tools: Sequence[str] | None
    budget: Mapping[str, Any] | None
    output_schema: Mapping[str, Any] | None
    runtime: str
    attachments: Mapping[str, str | bytes] | None
    idempotency_key: str | None


def arguments(task: str, asked: Asked) -> dict[str, object]:
    """As an agent would write them: they are checked as JSON, which knows lists and objects only."""
    said: dict[str, object] = {"task": task, **asked}
    return {name: _plain(value) for name, value in said.items()} | (
        {"attachments": as_given(said["attachments"])} if "attachments" in said else {}
    )


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple | set | frozenset) else value


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

    def __init__(self, kit: Kit, waiting: Waiting, surely: Callable[[Try], Awaitable[list[Spawned]]]) -> None:
        self._kit, self._waiting, self._surely = kit, waiting, surely
        self._lines: dict[int, asyncio.Lock] = {}  #: by session: who waits, first come first served

    async def wanted(self, args: Mapping[str, Any]) -> SpawnRequest:
        """Raises InvalidInput in the spelling of the tool."""
        if self._kit.refresh is not None and args.get("tools") is not None:
            await self._kit.refresh()  # tools of others can be named too
        return self._kit.wanted(args)

    async def spawn(
        self, requester: int, request: SpawnRequest, on_full: OnFullWord | None
    ) -> tuple[Order, Spawned]:
        policy = self._kit.policy
        waits = (on_full or policy.defaults.subagents.on_full) == OnFull.QUEUE and not request.dry_run
        order = spawning.order(self._kit, request, f"api:{self._kit.ids.uuid4()}")
        ask = self._in_line if waits else self._ask
        got = await ask(requester, order)
        if isinstance(got, Refused) and self._has_room_later(got):
            configured = str(policy.defaults.subagents.on_full)  # whoever asks again may be lucky
            got = replace(got, limit={**got.limit, "hasRoomLater": True, "onFull": configured})
        return order, got

    async def _ask(self, requester: int, order: Order) -> Spawned:
        """Another number for every try: what is still being removed of an earlier one has a name of its own."""

        def ask() -> Awaitable[list[Spawned]]:
            named = spawning.named_anew(self._kit, order)
            return spawning.spawn_all(self._kit, requester, requester, None, [named])

        return (await self._surely(ask))[0]

    async def _in_line(self, requester: int, order: Order) -> Spawned:
        """While there is room nobody waits for anybody. The first in line asks after every change."""
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
        return isinstance(answer, Refused) and _frees_up(answer, self._kit.policy.limits)


def _frees_up(refused: Refused, limits: Limits) -> bool:
    """A quota that evicts nothing has room again only when somebody removes a record."""
    key = refused.limit.get("key")
    return key in FREED_BY_TIME and (limits.evicts_delivered or key != f"{KEY}maxRetained")
