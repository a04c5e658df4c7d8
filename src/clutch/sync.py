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
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Literal, Self, overload

from typing_extensions import TypeVar

from clutch import wiring
from clutch.api import handles
from clutch.api.handles import Event, KillResult, Question, TaskResult
from clutch.api.handles import Task as AsyncTask
from clutch.api.slash import MAIN_SESSION
from clutch.api.spawn import OnFullWord
from clutch.api.task_info import TaskInfo, Why
from clutch.channels import Webhook
from clutch.core.agents import Agent
from clutch.core.model import TaskStatus
from clutch.core.policy import Policy
from clutch.errors import ClutchError
from clutch.models.provider import Provider
from clutch.ports import Channel, Models, Toolbox
from clutch.runtimes.acp_process import AcpAgent
from clutch.runtimes.function import Function
from clutch.tools.registry import ToolSettings
from clutch.wiring.engine import NO_CHANNELS

T = TypeVar("T")
V = TypeVar("V", default=Any)
F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R", bound=Function)

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


class Task(Generic[V]):
    """A handle on a durable task. The task does not depend on it: `Clutch.get(id)` returns another handle."""

    def __init__(self, loop: _Loop, task: AsyncTask[V]) -> None:
        self._loop, self._task = loop, task
        self.id, self.label, self.session_key = task.id, task.label, task.session_key

    def __repr__(self) -> str:
        return repr(self._task)

    def result(self, timeout: float | None = None) -> TaskResult[V]:
        """Wait for the end of the task. Raises TimeoutError after `timeout` seconds; the task keeps running."""
        return self._loop.run(self._task.result(timeout))

    def on_done(self, call: Callable[[TaskResult[V]], None]) -> None:
        """Call `call` with the result when the task ends, in the thread of this Clutch."""
        self._loop.call(lambda: self._task.on_done(call))

    def events(self) -> Iterator[Event]:
        """Yield the events of the task from now on, until it ends."""
        return self._loop.each(self._task.events())

    def stream(self) -> Iterator[str]:
        """Yield the text of the task as the model writes it, from now on, until the task ends."""
        return self._loop.each(self._task.stream())

    def status(self) -> TaskStatus:
        """Return the status that every surface shows: "queued", "running", "needs approval", "done" …"""
        return self._loop.run(self._task.status())

    def done(self) -> bool:
        """Return whether the task has ended, with any outcome."""
        return self._loop.run(self._task.done())

    def info(self) -> TaskInfo:
        """Return the task as every surface shows it: status, usage, delivery, plan, evidence."""
        return self._loop.run(self._task.info())

    def why(self) -> Why:
        """Explain the status: the timeline, the delivery attempts, and what blocks the task."""
        return self._loop.run(self._task.why())

    def read_file(self, name: str) -> bytes:
        """Return a file of the result, as long as it is kept. Raises NotFound."""
        return self._loop.run(self._task.read_file(name))

    def kill(self, reason: str = "killed", *, dry_run: bool = False) -> KillResult:
        """Kill the task and all tasks below it, and return what stopped and what is still stopping. `dry_run`: return
        what would stop, and stop nothing."""
        return self._loop.run(self._task.kill(reason, dry_run=dry_run))

    def steer(self, text: str) -> None:
        """Replace what the task does now by a new instruction. Raises NotPossible for a finished task."""
        self._loop.run(self._task.steer(text))

    def send(self, text: str, *, wait_seconds: float | None = None) -> str | None:
        """Send a follow-up message and return the first reply; None when there is none within the time."""
        return self._loop.run(self._task.send(text, wait_seconds=wait_seconds))

    def pause(self) -> tuple[str, ...]:
        """Pause the task and all tasks below it at their next step. Returns the tasks that changed."""
        return self._loop.run(self._task.pause())

    def resume(self) -> tuple[str, ...]:
        """Resume a paused task and all tasks below it. Returns the tasks that changed."""
        return self._loop.run(self._task.resume())

    def retry(self, text: str = "") -> None:
        """Start a finished task again from an empty transcript; `text` is added to it."""
        self._loop.run(self._task.retry(text))

    def continue_(self, text: str) -> None:
        """Resume a finished task in its transcript; `text` says what to do next."""
        self._loop.run(self._task.continue_(text))

    def approve(self, plan_hash: str, text: str = "") -> None:
        """Approve the plan with this hash. Raises PlanChanged when there is another one by now."""
        self._loop.run(self._task.approve(plan_hash, text))

    def reject(self, plan_hash: str, reason: str, *, then: Literal["revise", "end"] | None = None) -> None:
        """Reject the plan with this hash. `then`: another round, or the end; None = as `plan.onReject` says."""
        self._loop.run(self._task.reject(plan_hash, reason, then=then))

    def archive(self) -> None:
        """Archive the finished task: it leaves the lists and the limit of its parent."""
        self._loop.run(self._task.archive())

    def redeliver(self) -> None:
        """Deliver an undelivered result again."""
        self._loop.run(self._task.redeliver())

    def dismiss(self) -> None:
        """Discard an undelivered result; it stays readable."""
        self._loop.run(self._task.dismiss())


