"""Clutch inside your own program: spawn a task, await it, talk to a main agent.

    async with Clutch("state") as c:
        task = await c.spawn("Survey this folder", label="survey")
        result = await task

Every call goes to a gateway backend (`handles`), in this process or in another one; nothing here depends on which.
Arguments are checked before anything is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeAlias

from typing_extensions import TypeVar

from clutch.api import handles
from clutch.api.actions import ADD_SCHEDULE, Answering, InThread, NewSchedule, check_key
from clutch.api.gateway import Gateway, Leaving
from clutch.api.handles import Backend, Event, Question, ScheduleHandle, Task, TaskResult
from clutch.api.reads import Filter, outcome_named, phase_named
from clutch.api.slash import MAIN_SESSION
from clutch.api.spawn import (
    OnFullWord,
    SpawnOptions,
    accepted,
    arguments,
    in_python_spelling,
    sensible,
    task_number,
)
from clutch.api.wait import CLOSED
from clutch.core import ids
from clutch.core.agents import MAIN
from clutch.core.checks import TaskCheck
from clutch.engine.services import Services
from clutch.errors import ClutchError, InvalidInput
from clutch.store.transaction import DatabaseStats

# --------------------------------------------------------------------------------------------------
# A Python type as the form of a result: its JSON schema for the child, its reading for the program.
#
# Anything pydantic knows: a model, a dataclass, a TypedDict. Loaded at the first use.

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class OutputSchema(Generic[Value]):
    schema: Mapping[str, Any]
    read: Callable[[Any], Value]


def form_of(output_type: type[Value]) -> OutputSchema[Value]:
    """Raises InvalidInput for a type that has no schema."""
    from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
    from pydantic.errors import PydanticInvalidForJsonSchema

    try:
        adapter = TypeAdapter(output_type)
        schema = adapter.json_schema()
    except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema, PydanticUserError) as error:
        raise InvalidInput("output_type", f"has no JSON schema: {str(error)[:200]}") from error

    def read(value: Any) -> Value:
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            name = getattr(output_type, "__name__", str(output_type))
            raise InvalidInput("value", f"is no {name}: {str(error)[:500]}") from error

    return OutputSchema(schema, read)


# --------------------------------------------------------------------------------------------------
# A gateway that is opened and closed: in between it has a backend; afterwards every call is refused.
#
# `wiring` decides how it is opened, in this process or as a client of another one, and hands over the backend.

NOT_ENTERED = "Clutch works inside `async with Clutch(...) as c:` only; this one was not entered"
ENTERED_BEFORE = "this Clutch was entered before; make a new one: `async with Clutch(...) as c:`"
ELSEWHERE = "this Clutch is a client of the gateway that owns the state directory; only that one can do this"

#: What it leaves on the stack is closed at the end, the last first.
Opening: TypeAlias = Callable[[AsyncExitStack], Awaitable[Backend]]


class Opened:
    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._stack = AsyncExitStack()
        self._was_entered = False
        self._found: Backend | None = None
        self._group: asyncio.TaskGroup | None = None  #: of what is done at the end of tasks
        self._works: set[asyncio.Task[None]] = set()
        self.leaving: Leaving | None = None  #: None: part of a program, which decides itself when to end

    async def __aenter__(self) -> Self:
        if self._was_entered:
            raise ClutchError(ENTERED_BEFORE)
        self._was_entered = True
        try:
            backend = await self._opening(self._stack)
            self._group = await self._stack.enter_async_context(asyncio.TaskGroup())
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        self._stack.callback(self._close)
        self._found = backend
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # It gets no error: a task group would wrap it, and it is the caller's own.
        await self._stack.__aexit__(None, None, None)

    def _close(self) -> None:
        """Refuse every call from now on and end all waits, before anything else is closed."""
        self._found = self._group = None
        for work in self._works:
            work.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        if self._group is None:
            work.close()
            raise self._shut()
        task = self._group.create_task(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)

    def _shut(self) -> ClutchError:
        return ClutchError(CLOSED if self._was_entered else NOT_ENTERED)

    @property
    def _backend(self) -> Backend:
        if self._found is None:
            raise self._shut()
        return self._found

    @property
    def local_gateway(self) -> Gateway:
        """Return the gateway in this process, for surfaces. Raises ClutchError when it is in another one."""
        backend = self._backend
        if not isinstance(backend, Gateway):
            raise ClutchError(ELSEWHERE)
        return backend

    @property
    def services(self) -> Services:
        """Return the services of the engine, for surfaces. Raises ClutchError when it is in another process."""
        return self.local_gateway.services

    @property
    def stats(self) -> DatabaseStats:
        """What the store has done since this start: transactions, statements, commits."""
        return self.services.db.stats


T = TypeVar("T")
V = TypeVar("V", default=Any)

LABEL_CHARS = 72  #: of an item of a map


def spawn_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a spawn among the local variables `given` that have a value."""
    return {
        name: value
        for name, value in given.items()
        if name in SpawnOptions.__annotations__ and value is not None
    }


