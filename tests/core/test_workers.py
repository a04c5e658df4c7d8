"""When one worker declares another dead, for every schedule of heartbeats, outages and lost locks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clutch.core import workers
from clutch.core.workers import BEATS_PER_LEASE, FREE_LOCK_BEATS, LEASE_BEATS, Mark, Peer

LEASE_S = 5.0
BEAT_S = workers.beat_s(LEASE_S)
#: Between two heartbeats of this worker: it sleeps for one interval, and a busy machine adds to that.
GAPS = st.lists(st.floats(BEAT_S, 4 * BEAT_S), min_size=1, max_size=40)
#: Between two of a worker that lives: it may be late by as much as a whole interval.
LATE = st.lists(st.floats(BEAT_S, 2 * BEAT_S - 0.001), min_size=80, max_size=80)


def looks(own: list[float], others: list[float], started: float, outage: tuple[float, float]) -> list[bool]:
    """Whether a worker whose lock is free all the time is declared dead, after each own heartbeat. Neither reaches the
    database during the outage; what they wanted to write then is written at its end."""

    def written(at: float) -> float:
        return outage[1] if outage[0] <= at < outage[1] else at

    theirs, at = [], started
    for gap in others:
        theirs.append(written(at))
        at = theirs[-1] + gap
    known: dict[int, Peer] = {}
    verdicts, now = [], 0.0
    for beats, gap in enumerate(own, start=1):
        before, now = now, written(now + gap)
        if workers.is_gap(now - before, LEASE_S):
            known = workers.after_gap(known, beats - 1)
        last = max((one for one in theirs if one <= now), default=-1.0)
        known = workers.observed(known, {2: (last + LEASE_S, 0)}, beats)
        verdicts.append(workers.is_dead(known[2], beats, is_lock_free=True))
    return verdicts


@given(GAPS, LATE, st.floats(0, BEAT_S), st.floats(0, 30), st.floats(0, 60))
def test_a_worker_that_beats_is_never_dead_whatever_happens_to_its_lock_and_the_server(
    own: list[float], others: list[float], started: float, begins: float, lasts: float
) -> None:
    assert not any(looks(own, others, started, (begins, begins + lasts)))


@given(st.floats(0, 1e9), st.integers(0, 1000))
def test_a_silent_worker_is_dead_after_a_lease_and_with_a_free_lock_after_two_intervals(
    lease_until: float, beats: int
) -> None:
    peer = Peer((lease_until, 0), beats)
    for count in range(LEASE_BEATS + 2):
        seen = workers.observed({7: peer}, {7: peer.mark}, beats + count)[7]
        assert workers.is_dead(seen, beats + count, is_lock_free=True) is (count >= FREE_LOCK_BEATS)
        assert workers.is_dead(seen, beats + count, is_lock_free=False) is (count > BEATS_PER_LEASE)


MARKS = st.tuples(st.floats(allow_nan=False), st.integers(0, 3))


@given(MARKS, MARKS, st.integers(1, 100))
def test_a_change_of_the_row_is_a_sign_of_life_whatever_its_clock_says(
    before: Mark, after: Mark, beats: int
) -> None:
    seen = workers.observed({7: Peer(before, 0)}, {7: after}, beats)[7]
    assert seen == (Peer(before, 0) if before == after else Peer(after, beats))


def test_after_an_own_gap_a_free_lock_shortens_nothing() -> None:
    peer = workers.after_gap({7: Peer((1.0, 0), 0)}, 4)[7]
    verdicts = [workers.is_dead(peer, 4 + count, is_lock_free=True) for count in range(LEASE_BEATS + 1)]
    assert verdicts == [False] * LEASE_BEATS + [True]
