"""One free slot and many processes: exactly one gets it, and the harness would see it if it were not so."""

from __future__ import annotations

import pytest

from tests.trust.kills.limits import LIMITS, OFF_BY_ONE, run_limits
from tests.trust.kills.races import CHECK_THEN_INSERT, Outcome, run_races
from tests.trust.kills.state_directory import DirectoryRounds, run_directories

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
    assert run_directories(processes=4, rounds=20) == DirectoryRounds(4, 20, exactly_one=20)


def test_processes_that_spawn_in_every_way_at_once_are_never_seen_over_a_limit() -> None:
    """An agent's tool at two depths, the API, retry and continue; whole engines on one PostgreSQL."""
    load = run_limits(processes=4, acts=30)  # `make trust` has 8 processes
    assert not load.is_over, load
    assert (load.children, load.depth) == (LIMITS.children_max, LIMITS.depth_max), "the limits were reached"
    assert load.samples > 100
    assert set(load.accepted) >= {"api", "tool at depth 1", "tool at depth 2"}
    assert set(load.refused) >= {"api", "tool at depth 1", "tool at depth 2"}


def test_a_count_that_is_one_too_low_is_seen_under_load() -> None:
    assert run_limits(processes=4, acts=20, plant=OFF_BY_ONE).children > LIMITS.children_max
