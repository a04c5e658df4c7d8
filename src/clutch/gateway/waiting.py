"""One look for all who wait: hints say that something changed, the store says what.

A thousand awaited tasks cost one read per look, and looks have a pause between them. A lost hint costs a
tick.
"""

from __future__ import annotations

import asyncio

from clutch.engine.changes import Changes
from clutch.errors import ClutchError, StoreError
from clutch.protocol import results
from clutch.protocol.results import Ended
from clutch.store.door import Door

CLOSED = "this Clutch is closed; its tasks go on at the next start, and `get` finds them by their id"
PAUSE_S = 0.01  # between two looks: under load hints come with every commit


class Waiting:
    def __init__(self, door: Door, changes: Changes) -> None:
        self._door, self._changes = door, changes
        self._waiters: dict[int, asyncio.Future[Ended]] = {}
        self._is_over = False

    @property
    def next_change(self) -> asyncio.Event:
        return self._changes.next_change

    async def end_of(self, task_id: int) -> Ended:
        """Many may wait for one task, and any of them may stop waiting."""
        future = self._waiters.get(task_id)
        if future is None:
            future = self._waiters[task_id] = asyncio.get_running_loop().create_future()
            self._changes.tell()
        return await asyncio.shield(future)

    async def until(self, change: asyncio.Event) -> None:
        """Raises ClutchError when nobody looks any more."""
        await self._changes.until(change)
        if self._is_over:
            raise ClutchError(CLOSED)

    async def run(self) -> None:
        while True:
            change = self.next_change
            if self._waiters:
                await self._look()
            await asyncio.sleep(PAUSE_S)
            await self.until(change)

    async def _look(self) -> None:
        try:
            found = await self._door.read(results.ended, list(self._waiters))
        except StoreError:
            return  # the next tick looks again
        for one in found:
            future = self._waiters.pop(one.task_id)
            if not future.done():
                future.set_result(one)

    def give_up(self) -> None:
        """Nobody will look any more."""
        self._is_over = True
        for future in self._waiters.values():
            if not future.done():
                future.set_exception(ClutchError(CLOSED))
                future.exception()  # whoever awaits it hears; an abandoned one must not complain
        self._changes.tell()
