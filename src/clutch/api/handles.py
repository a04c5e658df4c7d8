"""What a program holds: a task, its result, an event, a question. It is the same whether the work is done in this
process or in another one: a handle only knows the `Backend` that it asks."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import re
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, Protocol, Self

from typing_extensions import TypeVar

from clutch.api import actions
from clutch.api.actions import ActionBody, Answering, ApiAction, B, InThread
from clutch.api.reads import Filter
from clutch.api.spawn import OnFullWord
from clutch.api.task_info import TaskInfo, Why, read_object
from clutch.api.views import Object
from clutch.contain import BackgroundTasks, contained
from clutch.core import ids
from clutch.core.attachments import StoredFile
from clutch.core.messages import Usage
from clutch.core.model import Outcome, TaskStatus
from clutch.core.questions import QuestionKind
from clutch.errors import InvalidInput, StoreError, TaskFailed
from clutch.logs import logger

V = TypeVar("V", default=Any)

TEXT = "assistant:text"
NEW_TEXT = frozenset({"tool:start", "lifecycle:start"})  #: what follows is not the rest of the text before
LAST_EVENTS = frozenset({"lifecycle:end", "lifecycle:error"})
LAST_EVENT_S = 1.0  #: its end may be known a moment before the event of it comes

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class TaskResult(Generic[V]):
    """The result of a task. `text` is its final text, or the partial text of a task that failed."""

    outcome: Outcome
    text: str | None
    error: str | None
    value: V | None = None  #: the structured output, if it was asked for (`output_schema`, `output_type`)
    files: tuple[StoredFile, ...] = ()  #: files of the result; `Task.read_file` returns their contents
    task_id: str = ""

    @property
    def is_ok(self) -> bool:
        """Whether the outcome is `ok`."""
        return self.outcome is Outcome.OK

    def raise_for_outcome(self) -> Self:
        """Return this result if the outcome is `ok`. Raises TaskFailed naming the task, the outcome and the reason."""
        if not self.is_ok:
            raise TaskFailed(self.task_id, self.outcome.value, self.error)
        return self


@dataclass(frozen=True, slots=True)
class KillResult:
    """What a kill did, by task id. Every task in `stopped` and `still_stopping` has the outcome `killed`."""

    stopped: tuple[str, ...] = ()  #: ended: no tool or model call of these tasks runs any more
    still_stopping: tuple[str, ...] = ()  #: killed, but a tool or model call has not ended yet
    already_finished: tuple[str, ...] = ()  #: had an outcome before; the kill changed nothing


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a task or a main agent.

    `name`: lifecycle:start|end|error, assistant:text|thinking, tool:start|output|end, usage, question. `task_id`: None
    for a main agent. `data`: the text of assistant:…, the tool of tool:start and tool:end, the error of
    lifecycle:error, the `Usage` of usage. `seq`: its number among the events of the run, or in the timeline of its
    task."""

    name: str
    task_id: str | None
    data: str | Usage | None
    run_id: str | None = None  #: None = it waits for its first
    session_key: str | None = None
    seq: int = 0


@dataclass(frozen=True, slots=True)
class Question:
    """A question or approval request. `hash` binds the answer to exactly what was shown."""

    id: int
    kind: QuestionKind
    detail: Mapping[str, Any]  #: of a plan its text: `detail["plan"]`
    hash: str
    session_key: str | None  #: None = about a tool of an MCP server that changed: all agents have it
    task_id: str | None  #: None = a main agent asks, or the question belongs to no session


def question_of(item: Mapping[str, Any]) -> Question:
    """Return an item of the inbox as a question. The number of a plan is that of its task."""
    kind = QuestionKind(item["kind"])
    is_plan = kind is QuestionKind.PLAN
    number = (ids.parse_task_id if is_plan else ids.parse_question_id)(item["id"])
    detail = {"plan": item["text"]} if is_plan else item["detail"]
    assert number is not None, "an item has an id as it is printed"
    return Question(number, kind, detail, item["hash"], item["sessionKey"], item["taskId"])


