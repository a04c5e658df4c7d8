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
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar, Unpack
from weakref import WeakValueDictionary

from clutch.core import authority, keys, routes
from clutch.core.admission import Refused, SpawnRequest
from clutch.core.attachments import StoredFile
from clutch.core.authority import EVERY_SCOPE, OperatorCaller, root_rights
from clutch.core.events import Verdict
from clutch.core.model import LetterKind, Outcome, Route
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
    StoreError,
)
from clutch.gateway import reads
from clutch.gateway.chat import MAIN_SESSION as MAIN_SESSION
from clutch.gateway.checks import check_key, check_text, in_surface_spelling, main_session, task_number
from clutch.gateway.commands import PERSON, is_command, run_command, run_in_thread
from clutch.gateway.leaving import Leaving, Visits
from clutch.gateway.objects import Object
from clutch.gateway.spawns import Asked, OnFullWord, Spawns, arguments, check_on_full
from clutch.gateway.waiting import Waiting
from clutch.ports import FilesFailed
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
from clutch.protocol.targets import Standpoint
from clutch.store.door import DoorStats, Keys, Tx

T = TypeVar("T")

PAUSE_S = 0.02  # between two looks: under load every commit is a change
CHANNEL = "api"  #: the route of sessions opened here; `reply` is its counter
PROGRAM = OperatorCaller(EVERY_SCOPE, "api")  #: whoever embeds Clutch may do everything
AS_PROGRAM = Standpoint(PROGRAM, "api")
EVENT_CHARS_MAX = 4096  # an event is a line; whatever is longer is a message
NOT_ENTERED = "Clutch works inside `async with Clutch(...) as c:` only; this one was not entered"
ENTERED_BEFORE = "this Clutch was entered before; make a new one: `async with Clutch(...) as c:`"
CLOSED = "this Clutch is closed; its tasks go on at the next start, and `get` finds them by their id"


class Running(Protocol):
    """An engine that works while it is open."""

    @property
    def kit(self) -> Kit: ...


@dataclass(frozen=True, slots=True)
class _Inside:
    """What is there between entering and leaving."""

    kit: Kit
    waiting: Waiting
    spawns: Spawns


@dataclass(frozen=True, slots=True)
class TaskResult:
    """`text` is what the child said last, also the partial text of one that failed."""

    outcome: Outcome
    text: str | None
    error: str | None
    value: Any = None  #: what was submitted, if a form was asked for (`output_schema`)
    files: tuple[StoredFile, ...] = ()  #: what it hands over; `Task.read_file` has the contents

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
        return TaskResult(ended.outcome, ended.text, ended.error, value, ended.files)

    async def info(self) -> Object:
        """All there is to know about it now, in the form every surface shows: phase, use, delivery, plan, evidence."""
        return await self._clutch._kit.door.read(reads.known, self._number)

    async def why(self) -> Object:
        """How it came to where it is: `timeline`, `deliveries`, and `stuck` with the gate it waits at."""
        return await self._clutch._kit.door.read(reads.why, AS_PROGRAM, self.id)

    async def read_file(self, name: str) -> bytes:
        """A file it hands over, as long as it is kept. Raises NotFound."""
        files = self._clutch._kit.files
        try:
            if files is not None:
                return await files.read(self._number, name)
        except FilesFailed as error:
            raise NotFound(f"{name[:80]!r} of {self.id}: {error}") from error
        raise NotFound("no files are kept here")

    async def kill(self, reason: str = "killed") -> tuple[str, ...]:
        """The task and everything below it. The ids of what was stopped; empty when all had finished.

        Raises StoreError when nothing could be written: nothing has stopped then."""
        report = await self._verbs.kill(PROGRAM, self._number, reason)
        if report.not_stopped:
            raise StoreError(f"not stopped: {report.not_stopped[0][1]}")
        return _ids(report.stopped)

    async def steer(self, text: str) -> None:
        """A new instruction takes the place of what runs now. A finished task refuses: NotPossible."""
        await self._verbs.steer(PROGRAM, self._number, text)

    async def send(self, text: str, *, wait_seconds: float | None = None) -> str | None:
        """A follow-up. The first new words of the child; None when it says nothing within the time."""
        return (await self._verbs.send(PROGRAM, self._number, text, wait_seconds)).reply

    async def pause(self) -> tuple[str, ...]:
        """The task and everything below it stop at their next step and free their slots. Those that changed."""
        return _ids(await self._verbs.pause(PROGRAM, self._number))

    async def resume(self) -> tuple[str, ...]:
        return _ids(await self._verbs.resume(PROGRAM, self._number))

    async def retry(self, text: str = "") -> None:
        """A finished task starts anew from an empty transcript, with other words if some are given."""
        await self._verbs.retry(PROGRAM, self._number, text)

    async def continue_(self, text: str) -> None:
        """A finished task goes on in its transcript."""
        await self._verbs.continue_(PROGRAM, self._number, text)

    async def approve(self, plan_hash: str, text: str = "") -> None:
        """Its plan, as it was shown. Raises PlanChanged when there is another one by now."""
        await self._verbs.approve(PROGRAM, self._number, plan_hash, text)

    async def reject(self, plan_hash: str, reason: str, *, then: Literal["revise", "end"] = "revise") -> None:
        if then not in ("revise", "end"):
            raise InvalidInput("then", 'must be "revise" or "end"')
        check_text("reason", reason, self._clutch._kit.policy.control.steer_chars_max)
        await self._verbs.reject(PROGRAM, self._number, plan_hash, reason, Verdict(then))

    async def remove(self) -> None:
        """Finished and delivered, it leaves the quota of its requester."""
        await self._verbs.remove(PROGRAM, self._number)

    async def redeliver(self) -> None:
        """A result that could not be told is told again."""
        await self._verbs.redeliver(PROGRAM, self._number)

    async def dismiss(self) -> None:
        """A result that could not be told need not be."""
        await self._verbs.dismiss(PROGRAM, self._number)

    @property
    def _verbs(self) -> Verbs:
        return self._clutch._verbs


