"""How fast all children of a process together may ask one provider. Rules only; `models.rate_limiter` carries them out,
`core.provider_limits` shares them between processes.

    hold        no call is sent: a reset after a 429, a shared backoff, an open breaker
    book        when the next call may start: tokens per minute, and the pace learned from refusals
    begin       a call is on its way
    succeeded, failed, left       … and it is back

A 429 closes the provider for everybody until it opens again. What passed before it teaches a pace: calls
per second, a little less than the provider took. After the reset calls start one by one at that pace, so a
crowd that waited does not run into the next 429 together; the pace rises again while nothing is refused.

Failures of calls that were already under way when the provider closed belong to the same wave: a thousand
refusals at once are one event, not a thousand reasons to wait longer."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, assert_never

PACE_MARGIN = 0.9  #: of what passed: two clocks never agree, and a refusal costs more than a slower call
PACE_SLOWEST_S = 6.0  #: between two calls, where no wait was named: few quotas are below ten calls a minute
PACE_RISE = 1.5
PACE_CALM_S = 60.0  #: without a refusal, before the pace rises: the window of most quotas is a minute
MEMORY_S = 60.0  #: how far back calls count for a learned pace
QUIET_S = 5.0  #: a pause this long begins a new window
MINUTE_S = 60.0
DOUBLINGS_MAX = 32
NEVER = -math.inf


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is allowed towards one provider key. None = no limit of ours."""

    concurrency_max: int | None = None
    tokens_per_minute: int | None = None
    patience_s: float = 2.0  #: a longer wait is not worth a slot: the run is parked
    spread_s: float = 1.0  #: over which those come back who were sent away until the same moment
    backoff_first_s: float = 1.0
    backoff_max_s: float = 60.0
    same_failures_max: int = 5  #: fewer could be chance; more would only be the same answer again
    breaker_first_s: float = 5.0
    breaker_max_s: float = 300.0


class Effect(StrEnum):
    """What a failed call says about all others."""

    REFUSED = "refused"  #: come back later
    OVERLOADED = "overloaded"
    BROKEN = "broken"  #: a key, a network, a server that talks nonsense: the next call will fail alike
    NONE = "none"  #: only this request was wrong


@dataclass(frozen=True, slots=True)
class Failure:
    """`trouble` and `text` are its signature: what was said, without what differs from call to call."""

    effect: Effect
    trouble: str
    text: str
    reset_at: float | None = None  #: the moment the provider named


@dataclass(frozen=True, slots=True)
class Passage:
    """A call under way."""

    begun_at: float
    tokens: int
    is_probe: bool = False


@dataclass(frozen=True, slots=True)
class ProviderHold:
    """No call is sent before `until`; `failure` is why."""

    until: float
    failure: Failure


@dataclass(frozen=True, slots=True)
class Breaker:
    failure: Failure
    until: float
    times: int  #: it opened in a row, each time for longer
    is_probing: bool = False


@dataclass(frozen=True, slots=True)
class Pace:
    """All that is known of one provider key."""

    in_flight: int = 0
    mean_s: float = 1.0  #: how long calls take

    tokens_free_at: float = NEVER  #: when all booked tokens are paid for

    closed_at: float = NEVER
    closed_until: float = NEVER
    closed_by: Failure | None = None
    strikes: int = 0  #: waves without a named reset or a success in between
    voided_at: float = NEVER  #: places booked before a refusal are worth nothing after it

    window_at: float = NEVER
    last_at: float = NEVER
    passed: float = 0.0  #: calls that succeeded since `window_at`, older ones counting less
    passed_at: float = NEVER
    gap_s: float = 0.0  #: between two starts; 0 = nothing learned
    gap_at: float = NEVER
    next_at: float = NEVER
    is_learning: bool = False  #: refused; what passed in this window is taken when it is over

    same: int = 0
    last_failure: Failure | None = None
    breaker: Breaker | None = None


def hold(pace: Pace, bounds: Bounds, now: float) -> ProviderHold | None:
    breaker = pace.breaker
    if breaker is not None and now < breaker.until:
        return ProviderHold(breaker.until, breaker.failure)
    if pace.closed_by is not None and now < pace.closed_until:
        return ProviderHold(pace.closed_until, pace.closed_by)
    if breaker is not None and breaker.is_probing:
        return ProviderHold(now + bounds.breaker_first_s, breaker.failure)
    return None


