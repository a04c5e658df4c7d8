"""The rules of checks: what one is, which run again after a crash, and what follows from their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core import checks, run
from clutch.core.checks import (
    CheckReport,
    CheckResult,
    CheckState,
    Conclusion,
    TaskCheck,
    bounded,
    conclusion,
    error_text,
    report_of,
    taken_up,
    typed,
)
from clutch.core.messages import Answer, Call, Entry, Input, Result, Results
from clutch.core.model import LetterKind
from clutch.core.run import ANY_TOOL, CHECK_NOTE, NOTES, SUBMIT
from clutch.core.text.check_notes import VERDICT_TOOL, repair_note, verdict_of
from clutch.core.text.tasks import parse_fences
from clutch.errors import InvalidInput

NONCE = "0" * 32
ENDED = st.sampled_from([CheckState.PASSED, CheckState.FAILED, CheckState.UNKNOWN])
RESULTS = st.builds(CheckResult, st.text('ab "', max_size=20), ENDED, st.text(max_size=50))
TEXTS = st.text("abc.*/ ", min_size=1, max_size=10).filter(str.strip)
CHECKS = st.one_of(
    st.builds(TaskCheck, file=TEXTS, min_bytes=st.none() | st.integers(0, 9), name=st.none() | TEXTS),
    st.builds(TaskCheck, command=TEXTS, timeout_seconds=st.none() | st.floats(0.1, 3600)),
    st.builds(TaskCheck, calls=TEXTS, min_calls=st.none() | st.integers(1, 9)),
    st.builds(TaskCheck, agent=TEXTS, prompt=st.none() | TEXTS),
    st.builds(TaskCheck, schema=st.just({"type": "object"}), file=st.none() | TEXTS),
)


def reported(results: Sequence[CheckResult]) -> CheckReport:
    return CheckReport(1, 7, len(results), tuple(results))


# ---- what a check is ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["command", "name"])
def test_a_title_shows_no_secret(field: str) -> None:
    """It is in lists, errors and messages, and a cut must not leave a part of it."""
    secret = "sk-" + "a1" * 12
    check = TaskCheck(**{"command": "true", field: f"curl -H 'Authorization: Bearer {secret}'"})  # type: ignore[arg-type]
    assert "a1a1" not in check.title


@given(st.lists(CHECKS, max_size=4))
def test_stored_checks_are_read_as_they_were(some: list[TaskCheck]) -> None:
    assert checks.from_text(checks.to_text(some)) == tuple(some)


@pytest.mark.parametrize(
    ("given_", "field"),
    [
        ({}, "check"),
        ({"file": "a", "command": "b"}, "check"),
        ({"file": " "}, "file"),
        ({"command": "a\0"}, "command"),
        ({"file": "a", "matches": "("}, "matches"),
        ({"file": "a", "min_bytes": 2, "max_bytes": 1}, "minBytes"),
        ({"file": "a", "min_bytes": -1}, "min_bytes"),
        ({"command": "a", "matches": "x"}, "matches"),
        ({"command": "a", "timeout_seconds": 0.0}, "timeoutSeconds"),
        ({"calls": "shell", "min_calls": 0}, "min_calls"),
        ({"schema": {}, "file": "a", "min_bytes": 1}, "min_bytes"),
    ],
)
def test_what_is_no_check_names_the_field(given_: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as error:
        TaskCheck(**given_)
    assert error.value.field == field


def test_checks_of_the_command_line() -> None:
    assert typed("file:out.md") == {"file": "out.md"}
    assert typed("command:pytest -q tests/a:b") == {"command": "pytest -q tests/a:b"}
    assert typed("calls:sessions_spawn>=2") == {"calls": "sessions_spawn", "minCalls": 2}
    assert typed('{"schema": {}}') == {"schema": {}}
    for wrong in ("out.md", "files:out.md", "calls:shell>=two", "{"):
        with pytest.raises(InvalidInput):
            typed(wrong)


# ---- the journal -------------------------------------------------------------------------------------------


@given(st.lists(RESULTS, min_size=1, max_size=6), st.data())
def test_after_a_crash_only_checks_without_a_result_run(
    results: list[CheckResult], data: st.DataObject
) -> None:
    """Whatever was stored last, each check gets exactly one result, and none that had one gets another."""
    report, ran = CheckReport(1, 7, len(results)), list[int]()
    while (place := report.next) is not None:
        report = report.having(place, CheckResult("t", CheckState.RUNNING))
        if data.draw(st.booleans()):  # a crash: the stored text is all that is left
            stored = report_of(report.to_text(), 1)
            assert taken_up(stored, 1, 7, len(results)) == report
            assert report.next == place
        ran.append(place)
        report = report.having(place, results[place])
    assert ran == list(range(len(results)))
    assert report.results == tuple(results)


@given(st.lists(RESULTS, max_size=3))
def test_results_of_another_answer_say_nothing_about_this_one(results: list[CheckResult]) -> None:
    report = reported(results)
    assert taken_up(report, 1, 8, len(results)).results == ()
    assert report_of(report.to_text(), 2) is None


@given(st.text(max_size=10_000))
def test_output_is_bounded_and_without_secrets(output: str) -> None:
    assert len(bounded(output)) <= checks.DETAIL_CHARS_MAX + 100
    assert "hunter2000" not in bounded(f"password=hunter2000 {output}")


# ---- what follows ------------------------------------------------------------------------------------------


@given(st.lists(RESULTS, min_size=1, max_size=6), st.integers(0, 3))
def test_only_a_result_that_passed_every_check_is_done(results: list[CheckResult], repairs: int) -> None:
    states = {result.state for result in results}
    found = conclusion(reported(results), repairs)
    assert (found is Conclusion.DONE) == (states == {CheckState.PASSED})
    assert (found is Conclusion.REPAIR) <= (repairs == 0 and CheckState.FAILED in states)


@given(st.lists(RESULTS, min_size=1, max_size=6).filter(lambda some: conclusion(reported(some), 1) != "done"))
def test_the_error_and_the_note_name_what_failed(results: list[CheckResult]) -> None:
    error = error_text(reported(results))
    place = int(error.removeprefix("check ").partition(":")[0])
    assert results[place - 1].state is not CheckState.PASSED
    assert "\n" not in error
    note = repair_note(reported(results), NONCE)
    wrong = [result for result in results if result.state is not CheckState.PASSED]
    assert [fenced.text for fenced in parse_fences(note, NONCE)] == [
        one.detail or "(no output)" for one in wrong
    ]


NOTED = st.sampled_from([CHECK_NOTE, *NOTES, LetterKind.ANNOUNCE, LetterKind.PEER])
ENTRIES: st.SearchStrategy[Entry] = st.one_of(
    st.builds(Input, st.just("x"), NOTED), st.builds(Answer, st.just("said"))
)


@given(st.lists(ENTRIES, max_size=8))
def test_a_child_cannot_get_more_repairs_by_itself(entries: list[Entry]) -> None:
    """Nothing that it or its own children write resets the count; a person or its parent does."""
    task: Entry = Input("do it", LetterKind.TASK)
    made = sum(isinstance(one, Input) and one.source == CHECK_NOTE for one in entries)
    assert run.repairs_made([task, *entries]) == made
    assert run.repairs_made([*entries, Input("again", LetterKind.INSTRUCTION)]) == 0


def test_the_answer_that_waits_for_its_checks() -> None:
    final, note = Answer("done"), Input("files are missing", LetterKind.NOTE)
    assert run.awaiting([Input("task"), final]) is final
    assert run.awaiting([Input("task"), final, note]) is final
    assert run.notes_after([Input("task"), final, note]) == 1
    assert run.awaiting([Input("task"), final, Input("failed", CHECK_NOTE)]) is None
    assert run.awaiting([Answer("", (Call("a", {}),))]) is None
    assert run.awaiting([note]) is None


def test_only_calls_that_succeeded_count() -> None:
    made = [
        Results((Result(0, "shell", "ok"), Result(1, "shell", "no", failed=True))),
        Results((Result(0, "read", "ok"), Result(1, SUBMIT, "ok"))),
    ]
    assert run.successes(made, "shell") == 1
    assert run.successes(made, ANY_TOOL) == 2


@given(st.booleans(), st.text(max_size=5))
def test_only_a_whole_verdict_counts(passed: bool, reason: str) -> None:
    call = Call(VERDICT_TOOL, {"passed": passed, "reason": reason})
    assert verdict_of(Answer("", (call,))) is (CheckState.PASSED if passed else CheckState.FAILED)
    for wrong in (
        Answer("passed: true"),
        Answer("", (call, call)),
        Answer("", (Call(VERDICT_TOOL, {"passed": "true", "reason": reason}),)),
        Answer("", (Call("other", {"passed": True, "reason": reason}),)),
    ):
        assert verdict_of(wrong) is None
