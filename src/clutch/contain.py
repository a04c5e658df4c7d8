"""Keep what foreign code raises inside its own call.

asyncio passes a SystemExit or KeyboardInterrupt raised in any of its tasks to the event loop, which ends the process
with every other task in it. So each call of a tool, runtime, model, channel, hook or callback is made inside
`contained()`, which turns what is not an Exception into one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from typing import Any, TypeVar


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
# Work that a cancellation must not cut: what blocks is entered and left in a thread, and cleanups run to their end.

T = TypeVar("T")


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` however often the caller is cancelled meanwhile; the cancellation is raised afterwards."""
    task, cancelled = asyncio.create_task(work), None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
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