class Clutch:
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

    def _held(self, task: AsyncTask[V]) -> Task[V]:
        return Task(self._loop, task)

    # ---- tasks ---------------------------------------------------------------------------------------

    def spawn(
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
        runtime: str | None = None,
        attachments: Mapping[str, str | bytes] | None = None,
        idempotency_key: str | None = None,
        session: str = MAIN_SESSION,
        on_full: OnFullWord | None = None,
    ) -> Task[V]:
        """Spawn a task, which is on disk when this returns; `clutch.Clutch.spawn` explains the parameters.

        Raises InvalidInput, SpawnRefused, IdempotencyConflict."""
        return self._held(self._loop.run(self._clutch.spawn(**_given(locals()))))

    def check_spawn(
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
        runtime: str | None = None,
        attachments: Mapping[str, str | bytes] | None = None,
        idempotency_key: str | None = None,
        session: str = MAIN_SESSION,
    ) -> Mapping[str, Any]:
        """Return what `spawn` with these arguments would answer now, and create nothing. Raises InvalidInput."""
        return self._loop.run(self._clutch.check_spawn(**_given(locals())))

    def get(self, task_id: str, *, output_type: type[V] | None = None) -> Task[V]:
        """Return a task by its id, also one of an earlier start. Raises InvalidInput, NotFound."""
        return self._held(self._loop.run(self._clutch.get(task_id, output_type=output_type)))

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
        return [self._held(task) for task in found]

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

    def map(
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
        runtime: str | None = None,
        attachments: Mapping[str, str | bytes] | None = None,
    ) -> list[TaskResult[V]]:
        """Run one task for every item, `prompt(item)`, and return their results in the order of the items.

        `clutch.Clutch.map` explains the parameters. `on_result` is called in the thread of the engine."""
        return self._loop.run(self._clutch.map(**_given(locals())))

    def events(self) -> Iterator[Event]:
        """Yield the events from now on: text as it comes, tools, usage, starts and ends."""
        return self._loop.each(self._clutch.events())

    # ---- the inbox, and main agents ------------------------------------------------------------------

    def inbox(self) -> list[Question]:
        """Return everything that waits for a decision of the user, plans included, oldest first."""
        return self._loop.run(self._clutch.inbox())

    def answer(
        self, question: Question, decision: Literal["approve", "reject", "answer"], text: str = ""
    ) -> None:
        """Answer a question; its run resumes. Raises UnknownQuestion, PlanChanged."""
        self._loop.run(self._clutch.answer(question, decision, text))

    def say(self, text: str, *, session: str = MAIN_SESSION, idempotency_key: str | None = None) -> str:
        """Send a user's message to a main agent and return the id of its letter; `reply` has the answer."""
        return self._loop.run(self._clutch.say(text, session=session, idempotency_key=idempotency_key))

    def reply(self, *, session: str = MAIN_SESSION) -> str:
        """Wait for the oldest reply of this main agent that was not returned yet. Each is returned once."""
        return self._loop.run(self._clutch.reply(session=session))

    def command(self, line: str, *, session: str = MAIN_SESSION, idempotency_key: str | None = None) -> str:
        """Run a slash command and return its answer."""
        return self._loop.run(self._clutch.command(line, session=session, idempotency_key=idempotency_key))

    def notify(self, text: str, *, session: str = MAIN_SESSION) -> bool:
        """Report an event, which the main agent reads in its next turn."""
        return self._loop.run(self._clutch.notify(text, session=session))

    def wake(self, *, session: str = MAIN_SESSION) -> None:
        """Start a turn of the main agent if it has an event or a HEARTBEAT.md to look at."""
        self._loop.run(self._clutch.wake(session=session))

    def receive_thread_message(
        self,
        channel: str,
        thread: str,
        text: str,
        *,
        account: str = "",
        idempotency_key: str | None = None,
    ) -> None:
        """Pass on a message from a thread of a channel to the child that the thread is bound to."""
        self._loop.run(self._clutch.receive_thread_message(**_given(locals())))

    def wait_idle(self, *, session: str = MAIN_SESSION) -> None:
        """Wait until no work is left in this session and below it."""
        self._loop.run(self._clutch.wait_idle(session=session))

    # ---- functions of the program --------------------------------------------------------------------

    @overload
    def tool(self, function: F) -> F: ...

    @overload
    def tool(
        self,
        function: None = None,
        *,
        name: str | None = None,
        replay_safe: bool = False,
        read_only: bool = False,
        needs_approval: bool = False,
        timeout_s: float | None = None,
        concurrency: int | None = None,
        is_outward: bool = False,
    ) -> Callable[[F], F]: ...

    def tool(
        self,
        function: F | None = None,
        *,
        name: str | None = None,
        replay_safe: bool = False,
        read_only: bool = False,
        needs_approval: bool = False,
        timeout_s: float | None = None,
        concurrency: int | None = None,
        is_outward: bool = False,
    ) -> F | Callable[[F], F]:
        """Make the decorated function a tool of every agent here; `clutch.Clutch.tool` explains the parameters."""
        made: F | Callable[[F], F] = self._clutch.tool(**_given(locals()))
        return made

    def hook(self, name: str) -> Callable[[F], F]:
        """Call the decorated function at an event of subagents (`docs/how-to/hooks.md`)."""
        return self._clutch.hook(name)

    def runtime(self, name: str) -> Callable[[R], R]:
        """Make the decorated async function a runtime: `spawn(..., runtime=name)`."""
        return self._clutch.runtime(name)


def _given(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a method, which are the only local variables at its first statement."""
    return {name: value for name, value in parameters.items() if name not in ("self", "__class__")}
