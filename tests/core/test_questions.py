"""What may be decided about an item of the inbox, whichever surface it comes from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.questions import Decision, OpenItem, QuestionChanged, QuestionKind, check
from clutch.errors import InvalidInput

BLANK = st.text(st.characters(categories=("Zs", "Zl", "Zp"), include_characters="\n\r\t\v\f"), max_size=8)
SHOWN = "a" * 64


@given(BLANK)
def test_an_empty_answer_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="text: must not be blank"):
        check(OpenItem(QuestionKind.QUESTION, SHOWN), Decision.ANSWER, text, SHOWN)


@given(st.sampled_from(QuestionKind), st.sampled_from(Decision), st.text(max_size=20))
def test_a_decision_counts_only_for_what_was_shown(kind: QuestionKind, decision: Decision, text: str) -> None:
    with pytest.raises(QuestionChanged):
        check(OpenItem(kind, SHOWN), decision, text, "b" * 64)


@given(st.sampled_from(QuestionKind), st.sampled_from(Decision))
def test_each_kind_has_its_decisions(kind: QuestionKind, decision: Decision) -> None:
    is_answer, is_question = decision is Decision.ANSWER, kind is QuestionKind.QUESTION
    is_allowed = decision is not Decision.VOID and (is_answer is is_question or decision is Decision.REJECT)
    if is_allowed:
        check(OpenItem(kind, SHOWN), decision, "text", SHOWN)
        return
    with pytest.raises(InvalidInput, match="decision: must be one of"):
        check(OpenItem(kind, SHOWN), decision, "text", SHOWN)


@given(st.lists(st.text(min_size=1), min_size=1), st.text())
def test_an_answer_to_a_choice_is_one_of_the_choices(choices: list[str], text: str) -> None:
    if text in choices and text.strip():
        return check(OpenItem(QuestionKind.QUESTION, SHOWN, tuple(choices)), Decision.ANSWER, text, SHOWN)
    with pytest.raises(InvalidInput, match="text: must"):
        check(OpenItem(QuestionKind.QUESTION, SHOWN, tuple(choices)), Decision.ANSWER, text, SHOWN)