def _ids(numbers: Sequence[int]) -> tuple[str, ...]:
    return tuple(keys.task_id(number) for number in numbers)


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
    detail: Mapping[str, Any]  #: of a plan its text: `detail["plan"]`
    hash: str
    session_key: str
    task_id: str | None  #: None = a main agent asks


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
            self._stack = stack.pop_all()
        self._inside = _Inside(kit, waiting, Spawns(kit, waiting, self._surely))
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

    async def spawn(
        self,
        task: str,
        *,
        session: str = MAIN_SESSION,
        on_full: OnFullWord | None = None,
        **asked: Unpack[Asked],
    ) -> Task:
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
        attachments: files by name, which the child reads as /task/in/NAME.
        session: the main or chat session it works for; the result is told to that agent too.
        idempotency_key: the same key gives the same task, never a twin; other wishes under it are an error.
        on_full: "queue" waits while a limit is reached that has room again by itself (children, descendants,
            retained), in the order they came; "reject" raises. Cancelled while it waits, it leaves nothing."""
        check_on_full(on_full)
        self._check_accepts()
        request = await in_surface_spelling(self._open().spawns.wanted, arguments(task, asked))
        _, got = await self._spawned(session, request, on_full)
        if isinstance(got, str):
            raise SpawnRefused(got)
        if isinstance(got, Refused):
            raise IdempotencyConflict(got.error) if got.is_conflict else SpawnRefused(got.error, got.limit)
        return Task(self, got.task_id, got.label, got.session_key)

    async def would_spawn(
        self, task: str, *, session: str = MAIN_SESSION, **asked: Unpack[Asked]
    ) -> Mapping[str, Any]:
        """What `spawn` would be answered now: model, thinking, context and warnings, or why not. Writes nothing."""
        fields = arguments(task, asked) | {"dry_run": True}
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

    async def get(self, task_id: str) -> Task:
        """A task by its id, also one of an earlier start. Raises InvalidInput, NotFound."""
        kit, number = self._kit, task_number(task_id)
        known = await kit.door.read(results.known, number)
        if known is None:
            raise NotFound(f"there is no task {task_id}")
        return Task(self, number, *known)

    async def tasks(
        self,
        *,
        requester: str | None = None,
        phase: str | None = None,
        outcome: str | None = None,
        label: str | None = None,
        undelivered: bool = False,
        limit: int = 200,
    ) -> list[Task]:
        """The oldest first, at most `limit`. `requester`: a session key or task id. Raises InvalidInput, NotFound."""
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
        return [Task(self, view.task_id, view.label, view.session_key or "") for view in page.tasks]

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
        """Everything that waits for somebody to decide, plans too, oldest first."""
        return [_question(item) for item in await self._kit.door.read(needs_you.waiting)]

    async def answer(
        self, question: Question, decision: Literal["approve", "reject", "answer"], text: str = ""
    ) -> None:
        """The run goes on by itself; a plan that is rejected, with the text as the reason, is written anew.

        Raises UnknownQuestion when somebody else was first, PlanChanged when there is another plan by now."""
        if decision not in ("approve", "reject", "answer"):
            raise InvalidInput("decision", 'must be "approve", "reject" or "answer"')
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
        check_text("line", line, self._kit.policy.limits.task_bytes_max)
        key = None if idempotency_key is None else f"{session}:{idempotency_key}"
        return await run_command(self, session, line, caller, key)

    async def session(self, session: str) -> tuple[int, str]:
        """For surfaces: the number of a main session, made if it is not there, and its agent."""
        return await self._session(session), main_session(session).agent_id

    async def notify(self, text: str, *, session: str = MAIN_SESSION) -> bool:
        """Something happened: the agent reads it in its next turn. Wakes nobody; `wake` does.

        The newest 20 are kept. False: the newest one that waits says the same."""
        kit = self._kit
        check_text("text", text, EVENT_CHARS_MAX)
        receiver = await self._session(session)
        return await self._tx(receiver, events.notify, kit.policy, receiver, text)

    async def wake(self, *, session: str = MAIN_SESSION) -> None:
        """The agent looks up within a quarter of a second, or after its turn; once, however many ask until then.

        Without an event and without a HEARTBEAT.md in its workspace there is nothing to look at, and no model call."""
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
