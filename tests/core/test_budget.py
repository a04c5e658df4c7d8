"""Budgets: whoever asks at the same time, the purses hold, and no price is ever taken for zero."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.budget import (
    Amount,
    Budget,
    BudgetExhausted,
    BudgetKind,
    Measure,
    Reservation,
    child_limits,
    is_last,
    remaining,
    reserve,
    settle,
    used_percent,
)
from tests.examples import examples

CALL = Amount(10, Decimal("0.10"))
TASK = Budget(BudgetKind.TASK, "t_1", tokens_max=100)
DAY = Budget(BudgetKind.DAY, "2030-01-01", usd_max=Decimal(1))
CENTS = st.integers(0, 400).map(lambda cents: Decimal(cents) / 100)


def reserved(purses: tuple[Budget, ...], estimate: Amount) -> tuple[Budget, ...]:
    answer = reserve(purses, estimate)
    assert isinstance(answer, Reservation)
    return answer.purses


def test_a_call_is_taken_from_every_purse_of_the_chain() -> None:
    after = settle(reserved((TASK, DAY), CALL), CALL, Amount(7, Decimal("0.03"))).purses
    assert [(p.tokens_spent, p.tokens_reserved, p.usd_spent, p.usd_reserved) for p in after] == [
        (7, 0, Decimal("0.03"), Decimal("0.00")),
        (7, 0, Decimal("0.03"), Decimal("0.00")),
    ]


@pytest.mark.parametrize("actual", [None, Amount(7, None)])
def test_where_nothing_was_reserved_an_unknown_cost_is_not_taken_for_zero(actual: Amount | None) -> None:
    """Somebody else's code reserves nothing: what it will use is not known before."""
    nothing = Amount(0, Decimal(0))
    (after,) = settle(reserved((DAY,), nothing), nothing, actual).purses
    assert (after.usd_spent, after.unpriced_calls) == (Decimal(0), 1)


def test_a_refusal_names_the_first_empty_purse_and_its_numbers() -> None:
    empty = replace(DAY, usd_spent=Decimal("0.70"), usd_reserved=Decimal("0.30"))
    assert reserve((TASK, empty), CALL) == BudgetExhausted(
        BudgetKind.DAY, "2030-01-01", Measure.USD, Decimal(1), Decimal("0.70"), Decimal("0.30")
    )


def test_at_100_percent_no_new_call_is_made_and_just_below_one_more_is() -> None:
    assert isinstance(reserve((replace(TASK, tokens_spent=99),), CALL), Reservation)
    assert isinstance(reserve((replace(TASK, tokens_spent=100),), CALL), BudgetExhausted)
    assert isinstance(reserve((replace(TASK, tokens_spent=60, tokens_reserved=40),), CALL), BudgetExhausted)


def test_a_refusal_tells_whether_waiting_for_calls_in_flight_may_help() -> None:
    in_flight = reserve((replace(TASK, tokens_spent=60, tokens_reserved=40),), CALL)
    gone = reserve((replace(TASK, tokens_spent=100),), CALL)
    unpriced = reserve((DAY,), Amount(1, None))
    assert isinstance(in_flight, BudgetExhausted)
    assert isinstance(gone, BudgetExhausted)
    assert isinstance(unpriced, BudgetExhausted)
    assert [in_flight.may_free_up, gone.may_free_up, unpriced.may_free_up] == [True, False, False]


def test_a_budget_of_nothing_allows_no_call() -> None:
    assert isinstance(reserve((replace(TASK, tokens_max=0),), CALL), BudgetExhausted)
    assert used_percent(replace(TASK, tokens_max=0)) == 100


def test_an_unknown_price_is_refused_where_dollars_are_limited_and_only_there() -> None:
    answer = reserve((TASK, DAY), Amount(10, None))
    assert isinstance(answer, BudgetExhausted)
    assert (answer.kind, answer.measure, answer.is_unpriced) == (BudgetKind.DAY, Measure.USD, True)
    purses = reserved((TASK,), Amount(10, None))
    (after,) = settle(purses, Amount(10, None), Amount(10, None)).purses
    assert (after.tokens_spent, after.usd_spent, after.unpriced_calls) == (10, Decimal(0), 1)


def test_the_last_call_is_the_one_that_may_use_up_a_purse_that_is_nearly_empty() -> None:
    for spent, tokens, expected in ((79, 100, False), (80, 19, False), (80, 20, True), (99, 5, True)):
        held = reserve([Budget(BudgetKind.TASK, "t", 100, tokens_spent=spent)], Amount(tokens, None))
        assert isinstance(held, Reservation)
        assert is_last(held) is expected
    assert not is_last(Reservation((Budget(BudgetKind.TASK, "t"),), Amount(9, None))), "no limit"


def test_a_call_whose_cost_nobody_heard_is_charged_as_estimated() -> None:
    (lost,) = settle(reserved((DAY,), CALL), CALL, None).purses
    (priceless,) = settle(reserved((DAY,), CALL), CALL, Amount(3, None)).purses
    assert (lost.tokens_spent, lost.usd_spent, lost.unpriced_calls) == (10, Decimal("0.10"), 0)
    assert (priceless.tokens_spent, priceless.usd_spent, priceless.unpriced_calls) == (3, Decimal("0.10"), 0)


