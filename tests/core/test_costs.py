"""Costs over time: bars without a gap, groupings that lose no call, and a rate that says when a budget ends."""

from __future__ import annotations

import itertools
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core import costs
from clutch.core.budget import Budget, BudgetKind
from clutch.core.costs import BARS_MAX, BarUnit, BudgetState, CostRow
from clutch.core.views import Tally
from tests.examples import examples

NOW = 1_900_000_000.0
OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: 60.0 * minutes)
TASK = Budget(BudgetKind.TASK, "task:1", tokens_max=1000, usd_max=Decimal(2))


def row(at: float, unit: BarUnit, offset_s: float, usd: str | None = "0.10") -> CostRow:
    used = Tally(10, 5, 0, 0, 1, None if usd is None else Decimal(usd), int(usd is None))
    return CostRow(int((at + offset_s) // unit.seconds), "m", "a", "r", None, None, used)


@given(
    st.floats(0.5, 24 * 300),
    OFFSETS,
    st.lists(st.floats(0, 1), max_size=30),
)
@examples(200)
def test_bars_follow_each_other_up_to_now_and_lose_no_recent_call(
    hours: float, offset_s: float, shares: list[float]
) -> None:
    unit, since = costs.unit_of(hours), NOW - 3600 * hours
    rows = [
        row(NOW - share * min(3600 * hours, (BARS_MAX - 2) * unit.seconds), unit, offset_s)
        for share in shares
    ]
    found = costs.bars(rows, unit, since, NOW, offset_s)
    starts = [start for start, _ in found]
    assert len(found) <= BARS_MAX
    assert starts[-1] <= NOW < starts[-1] + unit.seconds
    assert all(after - before == unit.seconds for before, after in itertools.pairwise(starts))
    assert all((start + offset_s) % unit.seconds == 0 for start in starts)
    assert sum(used.calls for _, used in found) == len(rows)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([None, "0.10", "0.01"]))))
@examples(200)
def test_groups_add_up_to_the_whole_and_the_dearest_comes_first(calls: list[tuple[str, str | None]]) -> None:
    rows = [
        CostRow(
            0,
            model,
            "a",
            "r",
            None,
            None,
            Tally(1, 1, 0, 0, 1, None if usd is None else Decimal(usd), int(usd is None)),
        )
        for model, usd in calls
    ]
    found = costs.dearest(costs.grouped(rows, lambda one: one.model))
    assert sum(used.calls for _, used in found) == len(rows)
    assert sum(used.unpriced for _, used in found) == sum(usd is None for _, usd in calls)
    prices = [used.usd or Decimal(0) for _, used in found]
    assert prices == sorted(prices, reverse=True)


def test_a_rate_without_a_price_is_unknown_and_not_nothing() -> None:
    assert costs.per_hour(Tally(100, 0, calls=2, unpriced=2), 900.0) == (None, 400)
    assert costs.per_hour(Tally(100, 0, calls=1, usd=Decimal("0.5")), 900.0) == (Decimal(2), 400)


@given(st.integers(0, 999), st.integers(1, 5000), st.floats(60, 3600))
@examples(200)
def test_a_budget_ends_when_the_rest_is_spent_at_the_rate(spent: int, used: int, window_s: float) -> None:
    budget = Budget(BudgetKind.TASK, "task:1", tokens_max=1000, tokens_spent=spent)
    end = costs.exhausted_at(budget, Tally(used, 0, calls=1), window_s, NOW)
    assert end is not None
    assert spent + used * (end - NOW) / window_s == pytest.approx(1000, abs=0.01)


def test_the_measure_that_ends_first_decides_and_a_day_ends_by_itself() -> None:
    used = Tally(90, 10, calls=1, usd=Decimal(1))
    assert costs.exhausted_at(TASK, used, 3600.0, NOW) == NOW + 7200  # $2 at $1 an hour, before 1000 at 100
    day = Budget(BudgetKind.DAY, "day:x", usd_max=Decimal(2))
    midnight = costs.day_end(NOW)
    assert costs.exhausted_at(day, used, 3600.0, midnight - 7201) == midnight - 1
    assert costs.exhausted_at(day, used, 3600.0, midnight - 7200) is None
    assert costs.exhausted_at(TASK, Tally(), 3600.0, NOW) is None
    gone = Budget(BudgetKind.TASK, "task:1", tokens_max=10, tokens_spent=12)
    assert costs.exhausted_at(gone, Tally(), 3600.0, NOW) == NOW


@pytest.mark.parametrize(
    ("spent", "state"),
    [
        (799, BudgetState.OK),
        (800, BudgetState.WARNING),
        (999, BudgetState.WARNING),
        (1000, BudgetState.EXHAUSTED),
    ],
)
def test_a_budget_warns_at_four_fifths_and_is_exhausted_at_its_limit(spent: int, state: BudgetState) -> None:
    assert costs.budget_state(Budget(BudgetKind.ROOT, "root:1", tokens_max=1000, tokens_spent=spent)) is state
