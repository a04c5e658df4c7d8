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
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar

from clutch.core import authority, keys
from clutch.core.admission import KEY, OWN_RUNTIME, Refused
from clutch.core.authority import root_rights
from clutch.core.model import LetterKind, Outcome
from clutch.core.policy import Limits
from clutch.engine.kit import Kit
from clutch.engine.spawning import spawn_all
from clutch.errors import ClutchError, InvalidInput, NotFound, SpawnRefused, StoreLost
from clutch.gateway.checks import (
    as_given,
    check_key,
    check_text,
    in_surface_spelling,
    main_session,
    task_number,
)
from clutch.gateway.waiting import PAUSE_S, Waiting
from clutch.protocol import control, inbox, outbox, queries, questions, results, sessions, usage
from clutch.protocol.control import NotPossible as NotPossible
from clutch.protocol.control import PlanChanged as PlanChanged
from clutch.protocol.control import UnknownTask as UnknownTask
from clutch.protocol.questions import Decision, QuestionKind
from clutch.protocol.questions import UnknownQuestion as UnknownQuestion
from clutch.protocol.spawn import Accepted, Order
from clutch.store.door import DoorStats, Keys, Tx

T = TypeVar("T")

MAIN_SESSION = "agent:main:main"
CHANNEL = "api"  #: the route of sessions opened here; `reply` is its counter
ACTOR = "api"
REASON_CHARS_MAX = 500
LOST_TRIES_MAX = 5  # with a tick between them; a database that stays away longer is the caller's to handle
NOT_ENTERED = "Clutch works inside `async with Clutch(...) as c:` only; this one was not entered"
ENTERED_BEFORE = "this Clutch was entered before; make a new one: `async with Clutch(...) as c:`"
CLOSED = "this Clutch is closed; its tasks go on at the next start, and `get` finds them by their id"
#: These have room again when a child ends or is told. The others stay full until somebody acts.
FREED_BY_TIME = frozenset(KEY + name for name in ("maxChildrenPerAgent", "maxDescendants", "maxRetained"))


class Running(Protocol):
    """An engine that works while it is open."""

    @property
    def kit(self) -> Kit: ...


@dataclass(frozen=True, slots=True)
class _Inside:
    """What is there between entering and leaving."""

    kit: Kit
    waiting: Waiting


@dataclass(frozen=True, slots=True)
class TaskResult:
    """`text` is what the child said last, also the partial text of one that failed."""

    outcome: Outcome
    text: str | None
    error: str | None
    value: Any = None  #: what was submitted, if a form was asked for (`output_schema`)

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
        ended = await self._clutch._waiting.end_of(self._number)
        value = None if ended.value is None else json.loads(ended.value)
        return TaskResult(ended.outcome, ended.text, ended.error, value)

    async def kill(self, reason: str = "killed") -> tuple[str, ...]:
        """The task and everything below it. The ids of what was stopped; empty when all had finished."""
        kit = self._clutch._kit
        check_text("reason", reason, REASON_CHARS_MAX)
        report = await self._clutch._surely(
            lambda: kit.door.alone(control.kill, kit.policy, self._number, reason, ACTOR)
        )
        return tuple(keys.task_id(number) for number in report.stopped)

    async def steer(self, text: str) -> None:
        """A new instruction takes the place of what runs now. A finished task refuses: NotPossible."""
        kit = self._clutch._kit
        check_text("text", text, kit.policy.life.steer_chars_max)
        key = f"steer:{kit.ids.uuid4()}"
        await self._clutch._surely(
            lambda: kit.door.alone(control.steer, kit.policy, self._number, key, text, ACTOR)
        )

    async def pause(self) -> tuple[str, ...]:
        """The task and everything below it stop at their next step and free their slots. Those that changed."""
        return await self._verb(control.pause)

    async def resume(self) -> tuple[str, ...]:
        return await self._verb(control.resume)

    async def _verb(self, verb: Callable[..., Tx[tuple[int, ...]]]) -> tuple[str, ...]:
        kit = self._clutch._kit
        changed = await self._clutch._surely(lambda: kit.door.alone(verb, kit.policy, self._number, ACTOR))
        return tuple(keys.task_id(number) for number in changed)


@dataclass(frozen=True, slots=True)
class Event:
    """`name`: lifecycle:start|end|error, assistant:text|thinking, tool:start|output|end, usage, question."""

    name: str
    task_id: str
    data: Any


@dataclass(frozen=True, slots=True)
class Question:
    """Something that waits for a person. `hash` binds the answer to exactly what was shown."""

    id: int
    kind: QuestionKind
    detail: Mapping[str, Any]
    hash: str


