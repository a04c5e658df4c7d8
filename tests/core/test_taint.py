"""What taints a turn, and how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.messages import Answer, Call, Entry, Input, Result, Results
from clutch.core.taint import is_dangerous, is_tainted

ASKED = Answer("", (Call("x", {}),))
SAID = Answer("done")
FOREIGN = [
    Input("a child wrote", "announce"),
    Input("a plan", "plan"),
    Input("a killed child", "news"),
    Input("another agent", "peer"),
    Results((Result(0, "read", "ours"), Result(1, "web_fetch", "theirs"))),
]
OURS: list[Entry] = [
    Input("a person"),
    Input("do it", "task"),
    Input("rather so", "instruction"),
    Results((Result(0, "read", "ours"),)),
    ASKED,
]


@given(st.lists(st.sampled_from(OURS)), st.sampled_from(FOREIGN), st.lists(st.sampled_from(OURS)))
def test_one_foreign_text_taints_its_turn_and_no_later_one(
    before: list[Entry], foreign: Entry, after: list[Entry]
) -> None:
    turn = [*before, foreign, *after]
    assert is_tainted(turn, {"web_fetch"})
    assert not is_tainted([*turn, SAID, *before], {"web_fetch"})
    assert not is_tainted([*before, *after], {"web_fetch"})


@pytest.mark.parametrize(
    ("name", "is_outward", "expected"),
    [("shell", False, True), ("web_fetch", True, True), ("write", False, False), ("read", False, False)],
)
def test_a_shell_and_what_reaches_out_are_dangerous(name: str, is_outward: bool, expected: bool) -> None:
    assert is_dangerous(name, is_outward=is_outward) is expected
