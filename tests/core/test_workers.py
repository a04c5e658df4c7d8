"""When one worker declares another dead, for every schedule of heartbeats, outages and lost locks."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from clutch.core import workers
from clutch.core.workers import (
    BEATS_PER_LEASE,
    FREE_LOCK_INTERVALS,
    HOME_WAIT_S,
    Peer,
    Resident,
    Sign,
    awaited_places,
    is_left_to_others,
)

#: Of two gateways: their settings may differ, in both directions.
LEASES = st.sampled_from([1.0, 5.0, 7.0, 30.0])
#: Between two heartbeats of this worker, in intervals: it sleeps for one, and a busy machine adds to that.
GAPS = st.lists(st.floats(1, 4), min_size=1, max_size=40)
#: Between two of a worker that lives: it may be late by as much as a whole interval.
LATE = st.lists(st.floats(1, 1.999), min_size=80, max_size=80)


def looks(
    own: list[float], own_s: float, others: list[float], others_s: float, outage: tuple[float, float]
) -> list[bool]:
    """Whether a worker whose lock is free all the time is declared dead, after each own heartbeat. Neither reaches the
    database during the outage; what they wanted to write then is written at its end."""

    def written(at: float) -> float:
        return outage[1] if outage[0] <= at < outage[1] else at

    theirs, at, last_own = [], 0.0, workers.beat_s(own_s) * sum(own) + outage[1]
    while at <= last_own:
        for gap in others:
            theirs.append(written(at))
            at = theirs[-1] + gap * workers.beat_s(others_s)
    known: dict[int, Peer] = {}
    verdicts, now = [], 0.0
    for beats, gap in enumerate(own, start=1):
        before, now = now, written(now + gap * workers.beat_s(own_s))
        if workers.is_gap(now - before, own_s):
            known = workers.after_gap(known, beats - 1)
        last = max(one for one in theirs if one <= now)
        known = workers.observed(known, {2: Sign(str(last), others_s)}, beats)
        verdicts.append(workers.is_dead(known[2], beats, own_s, is_lock_free=True))
    return verdicts


@given(GAPS, LEASES, LATE, LEASES, st.floats(0, 30), st.floats(0, 60))
def test_a_worker_that_beats_is_never_dead_whatever_happens_to_its_lock_and_the_server(
    own: list[float], own_s: float, others: list[float], others_s: float, begins: float, lasts: float
) -> None:
    assert not any(looks(own, own_s, others, others_s, (begins, begins + lasts)))


@given(LEASES, LEASES, st.integers(0, 1000))
def test_a_silent_worker_is_dead_after_its_own_lease_and_with_a_free_lock_after_three_of_its_intervals(
    own_s: float, others_s: float, beats: int
) -> None:
    sign = Sign("1 1", others_s)
    own_beat_s, others_beat_s = workers.beat_s(own_s), workers.beat_s(others_s)
    for count in range(math.ceil(others_s / own_beat_s) + 3):
        seen = workers.observed({7: Peer(sign, beats)}, {7: sign}, beats + count)[7]
        verdict = {
            is_free: workers.is_dead(seen, beats + count, own_s, is_lock_free=is_free)
            for is_free in (True, False)
        }
        # One own interval more: the last heartbeat of the other one came before it was first seen.
        assert verdict[True] is ((count - 1) * own_beat_s >= FREE_LOCK_INTERVALS * others_beat_s - 1e-6)
        assert verdict[False] is ((count - 1) * own_beat_s >= others_s - 1e-6)
        assert workers.is_doubtful(seen, beats + count, own_s) is verdict[True]


@given(LEASES, st.floats(0, 1), st.data())
def test_what_a_worker_may_use_is_its_own_until_the_first_burial_that_is_possible(
    lease_s: float, seen_after: float, data: st.DataObject
) -> None:
    """The heartbeat of the one is at 0, and its lock is lost at once; the other one sees it later."""
    own_s = data.draw(LEASES)
    beats = next(
        count
        for count in range(1000)
        if workers.is_dead(Peer(Sign("1 1", lease_s), 0), count, own_s, is_lock_free=True)
    )
    assert seen_after + beats * workers.beat_s(own_s) > workers.certain_s(lease_s)


def test_a_worker_of_an_older_version_has_the_lease_of_the_one_that_sees_it() -> None:
    peer = Peer(Sign("1 1", None), 0)
    needed = [count for count in range(20) if workers.is_dead(peer, count, 5.0, is_lock_free=False)]
    assert needed[0] == BEATS_PER_LEASE + 1


SIGNS = st.builds(Sign, st.sampled_from(["1.5 1", "1.5 2", "2.5 1"]), st.sampled_from([None, 5.0]))


@given(SIGNS, SIGNS, st.integers(1, 100))
def test_a_change_of_the_row_is_a_sign_of_life_whatever_its_clock_says(
    before: Sign, after: Sign, beats: int
) -> None:
    seen = workers.observed({7: Peer(before, 0)}, {7: after}, beats)[7]
    assert seen == (Peer(before, 0) if before == after else Peer(after, beats))


def test_after_an_own_gap_a_free_lock_shortens_nothing() -> None:
    peer = workers.after_gap({7: Peer(Sign("1 1", 5.0), 0)}, 4)[7]
    verdicts = [workers.is_dead(peer, 4 + count, 5.0, is_lock_free=True) for count in range(7)]
    assert verdicts == [False] * 6 + [True]


# ---- which machine a session with files resumes on ---------------------------------------------------------------

PLACES = st.sampled_from((None, "a", "b", "c"))
RESIDENTS = st.lists(st.builds(Resident, PLACES, st.integers(-5, 5).map(float), st.booleans()), max_size=6)


@given(RESIDENTS, st.sampled_from(("a", "b")), PLACES, st.integers(0, 60).map(float))
def test_session_is_left_only_to_a_place_that_can_claim_it(
    residents: list[Resident], here: str, place: str | None, waits_s: float
) -> None:
    able = [one for one in residents if one.place == place and one.lease_until >= 0 and not one.is_draining]
    is_left = is_left_to_others(place, awaited_places(0.0, residents, here), waits_s)
    assert is_left == (place not in (None, here) and bool(able) and waits_s < HOME_WAIT_S)


@given(RESIDENTS, PLACES, st.integers(0, 60).map(float))
def test_no_session_is_left_by_every_worker_that_could_claim_it(
    residents: list[Resident], place: str | None, waits_s: float
) -> None:
    able = [
        one for one in residents if one.lease_until >= 0 and not one.is_draining and one.place is not None
    ]
    takes = [not is_left_to_others(place, awaited_places(0.0, residents, one.place), waits_s) for one in able]
    assert not able or any(takes)
    assert waits_s < HOME_WAIT_S or all(takes)
