"""The summary of `make trust`: the promised fields, null for what was not looked at, ok only when all is well."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from clutch.core.events import EDGES
from tests.trust.campaign import Findings, Hunted, Plan, summarise, table
from tests.trust.kills.limits import LimitLoad
from tests.trust.kills.moves import CURSOR, PLANTS, MoveHunt, MoveTotals, kill_moves
from tests.trust.kills.points import POINTS
from tests.trust.kills.races import Outcome
from tests.trust.kills.series import Total
from tests.trust.kills.state_directory import DirectoryRounds
from tests.trust.simulation import Simulated
from tests.trust.thresholds import NOT_SIMULATED

FIELDS = [
    "schema", "ok", "seed", "commit", "dirty", "versions", "wall_s", "sim_worlds", "sim_runs", "faults",
    "faults_by_kind", "commits", "edges", "invariants", "violations", "replays_identical", "mutants", "kills",
    "kills_in_flight", "kills_in_recovery", "kills_by_point", "kills_by_backend", "lost", "twice",
    "unsafe_repeats", "over_limit", "limit_rounds",
]  # fmt: skip

PLAN = Plan(seed=7, backends=("sqlite", "postgres"), processes=2, seconds_max=300)


def simulated() -> Simulated:
    found = Simulated(worlds=800, runs=40_000, commits=600_000)
    found.faults = dict.fromkeys(found.faults, 1_000)
    found.invariants = dict.fromkeys(found.invariants, 1_000)
    found.acts = dict.fromkeys(found.acts, 10)
    found.edges = [str(edge) for edge in EDGES - NOT_SIMULATED]
    return found


def killed() -> Total:
    by_point = Counter(dict.fromkeys(POINTS, 20) | {"random": 1_500})
    return Total(
        kills=2_500, in_recovery=900, by_point=by_point, by_backend=Counter(sqlite=1_800, postgres=700)
    )


def findings() -> Findings:
    raced = dict.fromkeys(PLAN.backends, Outcome(8, 200, exactly_one=200, over_limit=0))
    hunted = [Hunted(f"m{number}", "spawn", "T3", 1, 0.1) for number in range(40)]
    lone = DirectoryRounds(8, 200, exactly_one=200)
    return Findings(simulated(), 20, hunted, killed(), raced, lone, wall_s=290.04)


def test_the_summary_of_a_good_run_is_ok_and_has_every_promised_field() -> None:
    summary = json.loads(json.dumps(summarise(PLAN, findings())))
    assert [name for name in summary if name in FIELDS] == FIELDS
    assert summary["schema"] == "clutch.trust/1"
    assert summary["shortfalls"] == []
    assert summary["ok"] is True
    assert summary["mutants"]["list"][0] == {
        "name": "m0", "target": "spawn", "found_by": "T3", "seeds": 1, "seconds": 0.1,
    }  # fmt: skip
    assert summary["limit_rounds"] == {"processes": 8, "rounds": 200, "exactly_one": 200}
    assert all(isinstance(line, str) for line in table(summary))


def test_a_limit_that_was_passed_or_never_reached_under_fire_is_a_failure() -> None:
    fire = LimitLoad(8, 1_000, children=3, descendants=8, depth=2, accepted={}, refused={})
    assert summarise(PLAN, replace(findings(), fired=fire))["ok"] is True
    for bad in (
        replace(fire, children=4),
        replace(fire, descendants=9),
        replace(fire, depth=3),
        replace(fire, children=2),
    ):
        assert summarise(PLAN, replace(findings(), fired=bad))["ok"] is False


def test_a_planted_bug_of_a_mover_that_is_not_found_is_a_failure() -> None:
    moved = MoveHunt(MoveTotals(ok=True, kills=14), dict.fromkeys(PLANTS, "lost: 1"))
    summary = summarise(PLAN, replace(findings(), moved=moved))
    assert (summary["ok"], summary["moves"]["mutants"]) == (True, moved.found)
    missed = replace(moved, found={**moved.found, CURSOR: None})
    assert summarise(PLAN, replace(findings(), moved=missed))["ok"] is False


@pytest.mark.slow
def test_a_cursor_that_is_ahead_of_its_rows_is_found() -> None:
    (failure,) = kill_moves(1, seed=1, plant=CURSOR).failures
    assert "the move does not end" in failure


def test_a_backend_that_was_not_raced_is_unknown_and_not_zero() -> None:
    plan = replace(PLAN, backends=("sqlite",))
    found = findings()
    summary = summarise(plan, replace(found, raced={"sqlite": found.raced["sqlite"]}))
    assert summary["over_limit"] == {"sqlite": 0, "postgres": None}
    assert summary["versions"]["postgres"] is None
    assert summary["ok"] is True


def test_the_tries_for_a_state_directory_are_counted_beside_the_other_invariants() -> None:
    asked = summarise(PLAN, findings())["invariants"]
    assert {f"T{number}" for number in range(1, 19)} <= asked.keys()
    assert asked["T17"] == 1600


@pytest.mark.parametrize("where", ["simulated", "killed", "lone"])
def test_a_single_failure_makes_the_whole_run_not_ok(where: str) -> None:
    found = findings()
    if where == "simulated":
        found.simulated.violations.append(
            "T1: something (python -m clutch.testing replay --seed 1 --world calm)"
        )
    elif where == "killed":
        found.killed.failures.append("a timeline does not add up")
    else:
        found = replace(found, lone=replace(found.lone, exactly_one=199))
    assert summarise(PLAN, found)["ok"] is False


@pytest.mark.parametrize("part", ["simulation", "mutants", "kills"])
def test_a_part_that_the_time_limit_cut_short_is_named_and_not_ok(part: str) -> None:
    found = findings()
    if part == "simulation":
        found.simulated.is_cut = True
    elif part == "kills":
        found.killed.is_cut = True
    else:
        found = replace(found, hunted=[replace(found.hunted[0], is_cut=True), *found.hunted[1:]])
    summary = summarise(PLAN, found)
    assert summary["shortfalls"] == [f"cut short after 300 seconds: {part}"]
    assert summary["ok"] is False
