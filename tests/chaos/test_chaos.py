"""The short form of `make chaos`: one fault of each kind, on three gateways."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.chaos.node import ROOT
from tests.chaos.plan import FaultKind, plan
from tests.chaos.run import SCHEMA


def test_ten_minutes_have_every_kind_of_fault_ten_times() -> None:
    faults = [fault for track in plan(1, 530, 3, set(FaultKind)).values() for fault in track]
    counts = {kind: sum(fault.kind is kind for fault in faults) for kind in FaultKind}
    assert min(counts.values()) >= 10, counts


def test_the_same_seed_makes_the_same_faults() -> None:
    assert plan(7, 530, 3, set(FaultKind)) == plan(7, 530, 3, set(FaultKind))
    assert plan(7, 530, 3, set(FaultKind)) != plan(8, 530, 3, set(FaultKind))


@pytest.mark.slow
def test_no_result_is_lost_or_delivered_twice_on_a_bad_day() -> None:
    # In this plan the provider breaks its streams: after a 429 gateways would ask slowly for half a minute.
    command = (sys.executable, "-m", "tests.chaos", "--seconds", "60", "--seed", "41")
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["schema"] == SCHEMA
    assert summary["ok"], done.stderr
    assert done.returncode == 0
    assert summary["delivered"] == summary["tasks"] > 0
    made = {kind for kind, times in summary["faults_by_kind"].items() if times}
    assert made >= set(FaultKind) - {FaultKind.DISK_FULL}, (
        "only a full disk needs rights that not every machine gives"
    )
