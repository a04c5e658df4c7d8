"""A gateway that is opened and closed: between the two there are doors, and after them every call is refused.

How it is opened is somebody else's business (`wiring`): here or elsewhere, it hands over the doors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self, TypeAlias

from clutch.engine.kit import Kit
from clutch.errors import ClutchError
from clutch.gateway.doors import Doors
from clutch.gateway.leaving import Leaving
from clutch.gateway.local import Gateway
from clutch.gateway.waiting import CLOSED
from clutch.store.door import DoorStats

NOT_ENTERED = "Clutch works inside `async with Clutch(...) as c:` only; this one was not entered"
ENTERED_BEFORE = "this Clutch was entered before; make a new one: `async with Clutch(...) as c:`"
ELSEWHERE = "this Clutch is a client of the gateway that owns the state directory; only that one can do this"

#: What it leaves on the stack is closed at the end, the last first.
Opening: TypeAlias = Callable[[AsyncExitStack], Awaitable[Doors]]


class Opened:
    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._stack = AsyncExitStack()
        self._was_entered = False
        self._found: Doors | None = None
        self._group: asyncio.TaskGroup | None = None  #: of what is done at the end of tasks
        self._works: set[asyncio.Task[None]] = set()
        self.leaving: Leaving | None = None  #: None: part of a program, which decides itself when to end

    async def __aenter__(self) -> Self:
        if self._was_entered:
            raise ClutchError(ENTERED_BEFORE)
        self._was_entered = True
        try:
            doors = await self._opening(self._stack)
            self._group = await self._stack.enter_async_context(asyncio.TaskGroup())
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        self._stack.callback(self._close)
        self._found = doors
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Told of no error: a task group would wrap it, and it is the caller's own.
        await self._stack.__aexit__(None, None, None)

    def _close(self) -> None:
        """Before anything else ends: from here on every call is refused, and who waits for an end is let go."""
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
    def _doors(self) -> Doors:
        if self._found is None:
            raise self._shut()
        return self._found

    @property
    def here(self) -> Gateway:
        """For surfaces: the gateway in this process. Raises ClutchError when it is in another one."""
        doors = self._doors
        if not isinstance(doors, Gateway):
            raise ClutchError(ELSEWHERE)
        return doors

    @property
    def kit(self) -> Kit:
        """For surfaces: what the engine works with. Raises ClutchError, as above."""
        return self.here.kit

    @property
    def stats(self) -> DoorStats:
        """What the store has done since this start: transactions, statements, commits."""
        return self.kit.door.stats