def item_of(question: Question) -> str:
    is_plan = question.kind is QuestionKind.PLAN
    return (ids.task_id if is_plan else ids.question_id)(question.id)


class Holder(Protocol):
    """A `Clutch`, as far as its tasks need it."""

    @property
    def _backend(self) -> Backend: ...

    def _start(self, work: Coroutine[Any, Any, None]) -> None: ...


class Task(Generic[V]):
    """A handle on a durable task. The task does not depend on it: `Clutch.get(id)` returns another handle."""

    def __init__(
        self,
        clutch: Holder,
        task_id: str,
        label: str,
        session_key: str,
        read: Callable[[Any], V] | None = None,
    ) -> None:
        self._clutch, self._read = clutch, read
        self.id = task_id
        self.label = label
        self.session_key = session_key

    def __repr__(self) -> str:
        return f"<Task {self.id} {self.label!r}>"

    def __await__(self) -> Generator[Any, None, TaskResult[V]]:
        return self.result().__await__()

    async def result(self, timeout: float | None = None) -> TaskResult[V]:  # noqa: ASYNC109 - as in concurrent.futures
        """Wait for the end of the task, however it ends.

        Raises TimeoutError after `timeout` seconds; the task keeps running, and its result can be awaited again. Raises
        InvalidInput when its value does not fit the requested type."""
        async with asyncio.timeout(timeout):
            ended = await self._backend.ended(self.id)
        if self._read is None or ended.value is None:
            return ended
        return replace(ended, value=self._read(ended.value))

    def on_done(self, call: Callable[[TaskResult[V]], Awaitable[None] | None]) -> None:
        """Call `call` with the result when the task ends, if this program still runs then; at once if it has ended."""
        self._clutch._start(self._tell(call))

    async def _tell(self, call: Callable[[TaskResult[V]], Awaitable[None] | None]) -> None:
        try:
            result = await self.result()
            with contained():
                said = call(result)
                if inspect.isawaitable(said):
                    await said
        except Exception:  # the program's own function; the other callbacks must still run
            log.exception("Callback of on_done for %s failed", self.id)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the events of the task from now on, until it ends."""
        loop, heard = asyncio.get_running_loop(), asyncio.Queue[Event | None]()
        async with BackgroundTasks() as tasks:
            hearing = tasks.call(self._hear(heard), f"events of {self.id}")
            ended = tasks.call(self._backend.ended(self.id), f"end of {self.id}")
            for one in (hearing, ended):
                one.add_done_callback(lambda _: loop.call_later(LAST_EVENT_S, heard.put_nowait, None))
            while (event := await heard.get()) is not None:
                yield event
                if event.name in LAST_EVENTS and (await asyncio.wait({ended}, timeout=LAST_EVENT_S))[0]:
                    return
            await (ended if ended.done() else hearing)

    async def _hear(self, heard: asyncio.Queue[Event | None]) -> None:
        async with aclosing(self._backend.events()) as stream:
            async for event in stream:
                if event.task_id == self.id:
                    heard.put_nowait(event)

    async def stream(self) -> AsyncGenerator[str, None]:
        """Yield the text of the task as the model writes it, from now on, until the task ends.

        A task that has ended, or whose model does not stream, yields its final text in one piece."""
        is_written = False
        if not await self.done():
            async with aclosing(self.events()) as events:
                async for event in events:
                    if event.name == TEXT and isinstance(event.data, str):
                        is_written = True
                        yield event.data
                    elif event.name in NEW_TEXT:
                        is_written = False
        ended = await self.result()
        if ended.text and not is_written:
            yield ended.text

    async def status(self) -> TaskStatus:
        """Return the status that every surface shows: "queued", "running", "needs approval", "done" …"""
        return (await self.info()).status

    async def done(self) -> bool:
        """Return whether the task has ended, with any outcome."""
        return (await self.info()).outcome is not None

    async def info(self) -> TaskInfo:
        """Return the task as every surface shows it: status, usage, delivery, plan, evidence."""
        return read_object(TaskInfo, await self._backend.info(self.id))

    async def why(self) -> Why:
        """Explain the status: the timeline, the delivery attempts, and what blocks the task."""
        return read_object(Why, await self._backend.why(self.id))

    async def read_file(self, name: str) -> bytes:
        """Return a file of the result, as long as it is kept. Raises NotFound."""
        return await self._backend.read_file(self.id, name)

    async def kill(self, reason: str = "killed", *, dry_run: bool = False) -> KillResult:
        """Kill the task and all tasks below it, and report what stopped, what is still stopping and what had finished.
        `dry_run`: report what would stop, and stop nothing.

        A tool that outlives `worker.toolGrace` is in `still_stopping`. Raises StoreError only if the kill could not be
        saved; a kill that is saved never raises."""
        report = await self._act(actions.KILL, actions.Killing(reason=reason, dry_run=dry_run))
        if report["notStopped"]:
            raise StoreError(f"kill of {self.id}: {report['notStopped'][0]['why']}")
        return KillResult(
            tuple(report["stopped"]),
            tuple(one["taskId"] for one in report["stillStopping"]),
            tuple(report["alreadyFinished"]),
        )

    async def steer(self, text: str) -> None:
        """Replace what the task does now by a new instruction. Raises NotPossible for a finished task."""
        await self._act(actions.STEER, actions.Words(text=text))

    async def send(self, text: str, *, wait_seconds: float | None = None) -> str | None:
        """Send a follow-up message and return the first reply of the child; None when there is none within the time,
        which is at most `control.sendWaitSeconds`."""
        message = actions.Sending(text=text, wait_seconds=wait_seconds)
        return (await self._act(actions.SEND, message)).get("reply")

    async def pause(self) -> tuple[str, ...]:
        """Pause the task and all tasks below it at their next step. Returns the tasks that changed."""
        return tuple((await self._act(actions.PAUSE, ActionBody()))["changed"])

    async def resume(self) -> tuple[str, ...]:
        """Resume a paused task and all tasks below it. Returns the tasks that changed."""
        return tuple((await self._act(actions.RESUME, ActionBody()))["changed"])

    async def retry(self, text: str = "") -> None:
        """Start a finished task again from an empty transcript; `text` is added to it."""
        await self._act(actions.RETRY, actions.MaybeWords(text=text))

    async def continue_(self, text: str) -> None:
        """Resume a finished task in its transcript; `text` says what to do next."""
        await self._act(actions.CONTINUE, actions.MaybeWords(text=text))

    async def approve(self, plan_hash: str, text: str = "") -> None:
        """Approve the plan with this hash. Raises PlanChanged when there is another one by now."""
        await self._act(actions.APPROVE, actions.Approval(plan_hash=plan_hash, text=text))

    async def reject(
        self, plan_hash: str, reason: str, *, then: Literal["revise", "end"] | None = None
    ) -> None:
        """Reject the plan with this hash. `then`: another round, or the end; None = as `plan.onReject` says."""
        if then not in ("revise", "end", None):
            raise InvalidInput("then", 'must be "revise" or "end"')
        rejection = actions.Rejection(plan_hash=plan_hash, reason=reason, then=then)
        await self._act(actions.REJECT, rejection)

    async def archive(self) -> None:
        """Archive the finished, delivered task: it leaves the limit of its parent."""
        await self._act(actions.REMOVE, ActionBody())

    async def redeliver(self) -> None:
        """Deliver an undelivered result again."""
        await self._act(actions.REDELIVER, ActionBody())

    async def dismiss(self) -> None:
        """Discard an undelivered result; it stays readable."""
        await self._act(actions.DISMISS, ActionBody())

    async def _act(self, action: ApiAction[B], body: B) -> Mapping[str, Any]:
        return await self._backend.act(action, self.id, body)

    @property
    def _backend(self) -> Backend:
        return self._clutch._backend


# --------------------------------------------------------------------------------------------------
# Many tasks at once: all of them, each as it ends, or one for every item of a list.
#
# `map` is durable without a record of its own: the key of an item's task is made of the map's name, the item's key
# and the attempt. The same map again finds what has ended, waits for what is under way and starts what is missing.

T = TypeVar("T")

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,59}")
#: Trying again may help. What was killed stays killed.
WORTH_A_RETRY = frozenset({Outcome.ERROR, Outcome.TIMEOUT, Outcome.LOST})
KEY_CHARS_MAX = 100


async def gather(*tasks: Task[V]) -> list[TaskResult[V]]:
    """Wait for all tasks and return their results in this order, whatever the outcomes. Raises InvalidInput."""
    check_tasks(tasks, Task)
    return list(await asyncio.gather(*(task.result() for task in tasks)))


async def as_completed(tasks: Iterable[Task[V]]) -> AsyncGenerator[tuple[Task[V], TaskResult[V]], None]:
    """Yield each task with its result, as they end. Raises InvalidInput."""
    check_tasks(tasks := list(tasks), Task)
    ended: asyncio.Queue[Task[V]] = asyncio.Queue()
    waits: dict[Task[V], asyncio.Task[TaskResult[V]]] = {}
    async with BackgroundTasks() as owner:
        for task in tasks:
            waits[task] = owner.call(task.result(), f"result of {task.id}")
            waits[task].add_done_callback(partial(_put, ended, task))
        for _ in range(len(waits)):
            task = await ended.get()
            yield task, waits[task].result()


def _put(ended: asyncio.Queue[T], one: T, _: object) -> None:
    ended.put_nowait(one)


def check_tasks(tasks: Iterable[object], kind: type) -> None:
    """Check the arguments; users of asyncio pass a list, or a spawn that was not awaited. Raises InvalidInput."""
    for wrong in (one for one in tasks if not isinstance(one, kind)):
        if asyncio.iscoroutine(wrong):
            wrong.close()
        what = f"is a {type(wrong).__name__} and no task"
        raise InvalidInput(
            "tasks", f"{what}: gather(*tasks) or as_completed(tasks), each of `await c.spawn(…)`"
        )


def check_map(name: str, concurrency: int, retries: int) -> None:
    if _NAME.fullmatch(name) is None:
        raise InvalidInput("name", "must be letters a-z, digits, dots, _ and -, at most 60")
    if concurrency < 1:
        raise InvalidInput("concurrency", "must be at least 1")
    if retries < 0:
        raise InvalidInput("retries", "must not be negative")


def keys_of(items: Sequence[T], key: Callable[[T], str]) -> list[str]:
    """Return the key of each item. Raises InvalidInput when two are equal."""
    known: dict[str, int] = {}
    for place, item in enumerate(items):
        text = str(key(item))
        first = known.setdefault(text, place)
        if first != place:
            raise InvalidInput("key", f"items {first} and {place} have the same key, {text[:80]!r}")
    return list(known)


def spawn_key(name: str, key: str, attempt: int) -> str:
    """Return the idempotency key of an item's spawn, printable and short whatever the item's key is."""
    if len(key) > KEY_CHARS_MAX or not key.isprintable() or not key.strip():
        key = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    return f"map:{name}:{attempt}:{key}"


async def map_all(
    count: int,
    concurrency: int,
    retries: int,
    spawn: Callable[[int, int], Awaitable[Task[Any]]],
    ended: Callable[[int, TaskResult[Any]], None],
) -> list[TaskResult[Any]]:
    """Run `spawn(item, attempt)` for all items, `concurrency` at once, and call `ended` with the result of each.

    The first failed spawn stops the rest."""
    results: dict[int, TaskResult[Any]] = {}
    places: Iterator[int] = iter(range(count))

    async def work() -> None:
        for place in places:
            for attempt in range(retries + 1):
                results[place] = await (await spawn(place, attempt))
                if results[place].outcome not in WORTH_A_RETRY:
                    break
            ended(place, results[place])

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, count)):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [results[place] for place in range(count)]


# --------------------------------------------------------------------------------------------------
# All that a program asks of a gateway, wherever that runs.
#
# `api.gateway.Gateway` answers in the process that has the engine, `surfaces.remote.RemoteBackend` asks another process
# over HTTP. Which of the two is chosen once, when a `Clutch` is opened. Answers are the objects every surface shows.


class ScheduleHandle:
    """A handle on a schedule. The schedule does not depend on it: `Clutch.schedules()` returns others."""

    def __init__(self, backend: Callable[[], Backend], clutch: Holder, name: str) -> None:
        self._backend, self._clutch, self.name = backend, clutch, name

    def __repr__(self) -> str:
        return f"<ScheduleHandle {self.name!r}>"

    async def info(self) -> Object:
        """Return the schedule as the HTTP API shows it, with `nextTimes` and the `history` of its slots."""
        return await self._backend().schedule(self.name)

    async def pause(self) -> None:
        """Pause it. Slots that pass meanwhile are skipped; a run that works continues."""
        await self._backend().act(actions.PAUSE_SCHEDULE, self.name, ActionBody())

    async def resume(self) -> None:
        """Resume it with the slots after now."""
        await self._backend().act(actions.RESUME_SCHEDULE, self.name, ActionBody())

    async def run(self) -> Task[Any]:
        """Start a run now, beside the slots. Raises ClutchError while the last run works, SpawnRefused."""
        got = await self._backend().act(actions.RUN_SCHEDULE, self.name, ActionBody())
        return Task(self._clutch, got["taskId"], got["label"], got["childSessionKey"])

    async def remove(self) -> None:
        """Remove it and its history; its runs stay. Raises InvalidInput for one of the config."""
        await self._backend().act(actions.REMOVE_SCHEDULE, self.name, ActionBody())


class Known(NamedTuple):
    """What a handle on a task knows without a request."""

    task_id: str
    label: str
    session_key: str


class Backend(Protocol):
    # ---- one task ------------------------------------------------------------------------------------

    async def ended(self, task_id: str) -> TaskResult[Any]:
        """Waits for it."""
        ...

    async def known(self, task_id: str) -> Known: ...

    async def info(self, task_id: str) -> Object: ...

    async def why(self, task_id: str) -> Object: ...

    async def read_file(self, task_id: str, name: str) -> bytes: ...

    async def act(self, action: ApiAction[B], target: str, body: B) -> Mapping[str, Any]:
        """Run an action and return its answer."""
        ...

    # ---- many ----------------------------------------------------------------------------------------

    async def spawn(self, args: Mapping[str, Any], session: str, on_full: OnFullWord | None) -> Object:
        """Spawn with the arguments of `sessions_spawn` and return its answer, also a refusal.

        Raises InvalidInput only for `session` and `on_full`, which are no arguments of the tool; Draining."""
        ...

    async def tasks(self, asked: Filter) -> list[Known]: ...

    def events(self) -> AsyncGenerator[Event, None]: ...

    async def schedules(self) -> Object: ...

    async def schedule(self, name: str) -> Object: ...

    async def inbox(self) -> list[Question]: ...

    async def answer(self, question: Question, answer: Answering) -> None: ...

    # ---- main sessions -------------------------------------------------------------------------------

    async def say(self, text: str, session: str, key: str | None) -> str: ...

    async def command(self, line: str, session: str, key: str | None) -> str: ...

    async def notify(self, text: str, session: str) -> bool: ...

    async def wake(self, session: str) -> None: ...

    async def receive_thread_message(self, said: InThread, key: str | None) -> None: ...

    async def reply(self, session: str) -> str: ...

    async def wait_idle(self, session: str) -> None: ...
