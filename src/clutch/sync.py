"""Clutch for programs without an event loop: scripts, notebooks, threads.

    from clutch.sync import Clutch

    with Clutch("state") as c:
        print(c.spawn("Survey this folder").result().text)

The engine has a loop in a thread of its own. Ctrl-C ends the waiting, never the work: tasks go on until the block is
left, and after that at the next start.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Literal, Self, Unpack

from typing_extensions import TypeVar

from clutch import wiring
from clutch.api import handles
from clutch.api.handles import Event, KillResult, Question, TaskResult
from clutch.api.handles import Task as AsyncTask
from clutch.api.slash import MAIN_SESSION
from clutch.api.spawn import OnFullWord, SpawnOptions
from clutch.api.views import Object
from clutch.errors import ClutchError

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

    def each(self, stream: AsyncIterator[T]) -> Iterator[T]:
        async def following() -> tuple[T] | None:
            try:
                return (await anext(stream),)
            except StopAsyncIteration:
                return None

        while (found := self.run(following())) is not None:
            yield found[0]


class Task(Generic[V]):
    """A handle on a durable task; `clutch.Task` says what each method does."""

    def __init__(self, loop: _Loop, task: AsyncTask[V]) -> None:
        self._loop, self.behind = loop, task
        self.id, self.label, self.session_key = task.id, task.label, task.session_key

    def __repr__(self) -> str:
        return repr(self.behind)

    def result(self, timeout: float | None = None) -> TaskResult[V]:
        """Wait for the end of the task. Raises TimeoutError; the task keeps running."""
        return self._loop.run(_within(timeout, self.behind.result()))

    def events(self) -> Iterator[Event]:
        return self._loop.each(self.behind.events())

    def info(self) -> Object:
        return self._loop.run(self.behind.info())

    def why(self) -> Object:
        return self._loop.run(self.behind.why())

    def read_file(self, name: str) -> bytes:
        return self._loop.run(self.behind.read_file(name))

    def kill(self, reason: str = "killed") -> KillResult:
        return self._loop.run(self.behind.kill(reason))

    def steer(self, text: str) -> None:
        self._loop.run(self.behind.steer(text))

    def send(self, text: str, *, wait_seconds: float | None = None) -> str | None:
        return self._loop.run(self.behind.send(text, wait_seconds=wait_seconds))

    def pause(self) -> tuple[str, ...]:
        return self._loop.run(self.behind.pause())

    def resume(self) -> tuple[str, ...]:
        return self._loop.run(self.behind.resume())

    def retry(self, text: str = "") -> None:
        self._loop.run(self.behind.retry(text))

    def continue_(self, text: str) -> None:
        self._loop.run(self.behind.continue_(text))

    def approve(self, plan_hash: str, text: str = "") -> None:
        self._loop.run(self.behind.approve(plan_hash, text))

    def reject(self, plan_hash: str, reason: str, *, then: Literal["revise", "end"] | None = None) -> None:
        self._loop.run(self.behind.reject(plan_hash, reason, then=then))


class Clutch:
    """The parameters of `clutch.Clutch`. `open` and `close` are for where there is no block, as in a notebook."""

    def __init__(self, state: Path | str | None = None, **options: Any) -> None:
        #: tools, hooks and runtimes are registered there, before it is opened
        self.behind = wiring.Clutch(state, **options)
        self._running: _Loop | None = None

    def open(self) -> Self:
        loop = _Loop(lambda: self.behind)
        loop.start()
        self._running = loop
        atexit.register(self.close)
        return self

    def close(self) -> None:
        """Stop at the next step; the next start resumes the work."""
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
    def _loop(self) -> _Loop:
        if self._running is None:
            raise ClutchError(NOT_OPEN)
        return self._running

    def _held(self, task: AsyncTask[V]) -> Task[V]:
        return Task(self._loop, task)

    def spawn(
        self,
        prompt: str,
        *,
        session: str = MAIN_SESSION,
        on_full: OnFullWord | None = None,
        output_type: type[V] | None = None,
        **asked: Unpack[SpawnOptions],
    ) -> Task[V]:
        return self._held(
            self._loop.run(
                self.behind.spawn(prompt, session=session, on_full=on_full, output_type=output_type, **asked)
            )
        )

    def get(self, task_id: str) -> Task[Any]:
        return self._held(self._loop.run(self.behind.get(task_id)))

    def tasks(self, **wanted: Any) -> list[Task[Any]]:
        return [self._held(task) for task in self._loop.run(self.behind.tasks(**wanted))]

    def gather(self, *tasks: Task[V]) -> list[TaskResult[V]]:
        handles.check_tasks(tasks, Task)
        return self._loop.run(handles.gather(*(task.behind for task in tasks)))

    def as_completed(self, tasks: Iterable[Task[V]]) -> Iterator[tuple[Task[V], TaskResult[V]]]:
        handles.check_tasks(tasks := list(tasks), Task)
        known = {task.id: task for task in tasks}
        for task, result in self._loop.each(handles.as_completed([task.behind for task in known.values()])):
            yield known[task.id], result

    def map(self, items: Iterable[T], prompt: Callable[[T], str], **options: Any) -> list[TaskResult[Any]]:
        return self._loop.run(self.behind.map(items, prompt, **options))

    def events(self) -> Iterator[Event]:
        return self._loop.each(self.behind.events())

    def inbox(self) -> list[Question]:
        return self._loop.run(self.behind.inbox())

    def answer(
        self, question: Question, decision: Literal["approve", "reject", "answer"], text: str = ""
    ) -> None:
        self._loop.run(self.behind.answer(question, decision, text))

    def say(self, text: str, *, session: str = MAIN_SESSION, idempotency_key: str | None = None) -> str:
        return self._loop.run(self.behind.say(text, session=session, idempotency_key=idempotency_key))

    def reply(self, *, session: str = MAIN_SESSION) -> str:
        return self._loop.run(self.behind.reply(session=session))

    def wait_idle(self, *, session: str = MAIN_SESSION) -> None:
        self._loop.run(self.behind.wait_idle(session=session))


async def _within(seconds: float | None, work: Coroutine[Any, Any, T]) -> T:
    async with asyncio.timeout(seconds):
        return await work
