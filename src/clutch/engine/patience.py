"""What a worker must get written down, however long the store needs to come back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from clutch.engine.kit import Kit
from clutch.errors import ConstraintViolated, StoreError, StoreRefused, StoreUnreadable

log = logging.getLogger(__name__)


async def persist(kit: Kit, fn: Callable[..., Any], *args: Any) -> Any:
    return await patiently(kit, kit.door.alone, fn, *args)


async def patiently(kit: Kit, call: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """A busy or lost store is no reason to give up; the next tick tries again. Unless we stop: then whoever
    buries us does what we could not."""
    while True:
        try:
            return await call(*args)
        except (StoreUnreadable, StoreRefused, ConstraintViolated):
            raise  # waiting mends nothing
        except StoreError as error:
            log.warning("store not available", extra={"error": str(error)})
            if kit.stopping.is_set():
                raise
            await asyncio.sleep(kit.policy.work.tick_s)
