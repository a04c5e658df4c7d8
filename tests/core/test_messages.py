"""What was said is stored and read back as it was, and a newer format is refused instead of misread."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clutch.core.messages import (
    TOKENS_MAX,
    VERSION,
    Answer,
    Call,
    Input,
    Message,
    Result,
    Results,
    Usage,
    dump,
    kind,
    load,
    whole,
)

TEXT = st.text()  # without halves of surrogate pairs, with everything else
NUMBERS = st.integers(0, 2**53)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
CALLS = st.builds(Call, TEXT, st.dictionaries(TEXT, JSON, max_size=4), TEXT)
USAGES = st.builds(Usage, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Input, TEXT, TEXT),
    st.builds(Answer, TEXT, st.lists(CALLS, max_size=3).map(tuple), USAGES, TEXT, TEXT),
    st.builds(
        Results,
        st.lists(st.builds(Result, st.integers(0, 99), TEXT, TEXT, st.booleans()), max_size=3).map(tuple),
    ),
)
EXAMPLES: tuple[Message, ...] = (
    Input("x"),
    Answer("x", (Call("read", {"a": 1}),)),
    Results((Result(0, "read", "x"),)),
)


@given(MESSAGES)
def test_any_message_comes_back_as_it_was(message: Message) -> None:
    assert load(kind(message), dump(message)) == message


@given(MESSAGES)
def test_stored_form_is_one_line_of_utf8_without_control_characters(message: Message) -> None:
    body = dump(message)
    assert body.encode().decode() == body
    assert not any(ord(letter) < 32 for letter in body)
    assert json.loads(body)["v"] == VERSION


@pytest.mark.parametrize("broken", ["\ud800", "a\udfffb", "\udc00\ud800"])
def test_half_of_a_surrogate_pair_is_stored_and_comes_back(broken: str) -> None:
    for message in (Input(broken), Answer(calls=(Call("write", {broken: broken}),))):
        body = dump(message)
        body.encode()
        assert load(kind(message), body) == message


HALVES = st.text(st.sampled_from('\ud800\udfff\\uda"\U0001f600'), max_size=9)


@given(HALVES, st.dictionaries(HALVES, HALVES))
@example("\\\ud83d\ude00\ud800\0", {"a": "\udfff"})
def test_halves_that_belong_together_are_joined_and_others_leave_a_mark(
    text: str, args: dict[str, str]
) -> None:
    def mended(one: str) -> str:
        return one.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").replace("\0", "\ufffd")

    said = whole(Answer(text, (Call("read", args),)))
    assert (said.text, said.calls[0].args) == (mended(text), {mended(k): mended(v) for k, v in args.items()})


def test_numbers_that_json_does_not_know_become_words_and_words_about_them_stay() -> None:
    args = {"limit": float("inf"), "list": [float("-inf"), 1.5], "word": "NaN"}
    said = whole(Answer("Infinity", (Call("read", args),)))
    assert said == Answer(
        "Infinity", (Call("read", {"limit": "Infinity", "list": ["-Infinity", 1.5], "word": "NaN"}),)
    )


def test_letters_of_all_scripts_are_stored_readably() -> None:
    assert "größer 猫 🐈" in dump(Input("größer 猫 🐈"))


@pytest.mark.parametrize("message", EXAMPLES)
def test_newer_format_is_refused_with_the_remedy(message: Message) -> None:
    newer = json.dumps(json.loads(dump(message)) | {"v": VERSION + 1})
    with pytest.raises(ValueError, match=r"format 2 is newer .* upgrade clutch"):
        load(kind(message), newer)


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind of message: 'thought'"):
        load("thought", dump(Input("x")))


def test_kinds_are_the_words_stored_in_the_database() -> None:
    assert [kind(message) for message in EXAMPLES] == ["input", "answer", "results"]


def test_no_nul_is_left_where_a_store_takes_words() -> None:
    said = whole(Answer("a\0b", (Call("re\0ad", {"path": "x\0"}, "i\0"),), model="m\0"))
    assert (said.text, said.model, said.calls[0].name, said.calls[0].id) == (
        "a\ufffdb",
        "m\ufffd",
        "re\ufffdad",
        "i\ufffd",
    )
    assert said.calls[0].args == {"path": "x\0"}


def test_what_a_provider_says_it_used_can_always_be_stored_and_added_up() -> None:
    said = Usage(10**30, -5, 7, 0)
    assert whole(Answer("x", usage=said)).usage == Usage(TOKENS_MAX, 0, 7, 0)
    sane = Answer("x", usage=Usage(1, 2, 3, 4))
    assert whole(sane) is sane
