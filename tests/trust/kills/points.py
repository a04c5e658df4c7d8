"""Named places at which a real process kills itself: `CLUTCH_CRASH_AT="after:finish:3"` dies the third time.

The product knows nothing of this. The places are reached through wrappers around what the engine is given
anyway: its database, its model, its tools. `torn_writes.py` adds two inside SQLite's commit.

    before:NAME    every statement of the transaction has run, nothing is committed
    after:NAME     committed and durable, but the caller has no answer
    recovery:…     the same for the two transactions that take over what a dead process left
    model:… tool:… around a model call and around a tool's effect
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from clutch.core.messages import Answer
from clutch.core.session_tools import SessionCall
from clutch.core.spawn import SpawnRequest
from clutch.ports import HumanQuestion, ModelRequest, Models, OnDelta, Toolbox, ToolContext, ToolSpec
from clutch.store.transaction import Database, Keys, P, T, Tx, TxFunction
from clutch.testing.database import PassThroughDatabase
from clutch.transactions.turn_begin import Begun

VARIABLE: Final = "CLUTCH_CRASH_AT"

#: transactions by the name their points have; a round of burials at start is a burial
TRANSACTIONS: Final = (
    "register", "bury", "claim", "begin", "respond", "spawn", "results", "yields", "delegate", "finish", "wake", "ring",
    "stumble", "steer", "kill",
)  # fmt: skip
_ALSO: Final = {"bury_all_but": "bury"}

RECOVERY: Final = ("recovery:bury", "recovery:buried", "recovery:begin", "recovery:begun")
#: a commit cut in the middle of its write, and one written but not synced; SQLite only
COMMIT: Final = ("commit:torn", "commit:unsynced")
POINTS: Final = (
    *(f"{side}:{name}" for name in TRANSACTIONS for side in ("before", "after")),
    *("model:asked", "model:answered", "tool:started", "tool:done"),
    *RECOVERY,
    *COMMIT,
)


def die() -> None:
    """Without any goodbye."""
    os.kill(os.getpid(), signal.SIGKILL)


class Points:
    """Counts how often each place was reached; the armed one is the last."""

    def __init__(
        self, armed: str = "", nth: int = 1, last_words: Callable[[str], None] | None = None
    ) -> None:
        if armed and armed not in POINTS:
            raise ValueError(f"there is no crash point {armed!r}; there are: {', '.join(POINTS)}")
        self.armed, self._left, self._last_words = armed, nth, last_words

    @staticmethod
    def from_environment(last_words: Callable[[str], None] | None = None) -> Points:
        wish = os.environ.get(VARIABLE, "")
        if not wish:
            return Points()
        point, _, nth = wish.rpartition(":")
        return Points(point, int(nth), last_words)

    def reach(self, point: str) -> None:
        if point == self.armed:
            self._left -= 1
            if self._left == 0:
                if self._last_words is not None:
                    self._last_words(point)
                die()


class CrashingDatabase(PassThroughDatabase):
    """A database that may kill its process on either side of a commit."""

    def __init__(self, db: Database, points: Points, heard: Callable[[str, Any], None] | None = None) -> None:
        super().__init__(db)
        self._points, self._heard = points, heard

    async def tx(self, keys: Keys, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._after(fn, await self._db.tx(keys, self._before(fn), *args, **kwargs))

    async def alone(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._after(fn, await self._db.alone(self._before(fn), *args, **kwargs))

    def _before(self, fn: TxFunction[P, T]) -> TxFunction[P, T]:
        name = name_of(fn)

        def watched(now: float, /, *args: P.args, **kwargs: P.kwargs) -> Tx[T]:
            value = yield from fn(now, *args, **kwargs)
            if takes_over(name, value):
                self._points.reach(f"recovery:{name}")
            self._points.reach(f"before:{name}")
            return value

        functools.update_wrapper(watched, fn)  # a store counts by name
        return watched

    def _after(self, fn: Callable[..., Any], value: T) -> T:
        name = name_of(fn)
        if takes_over(name, value):
            self._points.reach("recovery:buried" if name == "bury" else "recovery:begun")
        self._points.reach(f"after:{name}")
        if self._heard is not None:
            self._heard(name, value)
        return value


def name_of(fn: Callable[..., Any]) -> str:
    name = getattr(fn, "__name__", "")
    return _ALSO.get(name, name)


def takes_over(name: str, value: object) -> bool:
    """Did this transaction pick up what a dead process left?"""
    return bool(value) if name == "bury" else isinstance(value, Begun) and value.is_resumed


class CrashingModels:
    def __init__(self, models: Models, points: Points) -> None:
        self._models, self._points = models, points

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        self._points.reach("model:asked")
        answer = await self._models.ask(request, on_delta)
        self._points.reach("model:answered")
        return answer


class CrashingTools:
    def __init__(self, tools: Toolbox, points: Points) -> None:
        self._tools, self._points = tools, points

    def specs(self) -> Sequence[ToolSpec]:
        return self._tools.specs()

    async def run(self, name: str, args: Mapping[str, Any], context: ToolContext) -> str:
        self._points.reach("tool:started")
        text = await self._tools.run(name, args, context)
        self._points.reach("tool:done")
        return text

    def human_question(self, args: Mapping[str, Any]) -> HumanQuestion:
        return self._tools.human_question(args)

    def spawn_request(self, args: Mapping[str, Any]) -> SpawnRequest:
        return self._tools.spawn_request(args)

    def session_call(self, name: str, args: Mapping[str, Any]) -> SessionCall:
        return self._tools.session_call(name, args)