def book(pace: Pace, bounds: Bounds, now: float, tokens: int) -> tuple[Pace, float]:
    """Takes the next free place; it is this call's, whenever it comes from then on."""
    pace = _learned(pace, now)
    at = max(now, pace.next_at)
    rate = (bounds.tokens_per_minute or 0) / MINUTE_S
    if not rate and not pace.gap_s:
        return pace, at  # the usual case: nothing to keep account of
    if rate:
        # A call larger than a minute's tokens goes when all of them are there; it could never go otherwise.
        lead_s = MINUTE_S - min(MINUTE_S, tokens / rate)
        at = max(at, pace.tokens_free_at - lead_s)
        pace = replace(pace, tokens_free_at=max(pace.tokens_free_at, at) + tokens / rate)
    return replace(pace, next_at=at + _gap_s(pace, at)), at


def is_full(pace: Pace, bounds: Bounds, about_to_begin: int = 0) -> bool:
    return bounds.concurrency_max is not None and pace.in_flight + about_to_begin >= bounds.concurrency_max


def queue_s(pace: Pace, bounds: Bounds, ahead: int) -> float:
    """About how long one waits behind so many others for one of the places."""
    return pace.mean_s * (ahead + 1) / (bounds.concurrency_max or 1)


def begin(pace: Pace, now: float, tokens: int) -> tuple[Pace, Passage]:
    is_quiet = not pace.in_flight and now - pace.last_at > QUIET_S
    if is_quiet and not pace.is_learning:
        pace = replace(pace, window_at=now, passed=0.0)
    breaker = pace.breaker
    is_probe = breaker is not None and not breaker.is_probing
    if breaker is not None:
        breaker = replace(breaker, is_probing=True)
    pace = replace(pace, in_flight=pace.in_flight + 1, last_at=now, breaker=breaker)
    return pace, Passage(now, tokens, is_probe)


def succeeded(pace: Pace, bounds: Bounds, passage: Passage, now: float, tokens: int) -> Pace:
    owed = (
        (tokens - passage.tokens) * MINUTE_S / bounds.tokens_per_minute if bounds.tokens_per_minute else 0.0
    )
    is_counted = passage.begun_at >= pace.window_at
    pace = replace(
        pace,
        in_flight=pace.in_flight - 1,
        mean_s=0.8 * pace.mean_s + 0.2 * (now - passage.begun_at),
        tokens_free_at=pace.tokens_free_at + owed,
        passed=1 + faded(pace.passed, now - pace.passed_at) if is_counted else pace.passed,
        passed_at=now if is_counted else pace.passed_at,
    )
    if pace.breaker is None and pace.last_failure is None and not pace.strikes:
        return pace  # no trouble to forget
    if pace.breaker is not None and not passage.is_probe:
        return pace  # it was under way before the trouble began and says nothing about now
    is_old = passage.begun_at < pace.closed_at
    return replace(pace, same=0, last_failure=None, breaker=None, strikes=pace.strikes if is_old else 0)


def failed(
    pace: Pace, bounds: Bounds, passage: Passage, failure: Failure, now: float, *, chance: float
) -> Pace:
    """`chance` from 0 to 1 makes the waits of many processes differ."""
    is_new_wave = passage.begun_at >= pace.closed_at
    pace = left(pace, passage)
    if failure.effect in (Effect.REFUSED, Effect.NONE) and passage.is_probe:
        pace = replace(pace, breaker=None)  # it is there and answers
    match failure.effect:
        case Effect.NONE:
            return pace
        case Effect.REFUSED:
            pace = _closed(pace, bounds, failure, now, chance, is_new_wave=is_new_wave)
            return _voided(pace, now) if is_new_wave else pace
        case Effect.OVERLOADED:
            pace = _closed(pace, bounds, failure, now, chance, is_new_wave=is_new_wave)
            return _counted(pace, bounds, passage, failure, now, chance=chance)
        case Effect.BROKEN:
            return _counted(pace, bounds, passage, failure, now, chance=chance)
        case _:
            assert_never(failure.effect)


def left(pace: Pace, passage: Passage) -> Pace:
    """It is over without a word: cancelled."""
    breaker = pace.breaker
    if breaker is not None and passage.is_probe:
        breaker = replace(breaker, is_probing=False)
    return replace(pace, in_flight=pace.in_flight - 1, breaker=breaker)


@dataclass(frozen=True, slots=True)
class ProviderLimit:
    """Where the calls to one provider key stand at a moment, for users. None = no limit of ours."""

    in_use: int
    concurrency_max: int | None
    waiting: int
    tokens_per_minute: int | None
    tokens_booked: int | None
    gap_s: float
    closed: ProviderHold | None
    breaker: Breaker | None