class Gateway:
    """`opening` starts the engine and stops it."""

    def __init__(self, opening: AbstractAsyncContextManager[Running]) -> None:
        self._opening = opening
        self._stack = AsyncExitStack()
        self._sessions: dict[str, int] = {}
        self._lines: dict[int, asyncio.Lock] = {}  #: by session: spawns that wait, first come first served
        self._was_entered = False
        self._inside: _Inside | None = None

    async def __aenter__(self) -> Self:
        if self._was_entered:
            raise ClutchError(ENTERED_BEFORE)
        self._was_entered = True
        async with AsyncExitStack() as stack:
            kit = (await stack.enter_async_context(self._opening)).kit
            waiting = Waiting(kit.door, kit.policy.work.tick_s)
            group = await stack.enter_async_context(asyncio.TaskGroup())
            watch = group.create_task(waiting.run())
            stack.callback(watch.cancel)
            stack.callback(self._close, waiting)
            self._stack = stack.pop_all()
        self._inside = _Inside(kit, waiting)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Told of no error: a task group would wrap it, and it is the caller's own.
        await self._stack.__aexit__(None, None, None)

    def _close(self, waiting: Waiting) -> None:
        """Before the engine stops: from here on every call is refused, and whoever waits is told."""
        self._inside = None
        waiting.give_up(CLOSED)

    def _open(self) -> _Inside:
        if self._inside is None:
            raise ClutchError(CLOSED if self._was_entered else NOT_ENTERED)
        return self._inside

    @property
    def _kit(self) -> Kit:
        return self._open().kit

    @property
    def _waiting(self) -> Waiting:
        return self._open().waiting

    @property
    def stats(self) -> DoorStats:
        """What the store has done since this start: transactions, statements, commits."""
        return self._kit.door.stats

    # ---- tasks ---------------------------------------------------------------------------------------

    async def spawn(
        self,
        task: str,
        *,
        label: str | None = None,
        agent_id: str | None = None,
        model: str | None = None,
        run_timeout_seconds: float | None = None,
        cleanup: Literal["keep", "delete"] = "keep",
        plan_mode: bool = False,
        expects_completion: bool = True,
        thinking: str | None = None,
        context: Literal["isolated", "fork"] = "isolated",
        workspace: Literal["inherit", "isolated"] = "inherit",
        cwd: str | None = None,
        tools: Sequence[str] | None = None,
        budget: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
        runtime: str = OWN_RUNTIME,
        attachments: Mapping[str, str | bytes] | None = None,
        session: str = MAIN_SESSION,
        idempotency_key: str | None = None,
        on_full: Literal["queue", "reject"] = "queue",
    ) -> Task:
        """A child of `session`, on disk when this returns. Raises InvalidInput, SpawnRefused.

        label: a name to show; without one, the beginning of the task.
        agent_id, model: others than those of the session; the policy must allow the agent.
        run_timeout_seconds: of one run; 0 = no limit.
        cleanup: "delete" forgets the child once its result was told.
        plan_mode: the child writes a plan first and waits for a decision.
        expects_completion: False = the session is told when convenient.
        thinking: off, minimal, low, medium, high or max.
        context: "fork" starts it with a copy of the session's talk.
        workspace, cwd: "isolated" gives it a directory of its own; `cwd` is where its commands start.
        tools: only these; budget: {"tokens": …, "usd": …} for it and everything below it.
        output_schema: a JSON schema its result must satisfy; runtime: who does the work.
        attachments: files by name, which the child reads as /task/in/NAME.
        session: the main or chat session it works for; the result is told to that agent too.
        idempotency_key: the same key gives the same task, never a twin.
        on_full: "queue" waits while a limit is reached that has room again by itself (children, descendants,
            retained), in the order they came; "reject" raises. Cancelled while it waits, it leaves nothing."""
        kit = self._kit
        check_key(idempotency_key)
        if on_full not in ("queue", "reject"):
            raise InvalidInput("on_full", 'must be "queue" or "reject"')
        fields = {
            "task": task,
            "label": label,
            "agent_id": agent_id,
            "model": model,
            "run_timeout_seconds": run_timeout_seconds,
            "cleanup": cleanup,
            "plan_mode": plan_mode,
            "expects_completion": expects_completion,
            "thinking": thinking,
            "context": context,
            "workspace": workspace,
            "cwd": cwd,
            "tools": tools if tools is None or isinstance(tools, str) else list(tools),
            "budget": dict(budget) if isinstance(budget, Mapping) else budget,
            "output_schema": dict(output_schema) if isinstance(output_schema, Mapping) else output_schema,
            "runtime": runtime,
            "attachments": as_given(attachments),
        }
        request = in_surface_spelling(kit.wanted, fields)
        requester = await self._session(session)
        key = f"api:{idempotency_key or kit.ids.uuid4()}"
        order = Order(key, kit.ids.next(), kit.ids.uuid4(), request, place=0)
        ask = self._in_line if on_full == "queue" else self._ask
        answer = await ask(requester, order)
        if isinstance(answer, Refused):
            raise SpawnRefused(answer.error)
        return Task(self, answer.task_id, answer.label, answer.session_key)

    async def _ask(self, requester: int, order: Order) -> Accepted | Refused:
        kit = self._kit
        (answer,) = await self._surely(lambda: spawn_all(kit, requester, requester, None, [order]))
        if isinstance(answer, str):
            raise SpawnRefused(answer)
        return answer

    async def _in_line(self, requester: int, order: Order) -> Accepted | Refused:
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

    def _has_room_later(self, answer: Accepted | Refused) -> bool:
        return isinstance(answer, Refused) and _frees_up(answer, self._kit.policy.limits)

    async def get(self, task_id: str) -> Task:
        """A task by its id, also one of an earlier start. Raises InvalidInput, NotFound."""
        kit, number = self._kit, task_number(task_id)
        known = await kit.door.read(results.known, number)
        if known is None:
            raise NotFound(f"there is no task {task_id}")
        return Task(self, number, *known)

    async def events(self) -> AsyncGenerator[Event, None]:
        """What happens now, from here on: words as they come, tools, usage, starts and ends.

        A view, not the truth: a reader who falls far behind loses the oldest, and never slows a run."""
        bus = self._kit.bus
        watcher = bus.watch()
        try:
            async for live in watcher:
                yield Event(live.name, keys.task_id(live.session_id), live.data)
        finally:
            bus.leave(watcher)

    # ---- what needs a person -------------------------------------------------------------------------

    async def questions(self) -> list[Question]:
        """Everything that waits for somebody to decide, oldest first."""
        waiting = await self._kit.door.read(questions.waiting)
        return [Question(one.id, one.kind, json.loads(one.body), one.hash) for one in waiting]

    async def answer(
        self, question: Question, decision: Literal["approve", "reject", "answer"], text: str = ""
    ) -> None:
        """The run goes on by itself. Raises UnknownQuestion when somebody else was first."""
        kit = self._kit
        if decision not in ("approve", "reject", "answer"):
            raise InvalidInput("decision", 'must be "approve", "reject" or "answer"')
        known = (kit.policy, question.id, Decision(decision), text, question.hash, ACTOR)
        await self._surely(lambda: kit.door.alone(questions.answer, *known))

    # ---- talking -------------------------------------------------------------------------------------

    async def say(
        self, text: str, *, session: str = MAIN_SESSION, idempotency_key: str | None = None
    ) -> None:
        """A person's words to a main agent, on disk when this returns. `reply` has the answer."""
        kit = self._kit
        check_key(idempotency_key)
        check_text("text", text, kit.policy.limits.task_bytes_max)
        receiver = await self._session(session)
        key = f"user:{receiver}:{idempotency_key or kit.ids.uuid4()}"
        await self._tx(receiver, inbox.say, kit.policy, receiver, key, LetterKind.USER, text)

    async def reply(self, *, session: str = MAIN_SESSION) -> str:
        """The oldest words of this main agent that nobody has taken yet; waits for them. Each is given once."""
        speaker = await self._session(session)
        while True:
            change = self._waiting.next_change
            if await self._kit.door.read(outbox.waits, speaker, CHANNEL):
                body = await self._kit.door.tx(speaker, outbox.hand_out, speaker, CHANNEL)
                if body is not None:
                    return body
            await self._waiting.until(change)

    async def settled(self, *, session: str = MAIN_SESSION) -> None:
        """Wait until nothing is left to do for this session or anywhere below it."""
        root = await self._session(session)
        while True:
            change = self._waiting.next_change
            if await self._kit.door.read(queries.is_quiet, root):
                return
            await self._waiting.until(change)

    # ---- around it -----------------------------------------------------------------------------------

    async def _session(self, session: str) -> int:
        """The number of a main session, made if it is not there."""
        kit, parsed = self._kit, main_session(session)
        if session in self._sessions:
            return self._sessions[session]
        number, agent_id = kit.ids.next(), parsed.agent_id
        rights = authority.to_text(root_rights(kit.policy.grant(agent_id)))
        route, workspace = f"{CHANNEL}:{parsed}", kit.policy.workspace_of(agent_id) or "."
        opened = await self._surely(
            lambda: kit.door.alone(sessions.open_session, number, session, agent_id, rights, route, workspace)
        )
        if kit.policy.budgets.has_root:
            await self._surely(lambda: kit.door.alone(usage.give_root, kit.policy, opened))
        self._sessions[session] = opened
        return opened

    async def _tx(self, written: Keys, fn: Callable[..., Tx[T]], *args: Any) -> T:
        return await self._surely(lambda: self._kit.door.tx(written, fn, *args))

    async def _surely(self, ask: Callable[[], Awaitable[T]]) -> T:
        """After a lost connection nobody knows whether it was committed; asking again with the same key does."""
        for _ in range(LOST_TRIES_MAX - 1):
            try:
                return await ask()
            except StoreLost:
                await asyncio.sleep(self._kit.policy.work.tick_s)
        return await ask()


def _frees_up(refused: Refused, limits: Limits) -> bool:
    """A limit of nothing never has room, and a quota that evicts nothing only when somebody removes a record."""
    key = refused.limit.get("key")
    if key not in FREED_BY_TIME or refused.limit.get("max") == 0:
        return False
    return limits.evicts_delivered or key != f"{KEY}maxRetained"
