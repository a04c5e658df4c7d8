"""One limiter per provider key for all children of a process. It waits and wakes; the rules are in `core.rate_limit`.
`SharedLine` does the same for all processes of one database.

A short wait is waited here, in order. A call that would have to wait longer fails with the time of its retry, and no
request is sent: its run is parked and holds no slot. A call that returns at that time has kept its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import count
from types import MappingProxyType
from typing import Any, NoReturn

from clutch.contain import BackgroundTasks
from clutch.core import provider_limits, rate_limit
from clutch.core.messages import Answer
from clutch.core.provider_limits import Change, LimitGrant, LimitRequest
from clutch.core.rate_limit import Bounds, Effect, Failure, Pace, Passage
from clutch.errors import ClutchError, StoreError
from clutch.logs import logger
from clutch.models.prices import estimate
from clutch.ports import (
    Clock,
    MeasuredClock,
    ModelError,
    ModelRequest,
    Models,
    OnDelta,
    SharedLimits,
    Trouble,
    Waits,
)

log = logger(__name__)

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
        shared: SharedLimits | None = None,
    ) -> None:
        self._models = models
        self._clock = clock
        self._bounds = bounds
        self._chance = chance
        self._known = known
        self._lines: dict[str, _Line] = {}
        self._shared = shared
        self._tasks = BackgroundTasks()

    async def close(self) -> None:
        await self._tasks.close()

    def hear(self, hints: Sequence[Any]) -> None:
        """Take hints of a commit of any process."""
        for hint in hints:
            for line in self._lines.values():
                line.hear(hint)

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
            self._put_right(error)
            line.failed(passage, error, request.key, place)
            raise
        except BaseException:
            line.left(passage)
            raise
        line.succeeded(passage, answer)
        return answer

    def _put_right(self, error: ModelError) -> None:
        """Providers name a wait, or a moment by their clock; adapters add it to the clock of this machine, which may
        be wrong. All other moments are by the clock of the database."""
        if error.retry_at is not None and isinstance(self._clock, MeasuredClock):
            error.retry_at -= self._clock.wall_offset_s or 0.0

    def _line(self, model: str) -> _Line:
        name = model.partition(":")[0]
        line = self._lines.get(name)
        if line is None:
            bounds = self._bounds.get(name, Bounds())
            if self._shared is None:
                line = _Line(name, bounds, self._clock, self._chance)
            else:
                line = _SharedLine(name, bounds, self._clock, self._chance, self._shared)
                self._tasks.start(line.follow(), f"clutch-limits-{name}")
            self._lines[name] = line
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
                elif self._must_ask(key, now):
                    await self._asked(key, deadline)
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
        self._change(
            lambda pace: rate_limit.succeeded(pace, self.bounds, passage, now, tokens or passage.tokens)
        )
        self._grant()

    def failed(self, passage: Passage, error: ModelError, key: str, place: _Place) -> None:
        """Set the error's time of retry. A refused call keeps its number: it came before those that wait."""
        now = self._clock.now()
        failure = Failure(EFFECTS[error.trouble], error.trouble, _signature(error), error.retry_at)
        chance = self._chance()
        self._change(lambda pace: rate_limit.failed(pace, self.bounds, passage, failure, now, chance=chance))
        held = rate_limit.hold(self.pace, self.bounds, now)
        if held is not None:
            self._close()
            if failure.effect is not Effect.NONE:
                error.retry_at = self._come_back(key, place, held.until)
        self._grant()

    def left(self, passage: Passage) -> None:
        self._change(lambda pace: rate_limit.left(pace, passage))
        self._grant()

    # ---- what a line of several processes does otherwise -------------------------------------------------

    def hear(self, hint: Any) -> None:
        """Take a hint of a commit."""

    def _change(self, change: Change) -> None:
        self.pace = change(self.pace)

    def _must_ask(self, key: str, now: float) -> bool:
        """Whether the other processes must be asked before this call may start."""
        del key, now
        return False

    async def _asked(self, key: str, deadline: float) -> None:
        """Wait for the answer of the other processes."""

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

    def _send_away(self, key: str, place: _Place, now: float, why: str = "") -> NoReturn:
        until = now + max(self._queue_s(place), self.bounds.patience_s)
        self._places[key] = replace(place, kept_until=until + KEPT_S)
        text = f"{self.bounds.concurrency_max} calls to {self.name} are under way, as many as are allowed"
        raise ModelError(Trouble.RATE_LIMIT, why or text, until, is_sent=False)

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


