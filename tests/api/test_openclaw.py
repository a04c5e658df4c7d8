"""Reading what OpenClaw wrote: every spelling it had, and whatever else may lie in such a file."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.messages import Answer, Call, Input, Result, Results, Usage, dump
from clutch.core.model import Outcome
from clutch.importers import records as records_importers
from clutch.importers.records import PROBLEMS_MAX, FileProblems, ImportProblem, OpenClawTranscript, Run
from tests.api.openclaw_state import T, calls, ended, gave, run, said
from tests.examples import examples


def read_runs(*records: dict[str, Any], version: int = 2) -> list[Run]:
    reading = FileProblems("runs.json")
    text = json.dumps({"version": version, "runs": {one["runId"]: one for one in records}})
    found = records_importers.runs(text, reading)
    assert reading.done() == []
    return found


def read_talk(*lines: dict[str, Any] | str) -> tuple[OpenClawTranscript, list[ImportProblem]]:
    reading = FileProblems("s.jsonl")
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    return records_importers.transcript(text, reading), reading.done()


# ---- the registry ------------------------------------------------------------------------------------------


def test_a_run_is_read_with_its_times_in_seconds() -> None:
    (one,) = read_runs(run("r1", "agent:main:subagent:x", **ended(), frozenResultText="found"))
    assert (one.run_id, one.key, one.label, one.task) == ("r1", "agent:main:subagent:x", "r1", "do r1")
    assert (one.created_at, one.started_at, one.ended_at) == (T / 1000, T / 1000 + 1, T / 1000 + 60)
    assert (one.outcome, one.text, one.is_delivered) == (Outcome.OK, "found", False)


@pytest.mark.parametrize(
    ("record", "outcome"),
    [
        (ended("ok"), Outcome.OK),
        (ended("error", error="boom"), Outcome.ERROR),
        (ended("timeout"), Outcome.TIMEOUT),
        (ended("unknown"), Outcome.LOST),
        (ended("ok") | {"suppressAnnounceReason": "killed"}, Outcome.KILLED),
        (ended("error") | {"endedReason": "subagent-killed"}, Outcome.KILLED),
        ({"endedAt": T}, Outcome.LOST),
        ({"execution": {"endedAt": T, "outcome": {"status": "timeout"}}}, Outcome.TIMEOUT),
        ({}, None),
        ({"endedAt": T, "pauseReason": "sessions_yield"}, None),
        ({"endedAt": True}, None),
    ],
)
def test_what_became_of_a_run(record: dict[str, Any], outcome: Outcome | None) -> None:
    (one,) = read_runs(run("r", "agent:main:subagent:x", **record))
    assert one.outcome is outcome


@pytest.mark.parametrize(
    ("record", "is_told"),
    [
        ({"cleanupCompletedAt": T}, True),
        ({"completionAnnouncedAt": T}, True),
        ({"announceCompletedAt": T}, True),
        ({"delivery": {"status": "delivered"}}, True),
        ({"delivery": {"status": "discarded"}}, True),
        ({"delivery": {"status": "pending"}}, False),
        ({"delivery": {"status": "suspended", "attemptCount": 3}}, False),
        ({"cleanupHandled": True}, False),
        ({}, False),
    ],
)
def test_who_was_told_is_read_in_the_old_and_in_the_new_place(record: dict[str, Any], is_told: bool) -> None:
    (one,) = read_runs(run("r", "agent:main:subagent:x", **ended(), **record), version=1)
    assert one.is_delivered is is_told


@pytest.mark.parametrize(
    "record",
    [
        {"frozenResultText": "found"},
        {"completion": {"resultText": "found"}, "fallbackFrozenResultText": "older"},
        {"frozenResultText": None, "fallbackFrozenResultText": "found"},
        {"delivery": {"status": "pending", "payload": {"frozenResultText": "found"}}},
    ],
)
def test_a_result_is_found_wherever_it_was_kept(record: dict[str, Any]) -> None:
    (one,) = read_runs(run("r", "agent:main:subagent:x", **ended(), **record))
    assert one.text == "found"


def test_a_record_without_a_session_is_a_problem_and_the_others_are_read() -> None:
    reading = FileProblems("subagents/runs.json")
    records = {"a": run("a", "agent:main:subagent:x"), "b": {"runId": "b"}, "c": 3}
    assert [
        one.run_id for one in records_importers.runs(json.dumps({"version": 2, "runs": records}), reading)
    ] == ["a"]
    assert [one.what[:7] for one in reading.done()] == ["run 'b'", "run 'c'"]


@pytest.mark.parametrize(
    ("text", "line"),
    [('{"version": 2,\n "runs": {', 2), ("[]", 1), ('{"version": 3, "runs": {}}', 1), ("", 1)],
)
def test_a_registry_that_cannot_be_read_is_a_problem_with_its_line(text: str, line: int) -> None:
    reading = FileProblems("subagents/runs.json")
    assert records_importers.runs(text, reading) == []
    assert [(one.file, one.line) for one in reading.done()] == [("subagents/runs.json", line)]


# ---- transcripts -------------------------------------------------------------------------------------------


def test_a_talk_is_read_with_its_calls_and_what_they_gave() -> None:
    found, problems = read_talk(
        {"type": "session", "version": 3, "id": "s"},
        said("user", "look into a"),
        calls("read", "c1", "I look."),
        gave("c1", "text of a"),
        {"type": "compaction", "summary": "…"},
        said("assistant", "it is fine"),
    )
    assert problems == []
    assert found.messages == (
        Input("look into a", "task"),
        Answer("I look.", (Call("read", {"path": "a"}, "c1"),), Usage(15, 5, 3, 2), "m-1", "tools"),
        Results((Result(0, "read", "text of a"),)),
        Answer("it is fine"),
    )
    assert found.prices == (Decimal("0.01"), None)
    assert found.times[0] == T / 1000 + 2
    assert found.final_text == "it is fine"


def test_arguments_that_could_not_be_shown_elsewhere_are_mended() -> None:
    odd = calls("read", "c1")
    odd["message"]["content"][2]["arguments"] = {"path": "\ud800", "limit": float("inf")}
    found, _ = read_talk(said("user", "go"), odd, gave("c1", "x"), said("assistant", "fine"))
    (answer,) = (one for one in found.messages if isinstance(one, Answer) and one.calls)
    assert answer.calls[0].args == {"path": "\ufffd", "limit": "Infinity"}


def test_a_call_without_a_result_and_a_result_without_a_call_are_left_out() -> None:
    found, _ = read_talk(
        said("user", "go"), calls("read", "c1"), gave("c9", "whose?"), calls("read", "c2", "so")
    )
    assert found.messages == (Input("go", "task"), Answer("so", (), Usage(15, 5, 3, 2), "m-1", "end"))


def test_broken_lines_are_told_by_their_number_and_the_rest_is_read() -> None:
    found, problems = read_talk(
        said("user", "go"), '{"type": "message", "mess', "[1]", {"type": "message"}, said("assistant", "done")
    )
    assert [one.line for one in problems] == [2, 3, 4]
    assert {one.file for one in problems} == {"s.jsonl"}
    assert [type(one) for one in found.messages] == [Input, Answer]


def test_a_file_that_is_no_text_at_all_has_few_problems() -> None:
    _, problems = read_talk(*(f"\x00{number}" for number in range(1000)))
    assert len(problems) == PROBLEMS_MAX + 1
    assert problems[-1].what == f"{1000 - PROBLEMS_MAX} more like these"


# ---- anything ----------------------------------------------------------------------------------------------

WORDS = st.text(max_size=20) | st.sampled_from(
    ["message", "assistant", "user", "toolResult", "toolCall", "text", "ok", "killed", "\0", "\ud800"]
)
NUMBERS = st.integers(-(10**400), 10**400) | st.floats() | st.booleans() | st.none()
NAMES = WORDS | st.sampled_from(
    [
        *(
            "runId",
            "childSessionKey",
            "requesterSessionKey",
            "endedAt",
            "createdAt",
            "outcome",
            "status",
            "execution",
        ),
        *("delivery", "completion", "payload", "message", "role", "content", "type", "text", "id", "name"),
        *(
            "arguments",
            "toolCallId",
            "usage",
            "cost",
            "total",
            "input",
            "spawnDepth",
            "spawnedBy",
            "sessionId",
        ),
    ]
)
ANYTHING = st.recursive(
    WORDS | NUMBERS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=6),
    max_leaves=20,
)
RECORDS = st.dictionaries(NAMES, ANYTHING, max_size=8)


def is_storable(text: str) -> bool:
    return "\0" not in text and text.encode().decode() == text


@examples(200)
@given(st.dictionaries(WORDS, RECORDS, max_size=3))
def test_any_registry_is_read_and_every_record_can_be_stored(records: dict[str, Any]) -> None:
    reading = FileProblems("f")
    for one in records_importers.runs(json.dumps({"version": 2, "runs": records}), reading):
        assert all(
            map(is_storable, (one.run_id, one.key, one.requester, one.task, one.label or "", one.text or ""))
        )
        assert all(at is None or 0 < at < 1e10 for at in (one.created_at, one.started_at, one.ended_at))
    reading.done()


@examples(200)
@given(st.dictionaries(WORDS, ANYTHING, max_size=3) | ANYTHING)
def test_any_index_is_read(entries: Any) -> None:
    for one in records_importers.sessions(json.dumps(entries), FileProblems("f")):
        assert is_storable(one.run.key + one.session_id)
        assert 0 <= one.depth <= 100


@examples(200)
@given(st.lists(RECORDS.map(lambda message: {"type": "message", "message": message}) | ANYTHING, max_size=8))
def test_any_transcript_is_read_and_has_no_open_ends(lines: list[Any]) -> None:
    found, _ = read_talk(*(json.dumps(line) for line in lines))
    assert len(found.messages) == len(found.times)
    assert len(found.prices) == sum(isinstance(one, Answer) for one in found.messages)
    for place, one in enumerate(found.messages):
        dump(one)
        if isinstance(one, Answer) and one.calls:
            after = found.messages[place + 1]
            assert isinstance(after, Results)
            assert [result.name for result in after.results] == [call.name for call in one.calls]


@examples(200)
@given(st.text() | st.binary().map(lambda raw: raw.decode(errors="replace")))
def test_any_text_is_read_without_a_crash(text: str) -> None:
    for parse in (records_importers.runs, records_importers.sessions, records_importers.transcript):
        parse(text, FileProblems("f"))
