"""Simulated worlds: the real engine over real SQLite, in virtual time, with everything going wrong.

A short form; `make trust` plays thousands of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from clutch.testing.invariants.checker import all_names, all_sentences
from clutch.testing.invariants.probes import all_probes
from clutch.testing.simulation.report import Report
from clutch.testing.simulation.schedules import NAME, play
from clutch.testing.simulation.settings import SETTINGS
from clutch.testing.simulation.world import simulate
from tests.trust.replays import digests

#: Each kind of world once, which asks about everything, and one of them with a second seed.
PLAYED = (*((1, world) for world in SETTINGS), (2, "deep"), (1, NAME))
REPLAYED = ("storm", "crash", "lockstep")


@pytest.mark.slow(15)
def test_every_kind_of_world_keeps_its_promises_and_asks_about_all_of_them() -> None:
    """One test, because many processes would each play all worlds for the tests they are given."""
    played = [play(seed, world) for seed, world in PLAYED]
    broken = {(report.world, report.seed): report.violations for report in played if report.violations}
    assert broken == {}
    assert all(report.tasks >= 4 for report in played), "all tasks come to an end"
    _everything_is_asked(played)
    _much_goes_wrong_but_in_a_calm_world(played)
    _the_same_seed_gives_the_same_log_and_another_another(played)


def _everything_is_asked(played: list[Report]) -> None:
    asked = sum((report.evaluations for report in played), Counter[str]())
    assert {name for name in all_names() - set(all_probes()) if not asked[name]} == set()
    assert all_sentences().difference(*(report.asked for report in played)) == set()


def _much_goes_wrong_but_in_a_calm_world(played: list[Report]) -> None:
    assert all(not report.faults for report in played if report.world == "calm")
    hurt = [report for report in played if report.world != "calm"]
    faults = sum(report.faults.total() for report in hurt)
    assert faults * 3 >= sum(report.tasks for report in hurt)


def _the_same_seed_gives_the_same_log_and_another_another(played: list[Report]) -> None:
    """A few kinds: tests/golden compares the logs of a dozen worlds, and `make trust` replays twenty."""
    first = [report for report in played if report.world in REPLAYED]
    again = [simulate(report.seed, report.world).digest for report in first]
    assert again == [report.digest for report in first]
    assert len({report.digest for report in played}) == len(played)


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
@pytest.mark.slow(5)
def test_the_log_does_not_depend_on_the_hash_seed(hash_seed: str) -> None:
    command = [sys.executable, "-m", "clutch.testing", "replay", "--seed", "3", "--world", "lockstep"]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == list(simulate(3, "lockstep").log)


def test_replays_are_the_worlds_of_the_seeds() -> None:
    assert list(digests(7, 2)) == [
        simulate(7 + number, world).digest for number, world in enumerate(list(SETTINGS)[:2])
    ]
