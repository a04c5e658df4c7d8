"""Waiting for something to change: hints say that something did, the store says what. A lost hint costs a tick."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from clutch.store.door import Door


class Changes:
    def __init__(self, door: Door, tick_s: float) -> None:
        self._tick_s = tick_s
        self._change = asyncio.Event()
        door.listen(self._hear)

    def _hear(self, hints: Sequence[Any]) -> None:
        del hints
        self.tell()

    def tell(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    @property
    def next_change(self) -> asyncio.Event:
        """Ask for it before a look, wait for it after: then nothing in between is missed."""
        return self._change

    async def until(self, change: asyncio.Event) -> None:
        """Something happened, or a tick has passed."""
        try:
            async with asyncio.timeout(self._tick_s):
                await change.wait()
        except TimeoutError:
            pass
