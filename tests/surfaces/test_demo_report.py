"""The demo says ok only when all of it is: each way to fail is noticed by itself. And what it removes of an old one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from clutch.demo.command import DemoOptions, new_job, problems
from clutch.demo.worker import STATS

PLAIN: dict[str, Any] = {
    "tasks": 6, "outcomes": {"ok": 6, "error": 0, "timeout": 0, "killed": 0, "lost": 0}, "delivered": 6,
    "undelivered": 0, "lost": 0, "twice": 0, "answer": "all done",
}  # fmt: skip
CHAOS = {**PLAIN, "kills_in_flight": 5, "repeated_unsafe_tools": 0, "same_findings": True}


def test_a_whole_run_has_no_problem() -> None:
    assert list(problems(PLAIN)) == []
    assert list(problems(CHAOS)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"outcomes": {"ok": 5, "error": 1, "timeout": 0, "killed": 0, "lost": 0}},
        {"delivered": 5},
        {"undelivered": 1},
        {"lost": 1},
        {"twice": 1},
        {"answer": None},
        {"kills_in_flight": 4},
        {"repeated_unsafe_tools": 1},
        {"same_findings": False},
    ],
)
def test_each_broken_promise_is_a_problem(change: dict[str, Any]) -> None:
    assert len(list(problems({**CHAOS, **change}))) == 1


def test_the_next_demo_removes_the_last_one_unless_a_person_named_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "surveyed").mkdir()
    monkeypatch.setenv("CLUTCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def finished(state: Path | None) -> Path:
        named = None if state is None else str(state)
        job = new_job(DemoOptions(str(tmp_path / "surveyed"), 0, named, True, 5, False, False))
        (job.state / STATS).touch()
        return job.state

    named = finished(tmp_path / "clutch-demo-mine")
    fresh = finished(None)
    assert (named.exists(), fresh.exists()) == (True, True)
    finished(None)
    assert (named.exists(), fresh.exists()) == (True, False)
