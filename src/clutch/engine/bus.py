"""Live events for watchers: bounded, and lossy for a slow one. The store is the truth; this is the view."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

QUEUE_MAX = 1000  # a watcher further behind than this reads the store instead


@dataclass(frozen=True, slots=True)
class Live:
    """`name` is one of the stable names: lifecycle:start|end|error, assistant:text, tool:start|end, usage.

    `session_key`: as people name it; `is_task`: whether it is a task's, or a main agent's. `seq`: its place among what
    the run tells, as long as its worker lives."""

    name: str
    session_id: int
    run_id: int
    data: Any = None
    session_key: str = ""
    is_task: bool = True
    seq: int = 0


class Watcher:
    def __init__(self) -> None:
        self._queue: deque[Live] = deque(maxlen=QUEUE_MAX)
        self._ready = asyncio.Event()
        self.missed = 0

    def put(self, event: Live) -> None:
        if len(self._queue) == QUEUE_MAX:
            self.missed += 1
        self._queue.append(event)
        self._ready.set()

    async def __aiter__(self) -> AsyncIterator[Live]:
        while True:
            while self._queue:
                yield self._queue.popleft()
            self._ready.clear()
            await self._ready.wait()


class Bus:
    def __init__(self) -> None:
        self._watchers: set[Watcher] = set()

    def publish(self, event: Live) -> None:
        for watcher in self._watchers:
            watcher.put(event)

    def watch(self) -> Watcher:
        watcher = Watcher()
        self._watchers.add(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)
