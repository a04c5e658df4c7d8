"""The demo says ok only when all of it is: each way to fail is noticed by itself."""

from __future__ import annotations

from typing import Any

import pytest

from clutch.cli.demo.report import problems

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
