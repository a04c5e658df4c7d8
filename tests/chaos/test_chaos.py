"""The short form of `make chaos`: one fault of each kind, on three gateways."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.__main__ import exit_code
from tests.chaos.node import ROOT
from tests.chaos.plan import FaultKind, plan
from tests.chaos.run import SCHEMA, ChaosRun, Wishes
from tests.chaos.witness import Findings


def test_ten_minutes_have_every_kind_of_fault_ten_times() -> None:
    faults = [fault for track in plan(1, 530, 3, set(FaultKind)).values() for fault in track]
    counts = {kind: sum(fault.kind is kind for fault in faults) for kind in FaultKind}
    assert min(counts.values()) >= 10, counts


def test_the_same_seed_makes_the_same_faults() -> None:
    assert plan(7, 530, 3, set(FaultKind)) == plan(7, 530, 3, set(FaultKind))
    assert plan(7, 530, 3, set(FaultKind)) != plan(8, 530, 3, set(FaultKind))


FIELDS = [
    "schema", "ok", "seed", "nodes", "postgres", "faults_by_kind", "tasks", "delivered", "lost", "twice", "over_limit",
    "executed_twice", "live_buried", "paid_twice", "takeover_s", "lease_s",
]  # fmt: skip
COUNTS = ("lost", "twice", "over_limit", "executed_twice", "live_buried", "problems")


@pytest.mark.parametrize("name", COUNTS)
def test_each_broken_promise_makes_the_run_not_ok(tmp_path: Path, name: str) -> None:
    chaos = ChaosRun(Wishes(1, 60.0, 3, frozenset(FaultKind)), tmp_path)
    assert chaos.summary(Findings())["ok"] is True
    found = Findings()
    getattr(found, name).append("t_1")
    summary = chaos.summary(found)
    assert list(summary) == FIELDS
    assert (summary["schema"], summary["ok"], exit_code(summary)) == ("clutch.chaos/1", False, 1)
    assert set(summary["faults_by_kind"]) == set(FaultKind)
    assert [summary[count] for count in COUNTS[:-1]] == [int(count == name) for count in COUNTS[:-1]]


@pytest.mark.slow(75)
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
