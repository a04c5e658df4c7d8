"""Clutch for programs without an event loop: scripts, notebooks, threads.

    from clutch.sync import Clutch

    with Clutch("state") as c:
        print(c.spawn("Survey this folder").result().text)

The engine has a loop in a thread of its own. Ctrl-C ends the waiting, never the work: tasks run until the block is
left, and resume at the next start.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self

from typing_extensions import TypeVar

from clutch import wiring
from clutch.api import handles
from clutch.api.handles import Event, TaskResult
from clutch.api.handles import ScheduleHandle as AsyncSchedule
from clutch.api.handles import Task as AsyncTask
from clutch.channels import Webhook
from clutch.core.agents import Agent
from clutch.core.policy import Policy
from clutch.errors import ClutchError
from clutch.models.provider import Provider
from clutch.ports import Channel, Models, Toolbox
from clutch.runtimes.acp_process import AcpAgent
from clutch.tools.registry import ToolSettings
from clutch.wiring.clutch import ProgramFunctions
from clutch.wiring.engine import NO_CHANNELS

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V", default=Any)

NOT_OPEN = "this Clutch is not open; use it inside of `with Clutch(...) as c:`"


class _Loop:
    """A thread with an event loop, in which a `Clutch` lives from `start` to `stop`."""

    def __init__(self, make: Callable[[], wiring.Clutch]) -> None:
        self._make = make
        self._up: Future[tuple[wiring.Clutch, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=self._run, name="clutch", daemon=True)

    def start(self) -> wiring.Clutch:
        self._thread.start()
        try:
            return self._up.result()[0]
        except KeyboardInterrupt:
            self._up.add_done_callback(lambda _: self.stop())
            raise

    def stop(self) -> None:
        if self._up.exception() is None:
            _, loop, told = self._up.result()
            loop.call_soon_threadsafe(told.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:  # raised in the thread that opened it
            if self._up.done():
                raise
            self._up.set_exception(error)

    async def _live(self) -> None:
        told = asyncio.Event()
        async with self._make() as clutch:
            self._up.set_result((clutch, asyncio.get_running_loop(), told))
            await told.wait()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        _, loop, _ = self._up.result()
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def call(self, function: Callable[[], None]) -> None:
        """Call the function in the thread of the loop."""

        async def called() -> None:
            function()

        self.run(called())

    def each(self, stream: AsyncGenerator[T, None]) -> Iterator[T]:
        async def following() -> tuple[T] | None:
            try:
                return (await anext(stream),)
            except StopAsyncIteration:
                return None

        try:
            while (found := self.run(following())) is not None:
                yield found[0]
        finally:
            self.run(stream.aclose())


def _of_task(
    method: Callable[Concatenate[AsyncTask[V], P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Task[V], P], T]:
    """Return the method of `clutch.Task` as one that blocks: the same name, parameters and description."""

    @wraps(method)
    def blocking(self: Task[V], /, *args: P.args, **named: P.kwargs) -> T:
        return self._loop.run(method(self._task, *args, **named))

    return blocking


def _of_clutch(
    method: Callable[Concatenate[wiring.Clutch, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Clutch, P], T]:
    """Return the method of `clutch.Clutch` as one that blocks."""

    @wraps(method)
    def blocking(self: Clutch, /, *args: P.args, **named: P.kwargs) -> T:
        return self._loop.run(method(self._clutch, *args, **named))

    return blocking


def _held(
    method: Callable[Concatenate[wiring.Clutch, P], Coroutine[Any, Any, AsyncTask[V]]],
) -> Callable[Concatenate[Clutch, P], Task[V]]:
    """Return the method of `clutch.Clutch` that gives a task as one that blocks, and whose task does."""

    @wraps(method)
    def blocking(self: Clutch, /, *args: P.args, **named: P.kwargs) -> Task[V]:
        return Task(self._loop, self._loop.run(method(self._clutch, *args, **named)))

    return blocking


def _scheduled(
    method: Callable[Concatenate[wiring.Clutch, P], Coroutine[Any, Any, AsyncSchedule]],
) -> Callable[Concatenate[Clutch, P], BlockingSchedule]:
    """Return the method of `clutch.Clutch` that gives a schedule as one that blocks, and whose schedule does."""

    @wraps(method)
    def blocking(self: Clutch, /, *args: P.args, **named: P.kwargs) -> BlockingSchedule:
        return BlockingSchedule(self._loop, self._loop.run(method(self._clutch, *args, **named)))

    return blocking


class Task(Generic[V]):
    """A handle on a durable task. The task does not depend on it: `Clutch.get(id)` returns another handle."""

    def __init__(self, loop: _Loop, task: AsyncTask[V]) -> None:
        self._loop, self._task = loop, task
        self.id, self.label, self.session_key = task.id, task.label, task.session_key

    def __repr__(self) -> str:
        return repr(self._task)

    def on_done(self, call: Callable[[TaskResult[V]], None]) -> None:
        """Call `call` with the result when the task ends, in the thread of this Clutch."""
        self._loop.call(lambda: self._task.on_done(call))

    def events(self) -> Iterator[Event]:
        """Yield the events of the task from now on, until it ends."""
        return self._loop.each(self._task.events())

    def stream(self) -> Iterator[str]:
        """Yield the text of the task as the model writes it, from now on, until the task ends."""
        return self._loop.each(self._task.stream())

    result = _of_task(AsyncTask.result)
    status = _of_task(AsyncTask.status)
    done = _of_task(AsyncTask.done)
    info = _of_task(AsyncTask.info)
    why = _of_task(AsyncTask.why)
    read_file = _of_task(AsyncTask.read_file)
    kill = _of_task(AsyncTask.kill)
    steer = _of_task(AsyncTask.steer)
    send = _of_task(AsyncTask.send)
    pause = _of_task(AsyncTask.pause)
    resume = _of_task(AsyncTask.resume)
    retry = _of_task(AsyncTask.retry)
    continue_ = _of_task(AsyncTask.continue_)
    approve = _of_task(AsyncTask.approve)
    reject = _of_task(AsyncTask.reject)
    archive = _of_task(AsyncTask.archive)
    redeliver = _of_task(AsyncTask.redeliver)
    dismiss = _of_task(AsyncTask.dismiss)


class BlockingSchedule:
    """A handle on a schedule; see `clutch.ScheduleHandle`."""

    def __init__(self, loop: _Loop, schedule: AsyncSchedule) -> None:
        self._loop, self._schedule, self.name = loop, schedule, schedule.name

    def info(self) -> Mapping[str, Any]:
        """Return the schedule as the HTTP API shows it, with `nextTimes` and the `history` of its slots."""
        return self._loop.run(self._schedule.info())

    def pause(self) -> None:
        """Pause it. Slots that pass meanwhile are skipped; a run that works continues."""
        self._loop.run(self._schedule.pause())

    def resume(self) -> None:
        """Resume it with the slots after now."""
        self._loop.run(self._schedule.resume())

    def run(self) -> Task[Any]:
        """Start a run now, beside the slots. Raises ClutchError while the last run works, SpawnRefused."""
        return Task(self._loop, self._loop.run(self._schedule.run()))

    def remove(self) -> None:
        """Remove it and its history; its runs stay. Raises InvalidInput for one of the config."""
        self._loop.run(self._schedule.remove())


class Clutch(ProgramFunctions):
    """Durable background subagents for a program without an event loop; `clutch.Clutch` explains the parameters.

        with Clutch("state", concurrency=50) as c:
            print(c.spawn("Survey this folder").result().text)

    `open` and `close` are for where there is no block, as in a notebook. Register tools, hooks and runtimes before
    opening it."""

    def __init__(
        self,
        state: Path | str | None = None,
        *,
        concurrency: int | None = None,
        database: str | None = None,
        policy: Policy | None = None,
        models: Models | None = None,
        tools: Toolbox | None = None,
        channels: Mapping[str, Channel] = NO_CHANNELS,
        workspace: Path | str | None = None,
        model: str | None = None,
        providers: Sequence[Provider] = (),
        settings: ToolSettings | None = None,
        agents: Sequence[Agent] = (),
        serve: bool = True,
        port: int | None = None,
        host: str | None = None,
        hooks: Sequence[Webhook] = (),
        config: Path | str | None = None,
        acp: Sequence[str | AcpAgent] = (),
        embedded: bool | None = None,
        headless: bool = False,
    ) -> None:
        self._clutch = wiring.Clutch(**_given(locals()))
        self._running: _Loop | None = None

    @classmethod
    def connect(cls, state: Path | str | None = None) -> Self:
        """Return a client of the gateway that owns the state directory. Raises NoGateway when it is opened."""
        return cls(state, embedded=False)

    def open(self) -> Self:
        """Start the engine in a thread of its own, or connect to the gateway that owns the state directory."""
        loop = _Loop(lambda: self._clutch)
        loop.start()
        self._running = loop
        atexit.register(self.close)
        return self

    def close(self) -> None:
        """Stop the work and release the state directory; the next start resumes the work."""
        running, self._running = self._running, None
        if running is not None:
            atexit.unregister(self.close)
            running.stop()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str | None:
        """The address at which it is served, while it is open."""
        return self._clutch.url

    @property
    def is_client(self) -> bool:
        """Whether another process does the work."""
        return self._clutch.is_client

    @property
    def _loop(self) -> _Loop:
        if self._running is None:
            raise ClutchError(NOT_OPEN)
        return self._running

    # ---- tasks ---------------------------------------------------------------------------------------

    spawn = _held(wiring.Clutch.spawn)
    get = _held(wiring.Clutch.get)
    check_spawn = _of_clutch(wiring.Clutch.check_spawn)
    map = _of_clutch(wiring.Clutch.map)

    def tasks(
        self,
        *,
        requester: str | None = None,
        phase: str | None = None,
        outcome: str | None = None,
        label: str | None = None,
        undelivered: bool = False,
        limit: int = 200,
    ) -> list[Task[Any]]:
        """Return tasks: those that need the user, undelivered results, active tasks, then the newest finished."""
        found = self._loop.run(self._clutch.tasks(**_given(locals())))
        return [Task(self._loop, task) for task in found]

    def gather(self, *tasks: Task[V]) -> list[TaskResult[V]]:
        """Wait for all tasks and return their results in this order, whatever the outcomes. Raises InvalidInput."""
        handles.check_tasks(tasks, Task)
        return self._loop.run(handles.gather(*(task._task for task in tasks)))

    def as_completed(self, tasks: Iterable[Task[V]]) -> Iterator[tuple[Task[V], TaskResult[V]]]:
        """Yield each task with its result, as they end. Raises InvalidInput."""
        handles.check_tasks(tasks := list(tasks), Task)
        known = {task.id: task for task in tasks}
        for task, result in self._loop.each(handles.as_completed([task._task for task in known.values()])):
            yield known[task.id], result

    def events(self) -> Iterator[Event]:
        """Yield the events from now on: text as it comes, tools, usage, starts and ends."""
        return self._loop.each(self._clutch.events())

    # ---- schedules -----------------------------------------------------------------------------------

    schedule = _scheduled(wiring.Clutch.schedule)

    def schedules(self) -> list[BlockingSchedule]:
        """Return all schedules, by name."""
        return [BlockingSchedule(self._loop, one) for one in self._loop.run(self._clutch.schedules())]

    # ---- the inbox, and main agents ------------------------------------------------------------------

    inbox = _of_clutch(wiring.Clutch.inbox)
    answer = _of_clutch(wiring.Clutch.answer)
    say = _of_clutch(wiring.Clutch.say)
    reply = _of_clutch(wiring.Clutch.reply)
    command = _of_clutch(wiring.Clutch.command)
    notify = _of_clutch(wiring.Clutch.notify)
    wake = _of_clutch(wiring.Clutch.wake)
    receive_thread_message = _of_clutch(wiring.Clutch.receive_thread_message)
    wait_idle = _of_clutch(wiring.Clutch.wait_idle)


def _given(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a method, which are the only local variables at its first statement."""
    return {name: value for name, value in parameters.items() if name not in ("self", "__class__")}
