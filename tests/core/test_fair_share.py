"""Fair share: interrupted runs, then no starvation, then weights, then priority, then roots, then waiting time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from clutch.core.fair_share import (
    ANY_SHARE,
    DEFAULT_SHARE,
    PASSED_MAX,
    POSITIONS_MAX,
    RANKS,
    Chosen,
    DueSession,
    Positions,
    Priority,
    Queue,
    Root,
    by_share,
    choose,
    is_settled,
    wanted,
    weight,
)
from tests.examples import examples

SHARES = st.sampled_from(["a", "b", DEFAULT_SHARE])
SESSIONS = st.lists(
    st.builds(
        DueSession,
        st.sampled_from([0.0, 1.0, 2.0, 3.0]),
        st.integers(1, 999),
        st.integers(1, 3),
        SHARES,
        st.sampled_from(sorted(RANKS.values())),
    ),
    unique_by=lambda one: one.id,
    max_size=30,
)
WORKING = st.dictionaries(st.builds(Root, SHARES, st.integers(1, 3)), st.integers(1, 5))
WEIGHTS = st.dictionaries(st.sampled_from(["a", "b", ANY_SHARE]), st.integers(1, 5))
PASSED = st.integers(0, PASSED_MAX)


@given(SESSIONS, WORKING, WEIGHTS, PASSED)
def test_each_slot_goes_by_the_rules_in_their_order(
    waiting: list[DueSession], working: dict[Root, int], weights: dict[str, int], passed: int
) -> None:
    left, counted, shares = set(waiting), Counter(working), by_share(working)

    def load(share: str) -> float:
        return shares[share] / weight(weights, share)

    for session in choose(waiting, working, weights, len(waiting), passed=passed).sessions:
        rivals = {one for one in left if one.due == 0} or left
        assert session in rivals, "interrupted runs go first"
        oldest = min(left)
        is_aged = bool(oldest.due) and passed == PASSED_MAX
        if is_aged:
            assert session == oldest, "no session is passed over more often"
        else:
            since = {one.share: one.due for one in sorted(rivals, reverse=True)}
            assert session.share == min(since, key=lambda share: (load(share), since[share], share))
            mine = [one for one in rivals if one.share == session.share]
            assert session.rank == min(one.rank for one in mine)
            roots = [one for one in mine if one.rank == session.rank]
            at_work = {one: counted[Root(one.share, one.root_id)] for one in roots}
            assert at_work[session] == min(at_work.values())
            assert session == min(one for one in roots if at_work[one] == at_work[session])
        if oldest.due:
            passed = 0 if session == oldest else passed + 1
        left.remove(session)
        counted[Root(session.share, session.root_id)] += 1
        shares[session.share] += 1
    assert not left


@given(SESSIONS, WORKING, WEIGHTS, PASSED, st.randoms(use_true_random=False), st.integers(0, 30))
def test_the_order_is_total_and_stable(
    waiting: list[DueSession],
    working: dict[Root, int],
    weights: dict[str, int],
    passed: int,
    shuffled: object,
    count: int,
) -> None:
    """Whatever order the rows come in, and however many slots there are, the same sessions go first."""
    whole = choose(waiting, working, weights, len(waiting), passed=passed).sessions
    assert sorted(whole) == sorted(waiting)
    again = list(waiting)
    shuffled.shuffle(again)  # type: ignore[attr-defined]
    assert choose(again, working, weights, count, passed=passed).sessions == whole[:count]


@dataclass
class Lane:
    """Slots that are freed one by one, the first taken first; a session of each share always waits."""

    slots: int
    weights: Mapping[str, int]
    waiting: list[DueSession]
    at_work: list[DueSession] = field(default_factory=list)
    passed: int = 0
    served: list[DueSession] = field(default_factory=list)

    def step(self) -> None:
        if len(self.at_work) == self.slots:
            self.at_work.pop(0)
        working = Counter(Root(one.share, one.root_id) for one in self.at_work)
        choice: Chosen = choose(self.waiting, working, self.weights, 1, passed=self.passed)
        self.passed = choice.passed
        for session in choice.sessions:
            self.waiting.remove(session)
            self.at_work.append(session)
            self.served.append(session)


@given(
    st.integers(0, 3),
    st.integers(1, 4),
    st.lists(st.tuples(SHARES, st.sampled_from(sorted(RANKS.values())), st.integers(10, 99)), min_size=1),
    WEIGHTS,
)
def test_no_session_starves(
    older: int, slots: int, rivals: list[tuple[str, int, int]], weights: dict[str, int]
) -> None:
    """Newer sessions that every other rule prefers come without end: new roots, other shares, high priority."""
    low = RANKS[Priority.LOW]
    lane = Lane(slots, weights, [DueSession(1.0, number, 1, "a", low) for number in range(1, older + 2)])
    last = lane.waiting[-1]
    for number in range((older + 1) * (PASSED_MAX + 1)):
        share, rank, root_id = rivals[number % len(rivals)]
        lane.waiting.append(DueSession(2.0 + number, 1000 + number, root_id, share, rank))
        lane.step()
    assert last in lane.served


@examples(20)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_slots_are_divided_by_weight(first: int, second: int, times: int) -> None:
    """Also when one share has a long backlog that is older than anything of the other."""
    backlog = [DueSession(1.0, number, 1, "a") for number in range(160)]
    others = [DueSession(2.0, 1000 + number, 2, "b") for number in range(160)]
    lane = Lane((first + second) * times, {"a": first, ANY_SHARE: second}, [*backlog, *others])
    for _ in range(160):
        lane.step()
    share = Counter(one.share for one in lane.served[40:])["a"] / 120
    assert abs(share - first / (first + second)) < 0.1


def test_one_task_does_not_wait_behind_a_thousand_of_another_root() -> None:
    many = [DueSession(1.0, number, 1) for number in range(1000)]
    one = DueSession(2.0, 5000, 2)
    assert choose([*many, one], {Root(DEFAULT_SHARE, 1): 8}, {}, 1).sessions == [one]
    assert choose([*many, one], {}, {}, 2).sessions[1] == one


def test_priority_decides_inside_a_share_alone() -> None:
    high = DueSession(2.0, 2, 1, "a", RANKS[Priority.HIGH])
    normal = DueSession(1.0, 1, 1, "a")
    other = DueSession(3.0, 3, 2, "b", RANKS[Priority.LOW])
    assert choose([high, normal, other], {}, {}, 3).sessions == [high, other, normal]


@given(SESSIONS.filter(bool), WORKING, WEIGHTS, st.integers(1, 8))
def test_a_claim_reads_the_queues_that_may_get_a_slot(
    waiting: list[DueSession], working: dict[Root, int], weights: dict[str, int], count: int
) -> None:
    later = [one for one in waiting if one.due]
    heads: dict[Queue, float] = {}
    for one in sorted(later, reverse=True):
        heads[one.queue] = one.due
    read = {queue for share in wanted(heads, working, weights, count) for queue in share}
    chosen = choose(later, working, weights, count).sessions
    aged = {min(later).queue} if count > PASSED_MAX and later else set()
    assert {one.queue for one in chosen} <= read | aged


def test_a_queue_is_settled_when_enough_roots_have_none_at_work() -> None:
    waiting = [DueSession(1.0, 1, 1, "a"), DueSession(1.0, 2, 2, "a")]
    assert is_settled(waiting, {Root("b", 1): 1}, 2), "the same root at work for another share does not count"
    assert not is_settled(waiting, {Root("a", 1): 1}, 2)


def test_positions_are_bounded() -> None:
    few = Positions({"1": "tenant"}, {"1 a": 7})
    assert Positions.load(few.dump()) == few
    assert Positions.load("") == Positions()
    assert not Positions().dump()
    many = Positions({}, {f"1 {number}": 1 for number in range(POSITIONS_MAX + 1)})
    assert not many.dump()
