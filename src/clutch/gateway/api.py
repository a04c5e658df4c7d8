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
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, Self, Unpack, cast, overload
from weakref import WeakValueDictionary

from typing_extensions import TypeVar

from clutch.core import authority, keys, routes
from clutch.core.admission import Refused, SpawnRequest
from clutch.core.agents import MAIN
from clutch.core.authority import OperatorCaller, root_rights
from clutch.core.model import LetterKind, Route
from clutch.engine import spawning
from clutch.engine.insisting import surely
from clutch.engine.kit import Kit
from clutch.engine.spawning import Spawned
from clutch.engine.verbs import Verbs
from clutch.errors import (
    ClutchError,
    IdempotencyConflict,
    InvalidInput,
    NotFound,
    SpawnRefused,
)
from clutch.gateway import many, reads
from clutch.gateway.chat import MAIN_SESSION as MAIN_SESSION
from clutch.gateway.checks import check_key, check_text, in_surface_spelling, main_session, task_number
from clutch.gateway.commands import PERSON, is_command, run_command, run_in_thread
from clutch.gateway.desk import Desk
from clutch.gateway.forms import form_of
from clutch.gateway.handles import Event as Event
from clutch.gateway.handles import Port
from clutch.gateway.handles import Question as Question
from clutch.gateway.handles import Task as Task
from clutch.gateway.handles import TaskResult as TaskResult
from clutch.gateway.leaving import Leaving, Visits
from clutch.gateway.local import AS_PROGRAM, Local
from clutch.gateway.local import PROGRAM as PROGRAM
from clutch.gateway.objects import Object
from clutch.gateway.spawns import Asked, OnFullWord, Spawns, arguments, check_on_full
from clutch.gateway.waiting import Waiting
from clutch.protocol import (
    control,
    events,
    heartbeat,
    inbox,
    listing,
    needs_you,
    outbox,
    queries,
    results,
    sending,
    threads,
    usage,
)
from clutch.protocol.control import NotPossible as NotPossible
from clutch.protocol.control import PlanChanged as PlanChanged
from clutch.protocol.control import UnknownTask as UnknownTask
from clutch.protocol.listing import Wanted
from clutch.protocol.needs_you import Item
from clutch.protocol.outbox import AtCounter
from clutch.protocol.questions import Decision, QuestionKind
from clutch.protocol.questions import UnknownQuestion as UnknownQuestion
from clutch.protocol.spawn import Order
from clutch.store.door import DoorStats, Keys, Tx

T = TypeVar("T")
V = TypeVar("V", default=Any)

PAUSE_S = 0.02  # between two looks: under load every commit is a change
LABEL_CHARS = 72  #: of an item of a map
CHANNEL = "api"  #: the route of sessions opened here; `reply` is its counter
EVENT_CHARS_MAX = 4096  # an event is a line; whatever is longer is a message
NOT_ENTERED = "Clutch works inside `async with Clutch(...) as c:` only; this one was not entered"
ENTERED_BEFORE = "this Clutch was entered before; make a new one: `async with Clutch(...) as c:`"
ELSEWHERE = "this Clutch is a client of the gateway that owns the state directory; only that one can do this"
CLOSED = "this Clutch is closed; its tasks go on at the next start, and `get` finds them by their id"


class Running(Protocol):
    """An engine that works while it is open."""

    @property
    def kit(self) -> Kit: ...


@dataclass(frozen=True, slots=True)
class _Inside:
    """What is there between entering and leaving, in the process that has the engine."""

    kit: Kit
    waiting: Waiting
    spawns: Spawns
    port: Local


class Away(Port, Protocol):
    """A gateway in another process, and what this one asks of it."""

    async def spawn(
        self, args: Mapping[str, Any], session: str, on_full: OnFullWord | None
    ) -> Mapping[str, Any]:
        """The answer of `sessions_spawn`. Raises SpawnRefused, InvalidInput, IdempotencyConflict."""
        ...

    async def tasks(self, **asked: Any) -> list[Object]: ...

    def events(self) -> AsyncGenerator[Event, None]: ...

    async def questions(self) -> list[Question]: ...

    async def answer(self, question: Question, decision: str, text: str) -> None: ...

    async def say(self, text: str, session: str, key: str | None) -> str: ...

    async def command(self, line: str, session: str, key: str | None) -> str: ...

    async def notify(self, text: str, session: str) -> bool: ...

    async def wake(self, session: str) -> None: ...

    async def reply(self, session: str) -> str: ...

    async def settled(self, session: str) -> None: ...


