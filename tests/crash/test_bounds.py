"""What `make trust` demands of its own numbers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trust.kills.points import COMMIT, POINTS
from tests.trust.thresholds import shortfalls

BOTH = ("sqlite", "postgres")


def good() -> dict[str, Any]:
    by_point = dict.fromkeys(POINTS, 20) | {"random": 1000}
    return {
        "violations": 0, "lost": 0, "twice": 0, "unsafe_repeats": 0,
        "over_limit": {"sqlite": 0, "postgres": 0},
        "limit_rounds": {"processes": 8, "rounds": 200, "exactly_one": 200},
        "mutants": {"found": 40, "total": 40, "list": []},
        "replays_identical": 20,
        "sim_runs": 40_000, "faults": 6_000, "faults_by_kind": {"crash": 5_940, "clock": 60},
        "edges": {"seen": 30, "total": 30}, "invariants": {"T1": 1}, "acts_by_kind": {"halt": 1},
        "kills": 2_000, "kills_in_recovery": 200, "kills_by_point": by_point,
        "kills_by_backend": {"sqlite": 1_400, "postgres": 600},
    }  # fmt: skip


def test_numbers_that_reach_every_bound_pass() -> None:
    assert shortfalls(good(), BOTH) == []


@pytest.mark.parametrize(
    "change",
    [
        {"violations": 1},
        {"lost": 1},
        {"twice": 1},
        {"unsafe_repeats": 1},
        {"over_limit": {"sqlite": 0, "postgres": 1}},
        {"over_limit": {"sqlite": None, "postgres": 0}},
        {"limit_rounds": {"processes": 8, "rounds": 200, "exactly_one": 199}},
        {"mutants": {"found": 40, "total": 41, "list": [{"name": "no_fence", "found_by": None}]}},
        {"mutants": {"found": 39, "total": 39, "list": []}},
        {"replays_identical": 19},
    ],
)
def test_what_must_be_zero_or_complete_is_demanded(change: dict[str, Any]) -> None:
    assert len(shortfalls(good() | change, BOTH)) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"sim_runs": 39_999},
        {"faults": 5_999},
        {"faults_by_kind": {"crash": 5_941, "clock": 59}},
        {"edges": {"seen": 29, "total": 30}},
        {"acts_by_kind": {"halt": 0}},
        {"invariants": {"T1": 1, "T2": 0}},
        {"kills": 1_999},
        {"kills_by_point": good()["kills_by_point"] | {"after:finish": 19}},
    ],
)
def test_quantities_are_demanded_in_full(change: dict[str, Any]) -> None:
    assert len(shortfalls(good() | change, BOTH)) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"kills_in_recovery": 199},
        {"kills_by_point": good()["kills_by_point"] | {"random": 499}},
        {"kills_by_backend": {"sqlite": 2_000}},
    ],
)
def test_shares_are_demanded(change: dict[str, Any]) -> None:
    assert len(shortfalls(good() | change, BOTH)) == 1


def test_points_inside_a_commit_of_sqlite_are_not_asked_of_postgresql() -> None:
    without = {point: count for point, count in good()["kills_by_point"].items() if point not in COMMIT}
    numbers = good() | {"kills_by_point": without}
    assert len(shortfalls(numbers, BOTH)) == 1
    assert shortfalls(numbers, ("postgres",)) == []
