"""A database that kills the process at a named transaction: for tests of what a crash leaves behind.

    CrashAt(db, "finish:after")           the first `finish` is committed, and its caller gets no answer
    CrashAt(db, "spawn:before", nth=3)    the third `spawn` is never written

The name is that of the transaction's function. `die` is called at that point. By default the process kills itself
with SIGKILL: no handler runs and no buffer is flushed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Literal, TypeAlias

from clutch.store.jobs import function_name
from clutch.store.transaction import Database, Keys, P, T, TxFunction
from clutch.testing.database import PassThroughDatabase

Side: TypeAlias = Literal["before", "after"]


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class CrashAt(PassThroughDatabase):
    """A database that ends the process when a transaction is reached for the `nth` time."""

    def __init__(
        self, db: Database, point: str, *, nth: int = 1, die: Callable[[], None] = kill_this_process
    ) -> None:
        super().__init__(db)
        self._nth, self._die = nth, die
        self._function, _, self._side = point.partition(":")
        if self._side not in ("before", "after") or nth < 1:
            raise ValueError(
                f"a point is NAME:before or NAME:after, and nth counts from 1; got {point!r}, {nth}"
            )
        self.times = 0  #: how often the point was reached

    async def tx(self, keys: Keys, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a transaction that writes these sessions."""
        self._reach(function_name(fn), "before")
        value = await self._db.tx(keys, fn, *args, **kwargs)
        self._reach(function_name(fn), "after")
        return value

    async def alone(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a transaction with no other at the same time."""
        self._reach(function_name(fn), "before")
        value = await self._db.alone(fn, *args, **kwargs)
        self._reach(function_name(fn), "after")
        return value

    def _reach(self, function: str, side: Side) -> None:
        if (function, side) == (self._function, self._side):
            self.times += 1
            if self.times == self._nth:
                self._die()