POLL_S = 1.0  #: between two looks at what is shared, while something is waited for or held in vain


class _SharedLine(_Line):
    """The same, where the limit is one for all processes of a database. `follow` exchanges with the others.

    Without the database calls start in the slots that this process holds, until its lease is over. A call that needs
    more is sent away as from a full line, and no call waits longer than `patience_s`."""

    def __init__(
        self, name: str, bounds: Bounds, clock: Clock, chance: Callable[[], float], shared: SharedLimits
    ) -> None:
        super().__init__(name, bounds, clock, chance)
        self._shared = shared
        self._due = asyncio.Event()
        self._askers: set[_Wake] = set()
        self._changes: list[Change] = []
        self._ready: set[str] = set()  # calls that only need a slot
        self._peak = 0  # the most calls under way and waiting at once, since the last exchange
        self._wanted = 0  # as the others know it
        self._grant_now = LimitGrant(provider_limits.NEW)
        self._slots = 0  # how many calls may be under way
        self._holder: int | None = None  # under which number the slots are held
        self._is_known = False  # what the others know, or that they cannot be asked

    async def enter(self, key: str, tokens: int) -> tuple[Passage, _Place]:
        try:
            passage, place = await super().enter(key, tokens)
        finally:
            self._ready.discard(key)
        # A process that was frozen while it waited: another one may have asked the same and committed the answer.
        if self._shared.holder() is None:
            self.left(passage)
            self._send_away(key, place, self._clock.now(), "the lease of this gateway is over")
        return passage, place

    def hear(self, hint: Any) -> None:
        match hint:
            case (provider_limits.CHANGED, self.name, worker, sender):
                is_own = sender == self._holder
                if not is_own and worker in (0, self._holder):
                    self._due.set()
            case ("look",):
                self._due.set()
            case _:
                pass

    def _need(self) -> int:
        return self.pace.in_flight + len(self._ready)

    def _change(self, change: Change) -> None:
        before = self.pace
        self.pace = change(before)
        if (after := provider_limits.changed(before, change)) != before:
            self._changes.append(change)
            if replace(after, tokens_free_at=before.tokens_free_at) != before:
                self._due.set()

    def _must_ask(self, key: str, now: float) -> bool:
        self._ready.discard(key)
        if not self._is_known or (self.pace.breaker is not None and not self._grant_now.is_prober):
            return True
        place = self._places[key]
        if place.is_booked(self.pace.voided_at):
            if place.at > now:
                return False
        elif provider_limits.is_paced(self.pace, self.bounds, now):
            return True
        limit = self.bounds.concurrency_max
        if limit is None:
            return False
        self._ready.add(key)
        self._peak = max(self._peak, self._need())
        wanted = self._wanted if self._shared.holder() == self._holder else 0
        return self._is_full() and min(self._need(), limit) > wanted

    async def _asked(self, key: str, deadline: float) -> None:
        wake: _Wake = asyncio.get_running_loop().create_future()
        self._askers.add(wake)
        self._due.set()
        try:
            woken = await self._woken(wake, deadline)
        finally:
            self._askers.discard(wake)
        if woken is _Woken.TIME:
            why = f"the limits of {self.name} are shared through the database, which does not answer"
            self._send_away(key, self._places[key], self._clock.now(), why)

    def _place(self, key: str, now: float) -> _Place:
        place = self._places[key]
        return place if place.is_booked(self.pace.voided_at) else replace(place, at=now)

    def _is_full(self) -> bool:
        if self.bounds.concurrency_max is None:
            return False
        # A process that lost its lease has no slots, though it may not know it yet.
        is_holder = self._holder is not None and self._shared.holder() == self._holder
        return not is_holder or self.pace.in_flight + self._granted >= self._slots

    def _queue_s(self, place: _Place) -> float:
        ahead = sum(1 for other in self._places.values() if other.number < place.number)
        return rate_limit.queue_s(self.pace, replace(self.bounds, concurrency_max=max(1, self._slots)), ahead)

    def _grant(self) -> None:
        # Others wait for the slot of the call that ended.
        if self._grant_now.held > max(self._grant_now.slots, self.pace.in_flight + self._granted):
            self._due.set()
        super()._grant()

    # ---- the exchange with the others --------------------------------------------------------------------

    async def follow(self) -> None:
        """Exchange when there is a reason to, as long as the process lives."""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self._exchange()
            except ClutchError as error:
                level = log.warning if isinstance(error, StoreError) else log.debug
                level("Limits of %s not shared: %s (next try in %g s)", self.name, error, POLL_S)
                # A call without a limit may start; any other one waits until its own deadline.
                self._is_known = True
                self._answer_askers()
                await asyncio.sleep(POLL_S)
            except Exception:
                # E.g. a row that a newer version wrote. Without the exchange every call would wait for its slot.
                log.exception("Limits of %s not shared (next try in %g s)", self.name, POLL_S)
                self._is_known = True
                self._answer_askers()
                await asyncio.sleep(POLL_S)
            while not self._due.is_set() and self._has_reason_to_look():
                await self._rest()
            if not self._grant_now.held:
                self._wanted = 0  # the next call asks

    def _answer_askers(self) -> None:
        for wake in [*self._askers]:
            _wake(wake, _Woken.GRANTED)

    async def _rest(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await self._due.wait()
                return
        if self._changes or self._queue or self._askers or self._grant_now.held > self._peak:
            self._due.set()
        self._peak = self._need()

    def _has_reason_to_look(self) -> bool:
        return bool(self._changes or self._queue or self._askers or self._grant_now.held)

    async def _exchange(self) -> None:
        now, holder = self._clock.now(), self._shared.holder()
        if holder is None:
            raise StoreError("the lease of this process is over")
        changes, self._changes = self._changes, []
        waiting = self._unbooked(now)
        in_flight, self._wanted = self.pace.in_flight + self._granted, max(self._peak, self._need())
        request = LimitRequest(
            in_flight,
            self._wanted,
            self.pace,
            tuple(changes),
            tuple(self._places[key].tokens for key in waiting),
            wants_probe=bool(self._askers) and self.pace.breaker is not None,
        )
        # Meanwhile a call starts only in place of one that ended: the answer may leave no more slots than these. If
        # the answer is lost, it stays so until the next one.
        self._slots, self._peak = min(self._slots, in_flight), self._need()
        self.pace = replace(self.pace, passed=0.0)
        try:
            grant = await self._shared.exchange(self.name, self.bounds, request)
        except ClutchError:
            self._changes[:0] = changes
            raise
        self._take(grant, holder, dict(zip(waiting, grant.starts, strict=False)))

    def _unbooked(self, now: float) -> list[str]:
        if not provider_limits.is_paced(self.pace, self.bounds, now):
            return []
        self._prune(now)
        waiting = [item for item in self._places.items() if not item[1].is_booked(self.pace.voided_at)]
        return [key for key, _ in sorted(waiting, key=lambda item: item[1].number)]

    def _take(self, grant: LimitGrant, holder: int, starts: Mapping[str, float]) -> None:
        self.pace = provider_limits.adopted(self.pace, grant)
        for change in self._changes:  # made since the request
            self.pace = provider_limits.changed(self.pace, change)
        self._grant_now, self._slots, self._holder, self._is_known = grant, grant.slots, holder, True
        now = self._clock.now()
        made_at = max(now, self.pace.voided_at)
        for key, at in starts.items():
            if key in self._places:
                kept_until = max(self._places[key].kept_until, at + KEPT_S)
                self._places[key] = replace(self._places[key], made_at=made_at, at=at, kept_until=kept_until)
        self._answer_askers()
        if rate_limit.hold(self.pace, self.bounds, now) is not None:
            self._close()
        super()._grant()


def _wake(wake: _Wake, why: _Woken) -> bool:
    if wake.done():
        return False
    wake.set_result(why)
    return True


def _signature(error: ModelError) -> str:
    return _VARYING.sub("#", str(error).removeprefix(f"{error.trouble}: "))[:SIGNATURE_CHARS]
