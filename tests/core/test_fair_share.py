"""Fair share: the root with the fewest sessions at work goes first, interrupted runs before all, none starves."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from clutch.core.fair_share import DueSession, in_order

SESSIONS = st.lists(
    st.builds(DueSession, st.sampled_from([0.0, 1.0, 2.0, 3.0]), st.integers(1, 999), st.integers(1, 4)),
    unique_by=lambda one: one.id,
    max_size=30,
)
WORKING = st.dictionaries(st.integers(1, 4), st.integers(1, 5))


@given(SESSIONS, WORKING)
def test_each_slot_goes_to_the_root_with_the_fewest_and_there_to_the_oldest(
    waiting: list[DueSession], working: dict[int, int]
) -> None:
    left, counted = set(waiting), Counter(working)
    for session in in_order(waiting, working):
        rivals = {one for one in left if one.due == 0} or left
        assert session in rivals
        if session.due > 0:
            assert counted[session.root_id] == min(counted[one.root_id] for one in rivals)
        assert session == min(one for one in rivals if one.root_id == session.root_id)
        left.remove(session)
        counted[session.root_id] += 1
    assert not left


def test_one_task_does_not_wait_behind_a_thousand_of_another_root() -> None:
    many = [DueSession(1.0, number, 1) for number in range(1000)]
    one = DueSession(2.0, 5000, 2)
    assert in_order([*many, one], {1: 8})[0] == one
    assert in_order([*many, one], {})[1] == one
