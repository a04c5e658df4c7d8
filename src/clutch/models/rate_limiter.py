"""One limiter per provider key for all children of a process. It waits and wakes; the rules are in `core.rate_limit`.

A short wait is waited here, in order. A call that would have to wait longer fails with the time of its retry, and no
request is sent: its run is parked and holds no slot. A call that returns at that time has kept its place.
"""

from __future__ import annotations

import asyncio
import random
import re
from bisect import insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import count
from types import MappingProxyType
from typing import NoReturn

from clutch.core import rate_limit
from clutch.core.messages import Answer
from clutch.core.rate_limit import Bounds, Effect, Failure, Pace, Passage
from clutch.models.prices import estimate
from clutch.ports import Clock, ModelError, ModelRequest, Models, OnDelta, Trouble, Waits

NO_BOUNDS: Mapping[str, Bounds] = MappingProxyType({})
KEPT_S = 60.0  #: how long a place is kept for a run that was killed while it was parked
SIGNATURE_CHARS = 60
# Ids, counts and times; the rest of a message is the same for the same trouble.
_VARYING = re.compile(r"\S*\d\S*")

EFFECTS = {
    Trouble.RATE_LIMIT: Effect.REFUSED,
    Trouble.OVERLOADED: Effect.OVERLOADED,
    Trouble.AUTH: Effect.BROKEN,
    Trouble.NETWORK: Effect.BROKEN,
    Trouble.MALFORMED: Effect.BROKEN,
    Trouble.CONTEXT: Effect.NONE,
    Trouble.BAD_REQUEST: Effect.NONE,
}


def _any_model(model: str) -> bool:
    del model
    return True


class Throttled:
    """Models behind one shared limiter per provider key.

    A model without a `known` provider is passed on at once: an agent may invent names, and none is stored."""

    def __init__(
        self,
        models: Models,
        clock: Clock,
        bounds: Mapping[str, Bounds] = NO_BOUNDS,
        *,
        chance: Callable[[], float] = random.random,
        known: Callable[[str], bool] = _any_model,
    ) -> None:
        self._models = models
        self._clock = clock
        self._bounds = bounds
        self._chance = chance
        self._known = known
        self._lines: dict[str, _Line] = {}

    def waits(self) -> Mapping[str, Waits]:
        return {name: line.waits for name, line in self._lines.items()}

    def limits(self) -> Mapping[str, rate_limit.ProviderLimit]:
        """Return where each provider stands: those that were asked, and those with a limit in the settings."""
        idle = {
            name: rate_limit.standing(Pace(), bounds, self._clock.now())
            for name, bounds in self._bounds.items()
        }
        return idle | {name: line.standing() for name, line in self._lines.items()}

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        if not self._known(request.model):
            return await self._models.ask(request, on_delta)
        line = self._line(request.model)
        tokens = (
            estimate(request) if line.bounds.tokens_per_minute else 0
        )  # only this limit needs the estimate
        passage, place = await line.enter(request.key, tokens)
        try:
            answer = await self._models.ask(request, on_delta)
        except ModelError as error:
            line.failed(passage, error, request.key, place)
            raise
        except BaseException:
            line.left(passage)
            raise
        line.succeeded(passage, answer)
        return answer

    def _line(self, model: str) -> _Line:
        name = model.partition(":")[0]
        line = self._lines.get(name)
        if line is None:
            bounds = self._bounds.get(name, Bounds())
            line = self._lines[name] = _Line(name, bounds, self._clock, self._chance)
        return line


class _Woken(Enum):
    TIME = auto()
    GRANTED = auto()
    CLOSED = auto()


_Wake = asyncio.Future[_Woken]


@dataclass(frozen=True, slots=True)
class _Place:
    """A call in the line. Its number says who came first, also after a park; booked at `made_at`, it may start at `at`.

    One that was never booked, or booked before the last refusal, has a number only."""

    number: int
    tokens: int
    kept_until: float
    made_at: float = rate_limit.NEVER
    at: float = rate_limit.NEVER

    def is_booked(self, voided_at: float) -> bool:
        return self.made_at > rate_limit.NEVER and self.made_at >= voided_at