def test_a_call_that_was_never_sent_costs_nothing() -> None:
    assert settle(reserved((TASK, DAY), CALL), CALL, Amount(0, Decimal(0))).purses == (TASK, DAY)


def test_the_warning_comes_at_80_percent_and_once() -> None:
    purses: tuple[Budget, ...] = (TASK,)
    heard = []
    for _ in range(10):
        answer = settle(reserved(purses, CALL), CALL, CALL)
        purses = answer.purses
        heard += [used_percent(purse) for purse in answer.warnings]
    assert heard == [80]


def test_each_purse_warns_for_itself() -> None:
    nearly = replace(DAY, usd_spent=Decimal("0.75"))
    answer = settle(reserved((TASK, nearly), CALL), CALL, CALL)
    assert [purse.kind for purse in answer.warnings] == [BudgetKind.DAY]
    assert [purse.warned for purse in answer.purses] == [False, True]


@given(st.integers(0, 300), st.integers(1, 300))
def test_the_warning_is_neither_early_nor_missing(spent: int, limit: int) -> None:
    purse = Budget(BudgetKind.TASK, "t_1", tokens_max=limit)
    warned = settle((purse,), Amount(0, None), Amount(spent, None)).warnings != ()
    assert warned is (spent * 100 >= limit * 80)


@given(st.none() | st.integers(0, 200), st.none() | CENTS, st.integers(0, 120), CENTS)
def test_a_child_never_gets_more_than_its_parent_has_left(
    tokens: int | None, usd: Decimal | None, spent: int, usd_spent: Decimal
) -> None:
    purses = (replace(TASK, tokens_spent=spent), replace(DAY, usd_spent=usd_spent))
    child_tokens, child_usd = child_limits(tokens, usd, purses)
    tokens_left, usd_left = remaining(purses)
    assert tokens_left == max(0, 100 - spent)
    assert usd_left == max(Decimal(0), 1 - usd_spent)
    assert child_tokens == (tokens_left if tokens is None else min(tokens, tokens_left))
    assert child_usd == (usd_left if usd is None else min(usd, usd_left))


def test_without_any_limit_nothing_is_limited() -> None:
    free = Budget(BudgetKind.ROOT, "agent:main:main")
    assert remaining((free,)) == (None, None)
    assert child_limits(None, None, (free,)) == (None, None)
    assert child_limits(5, Decimal(2), ()) == (5, Decimal(2))
    assert used_percent(replace(free, tokens_spent=10**9)) == 0


@pytest.mark.parametrize(("tokens", "usd"), [(-1, None), (1, Decimal("-0.01"))])
def test_nobody_can_refill_a_purse_with_a_negative_call(tokens: int, usd: Decimal | None) -> None:
    with pytest.raises(ValueError, match="negative"):
        Amount(tokens, usd)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),  # who calls: each child has its own purse, all share the root's
        st.integers(0, 60),  # estimated tokens
        CENTS,  # estimated dollars
        st.integers(0, 100),  # percent of the estimate that is really used
        st.integers(0, 5),  # which call in flight settles afterwards, if there are so many
    ),
    max_size=60,
)


@examples(300)
@given(STEPS, st.integers(1, 300), st.integers(1, 300))
def test_calls_at_the_same_time_never_overspend_by_more_than_the_last_one_reserved(
    steps: list[tuple[int, int, Decimal, int, int]], tokens_max: int, child_max: int
) -> None:
    root = Budget(BudgetKind.ROOT, "root", tokens_max=tokens_max, usd_max=Decimal(5))
    children = [Budget(BudgetKind.TASK, f"t_{n}", tokens_max=child_max) for n in range(3)]
    in_flight: list[tuple[int, Amount, Amount]] = []
    largest = Amount(0, Decimal(0))
    sent_tokens = 0
    for who, tokens, usd, percent, settles in steps:
        estimate = Amount(tokens, usd)
        answer = reserve((children[who], root), estimate)
        if isinstance(answer, Reservation):
            children[who], root = answer.purses
            actual = Amount(tokens * percent // 100, usd * percent / 100)
            in_flight.append((who, estimate, actual))
            largest = Amount(max(largest.tokens, tokens), max(largest.usd or Decimal(0), usd))
        if settles < len(in_flight):
            owner, held, actual = in_flight.pop(settles)
            children[owner], root = settle((children[owner], root), held, actual).purses
            sent_tokens += actual.tokens
        assert root.tokens_spent + root.tokens_reserved < tokens_max + max(largest.tokens, 1)
        assert root.usd_spent + root.usd_reserved <= Decimal(5) + (largest.usd or Decimal(0))
        assert all(c.tokens_spent + c.tokens_reserved < child_max + max(largest.tokens, 1) for c in children)
        assert root.tokens_spent == sum(child.tokens_spent for child in children) == sent_tokens
        assert root.tokens_reserved == sum(held.tokens for _, held, _ in in_flight)
