"""Worlds of schedules: kills, freezes, skew, pauses and days on which the clock changes; every slot exactly once."""

from __future__ import annotations

from collections import Counter
from zoneinfo import ZoneInfo

import pytest

from clutch.testing.simulation.schedules import CHANGES, NAME, ScheduleWorld, play
from clutch.testing.simulation.world import finish
from tests.examples import IS_FULL

#: `make trust` plays them all; `make test` a few, which find every planted bug.
WORLDS = 2_000 if IS_FULL else 16
#: of one test, so that processes share them, and a busy machine plays them within the time limit of a test
AT_ONCE = 50 if IS_FULL else 2


@pytest.mark.scaled
@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, WORLDS, AT_ONCE))
def test_every_slot_runs_exactly_once_or_is_skipped_with_a_reason(first: int) -> None:
    seen, faults = Counter[str](), 0
    for seed in range(first, first + AT_ONCE):
        world = ScheduleWorld(seed)
        report = finish(world)
        assert report.violations == (), f"python -m clutch.testing replay --seed {seed} --world {NAME}"
        faults += report.faults.total()
        for watched in world.watched.values():
            seen["started"] += len(watched.started)
            seen["skipped"] += sum(number for *_, number in watched.skipped)
    assert seen["started"] > AT_ONCE
    assert seen["skipped"] > AT_ONCE
    assert faults > 5 * AT_ONCE


def test_the_worlds_begin_before_changes_of_clocks_in_both_directions() -> None:
    shifts = set()
    for zone, change in CHANGES:
        before, after = (change.timestamp() + away for away in (-1, 1))
        local = [change.fromtimestamp(at, ZoneInfo(zone)).utcoffset() for at in (before, after)]
        assert local[0] is not None
        assert local[1] is not None
        shifts.add((local[1] - local[0]).total_seconds())
    assert shifts == {3600.0, -3600.0, -1800.0, 1800.0}


def test_the_same_seed_gives_the_same_log() -> None:
    assert play(7).digest == play(7).digest != play(8).digest
