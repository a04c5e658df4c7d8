"""An asyncio event loop with virtual time and a seeded choice of who goes next. No sockets, no threads.

Time stands still while anything is ready and jumps to the next timer when nothing is, so an hour of waiting
costs nothing. Of several ready callbacks a seeded coin picks one: the same seed gives the same interleaving,
another seed another one. Nothing ready and no timer is a deadlock, and says so instead of hanging.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections import deque
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Every task waits, and no timer is pending."""


class _NumberedTask(asyncio.Task[Any]):
    """Sets of tasks (task groups have one) are walked in the order of hashes; a memory address is no seed."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class VirtualLoop(asyncio.BaseEventLoop):
    # asyncio's own, the same in every version it was tried on (3.11 to 3.13) and unknown to its type stubs
    _ready: deque[Any]
    _scheduled: list[Any]

    def __init__(self, seed: int = 0) -> None:
        self._virtual_now = 0.0
        super().__init__()
        self._coin = random.Random(seed).random
        self._numbers = itertools.count()
        self.set_task_factory(self._numbered)

    def time(self) -> float:
        return self._virtual_now

    def _numbered(
        self, loop: asyncio.AbstractEventLoop, coro: Any, context: Context | None = None, **options: Any
    ) -> _NumberedTask:
        """Without a name of its own: asyncio's counter is shared by all loops of the process."""
        number = next(self._numbers)
        options.setdefault("name", f"sim-{number}")
        task = _NumberedTask(coro, loop=loop, context=context, **options)
        task.number = number
        return task

    def _run_once(self) -> None:
        """One callback. What it makes ready competes with what was ready before."""
        ready = self._ready
        if not ready:
            self._jump()
        if len(ready) > 1:
            ready.rotate(-int(self._coin() * len(ready)))
        handle = ready.popleft()
        if not handle._cancelled:
            handle._run()

    def _jump(self) -> None:
        """To the next timer, and everything due at that moment becomes ready."""
        timers = self._scheduled
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
        if not timers:
            raise Deadlock(f"nothing is ready and nothing is scheduled at t={self._virtual_now:.3f}")
        self._virtual_now = max(self._virtual_now, timers[0]._when)
        while timers and timers[0]._when <= self._virtual_now:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            self._ready.append(timer)

    def _write_to_self(self) -> None:
        """There is no other thread to wake the loop for."""

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no sockets."""


def run_virtual(main: Coroutine[Any, Any, T], seed: int = 0) -> T:
    """Like `asyncio.run`, in virtual time. Whatever still runs at the end is cancelled and awaited."""
    loop = VirtualLoop(seed)
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        _end_all(loop)
        asyncio.set_event_loop(None)
        loop.close()


def _end_all(loop: VirtualLoop) -> None:
    left = sorted(asyncio.all_tasks(loop), key=hash)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