def _question(item: Item) -> Question:
    number = keys.parse_question_id(item.id)
    detail = item.detail if number is not None else {"plan": item.text}
    task_id = None if item.task_id is None else keys.task_id(item.task_id)
    kind = QuestionKind(item.kind)
    return Question(number or item.task_id or 0, kind, detail, item.hash, item.session_key, task_id)


class Gateway:
    """`opening` starts the engine and stops it."""

    def __init__(self, opening: AbstractAsyncContextManager[Running]) -> None:
        self._opening = opening
        self._stack = AsyncExitStack()
        self._sessions: dict[str, int] = {}
        self._was_entered = False
        self._inside: _Inside | None = None
        self._away: Away | None = None  #: somebody else has the engine
        self._group: asyncio.TaskGroup | None = None  #: of what is done at the end of tasks
        self._works: set[asyncio.Task[None]] = set()
        self.visits = Visits()  #: of those who come through a surface
        self.leaving: Leaving | None = None  #: None: part of a program, which decides itself when to end
        self.under_way: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  #: commands, by key

    async def __aenter__(self) -> Self:
        if self._was_entered:
            raise ClutchError(ENTERED_BEFORE)
        self._was_entered = True
        async with AsyncExitStack() as stack:
            kit = (await stack.enter_async_context(self._opening)).kit
            waiting = Waiting(kit.door, kit.changes)
            group = await stack.enter_async_context(asyncio.TaskGroup())
            watch = group.create_task(waiting.run())
            stack.callback(watch.cancel)
            stack.callback(self._close, waiting)
            await self._lend_group(stack)
            self._stack = stack.pop_all()
        self._inside = _Inside(
            kit, waiting, Spawns(kit, waiting, self._surely), Local(kit, waiting, Desk(self))
        )
        return self

    async def _lend_group(self, stack: AsyncExitStack) -> None:
        """Whoever still waits for an end when it closes is let go."""
        self._group = await stack.enter_async_context(asyncio.TaskGroup())
        stack.callback(self._end_group)

    def _end_group(self) -> None:
        self._group = None
        for work in self._works:
            work.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        if self._group is None:
            work.close()
            raise ClutchError(CLOSED if self._was_entered else NOT_ENTERED)
        task = self._group.create_task(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)

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
        if self._away is not None:
            raise ClutchError(ELSEWHERE)
        if self._inside is None:
            raise ClutchError(CLOSED if self._was_entered else NOT_ENTERED)
        return self._inside

    @property
    def _acts(self) -> Port:
        return self._open().port if self._away is None else self._away

    @property
    def kit(self) -> Kit:
        """For surfaces: what the engine works with. Raises ClutchError outside of `async with`."""
        return self._open().kit

    @property
    def _kit(self) -> Kit:
        return self._open().kit

    def _check_accepts(self) -> None:
        """Raises Draining."""
        if self.leaving is not None:
            self.leaving.check_open()

    @property
    def _waiting(self) -> Waiting:
        return self._open().waiting

    @property
    def _verbs(self) -> Verbs:
        return Verbs(self._kit)

    @property
    def stats(self) -> DoorStats:
        """What the store has done since this start: transactions, statements, commits."""
        return self._kit.door.stats

    # ---- tasks ---------------------------------------------------------------------------------------

    @overload
    async def spawn(
        self,
        task: str,
        *,
        session: str = ...,
        on_full: OnFullWord | None = ...,
        output_type: type[V],
        **asked: Unpack[Asked],
    ) -> Task[V]: ...

    @overload
    async def spawn(
        self,
        task: str,
        *,
        session: str = ...,
        on_full: OnFullWord | None = ...,
        output_type: None = ...,
        **asked: Unpack[Asked],
    ) -> Task[Any]: ...

    async def spawn(
        self,
        task: str,
        *,
        session: str = MAIN_SESSION,
        on_full: OnFullWord | None = None,
        output_type: type[V] | None = None,
        **asked: Unpack[Asked],
    ) -> Task[Any]:
        """A child of `session`, on disk when this returns. Raises InvalidInput, SpawnRefused, IdempotencyConflict.

        label: a name to show; without one, the beginning of the task.
        agent_id, model, thinking: others than those of the session; the policy must allow the agent.
            thinking is off, minimal, low, medium, high or max.
        run_timeout_seconds: of one run; 0 = no limit.
        cleanup: "delete" forgets the child once its result was told.
        plan_mode: the child writes a plan first and waits for a decision.
        mode, thread: True binds a thread of a channel, and the child stays for follow-ups ("session").
        expects_completion: False = the session is told when convenient.
        context: "fork" starts it with a copy of the session's talk.
        workspace, cwd: "isolated" gives it a directory of its own; `cwd` is where its commands start.
        sandbox: "require" refuses an agent whose tools do not run boxed.
        tools: only these; budget: {"tokens": …, "usd": …} for it and everything below it.
        output_schema: a JSON schema its result must satisfy; runtime: who does the work.
        output_type: the same as a type that pydantic knows, and `value` is one of it.
        attachments: files by name, which the child reads as /task/in/NAME.
        session: the main or chat session it works for; the result is told to that agent too.
        idempotency_key: the same key gives the same task, never a twin; other wishes under it are an error.
        on_full: "queue" waits while a limit is reached that has room again by itself (children, descendants,
            retained), in the order they came; "reject" raises. Cancelled while it waits, it leaves nothing."""
        check_on_full(on_full)
        form = None if output_type is None else form_of(output_type)
        if form is not None:
            if asked.get("output_schema") is not None:
                raise InvalidInput("output_type", "and output_schema cannot both be given")
            asked["output_schema"] = form.schema
        read = None if form is None else form.read
        if self._away is not None:
            said = await in_surface_spelling(_as_written, arguments(task, asked))
            got_away = await self._away.spawn(said, session, on_full)
            return Task(self, got_away["taskId"], got_away["label"], got_away["childSessionKey"], read)
        self._check_accepts()
        request = await in_surface_spelling(self._open().spawns.wanted, arguments(task, asked))
        _, got = await self._spawned(session, request, on_full)
        if isinstance(got, str):
            raise SpawnRefused(got)
        if isinstance(got, Refused):
            raise IdempotencyConflict(got.error) if got.is_conflict else SpawnRefused(got.error, got.limit)
        return Task(self, keys.task_id(got.task_id), got.label, got.session_key, read)

    async def would_spawn(
        self, task: str, *, session: str = MAIN_SESSION, **asked: Unpack[Asked]
    ) -> Mapping[str, Any]:
        """What `spawn` would be answered now: model, thinking, context and warnings, or why not. Writes nothing."""
        fields = arguments(task, asked) | {"dry_run": True}
        if self._away is not None:
            return await self._away.spawn(await in_surface_spelling(_as_written, fields), session, None)
        request = await in_surface_spelling(self._open().spawns.wanted, fields)
        return spawning.answer(*await self._spawned(session, request, None))

    async def spawn_answer(
        self, args: Mapping[str, Any], *, session: str = MAIN_SESSION, on_full: OnFullWord | None = None
    ) -> dict[str, Any]:
        """For surfaces: arguments as `sessions_spawn` takes them, and its answer, whatever it is.

        Raises InvalidInput only for what is no argument of it: `session`, `on_full`; Draining."""
        check_on_full(on_full)
        self._check_accepts()
        self._known(session)
        try:
            request = await self._open().spawns.wanted(args)
        except InvalidInput as error:
            return spawning.wrong(error)
        return spawning.answer(*await self._spawned(session, request, on_full))

    @overload
    async def get(self, task_id: str, *, output_type: type[V]) -> Task[V]: ...

    @overload
    async def get(self, task_id: str, *, output_type: None = ...) -> Task[Any]: ...

    async def get(self, task_id: str, *, output_type: type[V] | None = None) -> Task[Any]:
        """A task by its id, also one of an earlier start. Raises InvalidInput, NotFound."""
        number = task_number(task_id)
        read = None if output_type is None else form_of(output_type).read
        if self._away is not None:
            return self._shown(await self._away.info(task_id), read)
        known = await self._kit.door.read(results.known, number)
        if known is None:
            raise NotFound(f"there is no task {task_id}")
        return Task(self, keys.task_id(number), *known, read)

    async def read_file(self, task_id: str, name: str) -> bytes:
        """For surfaces: a file that a task hands over. Raises NotFound."""
        return await self._acts.read_file(task_id, name)

    def _shown(self, task: Object, read: Callable[[Any], Any] | None = None) -> Task[Any]:
        return Task(self, task["taskId"], task["label"], task["sessionKey"] or "", read)

    async def map(
        self,
        items: Iterable[T],
        write: Callable[[T], str],
        *,
        name: str,
        key: Callable[[T], str] = str,
        in_flight: int = 8,
        retries: int = 0,
        session: str | None = None,
        output_type: type[V] | None = None,
        **asked: Unpack[Asked],
    ) -> list[TaskResult[V]]:
        """One task for every item, `write(item)`; their results in the order of the items.

        name, key: the same map with the same keys goes on where it was: what has ended is not repeated.
        in_flight: so many at once; retries: of an item whose task did not end well, each a task of its own.
        session: by default one of the map's own, agent:main:chat:map-NAME. The rest is for `spawn`."""
        many.check_map(name, in_flight, retries)
        given = list(items)
        known = many.keys_of(given, key)
        place = session or str(keys.chat_key(MAIN, f"map-{name}"))

        async def spawn(at: int, attempt: int) -> Task[Any]:
            wanted = cast("Asked", {"label": known[at][:LABEL_CHARS], **asked})
            wanted["idempotency_key"] = many.spawn_key(name, known[at], attempt)
            return await self.spawn(write(given[at]), session=place, output_type=output_type, **wanted)

        return await many.map_all(len(given), in_flight, retries, spawn)

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
        """The oldest first, at most `limit`. `requester`: a session key or task id. Raises InvalidInput, NotFound."""
        if self._away is not None:
            asked = {"requester": requester, "phase": phase, "outcome": outcome, "label": label}
            found = await self._away.tasks(**asked, undelivered=undelivered, limit=limit)
            return [self._shown(task) for task in found]
        door = self._kit.door
        asker = None if requester is None else await door.read(reads.session_number, AS_PROGRAM, requester)
        wanted = Wanted(
            requester_id=asker,
            phase=reads.phase_named(phase),
            outcome=reads.outcome_named(outcome),
            label=label,
            is_undelivered=undelivered,
        )
        page = await door.read(listing.page, wanted, limit)
        return [
            Task(self, keys.task_id(view.task_id), view.label, view.session_key or "") for view in page.tasks
        ]

    async def events(self) -> AsyncGenerator[Event, None]:
        """What happens now, from here on: words as they come, tools, usage, starts and ends.

        A view, not the truth: a reader who falls far behind loses the oldest, and never slows a run."""
        if self._away is not None:
            async with aclosing(self._away.events()) as stream:
                async for event in stream:
                    yield event
            return
        bus = self._kit.bus
        watcher = bus.watch()
        try:
            async for live in watcher:
                yield Event(live.name, keys.task_id(live.session_id), live.data)
        finally:
            bus.leave(watcher)

    # ---- what needs a person -------------------------------------------------------------------------

    async def questions(self) -> list[Question]:
        """Everything that waits for somebody to decide, plans too, oldest first."""
        if self._away is not None:
            return await self._away.questions()
        return [_question(item) for item in await self._kit.door.read(needs_you.waiting)]

    async def answer(
        self, question: Question, decision: Literal["approve", "reject", "answer"], text: str = ""
    ) -> None:
        """The run goes on by itself; a plan that is rejected, with the text as the reason, is written anew.

        Raises UnknownQuestion when somebody else was first, PlanChanged when there is another plan by now."""
        if decision not in ("approve", "reject", "answer"):
            raise InvalidInput("decision", 'must be "approve", "reject" or "answer"')
        if self._away is not None:
            return await self._away.answer(question, decision, text)
        if question.kind is not QuestionKind.PLAN:
            await self._verbs.answer(PROGRAM, question.id, Decision(decision), text, question.hash)
        elif decision == "approve":
            await self._verbs.approve(PROGRAM, question.id, question.hash, text)
        elif decision == "reject":
            check_text("text", text, self._kit.policy.control.steer_chars_max)
            await self._verbs.reject(PROGRAM, question.id, question.hash, text)
        else:
            raise InvalidInput("decision", "a plan is approved or rejected")

    # ---- talking -------------------------------------------------------------------------------------

    async def say(
        self,
        text: str,
        *,
        session: str = MAIN_SESSION,
        idempotency_key: str | None = None,
        caller: OperatorCaller = PERSON,
    ) -> str:
        """A person's words to a main agent, on disk when this returns. `reply` has the answer.

        Gives the id of the letter: the same for the same key. A slash command (`/subagents list`) is carried out
        for `caller` instead, and answered where the agent would answer."""
        if self._away is not None:
            return await self._away.say(text, session, idempotency_key)
        kit = self._kit
        check_key(idempotency_key)
        check_text("text", text, kit.policy.limits.task_bytes_max)
        receiver = await self._session(session)
        key = f"user:{receiver}:{idempotency_key or kit.ids.uuid4()}"
        route = f"{CHANNEL}:{session}"
        if is_command(text):
            said = await run_command(self, session, text, caller, key)
            await self._tx(receiver, outbox.post, receiver, f"command:{key}", route, said)
        else:
            self._check_accepts()
            await self._tx(receiver, inbox.say, kit.policy, receiver, key, LetterKind.USER, text, route)
        return key

    async def command(
        self,
        line: str,
        *,
        session: str = MAIN_SESSION,
        idempotency_key: str | None = None,
        caller: OperatorCaller = PERSON,
    ) -> str:
        """A slash command, and the text that answers it: the same for the same key, and nothing is done again."""
        check_key(idempotency_key)
        if self._away is not None:
            return await self._away.command(line, session, idempotency_key)
        check_text("line", line, self._kit.policy.limits.task_bytes_max)
        key = None if idempotency_key is None else f"{session}:{idempotency_key}"
        return await run_command(self, session, line, caller, key)

    async def session(self, session: str) -> tuple[int, str]:
        """For surfaces: the number of a main session, made if it is not there, and its agent."""
        return await self._session(session), main_session(session).agent_id

    async def notify(self, text: str, *, session: str = MAIN_SESSION) -> bool:
        """Something happened: the agent reads it in its next turn. Wakes nobody; `wake` does.

        The newest 20 are kept. False: the newest one that waits says the same."""
        if self._away is not None:
            return await self._away.notify(text, session)
        kit = self._kit
        check_text("text", text, EVENT_CHARS_MAX)
        receiver = await self._session(session)
        return await self._tx(receiver, events.notify, kit.policy, receiver, text)

    async def wake(self, *, session: str = MAIN_SESSION) -> None:
        """The agent looks up within a quarter of a second, or after its turn; once, however many ask until then.

        Without an event and without a HEARTBEAT.md in its workspace there is nothing to look at, and no model call."""
        if self._away is not None:
            return await self._away.wake(session)
        kit, sleeper = self._kit, await self._session(session)
        await self._tx(sleeper, heartbeat.wake, kit.policy, sleeper)

    async def heard(
        self,
        channel: str,
        thread: str,
        text: str,
        *,
        account: str = "",
        idempotency_key: str | None = None,
    ) -> None:
        """Somebody wrote in a thread that belongs to a child: it reads it. Raises NotFound when it belongs to none.

        A slash command is carried out instead and answered in the thread."""
        kit = self._kit
        check_key(idempotency_key)
        check_text("text", text, kit.policy.limits.task_bytes_max)
        key = f"thread:{idempotency_key or kit.ids.uuid4()}"
        if is_command(text):
            route = Route(channel, account or None, None, thread)
            said, here = await run_in_thread(self, text, route, key), await self._session(MAIN_SESSION)
            return await self._tx(here, outbox.post, here, f"command:{key}", routes.to_text(route), said)
        known = (kit.policy, channel, account, thread, key, text)
        await self._surely(lambda: kit.door.alone(threads.heard, *known))

    async def reply(self, *, session: str = MAIN_SESSION) -> str:
        """The oldest words of this main agent that nobody has taken yet; waits for them. Each is given once."""
        if self._away is not None:
            return await self._away.reply(session)
        speaker = await self._session(session)
        while True:
            change = self._waiting.next_change
            if await self._kit.door.read(outbox.waits, speaker, CHANNEL):
                body = await self._kit.door.alone(sending.hand_out, self._kit.policy, speaker, CHANNEL)
                if body is not None:
                    return body
            await self._waiting.until(change)

    async def next_words(
        self, session: str, wait_s: float, *, until_quiet: bool, heard: int | None
    ) -> tuple[AtCounter | None, bool]:
        """For surfaces: the next words for the person, until they are `heard`; and whether all is quiet below.

        None: after the time, or when all is quiet if that is waited for."""
        speaker, deadline = await self._session(session), time.monotonic() + wait_s
        door = self._kit.door
        if heard is not None:
            await door.alone(sending.hand_out, self._kit.policy, speaker, CHANNEL, heard)
        while True:
            change = self._waiting.next_change
            is_quiet = await door.read(queries.is_quiet, speaker)
            said = await door.read(outbox.at_counter, speaker, CHANNEL)  # after it: last words are not missed
            is_over = self._kit.stopping.is_set() or time.monotonic() >= deadline
            if said is not None or is_over or (is_quiet and until_quiet):
                return said, is_quiet
            await asyncio.sleep(PAUSE_S)
            await self._waiting.until(change)

    async def settled(self, *, session: str = MAIN_SESSION) -> None:
        """Wait until nothing is left to do for this session or anywhere below it."""
        if self._away is not None:
            return await self._away.settled(session)
        root = await self._session(session)
        while True:
            change = self._waiting.next_change
            if await self._kit.door.read(queries.is_quiet, root):
                return
            await self._waiting.until(change)

    # ---- around it -----------------------------------------------------------------------------------

    async def _session(self, session: str) -> int:
        """The number of a main session that can be spoken to, made if it is not there."""
        known = self._known(session)
        if known is None or not await self._kit.door.read(queries.is_open, known):
            known = self._sessions[session] = await self._opened(session)
        return known

    async def _spawned(
        self, session: str, request: SpawnRequest, on_full: OnFullWord | None
    ) -> tuple[Order, Spawned]:
        """Whether the session is still there is asked only after a refusal."""
        known = self._known(session) or await self._session(session)
        order, got = await self._open().spawns.spawn(known, request, on_full)
        if not isinstance(got, Refused) or await self._kit.door.read(queries.is_open, known):
            return order, got
        return await self._open().spawns.spawn(await self._session(session), request, on_full)

    def _known(self, session: str) -> int | None:
        """Raises InvalidInput for what is no main session."""
        return self._sessions.get(str(main_session(session)))

    async def _opened(self, session: str) -> int:
        """One that was deleted begins anew; one that was archived comes back with what was said in it."""
        kit, parsed = self._kit, main_session(session)
        number, agent_id = kit.ids.next(), parsed.agent_id
        rights = authority.to_text(root_rights(kit.policy.grant(agent_id)))
        route, workspace = f"{CHANNEL}:{parsed}", kit.policy.workspace_of(agent_id) or "."
        made = (number, session, agent_id, rights, route, workspace)
        opened = await self._surely(lambda: kit.door.alone(usage.open_root, kit.policy, *made))
        if kit.policy.heartbeat_of(agent_id) is not None:
            await self._surely(lambda: kit.door.alone(heartbeat.arm, kit.policy))
        await self._surely(lambda: kit.door.alone(control.open_main, kit.policy, opened))
        return opened

    async def _tx(self, written: Keys, fn: Callable[..., Tx[T]], *args: Any) -> T:
        return await self._surely(lambda: self._kit.door.tx(written, fn, *args))

    async def _surely(self, ask: Callable[[], Awaitable[T]]) -> T:
        return await surely(self._kit.policy.work.tick_s, ask)


async def _as_written(args: Mapping[str, object]) -> Mapping[str, object]:
    """Whoever does the work checks them."""
    return args
