"""What is written down about a task's work when its outcome is fixed."""

from __future__ import annotations

import pytest

from clutch.core.messages import Answer, Call, Input, Result, Results
from clutch.core.model import Outcome, Reason, SessionId, Task, TaskId
from clutch.core.views import FILES_MAX, Evidence, evidence_of, files_touched, stop_reason


def written(*paths: str, failed: tuple[int, ...] = (), tool: str = "write") -> list[Answer | Results]:
    calls = tuple(Call(tool, {"path": path}) for path in paths)
    gave = tuple(Result(place, tool, "ok", failed=place in failed) for place in range(len(paths)))
    return [Answer("", calls), Results(gave)]


def test_evidence_is_read_back_as_it_was_written() -> None:
    evidence = Evidence(3, ("a b.txt", "ü"), 2, ('say "hi"',), "error: x")
    assert evidence_of(evidence.to_text(4), 4) == evidence


def test_evidence_of_an_older_generation_says_nothing_about_this_one() -> None:
    assert evidence_of(Evidence().to_text(1), 2) is None
    assert evidence_of(None, 1) is None


def test_files_are_named_once_in_the_order_they_were_first_touched() -> None:
    entries = [*written("b", "a"), *written("b", "c", tool="edit")]
    assert files_touched(entries) == ("b", "a", "c")


def test_a_write_that_failed_or_has_no_result_or_is_another_tool_touched_nothing() -> None:
    assert files_touched(written("a", "b", failed=(0,))) == ("b",)
    assert files_touched([written("a")[0], Input("go on")]) == ()
    assert files_touched(written("a", tool="read")) == ()
    assert (
        files_touched([Answer("", (Call("write", {"path": 7}),)), Results((Result(0, "write", "ok"),))]) == ()
    )


def test_the_list_of_files_is_bounded() -> None:
    assert len(files_touched(written(*(str(number) for number in range(500))))) == FILES_MAX


@pytest.mark.parametrize(
    ("outcome", "error", "reason", "expected"),
    [
        (Outcome.OK, None, "ok", "end"),
        (Outcome.OK, None, Reason.EXPIRED, Reason.EXPIRED),
        (
            Outcome.ERROR,
            "the provider cut the answer (length)",
            "error",
            "the provider cut the answer (length)",
        ),
        (Outcome.TIMEOUT, None, "timeout", "timeout"),
        (Outcome.KILLED, "enough", "killed", "killed"),
        (Outcome.LOST, "owner gone", "lost", "lost"),
    ],
)
def test_the_stop_reason_is_the_cause(
    outcome: Outcome, error: str | None, reason: str, expected: str
) -> None:
    assert (
        stop_reason(Task(TaskId(1), SessionId(2), outcome=outcome, error=error, reason=Reason(reason)))
        == expected
    )
