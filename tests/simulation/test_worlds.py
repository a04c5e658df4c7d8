"""Simulated worlds: the real engine over real SQLite, in virtual time, with everything going wrong.

A short form; `make trust` plays thousands of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from clutch.testing.promises.judge import all_names, all_sentences
from clutch.testing.simulation.replays import digests
from clutch.testing.simulation.report import Report
from clutch.testing.simulation.settings import SETTINGS
from clutch.testing.simulation.world import simulate

SEEDS = (1, 2)


@pytest.fixture(scope="module")
def played() -> list[Report]:
    return [simulate(seed, world) for seed in SEEDS for world in SETTINGS]


def test_no_promise_is_broken_in_any_kind_of_world(played: list[Report]) -> None:
    broken = {(report.world, report.seed): report.violations for report in played if report.violations}
    assert broken == {}


def test_all_tasks_come_to_an_end(played: list[Report]) -> None:
    assert all(report.tasks >= 4 for report in played)


def test_every_promise_is_asked_about(played: list[Report]) -> None:
    asked = sum((report.evaluations for report in played), Counter[str]())
    assert {name for name in all_names() if not asked[name]} == set()
    assert all_sentences().difference(*(report.asked for report in played)) == set()


def test_there_is_a_fault_for_every_three_tasks(played: list[Report]) -> None:
    hurt = [report for report in played if report.world != "calm"]
    faults = sum(report.faults.total() for report in hurt)
    assert faults * 3 >= sum(report.tasks for report in hurt)


def test_nothing_goes_wrong_in_a_calm_world(played: list[Report]) -> None:
    assert all(not report.faults for report in played if report.world == "calm")


def test_the_same_seed_gives_the_same_log_in_every_kind_of_world(played: list[Report]) -> None:
    first = [report for report in played if report.seed == SEEDS[0]]
    assert [simulate(report.seed, report.world).digest for report in first] == [
        report.digest for report in first
    ]


def test_another_seed_gives_another_log(played: list[Report]) -> None:
    assert len({report.digest for report in played}) == len(played)


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
def test_the_log_does_not_depend_on_the_hash_seed(hash_seed: str) -> None:
    command = [sys.executable, "-m", "clutch.testing", "replay", "--seed", "3", "--world", "lockstep"]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == list(simulate(3, "lockstep").log)


def test_replays_are_the_worlds_of_the_seeds() -> None:
    assert list(digests(7, 2)) == [
        simulate(7 + number, world).digest for number, world in enumerate(list(SETTINGS)[:2])
    ]
