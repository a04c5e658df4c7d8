"""Bounds of a run as the transcript shows them: a call made again and again, and a result that must have a form."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core import run
from clutch.core.messages import Answer, Call, Entry, Input, Result, Results, Summary
from clutch.core.model import LetterKind
from clutch.core.policy import Life
from clutch.core.run import FORM_NOTE, SUBMIT, Loop, SinceInput, submitted

LIFE = Life()
TASK = Input("do it", LetterKind.TASK)
NOTE = Input("[Budget] 80 %", LetterKind.NOTE)
FORM = Input("use the tool", FORM_NOTE)


def calls(*made: Call) -> Answer:
    return Answer("", made, stop="tools")


def reads(path: str = "a", times: int = 1) -> Answer:
    return calls(*(Call("read", {"path": path}) for _ in range(times)))


def gave(answer: Answer, *, failed: bool = False) -> Results:
    results = (Result(index, call.name, "text", failed) for index, call in enumerate(answer.calls))
    return Results(tuple(results))


def steps(*answers: Answer) -> list[Entry]:
    """Each answer with its results, after the task."""
    return [TASK, *(entry for answer in answers for entry in (answer, gave(answer)))]


def looped(before: Sequence[Entry], answer: Answer) -> Loop:
    """The same before the answer is committed and after."""
    is_about_to = SinceInput(before).loop(answer, LIFE)
    assert SinceInput([*before, answer]).loop(answer, LIFE) is is_about_to
    return is_about_to


def verdict(*answers: Answer) -> Loop:
    *before, last = answers
    return looped(steps(*before), last)


def form_errors(transcript: Sequence[Entry]) -> int:
    return SinceInput(transcript).form_errors()


# ---- the same call again and again -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "expected"),
    [(1, Loop.NONE), (3, Loop.NONE), (4, Loop.WARNED), (7, Loop.WARNED), (8, Loop.ENDED), (9, Loop.ENDED)],
)
def test_same_call_is_warned_at_four_and_ended_at_eight(times: int, expected: Loop) -> None:
    assert verdict(*[reads()] * times) is expected


def test_other_arguments_are_another_call() -> None:
    assert verdict(*(reads(str(number)) for number in range(20))) is Loop.NONE


def test_order_of_the_arguments_does_not_hide_a_repetition() -> None:
    one, other = calls(Call("x", {"a": 1, "b": 2})), calls(Call("x", {"b": 2, "a": 1}))
    assert verdict(one, other, one, other) is Loop.WARNED


def test_calls_in_between_do_not_hide_a_repetition() -> None:
    assert verdict(*[reads("a"), reads("b")] * 4) is Loop.WARNED


def test_calls_of_one_answer_count_each() -> None:
    assert verdict(reads(times=4)) is Loop.WARNED
    assert verdict(reads(times=4), reads(times=4)) is Loop.ENDED


def test_words_from_outside_start_the_count_anew() -> None:
    before = steps(*[reads()] * 6)
    answer = reads()
    assert looped(before, answer) is Loop.WARNED
    assert looped([*before, Input("again", LetterKind.INSTRUCTION)], answer) is Loop.NONE


def test_note_of_the_runtime_does_not_start_the_count_anew() -> None:
    answer = reads()
    assert looped([*steps(*[reads()] * 7), NOTE], answer) is Loop.ENDED


def test_answer_without_calls_is_no_loop() -> None:
    assert verdict(*[reads()] * 7, Answer("done")) is Loop.NONE


# ---- a result in a form ------------------------------------------------------------------------------------

GOOD = calls(Call("read", {}), Call(SUBMIT, {"value": 1}))
BAD = calls(Call(SUBMIT, {"value": "x"}))


def test_accepted_value_is_found_at_the_end_of_the_transcript() -> None:
    found = submitted([TASK, GOOD, gave(GOOD)])
    assert found is not None
    assert found.args == {"value": 1}


def test_notes_that_came_with_the_results_do_not_hide_an_accepted_value() -> None:
    assert submitted([TASK, GOOD, gave(GOOD), NOTE, NOTE]) is not None


@pytest.mark.parametrize(
    "transcript",
    [
        [],
        [TASK],
        [TASK, GOOD],
        [TASK, BAD, gave(BAD, failed=True)],
        [TASK, GOOD, gave(GOOD), Input("one more thing", LetterKind.INSTRUCTION)],
        [TASK, GOOD, gave(GOOD), Answer("and then")],
        [TASK, reads(), gave(reads())],
        [TASK, Summary("short", 1), gave(GOOD)],
    ],
)
def test_anything_else_is_no_accepted_value(transcript: list[Entry]) -> None:
    assert submitted(transcript) is None


def test_wrong_forms_are_counted_since_the_last_words_from_outside() -> None:
    wrong: list[Entry] = [BAD, gave(BAD, failed=True)]
    assert form_errors([TASK]) == 0
    assert form_errors([TASK, *wrong]) == 1
    assert form_errors([TASK, *wrong, NOTE, *wrong]) == 2
    assert form_errors([TASK, Answer("text"), FORM]) == 1
    assert form_errors([TASK, Answer("text"), FORM, *wrong]) == 2
    assert form_errors([TASK, *wrong, Input("go on", LetterKind.INSTRUCTION)]) == 0


def test_answer_that_submits_twice_is_one_try() -> None:
    twice = calls(*BAD.calls, *BAD.calls)
    assert form_errors([TASK, twice, gave(twice, failed=True)]) == 1


@given(
    st.text(alphabet=" \n\tab", max_size=4),
    st.lists(st.booleans(), max_size=3),
    st.lists(st.booleans(), max_size=3),
)
def test_only_an_empty_answer_of_a_run_that_used_no_tool_is_a_failure(
    text: str, earlier: list[bool], this_run: list[bool]
) -> None:
    """`earlier`, `this_run`: for each answer, whether it made a call."""
    said = [Answer("", (Call("look", {}),) if has_called else ()) for has_called in earlier + this_run]
    before: list[Entry] = [Input("go", "task"), *said]
    answer = Answer(text)
    is_failure = not text.strip() and not any(this_run)
    assert run.is_failure(before, answer, steps=len(this_run)) == is_failure
    assert not run.is_failure(before, Answer(text, (Call("look", {}),)), steps=len(this_run))


@given(st.text(max_size=4), st.booleans())
def test_a_text_beside_calls_is_not_the_last(text: str, calls_now: bool) -> None:
    answer = Answer(text, (Call("look", {}),) if calls_now else ())
    assert run.last_text(answer) == ("" if calls_now else text)


@given(
    st.lists(
        st.sampled_from(
            [GOOD, BAD, reads("a"), reads("b"), gave(GOOD), gave(BAD, failed=True), NOTE, FORM, TASK]
        ),
        max_size=30,
    )
)
def test_counting_while_a_transcript_grows_is_counting_it_at_once(entries: list[Entry]) -> None:
    grown: list[Entry] = []
    growing, life = SinceInput(grown), Life(same_call_warn=2, same_call_max=4)
    for entry in entries:
        grown.append(entry)
        assert growing.form_errors() == SinceInput(list(grown)).form_errors()
        assert growing.loop(BAD, life) is SinceInput(list(grown)).loop(BAD, life)


def test_answer_that_loses_the_contents_of_files_is_counted_without_them() -> None:
    transcript = steps(*[reads("short")] * 3)
    since = SinceInput(transcript)
    transcript.append(reads("long"))
    assert since.loop(reads("long"), LIFE) is Loop.NONE
    transcript[-1] = reads("short")
    transcript.append(gave(reads("short")))
    assert since.loop(reads("short"), LIFE) is Loop.WARNED
    assert since.loop(reads("long"), LIFE) is Loop.NONE
