"""The demo says ok only when all of it is: each way to fail is noticed by itself. And what it removes of an old one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from clutch.core.views import Tally
from clutch.demo.command import DemoOptions, new_job
from clutch.demo.job import REPORT
from clutch.demo.report import people_text, problems

PLAIN: dict[str, Any] = {
    "tasks": 6, "outcomes": {"ok": 6, "error": 0, "timeout": 0, "killed": 0, "lost": 0}, "delivered": 6,
    "undelivered": 0, "lost": 0, "twice": 0, "answer": "all done", "kills": 1, "kills_in_flight": 1,
    "repeated_unsafe_tools": 0,
}  # fmt: skip
CHAOS = {**PLAIN, "kills_in_flight": 5, "same_findings": True}


def test_a_whole_run_has_no_problem() -> None:
    assert list(problems(PLAIN)) == []
    assert list(problems(CHAOS)) == []
    assert list(problems({**PLAIN, "kills": 0, "kills_in_flight": 0})) == [], "over before it could be killed"


def test_the_report_for_people_names_every_problem() -> None:
    made = {
        **PLAIN, "dir": "/folder", "wall_s": 3.2, "findings": [], "tool_calls": 1, "state_dir": "/state",
        "resumes": [], "resumed": 0, "repeated_model_calls": 1, "problems": ["lost: 2"],
    }  # fmt: skip
    words = people_text(made, Tally(input=900, output=100)).splitlines()
    assert words[:5] == [
        "Surveyed /folder in 3 s with 6 subagents: 6 ok.",
        "0 findings, 1 tool call, 1k tokens, no cost (demo model, no API key).",
        "Killed once (kill -9): 0 resumed; repeated: 1 model call, 0 effects.",
        "Results: 6 delivered, 0 lost, 0 delivered twice.",
        "NOT OK: lost: 2",
    ]


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


def test_the_next_demo_removes_the_last_one_unless_the_user_named_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "surveyed").mkdir()
    monkeypatch.setenv("CLUTCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def finished(state: Path | None) -> Path:
        named = None if state is None else str(state)
        job = new_job(DemoOptions(str(tmp_path / "surveyed"), state=named))
        (job.state / REPORT).touch()
        return job.state

    named = finished(tmp_path / "clutch-demo-mine")
    fresh = finished(None)
    assert (named.exists(), fresh.exists()) == (True, True)
    unfinished = new_job(DemoOptions(str(tmp_path / "surveyed"))).state
    assert (named.exists(), fresh.exists()) == (True, False)
    finished(None)
    assert unfinished.exists(), "--resume finishes it"
    (tmp_path / "link").symlink_to(named)
    (tmp_path / "link").rename(tmp_path / "clutch-demo-link")
    finished(None)
    assert named.exists()
