"""Clutch inside your own program: spawn a task, await it, talk to a main agent.

    async with Clutch(state="state") as c:
        task = await c.spawn("Survey this folder", label="survey")
        result = await task

Every write carries a key, so when the store loses the connection and the commit is in doubt, asking again
finds what was written instead of doing it twice. What a stranger gave is checked before anything is
written. Who starts and stops the engine is not known here: see `wiring`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from clutch.core import authority, keys
from clutch.core.admission import Refused
from clutch.core.authority import AgentGrant, root_rights
from clutch.core.keys import BadKey, KeyKind
from clutch.core.model import LetterKind, Outcome
from clutch.engine.turn import Kit
from clutch.errors import ClutchError, InvalidInput, NotFound, SpawnRefused, StoreLost
from clutch.gateway.waiting import Waiting
from clutch.protocol import control, inbox, outbox, queries, results, sessions
from clutch.protocol.spawn import Order, spawn
from clutch.store.door import Keys, Tx

T = TypeVar("T")

MAIN_SESSION = "agent:main:main"
CHANNEL = "api"  #: the route of sessions opened here; `reply` is its counter
ACTOR = "api"
KEY_CHARS_MAX = 200
REASON_CHARS_MAX = 500
LOST_TRIES_MAX = 5  # with a tick between them; a database that stays away longer is the caller's to handle


class Running(Protocol):
    """An engine that works while it is open."""

    @property
    def kit(self) -> Kit: ...


@dataclass(frozen=True, slots=True)
class TaskResult:
    """`text` is what the child said last, also the partial text of one that failed."""

    outcome: Outcome
    text: str | None
    error: str | None

    @property
    def is_ok(self) -> bool:
        return self.outcome is Outcome.OK


class Task:
    """A handle on durable work. Losing it loses nothing: `Clutch.get(id)` gives another one."""

    def __init__(self, clutch: Gateway, number: int, label: str, session_key: str) -> None:
        self._clutch, self._number = clutch, number
        self.id = keys.task_id(number)
        self.label = label
        self.session_key = session_key

    def __repr__(self) -> str:
        return f"<Task {self.id} {self.label!r}>"

    def __await__(self) -> Generator[Any, None, TaskResult]:
        return self._result().__await__()

    async def _result(self) -> TaskResult:
        ended = await self._clutch.waiting.end_of(self._number)
        return TaskResult(ended.outcome, ended.text, ended.error)

    async def kill(self, reason: str = "killed") -> tuple[str, ...]:
        """The task and everything below it. The ids of what was stopped; empty when all had finished."""
        _check_text("reason", reason, REASON_CHARS_MAX)
        kit = self._clutch.kit
        report = await self._clutch.surely(
            lambda: kit.door.alone(control.kill, kit.policy, self._number, reason, ACTOR)
        )
        return tuple(keys.task_id(number) for number in report.stopped)

    async def steer(self, text: str) -> None:
        """A new instruction takes the place of what runs now. A finished task refuses: NotPossible."""
        kit = self._clutch.kit
        _check_text("text", text, kit.policy.life.steer_chars_max)
        key = f"steer:{kit.ids.uuid4()}"
        await self._clutch.surely(
            lambda: kit.door.alone(control.steer, kit.policy, self._number, key, text, ACTOR)
        )


class Gateway:
    """`opening` starts the engine and stops it; sessions opened here work in `workspace`."""

    def __init__(self, opening: AbstractAsyncContextManager[Running], workspace: str | Path = ".") -> None:
        self._opening = opening
        self._workspace = str(Path(workspace).absolute())
        self._stack = AsyncExitStack()
        self._sessions: dict[str, int] = {}
        self.kit: Kit
        self.waiting: Waiting

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self.kit = (await stack.enter_async_context(self._opening)).kit
            self.waiting = Waiting(self.kit.door, self.kit.policy.work.tick_s)
            group = await stack.enter_async_context(asyncio.TaskGroup())
            watch = group.create_task(self.waiting.run())
            stack.callback(watch.cancel)
            stack.callback(
                self.waiting.give_up, ClutchError("Clutch was closed; the task goes on at the next start")
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Told of no error: a task group would wrap it, and it is the caller's own.
        await self._stack.__aexit__(None, None, None)

    # ---- tasks ---------------------------------------------------------------------------------------

    async def spawn(
        self, task: str, *, session: str = MAIN_SESSION, idempotency_key: str | None = None, **fields: object
    ) -> Task:
        """A child of `session`, on disk when this returns. Raises InvalidInput, SpawnRefused.

        `fields` are the parameters of `sessions_spawn` in snake case: label, agent_id, model,
        run_timeout_seconds, cleanup, plan_mode, expects_completion. The same `idempotency_key` gives the
        same task, never a twin."""
        kit = self.kit
        _check_key("idempotency_key", idempotency_key)
        request = kit.toolbox.spawn_request(_camel({"task": task, **fields}))
        requester = await self._open(session)
        key = f"api:{idempotency_key or kit.ids.uuid4()}"
        order = Order(key, kit.ids.next(), kit.ids.uuid4(), request, place=0)
        (answer,) = await self._tx(requester, spawn, kit.policy, requester, requester, None, [order])
        if isinstance(answer, Refused):
            raise SpawnRefused(answer.error)
        return Task(self, answer.task_id, answer.label, answer.session_key)

    async def get(self, task_id: str) -> Task:
        """A task by its id, also one of an earlier start. Raises InvalidInput, NotFound."""
        number = keys.parse_task_id(task_id)
        if number is None:
            raise InvalidInput("task_id", "must be a task id as printed: t_ and letters and digits")
        known = await self.kit.door.read(results.known, number)
        if known is None:
            raise NotFound(f"there is no task {task_id}")
        return Task(self, number, *known)

    # ---- talking -------------------------------------------------------------------------------------

    async def say(
        self, text: str, *, session: str = MAIN_SESSION, idempotency_key: str | None = None
    ) -> None:
        """A person's words to a main agent, on disk when this returns. `reply` has the answer."""
        kit = self.kit
        _check_key("idempotency_key", idempotency_key)
        _check_text("text", text, kit.policy.limits.task_bytes_max)
        receiver = await self._open(session)
        key = f"user:{receiver}:{idempotency_key or kit.ids.uuid4()}"
        await self._tx(receiver, inbox.say, kit.policy, receiver, key, LetterKind.USER, text)

    async def reply(self, *, session: str = MAIN_SESSION) -> str:
        """The oldest words of this main agent that nobody has taken yet; waits for them. Each is given once."""
        speaker = await self._open(session)
        while True:
            change = self.waiting.next_change
            if await self.kit.door.read(outbox.waits, speaker, CHANNEL):
                body = await self.kit.door.tx(speaker, outbox.hand_out, speaker, CHANNEL)
                if body is not None:
                    return body
            await self.waiting.until(change)

    async def settled(self, *, session: str = MAIN_SESSION) -> None:
        """Wait until nothing is left to do for this session or anywhere below it."""
        root = await self._open(session)
        while True:
            change = self.waiting.next_change
            if await self.kit.door.read(queries.is_quiet, root):
                return
            await self.waiting.until(change)

    # ---- around it -----------------------------------------------------------------------------------

    async def _open(self, session: str) -> int:
        """The number of a main session, made if it is not there."""
        if session in self._sessions:
            return self._sessions[session]
        parsed = keys.parse_session_key(session)
        if isinstance(parsed, BadKey):
            raise InvalidInput("session", parsed.message)
        if parsed.kind is KeyKind.SUBAGENT:
            raise InvalidInput(
                "session", "must be a main or chat session; a child is reached through its task"
            )
        kit = self.kit
        number, agent_id = kit.ids.next(), parsed.agent_id
        rights = json.dumps(authority.to_json(root_rights(AgentGrant(kit.policy.limits.depth_max))))
        route = f"{CHANNEL}:{parsed}"
        opened = await self.surely(
            lambda: kit.door.alone(
                sessions.open_session, number, session, agent_id, rights, route, self._workspace
            )
        )
        self._sessions[session] = opened
        return opened

    async def _tx(self, written: Keys, fn: Callable[..., Tx[T]], *args: Any) -> T:
        return await self.surely(lambda: self.kit.door.tx(written, fn, *args))

    async def surely(self, ask: Callable[[], Awaitable[T]]) -> T:
        """After a lost connection nobody knows whether it was committed; asking again with the same key does."""
        for _ in range(LOST_TRIES_MAX - 1):
            try:
                return await ask()
            except StoreLost:
                await asyncio.sleep(self.kit.policy.work.tick_s)
        return await ask()


def _camel(fields: Mapping[str, object]) -> dict[str, object]:
    """Python's spelling of a parameter to the one of the surfaces; a wrong name stays recognisable."""
    return {_camel_name(name): value for name, value in fields.items()}


def _camel_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _check_text(field: str, text: str, chars_max: int) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(field, "must be valid Unicode text") from error
    if not text.strip():
        raise InvalidInput(field, "must not be blank")
    if "\0" in text:
        raise InvalidInput(field, "must not contain NUL")
    if len(text) > chars_max:
        raise InvalidInput(field, f"has {len(text)} characters, at most {chars_max} are allowed")


def _check_key(field: str, key: str | None) -> None:
    if key is None:
        return
    _check_text(field, key, KEY_CHARS_MAX)
    if not key.isprintable():
        raise InvalidInput(field, "must be printable")
