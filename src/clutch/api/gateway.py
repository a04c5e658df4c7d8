"""The gateway of the process that has the engine: tasks, and messages to main agents. Every surface serves it.

Every write carries a key, so when the store loses the connection and the commit is in doubt, asking again finds what
was written instead of doing it twice."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar
from weakref import WeakValueDictionary

from clutch.api import reads, schedules
from clutch.api.actions import ANSWER, ActionCall, Actions, Answering, ApiAction, B, InThread, check_key
from clutch.api.handles import Event, Known, Question, TaskResult, item_of, question_of
from clutch.api.reads import Filter
from clutch.api.slash import CHAT_OPERATOR, MAIN_SESSION, is_command, run_command, run_in_thread
from clutch.api.spawn import (
    OnFullWord,
    Spawns,
    check_on_full,
    check_place,
    main_session,
    task_number,
    with_notification,
)
from clutch.api.views import Object
from clutch.api.wait import TaskWaiter
from clutch.core import delivery as delivery_rules
from clutch.core import ids
from clutch.core.authority import EVERY_SCOPE, OperatorCaller
from clutch.core.delivery import LOCAL_CHANNEL
from clutch.core.ids import SessionKey
from clutch.core.messages import Usage
from clutch.core.model import LetterKind, Route
from clutch.core.spawn import SpawnRefusal, SpawnRequest, known_agents
from clutch.engine import spawn
from clutch.engine.actions import check_text
from clutch.engine.services import Services, surely
from clutch.errors import Draining, IdempotencyConflict, InvalidInput, NotFound, StoreError
from clutch.ports import FilesFailed
from clutch.store.transaction import Keys, TxFunction
from clutch.transactions import control, messages, outbox, sessions, task_files, usage, wake, workers
from clutch.transactions import delivery as delivery_tx
from clutch.transactions.outbox import PendingReply
from clutch.transactions.read import chats, tasks, transcripts
from clutch.transactions.read.targets import Standpoint
from clutch.transactions.workers import Working

if TYPE_CHECKING:
    from clutch.api.client import Opened


# --------------------------------------------------------------------------------------------------
# When a gateway that is a program of its own ends: after a stop, a drain, or a long idle time.
#
# *Stop* interrupts the work; the next gateway resumes it. *Drain* accepts no new work from outside, finishes the
# accepted work and what its agents delegate, then stops. *Idle*: no request for a while, and no work ahead that needs
# a running gateway. A program that embeds Clutch has none of this.

LOOK_S = 0.25  #: while it drains: a person watches
IDLE_LOOK_S = 15.0


def letter_of(session_id: int, key: str, caller: OperatorCaller) -> str:
    """Return the name of a message. Two callers may use the same key for different messages."""
    whose = "" if caller.actor == CHAT_OPERATOR.actor else f"{caller.actor}:"
    return f"user:{session_id}:{whose}{key}"


class Visits:
    """Requests and streams under way, and when the last one ended."""

    def __init__(self) -> None:
        self.under_way = 0
        self.last = time.monotonic()

    @contextmanager
    def one(self) -> Iterator[None]:
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1
            self.last = time.monotonic()

    @property
    def quiet_s(self) -> float:
        return 0.0 if self.under_way else time.monotonic() - self.last


class Leaving:
    """Ends the gateway: `told` is set when it is time to stop, `why` says why."""

    def __init__(
        self, clutch: Opened, idle_exit_s: float | None = None, *, is_background: bool = False
    ) -> None:
        self._clutch, self._idle_exit_s = clutch, idle_exit_s
        self.is_background = is_background  #: a command started it
        self.told = asyncio.Event()
        self.why = ""
        self._drains = asyncio.Event()
        self._deadline: float | None = None

    @property
    def is_draining(self) -> bool:
        return self._drains.is_set()

    def stop(self, why: str) -> None:
        if not self.told.is_set():
            self.why = why
            self.told.set()

    def drain(self, within_s: float | None) -> None:
        """Begin to drain. A later call replaces the time limit."""
        self._clutch.services.is_leaving = True
        self._deadline = None if within_s is None else time.monotonic() + within_s
        self._drains.set()

    async def working(self) -> list[Working]:
        services = self._clutch.services
        return await services.db.read(workers.working, services.policy.serving.drain_ahead_s)

    def check_open(self) -> None:
        """Raises Draining."""
        if self.is_draining:
            raise Draining

    async def watch(self) -> None:
        """Until it is time to go."""
        while not self.told.is_set():
            await self._pause()
            try:
                if self.is_draining:
                    await self._look_drained()
                elif self._idle_exit_s and self._clutch.local_gateway.visits.quiet_s >= self._idle_exit_s:
                    await self._look_idle(self._idle_exit_s)
            except StoreError:
                continue  # the worker logs it, and the store may work at the next look

    async def _pause(self) -> None:
        """A drain is begun at once."""
        if self.is_draining:
            await asyncio.sleep(LOOK_S)
            return
        try:
            async with asyncio.timeout(min(IDLE_LOOK_S, self._idle_exit_s or IDLE_LOOK_S)):
                await self._drains.wait()
        except TimeoutError:
            pass

    async def _look_drained(self) -> None:
        if not await self.working():
            self.stop("drained")
        elif self._deadline is not None and time.monotonic() >= self._deadline:
            self.stop("not drained in time: what is left resumes at the next start")

    async def _look_idle(self, idle_s: float) -> None:
        services = self._clutch.services
        if not await services.db.read(workers.is_anything, sorted(services.channels)):
            self.stop(f"no work and no request for {idle_s:.0f} s")


T = TypeVar("T")
P = ParamSpec("P")

PROGRAM = OperatorCaller(EVERY_SCOPE, "api")  #: a program that embeds Clutch may do everything
AS_PROGRAM = Standpoint(PROGRAM, "api")
PAUSE_S = 0.02  # between two looks: under load every commit is a change
EVENT_CHARS_MAX = 4096  # an event is one line; longer texts are messages


class Gateway:
    def __init__(self, services: Services, waiting: TaskWaiter, leaving: Leaving | None = None) -> None:
        self.services, self.leaving = services, leaving
        self._waiting = waiting
        self._spawns = Spawns(services, waiting, self._surely)
        self._sessions: dict[str, int] = {}
        self.visits = Visits()  #: requests of all surfaces
        self.under_way: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  #: commands, by key

    # ---- one -----------------------------------------------------------------------------------------

    async def ended(self, task_id: str) -> TaskResult[Any]:
        ended = await self._waiting.end_of(task_number(task_id))
        value = None if ended.value is None else json.loads(ended.value)
        return TaskResult(ended.outcome, ended.text, ended.error, value, ended.files, task_id)

    async def known(self, task_id: str) -> Known:
        number = task_number(task_id)
        found = await self.services.db.read(tasks.known, number)
        if found is None:
            raise NotFound(f"there is no task {task_id}")
        return Known(ids.task_id(number), *found)

    async def info(self, task_id: str) -> Object:
        return dict(await self.services.db.read(reads.known, task_number(task_id)))

    async def why(self, task_id: str) -> Object:
        return dict(await self.services.db.read(reads.why, AS_PROGRAM, task_id))

    async def read_file(self, task_id: str, name: str) -> bytes:
        try:
            if self.services.files is not None:
                shelf = await self.services.db.read(task_files.file_version_of, task_number(task_id))
                return await self.services.files.read(shelf, name)
        except FilesFailed as error:
            raise NotFound(f"{name[:80]!r} of {task_id}: {error}") from error
        raise NotFound("no files are kept here")

    async def act(self, action: ApiAction[B], target: str, body: B) -> Mapping[str, Any]:
        return await action.run(Actions(self.services), ActionCall(PROGRAM, target, body))

    # ---- many ----------------------------------------------------------------------------------------

    async def spawn(self, args: Mapping[str, Any], session: str, on_full: OnFullWord | None = None) -> Object:
        """Spawn a task. Whether the session still exists is read only after a refusal."""
        check_on_full(on_full)
        self._check_accepts()
        args, known = with_notification(args), self._known(session)
        try:
            request = await self.services.wanted_anew(args)
        except InvalidInput as error:
            return spawn.wrong(error)
        if known is None and (said := await self._said_unopened(session, request)) is not None:
            return said
        known = known or await self._number(session)
        order, got = await self._spawns.spawn(known, request, on_full)
        if isinstance(got, SpawnRefusal) and not await self.services.db.read(transcripts.is_open, known):
            order, got = await self._spawns.spawn(await self._number(session), request, on_full)
        return spawn.answer(order, got)

    async def _said_unopened(self, session: str, request: SpawnRequest) -> Object | None:
        """Return the answer of a refused or dry spawn in a session that does not exist, without creating it."""
        if await self.services.db.read(transcripts.is_known, session):
            return None
        order = spawn.order(self.services, replace(request, dry_run=True), f"api:{self.services.ids.uuid4()}")
        try:
            await self._alone(workers.trial, self.services.policy, await self._root(session), order)
        except workers.TrialRollback as tried:
            got = tried.answers[0]
            is_over = isinstance(got, SpawnRefusal) or request.dry_run
            return spawn.answer(order, got) if is_over else None

    async def tasks(self, asked: Filter) -> list[Known]:
        found = await self.services.db.read(reads.found, AS_PROGRAM, asked)
        return [Known(ids.task_id(one.task_id), one.label, one.session_key or "") for one in found]

    async def events(self) -> AsyncGenerator[Event, None]:
        bus = self.services.bus
        watcher = bus.watch()
        try:
            async for live in watcher:
                data = live.data if isinstance(live.data, (str, Usage)) else None
                task = ids.task_id(live.session_id) if live.is_task else None
                yield Event(live.name, task, data, ids.run_id(live.run_id), live.session_key, live.seq)
        finally:
            bus.leave(watcher)

    async def schedules(self) -> Object:
        return dict(await self.services.db.read(schedules.listed))

    async def schedule(self, name: str) -> Object:
        return dict(await self.services.db.read(schedules.one, name))

    async def inbox(self) -> list[Question]:
        return [question_of(item) for item in (await self.services.db.read(reads.inbox, AS_PROGRAM))["items"]]

    async def answer(self, question: Question, answer: Answering) -> None:
        await self.act(ANSWER, item_of(question), answer)

    # ---- the sessions they work for ------------------------------------------------------------------

    async def session(self, session: str) -> tuple[int, str]:
        """Return the number of a main session, which is created if it does not exist, and its agent."""
        return await self._number(session), self._parsed(session).agent_id

    async def _number(self, session: str) -> int:
        known = self._known(session)
        if known is None or not await self.services.db.read(transcripts.is_open, known):
            known = self._sessions[session] = await self._opened(session)
        return known

    def _known(self, session: str) -> int | None:
        """Raises InvalidInput for what is no main session."""
        return self._sessions.get(str(self._parsed(session)))

    def _parsed(self, session: str) -> SessionKey:
        return main_session(session, known_agents(self.services.policy))

    async def _opened(self, session: str) -> int:
        """Open a session: a deleted one is empty, an archived one has its transcript. Raises InvalidInput for a new
        session of an agent that is not configured, which is a typing mistake."""
        services, root = self.services, await self._root(session)
        opened = await self._alone(usage.open_root, services.policy, root)
        if services.policy.heartbeat_of(root.agent_id) is not None:
            await self._alone(wake.arm, services.policy)
        await self._alone(control.open_main, services.policy, opened)
        return opened

    async def _root(self, session: str) -> sessions.NewMain:
        """Raises InvalidInput."""
        services, parsed = self.services, self._parsed(session)
        agent_id, agents = parsed.agent_id, known_agents(services.policy)
        if agent_id not in agents and not await services.db.read(transcripts.is_known, session):
            raise InvalidInput("session", f"there is no agent {agent_id!r}{ids.hint(agent_id, agents)}")
        return services.new_main(session, agent_id)

    # ---- main sessions -------------------------------------------------------------------------------

    async def say(
        self,
        text: str,
        session: str,
        key: str | None,
        caller: OperatorCaller = CHAT_OPERATOR,
        kind: LetterKind = LetterKind.USER,
    ) -> str:
        """Send a message to a main agent and return its letter. A slash command runs for `caller` instead and is
        answered where the agent would answer. Raises IdempotencyConflict."""
        services = self.services
        check_key(key)
        check_text("text", text, services.policy.limits.task_bytes_max)
        receiver = await self._number(session)
        letter = letter_of(receiver, key or services.ids.uuid4(), caller)
        route = f"{LOCAL_CHANNEL}:{session}"
        if is_command(text):
            if await services.db.read(wake.is_said, letter):
                raise IdempotencyConflict()
            said = await run_command(self, session, text, caller, letter)
            await self._tx(receiver, outbox.post, receiver, f"command:{letter}", route, said)
        elif not await self._is_for_a_child(session, letter, text):
            self._check_accepts()
            await self._tx(
                receiver, wake.say_once, services.policy, receiver, letter, kind, body=text, route=route
            )
        return letter

    async def with_files(self, text: str, session: str) -> str:
        """Return the message with the files of the workspace that it mentions. Raises InvalidInput."""
        mentions = self.services.mentions
        if mentions is None or is_command(text):
            return text
        return await mentions.with_files(text, await self.workspace(session))

    async def file_names(self, session: str, prefix: str) -> list[str]:
        """Return what may complete `@` in a message to this session, also before the session exists."""
        mentions = self.services.mentions
        return [] if mentions is None else await mentions.names(await self.workspace(session), prefix)

    async def workspace(self, session: str) -> str:
        """Return where a main session works. A session keeps the workspace it was opened with."""
        agent_id = self._parsed(session).agent_id
        known = await self.services.db.read(chats.workspace_of, session)
        return known or self.services.policy.workspace_of(agent_id) or "."

    async def _is_for_a_child(self, session: str, letter: str, text: str) -> bool:
        """Whether this chat is the thread of a child, which reads the message then."""
        thread = delivery_rules.local_route(session)
        if await self.services.db.read(sessions.session_of, *sessions.name(thread)) is None:
            return False
        try:
            await self._hear(thread, letter, text)
        except NotFound:  # it has ended in this moment
            return False
        return True

    async def _hear(self, thread: Route, letter: str, text: str) -> None:
        where = sessions.name(thread)
        await self._alone(messages.heard_in_thread, self.services.policy, where, letter, text)

    async def command(
        self, line: str, session: str, key: str | None, caller: OperatorCaller = CHAT_OPERATOR
    ) -> str:
        check_key(key)
        check_text("line", line, self.services.policy.limits.task_bytes_max)
        return await run_command(self, session, line, caller, None if key is None else f"{session}:{key}")

    async def notify(self, text: str, session: str) -> bool:
        check_text("text", text, EVENT_CHARS_MAX)
        receiver = await self._number(session)
        return await self._tx(receiver, wake.notify, self.services.policy, receiver, text)

    async def wake(self, session: str) -> None:
        sleeper = await self._number(session)
        await self._tx(sleeper, wake.wake_for_heartbeat, self.services.policy, sleeper)

    async def receive_thread_message(
        self, said: InThread, key: str | None, caller: OperatorCaller = CHAT_OPERATOR
    ) -> None:
        services, text = self.services, said.text
        check_key(key)
        check_text("text", text, services.policy.limits.task_bytes_max)
        check_place(said.channel, said.account, said.thread, services.channels)
        route = Route(said.channel, said.account or None, None, said.thread)
        # A key belongs to its thread: programs there number their messages by themselves.
        letter = f"thread:{delivery_rules.to_text(route)}:{key or services.ids.uuid4()}"
        if is_command(text):
            if await services.db.read(wake.is_said, letter):
                raise IdempotencyConflict()
            answer = await run_in_thread(self, text, route, caller, letter)
            here = await self._number(delivery_rules.chat_of(route) or MAIN_SESSION)
            return await self._tx(
                here, outbox.post, here, f"command:{letter}", delivery_rules.to_text(route), answer
            )
        await self._hear(route, letter, text)

    async def reply(self, session: str) -> str:
        speaker, db = await self._number(session), self.services.db
        while True:
            change = self._waiting.next_change
            if await db.read(outbox.waits, speaker, LOCAL_CHANNEL):
                body = await db.alone(delivery_tx.hand_out, self.services.policy, speaker, LOCAL_CHANNEL)
                if body is not None:
                    return body
            await self._waiting.until(change)

    async def next_reply(
        self, session: str, wait_s: float, *, until_quiet: bool, heard: int | None, after: int = 0
    ) -> tuple[PendingReply | None, bool]:
        """The next words for the person, until they are `heard`; and whether all is quiet below. `after`: of those
        behind this one, so that a client can read on without marking anything as read.

        None: after the time, or when all is quiet if that is waited for."""
        speaker, deadline = await self._number(session), time.monotonic() + wait_s
        db = self.services.db
        if heard is not None:
            await db.alone(delivery_tx.hand_out, self.services.policy, speaker, LOCAL_CHANNEL, heard)
        while True:
            change = self._waiting.next_change
            is_quiet = await db.read(transcripts.is_quiet, speaker)
            said = await db.read(outbox.pending_reply, speaker, LOCAL_CHANNEL, after)  # last: none are missed
            is_over = self.services.stopping.is_set() or time.monotonic() >= deadline
            if said is not None or is_over or (is_quiet and until_quiet):
                return said, is_quiet
            await asyncio.sleep(PAUSE_S)
            await self._waiting.until(change)

    async def wait_idle(self, session: str) -> None:
        root = await self._number(session)
        while True:
            change = self._waiting.next_change
            if await self.services.db.read(transcripts.is_quiet, root):
                return
            await self._waiting.until(change)

    # ---- how it is written ---------------------------------------------------------------------------

    def _check_accepts(self) -> None:
        """Raises Draining."""
        if self.leaving is not None:
            self.leaving.check_open()

    async def _tx(self, written: Keys, fn: TxFunction[P, T], *args: P.args, **named: P.kwargs) -> T:
        return await self._surely(lambda: self.services.db.tx(written, fn, *args, **named))

    async def _alone(self, fn: TxFunction[P, T], *args: P.args, **named: P.kwargs) -> T:
        return await self._surely(lambda: self.services.db.alone(fn, *args, **named))

    async def _surely(self, ask: Callable[[], Awaitable[T]]) -> T:
        return await surely(self.services.policy.work.tick_s, ask)


class RunningEngine(Protocol):
    """An engine that works while it is open."""

    @property
    def services(self) -> Services: ...


async def opened(
    stack: AsyncExitStack, running: AbstractAsyncContextManager[RunningEngine], leaving: Leaving | None = None
) -> Gateway:
    """Return a gateway on a started engine. When the stack closes, callers that wait get an error."""
    services = (await stack.enter_async_context(running)).services
    waiting = TaskWaiter(services.db, services.changes)
    group = await stack.enter_async_context(asyncio.TaskGroup())
    watch = group.create_task(waiting.run())
    stack.callback(watch.cancel)
    stack.callback(waiting.give_up)
    return Gateway(services, waiting, leaving)