def standing(pace: Pace, bounds: Bounds, now: float, waiting: int = 0) -> ProviderLimit:
    """`waiting`: calls with a place in the line."""
    minute, booked = bounds.tokens_per_minute, None
    if minute is not None:
        booked = round(min(max(0.0, pace.tokens_free_at - now), MINUTE_S) * minute / MINUTE_S)
    is_closed = pace.closed_by is not None and now < pace.closed_until
    return ProviderLimit(
        in_use=pace.in_flight,
        concurrency_max=bounds.concurrency_max,
        waiting=waiting,
        tokens_per_minute=minute,
        tokens_booked=booked,
        gap_s=_gap_s(pace, now),
        closed=ProviderHold(pace.closed_until, pace.closed_by) if is_closed and pace.closed_by else None,
        breaker=pace.breaker,
    )


def _closed(
    pace: Pace, bounds: Bounds, failure: Failure, now: float, chance: float, *, is_new_wave: bool
) -> Pace:
    if failure.reset_at is not None:
        until = max(failure.reset_at, pace.closed_until)
        return replace(pace, closed_at=now, closed_until=until, closed_by=failure, strikes=0)
    if not is_new_wave:
        return pace
    wait_s = _doubled(bounds.backoff_first_s, pace.strikes, bounds.backoff_max_s) * (1 + chance / 2)
    until = max(now + wait_s, pace.closed_until)
    return replace(pace, closed_at=now, closed_until=until, closed_by=failure, strikes=pace.strikes + 1)


def _voided(pace: Pace, now: float) -> Pace:
    """The provider has its own count and named the moment when it begins anew."""
    until = pace.closed_until
    tokens_free_at = min(pace.tokens_free_at, until)
    return replace(pace, voided_at=now, is_learning=True, next_at=until, tokens_free_at=tokens_free_at)


def _counted(
    pace: Pace, bounds: Bounds, passage: Passage, failure: Failure, now: float, *, chance: float
) -> Pace:
    """The same failure again and again opens the breaker; so does a probe that fails in any way."""
    breaker = pace.breaker
    if breaker is not None and not passage.is_probe:
        return pace
    last = pace.last_failure
    is_same = last is not None and (last.trouble, last.text) == (failure.trouble, failure.text)
    same = pace.same + 1 if is_same else 1
    pace = replace(pace, same=same, last_failure=failure)
    if breaker is None and same < bounds.same_failures_max:
        return pace
    times = breaker.times + 1 if breaker is not None else 1
    wait_s = _doubled(bounds.breaker_first_s, times - 1, bounds.breaker_max_s) * (1 + chance / 2)
    return replace(pace, breaker=Breaker(failure, now + wait_s, times))


def _learned(pace: Pace, now: float) -> Pace:
    """Once the reset is over, what passed before the refusal becomes the pace."""
    if not pace.is_learning or now < pace.closed_until:
        return pace
    window_s = min(max(pace.closed_until - pace.window_at, 0.001), MEMORY_S)
    measured_s = window_s / (PACE_MARGIN * max(pace.passed, 1.0))
    slower_s = _gap_s(pace, now) / PACE_MARGIN
    # A provider that refuses at random would slow the pace with every refusal, without end. The wait it asked for says
    # that one call after such a wait is welcome, so no pace is slower than that.
    is_named = pace.closed_by is not None and pace.closed_by.reset_at is not None
    slowest_s = pace.closed_until - pace.closed_at if is_named else PACE_SLOWEST_S
    return replace(
        pace,
        is_learning=False,
        gap_s=min(max(measured_s, slower_s), slowest_s),
        gap_at=now,
        window_at=pace.closed_until,
        passed=0.0,
    )


def _gap_s(pace: Pace, now: float) -> float:
    rises = math.floor(max(0.0, now - pace.gap_at) / PACE_CALM_S) if pace.gap_s else 0
    return pace.gap_s / PACE_RISE ** min(rises, DOUBLINGS_MAX)


def faded(count: float, seconds: float) -> float:
    """How much calls of that time ago still count."""
    return count * math.exp(-max(0.0, seconds) / MEMORY_S) if count else 0.0


def _doubled(first_s: float, times: int, max_s: float) -> float:
    return min(first_s * 2.0 ** min(times, DOUBLINGS_MAX), max_s)


# --------------------------------------------------------------------------------------------------
# How often a call may be sent: a bucket that fills at a steady rate and holds a burst.


class Bucket(NamedTuple):
    """What was in it, and when."""

    level: float
    at: float

    def taken(self, now: float, rate: float, burst: float) -> Bucket:
        """One less, if there was one; else what it holds now. A clock that went back fills nothing."""
        level = min(burst, self.level + rate * max(0.0, now - self.at))
        return Bucket(level - 1 if level >= 1 else level, now)

    def wait_s(self, now: float, rate: float, burst: float) -> float:
        """Until there is one; 0 = now."""
        level = min(burst, self.level + rate * max(0.0, now - self.at))
        return 0.0 if level >= 1 else (1 - level) / rate
