"""What taints a turn, and how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.messages import Answer, Call, Entry, Input, Result, Results
from clutch.core.run import FORM_NOTE, is_dangerous, is_tainted

ASKED = Answer("", (Call("x", {}),))
SAID = Answer("done")
FOREIGN = [
    Input("a child wrote", "announce"),
    Input("a plan", "plan"),
    Input("a killed child", "news"),
    Input("another agent", "peer"),
    Results((Result(0, "read", "ours"), Result(1, "web_fetch", "theirs"))),
    Results((Result(0, "of_a_server_that_is_gone", "theirs"),)),
]
OURS: list[Entry] = [
    Input("a person"),
    Input("do it", "task"),
    Results((Result(0, "read", "ours"),)),
    ASKED,
]
NOTES = [Input("wrap up", "note"), Input("a person")]


@given(st.lists(st.sampled_from(OURS)), st.sampled_from(FOREIGN), st.lists(st.sampled_from(OURS)))
def test_one_foreign_text_taints_its_turn_and_no_later_one(
    before: list[Entry], foreign: Entry, after: list[Entry]
) -> None:
    turn = [*before, foreign, *after]
    assert is_tainted(turn, {"read"})
    assert not is_tainted([*turn, SAID, *before], {"read"})
    assert not is_tainted([*before, *after], {"read"})


@given(st.sampled_from(FOREIGN), st.lists(st.sampled_from(NOTES)), st.lists(st.sampled_from(OURS)))
def test_words_that_were_not_the_last_end_no_turn(
    foreign: Entry, notes: list[Entry], after: list[Entry]
) -> None:
    for more in (Input("submit it", FORM_NOTE), Input("rather so", "instruction")):
        turn = [foreign, SAID, *notes, more, *after]
        assert is_tainted(turn, {"read"})
        assert not is_tainted([*turn, SAID, *OURS], {"read"})


@pytest.mark.parametrize(
    ("name", "is_outward", "expected"),
    [("shell", False, True), ("web_fetch", True, True), ("write", False, False), ("read", False, False)],
)
def test_a_shell_and_what_reaches_out_are_dangerous(name: str, is_outward: bool, expected: bool) -> None:
    assert is_dangerous(name, is_outward=is_outward) is expected
