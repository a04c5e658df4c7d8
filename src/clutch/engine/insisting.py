"""After a lost connection nobody knows whether a transaction was committed; asking again with the same key does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from clutch.errors import StoreLost

T = TypeVar("T")

LOST_TRIES_MAX = 5  # with a tick between them; a database that stays away longer is the caller's to handle


async def surely(tick_s: float, ask: Callable[[], Awaitable[T]]) -> T:
    for _ in range(LOST_TRIES_MAX - 1):
        try:
            return await ask()
        except StoreLost:
            await asyncio.sleep(tick_s)
    return await ask()
