"""One free slot and many processes: exactly one gets it, and the harness would see it if it were not so."""

from __future__ import annotations

import pytest

from clutch.testing.killing.lone import Lone, run_lone
from clutch.testing.killing.races import CHECK_THEN_INSERT, Outcome, run_races

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_of_many_processes_that_want_the_last_slot_exactly_one_gets_it(backend: str) -> None:
    assert run_races([backend], processes=4, rounds=20) == {
        backend: Outcome(4, 20, exactly_one=20, over_limit=0)
    }


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_a_limit_that_is_checked_before_the_insert_is_seen_to_break(backend: str) -> None:
    outcome = run_races([backend], processes=4, rounds=20, plant=CHECK_THEN_INSERT)[backend]
    assert outcome.over_limit > 0
    assert outcome.exactly_one < outcome.rounds


def test_of_many_processes_that_want_a_state_directory_exactly_one_gets_it() -> None:
    assert run_lone(processes=4, rounds=20) == Lone(4, 20, exactly_one=20)
