"""Keep what foreign code raises inside its own call, and background tasks inside their owner.

asyncio passes a SystemExit or KeyboardInterrupt raised in any of its tasks to the event loop, which ends the process
with every other task in it. So each call of a tool, runtime, model, channel, hook or callback is made inside
`contained()`, which turns what is not an Exception into one.

No other module starts an asyncio task by itself. Tasks that end with the block that starts them belong to an
`asyncio.TaskGroup`, all others to a `BackgroundTasks`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from clutch.logs import logger

log = logger("clutch.tasks")


class ForeignExit(Exception):
    """Foreign code raised a BaseException that is not an Exception, such as SystemExit."""


@contextmanager
def contained() -> Iterator[None]:
    """Turn a BaseException into ForeignExit. An Exception and a cancellation pass unchanged."""
    caller = _current_task()
    try:
        yield
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        # Closing a coroutine throws GeneratorExit into it from outside of its task: it must end, not run on.
        if isinstance(error, GeneratorExit) and (caller is None or _current_task() is not caller):
            raise
        raise ForeignExit(f"{type(error).__name__}: {error}") from error


def cause(error: BaseException) -> str:
    """What foreign code raised, for a message: type and text."""
    return str(error) if isinstance(error, ForeignExit) else f"{type(error).__name__}: {error}"


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        return None


# --------------------------------------------------------------------------------------------------
# Background tasks and their owner

T = TypeVar("T")


class BackgroundTasks:
    """Owner of tasks that a TaskGroup cannot own.

    A TaskGroup waits for its tasks and fails with the first of them. The tasks here are started by an object that lives
    longer than one call, or run beside a block and end when the block ends: `async with BackgroundTasks() as tasks`.

    The owner holds a reference to each task until it ends, because the event loop holds a weak one only. It may be
    used on one event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    def start(self, work: Coroutine[Any, Any, object], name: str) -> None:
        """Start work whose result no caller reads. An exception it raises is logged once, with the name."""
        self.call(work, name).add_done_callback(_log_failure)

    def call(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start work whose caller reads the result and the exception from the returned task.

        Raises RuntimeError after `close()`: the new task would outlive its owner."""
        if self._is_closed:
            work.close()
            raise RuntimeError(f"cannot start the task {name!r}: its owner is closed")
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Cancel all tasks and wait until each has ended; a cancellation of the caller is raised afterwards.

        A task of this owner may call this: it is not cancelled and not waited for. The second call finds nothing."""
        self._is_closed = True
        own = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not own]
        for task in tasks:
            task.cancel()
        await _all_ended(tasks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("Background task %r failed: %s", task.get_name(), cause(error), exc_info=error)


async def _all_ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Wait for the end of all tasks, however often the caller is cancelled meanwhile."""
    cancelled = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


# --------------------------------------------------------------------------------------------------
# Work that a cancellation must not cut: what blocks is entered and left in a thread, and cleanups run to their end.


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` however often the caller is cancelled meanwhile; the cancellation is raised afterwards."""
    task = asyncio.create_task(work)
    await _all_ended([task])
    return task.result()


@asynccontextmanager
async def in_thread(make: Callable[[], AbstractContextManager[T]]) -> AsyncIterator[T]:
    """Make, enter and leave what `make` returns. What was entered is left, also after a cancellation meanwhile."""
    held = ExitStack()
    entered = asyncio.create_task(asyncio.to_thread(lambda: held.enter_context(make())))
    try:
        yield await asyncio.shield(entered)
    finally:
        await to_the_end(_left(entered, held))


async def _left(entered: asyncio.Task[T], held: ExitStack) -> None:
    await asyncio.wait([entered])
    await asyncio.to_thread(held.close)
