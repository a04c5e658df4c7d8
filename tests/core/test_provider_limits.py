"""Shared limits: calls never exceed the limit whatever workers do, every worker gets its turn, news is shared."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from clutch.core import provider_limits, rate_limit
from clutch.core.provider_limits import (
    PROBE_S,
    TURN_S,
    LimitGrant,
    LimitRequest,
    SharedLimit,
    WorkerSlots,
    exchanged,
    fair_slots,
)
from clutch.core.rate_limit import Bounds, Effect, Failure, Pace

NOW = 1_000_000.0
REFUSED = Failure(Effect.REFUSED, "rate limit", "slow down", NOW + 30)
BROKEN = Failure(Effect.BROKEN, "network", "no route")
WORKERS = st.integers(1, 4)
SLOTS = st.builds(WorkerSlots, st.integers(0, 9), st.integers(0, 9), st.floats(NOW - 9, NOW))


def asked(
    state: SharedLimit,
    worker: int,
    request: LimitRequest,
    bounds: Bounds,
    now: float = NOW,
    alive: tuple[int, ...] = (1, 2, 3, 4),
) -> tuple[SharedLimit, LimitGrant]:
    return exchanged(state, bounds, worker, request, alive=alive, now=now)


def ending(pace: Pace, failure: Failure, now: float, *, is_probe: bool = False) -> LimitRequest:
    passage = rate_limit.Passage(now, 0, is_probe)
    return LimitRequest(
        0,
        1,
        changes=(lambda one: rate_limit.failed(one, Bounds(), passage, failure, now, chance=0.0),),
        counts=pace,
    )


@given(st.integers(1, 20), st.dictionaries(st.integers(1, 9), SLOTS, max_size=9))
def test_parts_are_as_equal_as_the_wishes_allow(limit: int, slots: dict[int, WorkerSlots]) -> None:
    parts = fair_slots(limit, slots, NOW)
    wishes = {one: known.wanted for one, known in slots.items()}
    assert sum(parts.values()) == min(limit, sum(wishes.values()))
    for one, part in parts.items():
        assert part <= wishes[one]
        if part < wishes[one]:
            assert all(other <= part + 1 for other in parts.values())


class Fleet(RuleBasedStateMachine):
    """Workers that start calls only in granted slots; answers may be lost, workers may die and others take over."""

    limit = 3

    def __init__(self) -> None:
        super().__init__()
        self.state, self.now = SharedLimit(), NOW
        self.in_flight = dict.fromkeys((1, 2, 3, 4), 0)
        self.may = dict.fromkeys((1, 2, 3, 4), 0)
        self.waiting = dict.fromkeys((1, 2, 3, 4), 0)

    @rule(worker=WORKERS, count=st.integers(1, 5))
    def wait(self, worker: int, count: int) -> None:
        self.waiting[worker] += count

    @rule(worker=WORKERS, is_lost=st.booleans(), ends=st.integers(0, 2))
    def exchange(self, worker: int, is_lost: bool, ends: int) -> None:
        if worker not in self.in_flight:
            return
        flying = self.in_flight[worker]
        request = LimitRequest(flying, flying + self.waiting[worker])
        bounds = Bounds(concurrency_max=self.limit)
        self.state, grant = asked(self.state, worker, request, bounds, self.now, tuple(self.in_flight))
        assert grant.held >= flying
        # Calls end before the answer arrives, and meanwhile others take their place.
        self.may[worker] = flying if is_lost else grant.slots
        self.in_flight[worker] -= min(ends, flying)

    @rule(worker=WORKERS)
    def start(self, worker: int) -> None:
        if worker in self.in_flight and self.waiting[worker] and self.in_flight[worker] < self.may[worker]:
            self.in_flight[worker] += 1
            self.waiting[worker] -= 1

    @rule(worker=WORKERS)
    def end(self, worker: int) -> None:
        if self.in_flight.get(worker):
            self.in_flight[worker] -= 1

    @precondition(lambda self: len(self.in_flight) > 1)
    @rule(worker=WORKERS)
    def die(self, worker: int) -> None:
        self.in_flight.pop(worker, None)

    @rule(seconds=st.floats(0, 3))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def calls_are_within_the_limit(self) -> None:
        assert sum(self.in_flight.values()) <= self.limit


TestFleet = Fleet.TestCase


def test_more_workers_than_slots_take_turns() -> None:
    bounds, state, served = Bounds(concurrency_max=1), SharedLimit(), []
    for step in range(40):
        worker, now = 1 + step % 4, NOW + step * TURN_S / 2
        state, grant = asked(state, worker, LimitRequest(0, 2), bounds, now)
        served += [worker] * grant.slots
    assert {served.count(worker) for worker in (1, 2, 3, 4)} == {2}


def test_a_worker_that_holds_more_than_its_part_is_told_and_returns_it() -> None:
    bounds = Bounds(concurrency_max=4)
    state, first = asked(SharedLimit(), 1, LimitRequest(0, 9), bounds)
    assert (first.slots, first.others) == (4, ())
    state, second = asked(state, 2, LimitRequest(0, 9), bounds)
    assert (second.slots, second.others) == (0, (1,))
    state, first = asked(state, 1, LimitRequest(4, 9), bounds, NOW + 1)
    assert (first.slots, first.held) == (2, 4), "calls under way are not cut"
    state, first = asked(state, 1, LimitRequest(3, 9), bounds, NOW + 2)
    assert (first.slots, first.held, first.others) == (2, 3, (2,))
    _, second = asked(state, 2, LimitRequest(0, 9), bounds, NOW + 2)
    assert second.slots == 1


def test_slots_of_a_dead_worker_are_free_and_those_of_a_live_one_are_not() -> None:
    bounds = Bounds(concurrency_max=2)
    state, _ = asked(SharedLimit(), 1, LimitRequest(0, 2), bounds)
    assert asked(state, 2, LimitRequest(0, 2), bounds)[1].held == 0
    assert asked(state, 2, LimitRequest(0, 2), bounds, alive=(2,))[1].held == 2


def test_a_refusal_of_one_closes_for_all_and_the_pace_is_learned_from_what_passed_for_all() -> None:
    state = SharedLimit()
    counts = Pace(window_at=NOW - 10, last_at=NOW - 1, passed=20.0, passed_at=NOW)
    state, _ = asked(state, 1, ending(counts, REFUSED, NOW), Bounds())
    # The second worker hears of it, adds what it counted, and waits.
    state, grant = asked(state, 2, LimitRequest(0, 1, counts=counts), Bounds())
    assert rate_limit.hold(grant.pace, Bounds(), NOW + 29) is not None
    _, grant = asked(state, 2, LimitRequest(0, 1, places=(1, 1)), Bounds(), NOW + 30)
    first, second = grant.starts
    # 40 calls passed in the 40 s from the beginning of the window to the reset, and a little less is asked for.
    assert 1.0 < second - first < 1.2


def test_only_one_worker_probes_and_its_death_lets_another_one() -> None:
    bounds, state = Bounds(), SharedLimit()
    for _ in range(bounds.same_failures_max):
        state, _ = asked(state, 1, ending(Pace(), BROKEN, NOW), bounds)
    breaker = state.pace.breaker
    assert breaker is not None
    now = breaker.until
    probe = LimitRequest(0, 1, wants_probe=True)
    assert not asked(state, 1, probe, bounds, now - 1)[1].is_prober
    state, grant = asked(state, 1, probe, bounds, now)
    assert grant.is_prober
    other = asked(state, 2, probe, bounds, now + 1)[1]
    assert not other.is_prober
    assert rate_limit.hold(other.pace, bounds, now + 1) is not None
    assert asked(state, 2, probe, bounds, now + 1, alive=(2, 3))[1].is_prober
    assert asked(state, 2, probe, bounds, now + PROBE_S)[1].is_prober
    after = asked(state, 1, ending(Pace(), BROKEN, now + 2, is_probe=True), bounds, now + 2)[1]
    assert after.pace.breaker is not None
    assert (after.pace.breaker.times, after.is_prober) == (2, False)


def test_tokens_are_booked_in_one_line_for_all() -> None:
    bounds, state, starts = Bounds(tokens_per_minute=60), SharedLimit(), []
    for worker in (1, 2, 3, 4):
        state, grant = asked(state, worker, LimitRequest(0, 1, places=(30,)), bounds)
        starts += [start - NOW for start in grant.starts]
    assert starts == [0, 0, 30, 60]


@given(st.dictionaries(st.integers(1, 9), SLOTS, max_size=4))
def test_the_stored_text_says_the_same_and_a_newer_version_may_add_to_it(
    slots: dict[int, WorkerSlots],
) -> None:
    state, _ = asked(replace(SharedLimit(), slots=slots), 1, ending(Pace(), REFUSED, NOW), Bounds(2))
    state, _ = asked(state, 1, ending(Pace(), BROKEN, NOW), Bounds(2, same_failures_max=1))
    assert provider_limits.from_text(provider_limits.to_text(state)) == state
    assert provider_limits.from_text("{}") == SharedLimit()
    newer = provider_limits.to_text(state).replace('"pace": {', '"pace": {"later": 1, ')
    assert provider_limits.from_text(newer) == state
