"""One connection from its start to its end, held open by a task of its own: the library ends it where it
began it. Who uses it, and what follows its end, is not known here."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from clutch.ports import Launch
from clutch.tools.mcp.launch import launching
from clutch.tools.mcp.naming import Definition
from clutch.tools.mcp.settings import McpServer
from clutch.tools.mcp.wire import Wire

if TYPE_CHECKING:
    from clutch.tools.mcp.connection import Connection


class Life:
    def __init__(self, settings: McpServer, wire: Wire) -> None:
        self.wire = wire
        self.is_doubtful = False  #: a call was not answered in time
        self._settings = settings
        self._born: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def begin(self, folder: Path, on_change: Callable[[], None], on_end: Callable[[], None]) -> None:
        """Raises what the connection raised, TimeoutError if it took too long. `on_end` only after a begin."""
        library = await asyncio.to_thread(importlib.import_module, "clutch.tools.mcp.connection")
        self._task = asyncio.create_task(self._hold(library, folder, on_change))
        try:
            await asyncio.wait((self._task, self._born), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.end()
            raise
        if not self._born.done():
            await self._task
        self._task.add_done_callback(lambda task: _retrieved(task, on_end))

    @property
    def is_sound(self) -> bool:
        return not self.is_doubtful and not self.wire.ended.is_set()

    @property
    def connection(self) -> Connection:
        return self._born.result()

    async def tools(self) -> list[Definition]:
        """Raises Gone, Refused, TimeoutError."""
        async with asyncio.timeout(self._settings.connect_timeout_s):
            return await self.connection.tools()

    async def end(self) -> None:
        """Returns when nothing of it is left."""
        if self._task is None:
            return
        if self._born.done():
            self.wire.ended.set()
        else:
            self._task.cancel()
        await asyncio.wait([self._task])

    async def _hold(self, library: ModuleType, folder: Path, on_change: Callable[[], None]) -> None:
        async with AsyncExitStack() as stack:
            launch: Launch | None = None
            if self._settings.command is not None:
                plan = launching(self._settings, folder)
                launch = await asyncio.to_thread(plan.__enter__)
                stack.push(plan.__exit__)
            limit = await stack.enter_async_context(asyncio.timeout(self._settings.connect_timeout_s))
            opened = library.connected(self._settings, launch, self.wire, on_change)
            connection = await stack.enter_async_context(opened)
            limit.reschedule(None)
            self._born.set_result(connection)
            await self.wire.ended.wait()


def _retrieved(task: asyncio.Task[None], on_end: Callable[[], None]) -> None:
    """How it ended is told by the wire; an exception nobody asks for would be logged as an accident."""
    if not task.cancelled():
        task.exception()
    on_end()