@dataclass(order=True, slots=True)
class _Waiter:
    number: int
    wake: _Wake = field(compare=False)


class _Line:
    """All calls to one provider key."""

    def __init__(self, name: str, bounds: Bounds, clock: Clock, chance: Callable[[], float]) -> None:
        self.name = name
        self.bounds = bounds
        self.pace = Pace()
        self.waits = Waits()
        self._clock = clock
        self._chance = chance
        self._numbers = count()
        self._places: dict[str, _Place] = {}
        self._pruned_at = clock.now()
        self._sleepers: set[_Wake] = set()
        self._queue: list[_Waiter] = []  # for one of the places in flight
        self._granted = 0  # released to begin and not yet begun

    def standing(self) -> rate_limit.ProviderLimit:
        now = self._clock.now()
        waiting = sum(1 for place in self._places.values() if place.kept_until > now)
        return rate_limit.standing(self.pace, self.bounds, now, waiting)

    async def enter(self, key: str, tokens: int) -> tuple[Passage, _Place]:
        """Wait until the call may start, at most `patience_s` in sum; else raise ModelError with the time of the retry.

        Returns the call under way and the place it had."""
        came = self._clock.now()
        deadline = came + self.bounds.patience_s
        place = self._places.get(key) or _Place(next(self._numbers), tokens, came)
        self._places[key] = replace(place, kept_until=max(place.kept_until, deadline + KEPT_S))
        try:
            while True:
                now = self._clock.now()
                self._places.setdefault(key, place)  # an older call of the same key may have left meanwhile
                if (held := rate_limit.hold(self.pace, self.bounds, now)) is not None:
                    await self._held(key, held, deadline)
                elif (place := self._place(key, now)).at > now:
                    await self._sleep(place.at, deadline)
                elif self._is_full():
                    await self._queued(key, place, deadline)
                else:
                    del self._places[key]
                    self.pace, passage = rate_limit.begin(self.pace, now, tokens)
                    self.waits = self.waits.passed(now - came)
                    return passage, place
        except ModelError:
            self.waits = self.waits.sent_away()
            raise
        except asyncio.CancelledError:
            self._places.pop(key, None)
            raise

    def succeeded(self, passage: Passage, answer: Answer) -> None:
        tokens = answer.usage.input + answer.usage.output
        now = self._clock.now()
        self.pace = rate_limit.succeeded(self.pace, self.bounds, passage, now, tokens or passage.tokens)
        self._grant()

    def failed(self, passage: Passage, error: ModelError, key: str, place: _Place) -> None:
        """Set the error's time of retry. A refused call keeps its number: it came before those that wait."""
        now = self._clock.now()
        failure = Failure(EFFECTS[error.trouble], error.trouble, _signature(error), error.retry_at)
        self.pace = rate_limit.failed(self.pace, self.bounds, passage, failure, now, chance=self._chance())
        held = rate_limit.hold(self.pace, self.bounds, now)
        if held is not None:
            self._close()
            if failure.effect is not Effect.NONE:
                error.retry_at = self._come_back(key, place, held.until)
        self._grant()

    def left(self, passage: Passage) -> None:
        self.pace = rate_limit.left(self.pace, passage)
        self._grant()

    # ---- places ----------------------------------------------------------------------------------------

    def _place(self, key: str, now: float) -> _Place:
        """Return the booked place of a call."""
        # All calls that lost their place are booked in the order of their numbers: after a refusal they wake in any
        # order, and by chance one of them could wait forever.
        if not self._places[key].is_booked(self.pace.voided_at):
            self._prune(now)
            waiting = [item for item in self._places.items() if not item[1].is_booked(self.pace.voided_at)]
            for name, place in sorted(waiting, key=lambda item: item[1].number):
                self.pace, at = rate_limit.book(self.pace, self.bounds, now, place.tokens)
                kept_until = max(place.kept_until, at + KEPT_S)
                self._places[name] = replace(place, made_at=now, at=at, kept_until=kept_until)
        return self._places[key]

    def _prune(self, now: float) -> None:
        """Drop the places of calls that never returned."""
        if now - self._pruned_at > KEPT_S:
            self._pruned_at = now
            self._places = {key: place for key, place in self._places.items() if place.kept_until > now}

    # ---- waiting ---------------------------------------------------------------------------------------

    async def _held(self, key: str, held: rate_limit.ProviderHold, deadline: float) -> None:
        failure = held.failure
        if held.until > deadline or failure.effect is Effect.BROKEN:
            text = f"{self.name} is not asked for now, after: {failure.text}"
            retry_at = self._come_back(key, self._places[key], held.until)
            raise ModelError(Trouble(failure.trouble), text, retry_at, is_sent=False)
        await self._sleep(held.until, deadline)

    async def _sleep(self, until: float, deadline: float) -> None:
        if until > deadline:
            raise ModelError(Trouble.RATE_LIMIT, f"{self.name} is asked one by one", until, is_sent=False)
        wake: _Wake = asyncio.get_running_loop().create_future()
        self._sleepers.add(wake)
        try:
            await self._woken(wake, until)
        finally:
            self._sleepers.discard(wake)

    async def _queued(self, key: str, place: _Place, deadline: float) -> None:
        now = self._clock.now()
        if now + self._queue_s(place) > deadline:
            self._send_away(key, place, now)
        waiter = _Waiter(place.number, asyncio.get_running_loop().create_future())
        insort(self._queue, waiter)
        try:
            woken = await self._woken(waiter.wake, deadline)
        finally:
            self._queue = [one for one in self._queue if one is not waiter]  # two of one key are equal
            if waiter.wake.done() and not waiter.wake.cancelled() and waiter.wake.result() is _Woken.GRANTED:
                self._granted -= 1
                asyncio.get_running_loop().call_soon(self._grant)  # in case it does not begin after all
        if woken is _Woken.TIME:
            self._send_away(key, place, self._clock.now())

    def _send_away(self, key: str, place: _Place, now: float) -> NoReturn:
        until = now + max(self._queue_s(place), self.bounds.patience_s)
        self._places[key] = replace(place, kept_until=until + KEPT_S)
        text = f"{self.bounds.concurrency_max} calls to {self.name} are under way, as many as are allowed"
        raise ModelError(Trouble.RATE_LIMIT, text, until, is_sent=False)

    def _queue_s(self, place: _Place) -> float:
        ahead = sum(1 for other in self._places.values() if other.number < place.number)
        return rate_limit.queue_s(self.pace, self.bounds, ahead)

    async def _woken(self, wake: _Wake, until: float) -> _Woken:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(max(0.0, until - self._clock.now()), _wake, wake, _Woken.TIME)
        try:
            return await wake
        finally:
            timer.cancel()

    def _is_full(self) -> bool:
        return rate_limit.is_full(self.pace, self.bounds, self._granted)

    def _grant(self) -> None:
        while self._queue and not self._is_full():
            waiter = self._queue.pop(0)
            if _wake(waiter.wake, _Woken.GRANTED):
                self._granted += 1

    def _close(self) -> None:
        """Wake every waiting call: each checks the limiter again and fails or waits."""
        for wake in [*self._sleepers, *(waiter.wake for waiter in self._queue)]:
            _wake(wake, _Woken.CLOSED)
        self._queue.clear()

    def _come_back(self, key: str, place: _Place, until: float) -> float:
        """Keep the call's number and return the time of its retry, spread so that calls do not return together."""
        self._places[key] = replace(place, kept_until=until + KEPT_S)
        return until + self.bounds.spread_s * self._chance()


def _wake(wake: _Wake, why: _Woken) -> bool:
    if wake.done():
        return False
    wake.set_result(why)
    return True


def _signature(error: ModelError) -> str:
    return _VARYING.sub("#", str(error).removeprefix(f"{error.trouble}: "))[:SIGNATURE_CHARS]
