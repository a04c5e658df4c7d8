"""However long a conversation gets, what a model is shown is well-formed, bounded and has its task in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.compaction import (
    BINDING,
    RECORD_CHARS_MAX,
    ContextLimits,
    Cut,
    cut,
    estimate_tokens,
    forked,
    record,
    size,
    summary,
    view,
)
from clutch.core.messages import (
    Answer,
    Call,
    Entry,
    Input,
    Message,
    Result,
    Results,
    Summary,
    Usage,
    dump,
    kind,
    load,
)
from clutch.core.model import LetterKind
from clutch.core.text import prompts

SMALL = ContextLimits(window_tokens=4000, keep_tokens=600)
TASK = Input("[Subagent task, depth 1 of 1]\n\nCount the words.", LetterKind.TASK)
TEXTS = st.text(max_size=40) | st.integers(0, 6000).map(lambda length: "x" * length)
INPUTS = st.builds(Input, TEXTS, st.sampled_from(LetterKind).map(str).filter(lambda kind: kind != "task"))


def _step(text: str, names: Sequence[str], gave: str) -> list[Message]:
    calls = tuple(Call(name, {"path": text[:20]}) for name in names)
    results = tuple(Result(place, name, gave) for place, name in enumerate(names))
    return [Answer(text, calls, stop="tools"), Results(results)]


STEPS = st.builds(_step, TEXTS, st.lists(st.sampled_from(["read", "search"]), min_size=1, max_size=3), TEXTS)
WORDS = st.builds(lambda text, said: [Answer(text), said], TEXTS, INPUTS)
PARTS = STEPS | WORDS | INPUTS.map(lambda said: [said])
STORIES = st.lists(PARTS, max_size=30).map(lambda parts: [TASK, *(said for part in parts for said in part)])
BASES = st.integers(0, 50)


def is_well_formed(shown: Sequence[Message]) -> bool:
    """It opens with an input, and answers with calls and their results come in pairs."""
    pairs = zip([None, *shown], [*shown, None], strict=True)
    return isinstance(shown[0], Input) and all(
        (isinstance(before, Answer) and bool(before.calls)) == isinstance(after, Results)
        for before, after in pairs
    )


def steps(count: int, chars: int = 1000) -> list[Message]:
    return [said for number in range(count) for said in _step(f"step {number}", ["read"], "r" * chars)]


def compact(transcript: list[Entry], base: int = 0, rules: ContextLimits = SMALL, text: str = "notes") -> Cut:
    chosen = cut(transcript, base, rules)
    assert chosen is not None
    transcript.append(summary(chosen, text))
    return chosen


# ---- the view --------------------------------------------------------------------------------------------


def test_without_a_summary_the_same_list_is_shown() -> None:
    transcript: list[Entry] = [TASK, *steps(3)]
    assert view(transcript, 0) is transcript


@given(STORIES, st.text(), BASES)
def test_what_is_shown_is_well_formed_and_smaller_and_ends_as_it_did(
    story: list[Entry], text: str, base: int
) -> None:
    before = list(view(story, base))
    chosen = cut(story, base, SMALL, is_forced=True)
    if chosen is None:
        return
    story.append(summary(chosen, text * 500))
    after = view(story, base)
    assert is_well_formed(after)
    assert size(after) < size(before)
    kept = len(before) - len(chosen.old)
    assert list(after[len(after) - kept :]) == before[len(before) - kept :]
    assert not any(isinstance(said, Summary) for said in after)


@given(st.lists(PARTS, min_size=5, max_size=60), st.text(max_size=200))
def test_compaction_goes_on_as_long_as_the_conversation_does(parts: list[list[Message]], text: str) -> None:
    story: list[Entry] = [TASK]
    for part in parts:
        story += part
        chosen = cut(story, 0, SMALL)
        if chosen is not None:
            story.append(summary(chosen, text))
        shown = view(story, 0)
        assert is_well_formed(shown)
        assert shown.count(TASK) == 1
        bound = [said for said in story if isinstance(said, Input) and said.source in BINDING]
        assert bound[-1] in shown


@given(STORIES, BASES)
def test_what_the_model_has_not_answered_is_never_hidden(story: list[Entry], base: int) -> None:
    chosen = cut(story, base, SMALL, is_forced=True)
    if chosen is None:
        return
    answered = max(at for at, said in enumerate(story) if isinstance(said, Answer))
    story.append(summary(chosen, "notes"))
    fresh = story[answered + 1 : -1]
    shown = view(story, base)
    assert list(shown[len(shown) - len(fresh) :]) == fresh


@given(STORIES, BASES)
def test_an_earlier_generation_changes_nothing_but_the_numbers(story: list[Entry], base: int) -> None:
    here, there = (cut(story, number, SMALL, is_forced=True) for number in (0, base))
    assert (here is None) == (there is None)
    if here is not None and there is not None:
        assert there == replace(here, upto=here.upto + base)
        assert view([*story, summary(here, "n")], 0) == view([*story, summary(there, "n")], base)


def test_the_summary_stands_between_the_task_and_the_last_word_of_a_person() -> None:
    asked = Input("Only Python files, please.", LetterKind.USER)
    story: list[Entry] = [TASK, *steps(5), asked, *steps(30)]
    compact(story)
    first, second, third, *rest = view(story, 0)
    assert (first, third) == (TASK, asked)
    assert isinstance(second, Input)
    assert second.text == prompts.compacted("notes")
    assert rest == story[-1 - len(rest) : -1]


def test_a_second_summary_is_made_of_the_first() -> None:
    story: list[Entry] = [TASK, *steps(30)]
    first = compact(story, text="first notes")
    story += steps(30)
    second = compact(story, text="second notes")
    assert second.upto > first.upto
    assert "first notes" in record(second.old)
    assert "first notes" not in str(view(story, 0))


def test_a_cut_may_fall_before_the_place_of_the_last_summary() -> None:
    """The summary is stored after the newest messages, which it does not cover."""
    story: list[Entry] = [TASK, *steps(60, chars=300)]
    first = compact(story, rules=replace(SMALL, keep_tokens=1000))
    story += steps(1, chars=20)
    again = cut(story, 0, SMALL, is_forced=True)
    assert again is not None
    assert first.upto < again.upto < len(story) - 3
    story.append(summary(again, "notes"))
    assert is_well_formed(view(story, 0))


# ---- when ------------------------------------------------------------------------------------------------


def test_it_cuts_at_four_fifths_of_the_window_and_keeps_the_newest_part() -> None:
    rules = ContextLimits(window_tokens=10_000, keep_tokens=1000)
    story: list[Entry] = [TASK]
    while cut(story, 0, rules) is None:
        story += steps(1)
    assert 8000 < estimate_tokens(story, 0) < 8400
    chosen = compact(story, rules=rules)
    kept = story[chosen.upto : -1]
    assert isinstance(kept[0], Answer)
    assert 700 < size([said for said in kept if not isinstance(said, Summary)]) // 4 <= 1000
    assert estimate_tokens(story, 0) < 1500


def test_what_the_provider_counted_is_believed_and_only_the_rest_is_guessed() -> None:
    counted = Answer("short", usage=Usage(input=90_000, output=500))
    story: list[Entry] = [TASK, counted, Input("x" * 4000)]
    assert 91_500 <= estimate_tokens(story, 0, overhead_bytes=10**9) < 91_550


def test_a_count_from_before_the_summary_is_not_believed_any_more() -> None:
    """Else the next step would compact again, and the one after it."""
    story: list[Entry] = [TASK, *steps(20)]
    story += [replace(Answer("a", (Call("read", {}),)), usage=Usage(input=3900)), Results(())]
    compact(story)
    assert estimate_tokens(story, 0) < 1500
    assert cut(story, 0, SMALL) is None


def test_a_conversation_with_nothing_to_leave_out_is_left_alone() -> None:
    huge = Input("x" * 100_000, LetterKind.USER)
    assert cut([huge], 0, SMALL, is_forced=True) is None
    assert cut([TASK, *steps(1, chars=100_000)], 0, SMALL, is_forced=True) is None
    assert cut([], 0, SMALL, is_forced=True) is None


def test_a_provider_that_says_too_long_is_believed_again_and_again_until_nothing_is_left() -> None:
    """A window that is smaller than configured: every cut keeps less than the one before."""
    story: list[Entry] = [TASK, *steps(60)]
    sizes = [size(view(story, 0))]
    while chosen := cut(story, 0, ContextLimits(), is_forced=True):
        story.append(summary(chosen, "notes"))
        sizes.append(size(view(story, 0)))
        assert len(sizes) < 20
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 5000


# ---- the words -------------------------------------------------------------------------------------------


@given(st.text())
def test_every_line_of_a_summary_is_marked_as_one(text: str) -> None:
    head, *lines = prompts.compacted(text).splitlines()
    assert head.startswith("[Summary]")
    assert all(line.startswith("> ") for line in lines)


def test_the_record_has_names_ids_and_both_ends_of_long_texts() -> None:
    long = "begin" + "x" * 3 * RECORD_CHARS_MAX + "end"
    old: list[Message] = [
        TASK,
        Answer("looking", (Call("read", {"path": "a/b.py"}),)),
        Results((Result(0, "read", long, failed=True),)),
    ]
    text = record(old)
    for words in ("[task]", "Count the words.", "looking", "a/b.py", "[read failed]", "begin", "end"):
        assert words in text
    assert len(text) < RECORD_CHARS_MAX + 500


@pytest.mark.parametrize("text", ["猫" * 1000, "a\ud800\0" * 1000, "plain " * 1000])
def test_a_summary_is_never_longer_than_allowed(text: str) -> None:
    made = summary(Cut(7, (), 100), text)
    assert 90 < len(made.text.encode()) <= 100
    assert made.upto == 7


def test_a_summary_has_lines_and_no_other_characters_that_leave_no_mark() -> None:
    assert summary(Cut(7, (), 100), "one\ntwo\x1b[31m\u202e\u2028three").text == "one\ntwo [31m  three"


# ---- a copy for a child ------------------------------------------------------------------------------------

SPAWNING = Answer("I delegate.", (Call("sessions_spawn", {"task": "x"}),), Usage(50_000, 10))


@given(STORIES, st.booleans())
def test_a_fork_is_well_formed_and_ends_before_the_answer_that_spawns(
    story: list[Entry], is_compacted: bool
) -> None:
    chosen = cut(story, 0, SMALL, is_forced=True) if is_compacted else None
    if chosen is not None:
        story.append(summary(chosen, "notes"))
    copied = forked([*story, SPAWNING], 0, 10**9)
    assert copied is not None
    *said, note = copied
    assert is_well_formed(copied)
    assert note == Input(prompts.FORKED, LetterKind.NOTE)
    assert said == list(view(story, 0))


def test_a_fork_has_not_spent_what_its_caller_spent() -> None:
    copied = forked([Input("hi"), Answer("hello", usage=Usage(50_000, 10)), Input("go"), SPAWNING], 0, 10**6)
    assert copied is not None
    assert copied[1] == Answer("hello")
    assert estimate_tokens(copied, 0) < 500


def test_a_fork_over_the_cap_is_refused_and_one_of_nothing_is_empty() -> None:
    story: list[Entry] = [TASK, *steps(3), SPAWNING]
    whole = forked(story, 0, 10**6)
    assert whole is not None
    assert forked(story, 0, size(whole)) == whole
    assert forked(story, 0, size(whole) - 1) is None
    assert forked([SPAWNING], 0, 10) == []
    assert forked([], 0, 10) == []


def test_a_forked_child_keeps_its_own_task_and_not_its_callers() -> None:
    copied = forked([TASK, *steps(3), SPAWNING], 0, 10**6)
    assert copied is not None
    own = Input("[Subagent task, depth 2 of 2]\n\nMine.", LetterKind.TASK)
    story: list[Entry] = [*copied, own, *steps(30)]
    compact(story)
    shown = view(story, 0)
    assert shown[0] == own
    assert TASK not in shown


@given(st.text(), st.integers(1, 2**53))
def test_a_summary_is_stored_and_comes_back_as_it_was(text: str, upto: int) -> None:
    said = Summary(text, upto)
    assert kind(said) == "summary"
    assert load("summary", dump(said)) == said
