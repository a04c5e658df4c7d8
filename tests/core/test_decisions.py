"""What a decision does, in words: for every kind of item, and true for what the engine does then."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.budget import Budget, BudgetKind, raised
from clutch.core.questions import ALLOWED, Decision, DecisionContext, QuestionKind, consequences

TASK = DecisionContext(is_task=True)
IN = replace(TASK, directory="/home/ada", is_sandboxed=True)

askers = st.builds(
    DecisionContext,
    is_task=st.booleans(),
    runtime=st.sampled_from([None, "acp:claude"]),
    directory=st.sampled_from([None, "/home/ada"]),
    is_sandboxed=st.sampled_from([None, True, False]),
    others=st.integers(0, 3),
    budget=st.sampled_from([None, Budget(BudgetKind.TASK, "task:1", tokens_max=50, tokens_spent=90)]),
    rejections=st.integers(0, 4),
    rejections_max=st.sampled_from([None, 0, 3]),
)


@given(st.sampled_from(QuestionKind), askers)
def test_each_decision_that_an_item_takes_has_one_sentence(
    kind: QuestionKind, asker: DecisionContext
) -> None:
    said = consequences(kind, {}, asker)
    assert said.keys() == ALLOWED[kind]
    for text in said.values():
        assert text.endswith(".")
        assert "None" not in text
        assert "  " not in text


@pytest.mark.parametrize(
    ("asker", "expected"),
    [
        (IN, "Approving runs this command once, in /home/ada, in the sandbox."),
        (
            replace(IN, is_sandboxed=False),
            "Approving runs this command once, in /home/ada, without a sandbox.",
        ),
        (replace(IN, is_sandboxed=None), "Approving runs this command once, in /home/ada."),
        (
            replace(IN, others=2),
            "Approving runs this command once, in /home/ada, in the sandbox, after 2 other items of the same run"
            " are decided.",
        ),
        (replace(TASK, runtime="acp:claude"), "Approving lets acp:claude make this call once."),
        (TASK, "Approving makes this call once."),
    ],
)
def test_an_approved_call_says_who_makes_it_where_and_when(asker: DecisionContext, expected: str) -> None:
    assert consequences(QuestionKind.APPROVAL, {"tool": "shell"}, asker)[Decision.APPROVE] == expected


@pytest.mark.parametrize(
    ("rejections", "most", "expected"),
    [
        (0, 3, "Rejecting needs a reason; the subagent writes a new plan (rejection 1 of 3)."),
        (3, 3, "Rejecting needs a reason and ends the task as failed."),
        (0, 0, "Rejecting needs a reason and ends the task as failed."),
        (0, None, "Rejecting needs a reason."),
    ],
)
def test_a_rejected_plan_is_written_anew_until_the_last(
    rejections: int, most: int | None, expected: str
) -> None:
    asker = replace(TASK, rejections=rejections, rejections_max=most)
    assert consequences(QuestionKind.PLAN, {}, asker)[Decision.REJECT] == expected


def test_a_budget_is_raised_from_what_is_spent() -> None:
    purse = Budget(BudgetKind.TASK, "task:1", tokens_max=1000, tokens_spent=1500, usd_max=Decimal(2))
    said = consequences(QuestionKind.BUDGET, {}, replace(TASK, budget=purse))
    assert "from 1,000 tokens and $2.00 to 2,500 tokens and $4.00" in said[Decision.APPROVE]
    assert raised(purse, tokens=10).tokens_max == 1510
    assert raised(purse, tokens=10).usd_max == 2