def _wanted(given: Mapping[str, Any]) -> tuple[dict[str, object], Callable[[Any], Any] | None]:
    """Return the arguments of the tool, and how to read the value. Raises InvalidInput."""
    asked, output_type = spawn_options(given), given["output_type"]
    if output_type is None:
        return arguments(given["prompt"], asked), None
    if "output_schema" in asked:
        raise InvalidInput("output_type", "and output_schema cannot both be given")
    form = form_of(output_type)
    return arguments(given["prompt"], {**asked, "output_schema": form.schema}), form.read


class Api(Opened):
    # ---- tasks ---------------------------------------------------------------------------------------

    async def spawn(
        self,
        prompt: str,
        *,
        label: str | None = None,
        agent_id: str | None = None,
        model: str | None = None,
        thinking: str | None = None,
        run_timeout_seconds: float | None = None,
        cleanup: Literal["keep", "delete"] = "keep",
        plan_mode: bool = False,
        mode: Literal["run", "session"] | None = None,
        thread: bool = False,
        notify_parent: bool | None = None,
        context: Literal["isolated", "fork"] = "isolated",
        workspace: Literal["inherit", "isolated"] | None = None,
        cwd: str | None = None,
        sandbox: Literal["inherit", "require"] = "inherit",
        tools: Sequence[str] | None = None,
        budget: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
        output_type: type[V] | None = None,
        checks: Sequence[TaskCheck | Mapping[str, Any]] | None = None,
        runtime: str | None = None,
        share: str | None = None,
        priority: Literal["low", "normal", "high"] | None = None,
        attachments: Mapping[str, str | bytes] | None = None,
        idempotency_key: str | None = None,
        session: str = MAIN_SESSION,
        on_full: OnFullWord | None = None,
    ) -> Task[V]:
        """Spawn a task, which is on disk when this returns. Raises InvalidInput, SpawnRefused, IdempotencyConflict.

        prompt: what the child has to do, in full: it sees nothing else of the conversation.
        label: a name to show; without one, the beginning of the prompt.
        agent_id, model, thinking: other ones than those of the session; the policy must allow the agent. `thinking` is
            off, minimal, low, medium, high or max.
        run_timeout_seconds: time limit of one run; 0 = no limit.
        cleanup: "delete" removes the child's session when its result is delivered or not requested.
        plan_mode: the child writes a plan first and waits for its approval.
        mode, thread: thread=True binds a thread of a channel, and the child stays for follow-ups ("session").
        notify_parent: True gives the parent agent a turn with the result, which costs a model call. False keeps the
            result for `await task`; its delivery is `skipped (not-requested)`. Default: False, and True with `thread`.
        context: "fork" starts the child with a copy of the session's conversation.
        workspace, cwd: "isolated" gives it a directory of its own; its commands start in `cwd`.
        sandbox: "require" refuses an agent whose tools run outside of the sandbox.
        tools: only these tools; budget: {"tokens": …, "usd": …} for the child and all of its descendants.
        output_schema: a JSON schema that the result must satisfy; `result.value` has it.
        output_type: the same as a type that pydantic knows; `result.value` is an instance of it.
        checks: what must be true of the result, e.g. `TaskCheck(command="pytest -q")`; the child may repair it once.
        runtime: what does the work instead of the built-in agent loop, e.g. "acp:claude".
        share, priority: a tenant or project, by whose weight free slots are divided; what starts first within it.
        attachments: files by name, which the child reads as /task/in/NAME.
        idempotency_key: the same key returns the same task, never a duplicate; other arguments under it are an error.
        session: the main or chat session that is the parent.
        on_full: what to do at a limit that frees a place by itself (children, descendants, retained): "queue" waits,
            first come, first served; "reject" raises SpawnRefused. Cancelled while it waits, it leaves nothing."""
        wanted, read = _wanted(locals())
        got = accepted(await self._backend.spawn(wanted, session, on_full))
        return Task(self, got["taskId"], got["label"], got["childSessionKey"], read)

    async def check_spawn(
        self,
        prompt: str,
        *,
        label: str | None = None,
        agent_id: str | None = None,
        model: str | None = None,
        thinking: str | None = None,
        run_timeout_seconds: float | None = None,
        cleanup: Literal["keep", "delete"] = "keep",
        plan_mode: bool = False,
        mode: Literal["run", "session"] | None = None,
        thread: bool = False,
        notify_parent: bool | None = None,
        context: Literal["isolated", "fork"] = "isolated",
        workspace: Literal["inherit", "isolated"] | None = None,
        cwd: str | None = None,
        sandbox: Literal["inherit", "require"] = "inherit",
        tools: Sequence[str] | None = None,
        budget: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
        output_type: type[V] | None = None,
        checks: Sequence[TaskCheck | Mapping[str, Any]] | None = None,
        runtime: str | None = None,
        share: str | None = None,
        priority: Literal["low", "normal", "high"] | None = None,
        attachments: Mapping[str, str | bytes] | None = None,
        idempotency_key: str | None = None,
        session: str = MAIN_SESSION,
        count: int = 1,
    ) -> Mapping[str, Any]:
        """Return what `spawn` with these arguments would answer now, and create nothing.

        The answer has model, thinking, context, warnings and `forecast`, or the reason of the refusal. The forecast is
        what `count` such tasks cost (median and p90, from finished tasks like these) and what is left of the budget.
        Raises InvalidInput."""
        wanted, _ = _wanted(locals())
        return sensible(await self._backend.spawn(wanted | {"dryRun": True, "count": count}, session, None))

    async def get(self, task_id: str, *, output_type: type[V] | None = None) -> Task[V]:
        """Return a task by its id, also one of an earlier start. Raises InvalidInput, NotFound."""
        task_number(task_id)
        read = None if output_type is None else form_of(output_type).read
        return Task(self, *await self._backend.known(task_id), read)

    async def map(
        self,
        items: Iterable[T],
        prompt: Callable[[T], str],
        *,
        name: str,
        key: Callable[[T], str] = str,
        concurrency: int = 8,
        retries: int = 0,
        on_result: Callable[[T, TaskResult[V]], None] | None = None,
        session: str | None = None,
        agent_id: str | None = None,
        model: str | None = None,
        thinking: str | None = None,
        run_timeout_seconds: float | None = None,
        cleanup: Literal["keep", "delete"] = "keep",
        plan_mode: bool = False,
        mode: Literal["run", "session"] | None = None,
        thread: bool = False,
        notify_parent: bool | None = None,
        context: Literal["isolated", "fork"] = "isolated",
        workspace: Literal["inherit", "isolated"] | None = None,
        cwd: str | None = None,
        sandbox: Literal["inherit", "require"] = "inherit",
        tools: Sequence[str] | None = None,
        budget: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
        output_type: type[V] | None = None,
        checks: Sequence[TaskCheck | Mapping[str, Any]] | None = None,
        runtime: str | None = None,
        share: str | None = None,
        priority: Literal["low", "normal", "high"] | None = None,
        attachments: Mapping[str, str | bytes] | None = None,
    ) -> list[TaskResult[V]]:
        """Run one task for every item, `prompt(item)`, and return their results in the order of the items.

        name, key: the same ones resume; what has ended is not repeated. Another prompt is an IdempotencyConflict.
        concurrency, retries: tasks under way at once, and further tasks for an item whose task did not end well.
        on_result: called for each item that ends or has ended. An error that it raises ends the map, but no task.
        session: by default one of the map's own, agent:main:chat:map-NAME. The other parameters: see `spawn`."""
        asked = spawn_options(locals())
        handles.check_map(name, concurrency, retries)
        known = handles.keys_of(given := list(items), key)
        place = session or str(ids.chat_key(MAIN, f"map-{name}"))

        async def spawn(at: int, attempt: int) -> Task[Any]:
            return await self.spawn(
                prompt(given[at]),
                label=known[at][:LABEL_CHARS],
                idempotency_key=handles.spawn_key(name, known[at], attempt),
                session=place,
                output_type=output_type,
                **asked,
            )

        def ended(at: int, result: TaskResult[V]) -> None:
            if on_result is not None:
                on_result(given[at], result)

        return await handles.map_all(len(given), concurrency, retries, spawn, ended)

    async def tasks(
        self,
        *,
        requester: str | None = None,
        phase: str | None = None,
        outcome: str | None = None,
        label: str | None = None,
        undelivered: bool = False,
        limit: int = 200,
    ) -> list[Task[Any]]:
        """Tasks that need the user, undelivered results, active tasks, then the newest finished.

        At most `limit`, more only where more are active. `requester`: a session key or task id. Raises InvalidInput,
        NotFound."""
        asked = Filter(
            requester=requester,
            phase=phase_named(phase),
            outcome=outcome_named(outcome),
            label=label,
            undelivered=undelivered,
            limit=limit,
        )
        return [Task(self, *one) for one in await self._backend.tasks(asked)]

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the events from now on: text as it comes, tools, usage, starts and ends.

        A view, not the truth: a reader who falls far behind loses the oldest, and never slows a run."""
        async with aclosing(self._backend.events()) as stream:
            async for event in stream:
                yield event

    # ---- schedules -----------------------------------------------------------------------------------

    async def schedule(
        self,
        name: str,
        prompt: str,
        *,
        at: str | None = None,
        every_seconds: float | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
        jitter_seconds: float = 0.0,
        missed: Literal["skip", "once", "all"] = "once",
        catch_up: int = 10,
        overlap: Literal["skip", "queue", "replace"] = "skip",
        max_runs: int | None = None,
        session: str = MAIN_SESSION,
        label: str | None = None,
        agent_id: str | None = None,
        model: str | None = None,
        run_timeout_seconds: float | None = None,
        notify_parent: bool = False,
        run_tokens: int | None = None,
        run_usd: str | None = None,
        total_tokens: int | None = None,
        total_usd: str | None = None,
    ) -> ScheduleHandle:
        """Spawn a task at every slot of a schedule, once, also after a crash. The same schedule again changes nothing.

        at, every_seconds, cron: exactly one of them; `cron` has five fields, `at` is a moment (2026-12-24T18:00).
        timezone: of `cron` and `at`. jitter_seconds: longest delay of its runs; each schedule has one of its own.
        missed, catch_up: what becomes of slots that were missed; `catch_up` bounds "all".
        overlap: what becomes of a slot whose previous run has not ended. max_runs: runs after which it ends.
        run_tokens, run_usd; total_tokens, total_usd: the budget of each run, and of all runs together.
        The other parameters are those of `spawn`. Raises InvalidInput."""
        given = {key: value for key, value in locals().items() if key not in ("self", "name", "prompt")}
        try:
            await self._backend.act(ADD_SCHEDULE, name, NewSchedule(task=prompt, **given))
        except InvalidInput as error:
            raise in_python_spelling(error.field, error.rule) from error
        return self._schedule(name)

    async def schedules(self) -> list[ScheduleHandle]:
        """Return all schedules, by name."""
        return [self._schedule(one["name"]) for one in (await self._backend.schedules())["schedules"]]

    def _schedule(self, name: str) -> ScheduleHandle:
        return ScheduleHandle(lambda: self._backend, self, name)

    # ---- what needs a person -------------------------------------------------------------------------

    async def inbox(self) -> list[Question]:
        """Return everything that waits for a decision, plans included, oldest first."""
        return await self._backend.inbox()

    async def answer(
        self, question: Question, decision: Literal["approve", "reject", "answer"], text: str = ""
    ) -> None:
        """Answer a question; its run resumes. A rejected plan is written again, with the text as the reason.

        Raises UnknownQuestion when it was answered already, PlanChanged when there is another plan by now."""
        if decision not in ("approve", "reject", "answer"):
            raise InvalidInput("decision", 'must be "approve", "reject" or "answer"')
        await self._backend.answer(question, Answering(decision=decision, text=text, hash=question.hash))

    # ---- talking -------------------------------------------------------------------------------------

    async def say(self, text: str, *, session: str = MAIN_SESSION, idempotency_key: str | None = None) -> str:
        """Send a user's message to a main agent; it is on disk when this returns. `reply` has the answer.

        Gives the id of the letter: the same for the same key, which with another text raises IdempotencyConflict.
        A slash command (`/subagents list`) is carried out instead, and answered where the agent would answer."""
        check_key(idempotency_key)
        return await self._backend.say(text, session, idempotency_key)

    async def command(
        self, line: str, *, session: str = MAIN_SESSION, idempotency_key: str | None = None
    ) -> str:
        """A slash command, and the text that answers it: the same for the same key, and nothing is done again."""
        check_key(idempotency_key)
        return await self._backend.command(line, session, idempotency_key)

    async def notify(self, text: str, *, session: str = MAIN_SESSION) -> bool:
        """Report an event: the agent reads it in its next turn. It does not start a turn; `wake` does.

        The newest 20 are kept. False: the newest one that waits says the same."""
        return await self._backend.notify(text, session)

    async def wake(self, *, session: str = MAIN_SESSION) -> None:
        """The agent looks up within a quarter of a second, or after its turn; once, however many ask until then.

        Without an event and without a HEARTBEAT.md in its workspace there is nothing to look at, and no model call."""
        await self._backend.wake(session)

    async def receive_thread_message(
        self, channel: str, thread: str, text: str, *, account: str = "", idempotency_key: str | None = None
    ) -> None:
        """Pass on a message from a thread that belongs to a child. Raises NotFound when it belongs to none,
        IdempotencyConflict for another text under a key that this thread has used.

        A slash command runs instead and is answered in the thread, if `account`, who wrote it, is the account of the
        thread or one of the channel's operators. Raises Forbidden for others, NotFound for an unknown channel."""
        said = InThread(channel=channel, thread=thread, text=text, account=account)
        await self._backend.receive_thread_message(said, idempotency_key)

    async def reply(self, *, session: str = MAIN_SESSION) -> str:
        """Wait for the oldest reply of this main agent that was not returned yet. Each is returned once."""
        return await self._backend.reply(session)

    async def wait_idle(self, *, session: str = MAIN_SESSION) -> None:
        """Wait until this session and all sessions below it are idle."""
        await self._backend.wait_idle(session)
