"""Superseding a run that is under way: a model call is cut at once, tools that run get a moment to end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class Interrupt:
    """One for each turn. The worker pulls it; the turn says while its tools run."""

    def __init__(self) -> None:
        self.is_pulled = False
        self._running: Sequence[asyncio.Task[Any]] = ()

    @contextmanager
    def sparing(self, running: Sequence[asyncio.Task[Any]]) -> Iterator[None]:
        self._running = running
        try:
            yield
        finally:
            self._running = ()

    def pull(self, turn: asyncio.Task[None], grace_s: float) -> None:
        running = [task for task in self._running if not task.done()]
        if not running:
            turn.cancel()
            return
        self.is_pulled = True
        asyncio.get_running_loop().call_later(grace_s, _cancel, running)


def _cancel(running: Sequence[asyncio.Task[Any]]) -> None:
    for task in running:
        task.cancel()
