"""Live events for watchers: the queue of each is bounded, and a slow watcher loses events. The store has the truth."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from clutch.core.text.format import main_argument, visible
from clutch.store.transaction import Database

ERROR_CHARS_MAX = 120
SKIPPED = "schedule:skipped"  #: an event without a session: slots of a schedule that will not run
QUEUE_MAX = 1000  # a watcher further behind than this reads the store instead


@dataclass(frozen=True, slots=True)
class Live:
    """`name` is one of the stable names: lifecycle:start|end|error, assistant:text, tool:start|end, usage.

    `is_task`: its session belongs to a task, not to a main agent. `seq`: its place among the events of the run, as long
    as the worker lives."""

    name: str
    session_id: int
    run_id: int
    data: Any = None
    session_key: str = ""
    is_task: bool = True
    seq: int = 0
    detail: Mapping[str, Any] | None = None  #: of a tool call: see `tool_detail`


def tool_detail(args: Mapping[str, Any], call: object) -> dict[str, Any]:
    """Return what a watcher may show of a tool call while it runs. `call` tells it from others of the same run."""
    return {"call": str(call), "argument": main_argument(args)}


def result_detail(text: str, *, failed: bool, seconds: float) -> dict[str, Any]:
    """Return the size of a result, and the beginning of an error; the result itself is in the transcript."""
    error = visible(next(iter(text.strip().splitlines()), ""), ERROR_CHARS_MAX) if failed else None
    # On the event loop, and for each call of each agent, also when there is no watcher: a large result is not copied
    # or split for two numbers. Python knows of a text whether it is ASCII.
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    lines = text.count("\n") + (text != "" and not text.endswith("\n"))
    return {"bytes": size, "lines": lines, "seconds": round(seconds, 3), "error": error}


class BusWatcher:
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
            event = await self.first()
            self.take(event)
            yield event

    async def first(self) -> Live:
        """Wait for the next event and leave it in its place."""
        while not self._queue:
            self._ready.clear()
            await self._ready.wait()
        return self._queue[0]

    def take(self, event: Live) -> bool:
        """Take an event that `first` returned. False: it is gone meanwhile."""
        is_there = bool(self._queue) and self._queue[0] is event
        if is_there:
            self._queue.popleft()
        return is_there

    def take_every(self) -> list[Live]:
        """Take all events that are waiting."""
        taken = list(self._queue)
        self._queue.clear()
        return taken

    def take_all(self, session_id: int, but_run: int | None = None) -> list[Live]:
        """Take all events of a session, except those of one run."""
        taken = [one for one in self._queue if one.session_id == session_id and one.run_id != but_run]
        for event in taken:
            self._queue.remove(event)
        return taken


class Bus:
    def __init__(self) -> None:
        self._watchers: set[BusWatcher] = set()

    def publish(self, event: Live) -> None:
        for watcher in self._watchers:
            watcher.put(event)

    def watch(self) -> BusWatcher:
        watcher = BusWatcher()
        self._watchers.add(watcher)
        return watcher

    def leave(self, watcher: BusWatcher) -> None:
        self._watchers.discard(watcher)


# --------------------------------------------------------------------------------------------------
# Waiting for a change: hints say that something changed, the store says what. A lost hint costs a tick.


class Changes:
    def __init__(self, db: Database, tick_s: float) -> None:
        self._tick_s = tick_s
        self._change = asyncio.Event()
        db.listen(self._hear)

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
        """Return when something has changed or a tick has passed."""
        try:
            async with asyncio.timeout(self._tick_s):
                await change.wait()
        except TimeoutError:
            pass


# --------------------------------------------------------------------------------------------------
# When the loops of this process last ran, for health checks. Kept in memory only.


class Beat(NamedTuple):
    at: float
    period_s: float  #: it comes at least so often


@dataclass(slots=True)
class Pulses:
    """By the name of the loop."""

    beats: dict[str, Beat] = field(default_factory=dict)

    def beat(self, name: str, at: float, period_s: float) -> None:
        self.beats[name] = Beat(at, period_s)
