"""What tasks like these cost: how often the p90 covers the next task, what counts as like, and what is unknown."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core import forecast
from clutch.core.budget import Measure
from clutch.core.forecast import (
    P50,
    P90,
    SAMPLES_MAX,
    SAMPLES_MIN,
    UNLIMITED,
    WINDOW_TASKS,
    Basis,
    BudgetLeft,
    CostRange,
    Heading,
    KnownCost,
    OpenTask,
    PastTask,
)
from clutch.core.text import prices as text

#: Tokens of 250 tasks in the order of their end: a run of the demo model over this repository, questions of six kinds
#: about one to four of its folders.
RECORDED = Path(__file__).parent / "recorded_ledger.json"
TASKS = 500
COSTS = st.lists(st.integers(1, 10**7), min_size=SAMPLES_MIN, max_size=120)


def done(tokens: int, agent: str = "main", model: str = "m", *, unknown: int = 0) -> PastTask:
    cost = KnownCost(tokens, Decimal(tokens) / 10**6, unknown, unknown)
    return PastTask(agent, model, cost, cost)


def coverage(ledger: list[int], count: int = 1) -> float:
    """Of forecasts made before each task of a ledger: how many percent of the p90 were enough for the next tasks."""
    covered = asked = 0
    for place in range(SAMPLES_MIN, len(ledger) - count + 1):
        past = [done(tokens) for tokens in reversed(ledger[max(0, place - WINDOW_TASKS) : place])]
        found = forecast.of_tasks(past, "main", "m", count).tokens
        assert found is not None
        asked += 1
        covered += sum(ledger[place : place + count]) <= found.p90
    return 100 * covered / asked


# ---- the p90 covers 85 to 95 % of the next tasks -----------------------------------------------------------


@given(st.sets(st.integers(0, 10**9), min_size=7, max_size=80))
def test_each_of_some_costs_is_covered_by_the_others_in_85_to_95_percent(costs: set[int]) -> None:
    """Left out one by one: exact for costs in any order, whatever their distribution, if no two are the same."""
    covered = sum(one <= forecast.quantile(sorted(costs - {one}), P90) for one in costs)
    assert 0.85 <= covered / len(costs) <= 0.95
    below = sum(one <= forecast.quantile(sorted(costs - {one}), P50) for one in costs)
    assert 0.5 <= below / len(costs) <= 0.5 + 1 / len(costs)


def lognormal(random: Random, place: int) -> float:
    return math.exp(8 + random.gauss(0, 1))


def bimodal(random: Random, place: int) -> float:
    return (3000 if random.random() < 0.7 else 40_000) * math.exp(random.gauss(0, 0.2))


def drifting(random: Random, place: int) -> float:
    """Twice as dear every 350 tasks."""
    return math.exp(8 + 0.002 * place + random.gauss(0, 0.7))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("cost", [lognormal, bimodal, drifting])
def test_the_p90_covers_85_to_95_percent_of_the_next_tasks(
    cost: Callable[[Random, int], float], seed: int
) -> None:
    random = Random(seed)
    assert 85 <= coverage([round(cost(random, place)) for place in range(TASKS)]) <= 95


@pytest.mark.parametrize("cost", [lognormal, bimodal])
def test_the_p90_of_a_fan_out_covers_85_to_95_percent(cost: Callable[[Random, int], float]) -> None:
    random = Random(0)
    assert 85 <= coverage([round(cost(random, place)) for place in range(TASKS)], 8) <= 95


def test_the_p90_covers_85_to_95_percent_of_a_recorded_ledger() -> None:
    ledger = json.loads(RECORDED.read_text())
    assert len(ledger) == 250
    assert 85 <= coverage(ledger) <= 95


# ---- which tasks are like it -------------------------------------------------------------------------------


def test_likeness_widens_until_five_tasks_have_finished() -> None:
    past = [done(1, "ops", "m")] * 5 + [done(2, "main", "n")] * 4
    assert forecast.like([*past, *[done(3, "main", "m")] * 5], "main", "m")[0] is Basis.AGENT_AND_MODEL
    assert forecast.like([*past, done(3, "main", "m")], "main", "m")[0] is Basis.AGENT
    assert forecast.like(past, "main", "m")[0] is Basis.MODEL
    assert forecast.like(past, "new", "new")[0] is Basis.ALL
    assert forecast.like(past[:4], "ops", "m") == (None, [])


def test_only_the_newest_count() -> None:
    past = [done(10)] * SAMPLES_MAX + [done(10**6)] * SAMPLES_MAX
    assert forecast.of_tasks(past, "main", "m").tokens == CostRange(Decimal(10), Decimal(10))


# ---- what is unknown ---------------------------------------------------------------------------------------


@given(COSTS, st.integers(0, 40))
def test_a_cost_that_is_not_known_is_never_counted_as_nothing(costs: list[int], unknown: int) -> None:
    known = [done(tokens) for tokens in costs]
    without = forecast.of_tasks(known[:SAMPLES_MAX], "main", "m")
    mixed = [*[done(0, unknown=1)] * unknown, *known]
    found = forecast.of_tasks(mixed, "main", "m")
    if found.tokens is None:
        shown = mixed[:SAMPLES_MAX]
        assert 10 * unknown > len(shown) or len(shown) - unknown < SAMPLES_MIN
    elif len(mixed) <= SAMPLES_MAX:
        assert without.tokens is not None
        assert found.tokens.p90 >= without.tokens.p90
        assert found.tokens.median >= without.tokens.median


def test_tokens_can_be_known_where_the_price_is_not() -> None:
    cost = KnownCost(500, unpriced=1)
    found = forecast.of_tasks([PastTask("main", "m", cost, cost)] * 5, "main", "m")
    assert found.tokens == CostRange(Decimal(500), Decimal(500))
    assert found.usd is None
    assert "median 500 tokens, price unknown" in text.price(found)


# ---- several tasks, and where a budget is heading ----------------------------------------------------------


@given(COSTS, st.integers(1, 200))
def test_several_tasks_cost_more_than_one_and_the_p90_more_than_the_median(
    costs: list[int], count: int
) -> None:
    past = [done(tokens) for tokens in costs]
    one, many = (forecast.of_tasks(past, "main", "m", number).tokens for number in (count, 2 * count + 8))
    assert one is not None
    assert many is not None
    assert one.median <= one.p90
    assert many.median <= many.p90
    assert many.p90 > one.median


@given(COSTS, st.integers(0, 10**6))
def test_a_budget_heads_for_what_is_spent_and_what_its_open_tasks_will_still_cost(
    costs: list[int], spent: int
) -> None:
    past = [done(tokens) for tokens in costs]
    queued = OpenTask("main", "m", KnownCost())
    price = forecast.of_tasks(past, "main", "m").tokens
    found = forecast.heading(Decimal(spent), [queued], past, Measure.TOKENS)
    assert price is not None
    assert found.at == CostRange(spent + price.median, spent + price.p90)
    running = OpenTask("main", "m", KnownCost(max(costs[:SAMPLES_MAX])))
    later = forecast.heading(Decimal(spent), [queued, running], past, Measure.TOKENS)
    assert later.at is not None
    assert later.at.p90 > spent  # one that is dearer than all others is not free from now on
    assert forecast.heading(Decimal(spent), [queued], past[:4], Measure.TOKENS).at is None


def test_a_running_task_adds_what_is_left_of_it() -> None:
    past = [done(tokens) for tokens in (100, 200, 300, 400, 500)]
    running = OpenTask("main", "m", KnownCost(250))
    found = forecast.heading(Decimal(1000), [running], past, Measure.TOKENS)
    assert found == Heading(1, CostRange(Decimal(1150), Decimal(1250)))
    limit = Decimal(1200)
    assert text.heading(found, Measure.TOKENS, limit) == (
        "Heading for 1.2k tokens (p90 1.3k tokens) of 1.2k tokens when 1 open task has ended."
    )


# ---- in words ----------------------------------------------------------------------------------------------


@given(st.integers(1, 10**9))
def test_round_numbers_stay_the_same_and_near(value: int) -> None:
    above, below = forecast.rounded(value), forecast.rounded(value, is_down=True)
    assert below <= value <= above
    assert above <= Decimal("1.5") * below
    assert forecast.rounded(above) == above
    assert forecast.rounded(below, is_down=True) == below


def test_the_prompt_says_nothing_where_nothing_is_known_or_limited() -> None:
    unknown = forecast.of_tasks([], "main", "m")
    assert text.prompt_line(unknown, UNLIMITED) == ""
    assert text.prompt_line(unknown, BudgetLeft(usd=Decimal("3.21"))) == (
        "Subagents: cost unknown, fewer than 5 tasks have finished. Left of the budget: $3.00."
    )
    known = forecast.of_tasks([done(12_345)] * 17, "main", "m")
    assert text.prompt_line(known, UNLIMITED) == (
        "Subagents (same agent and model, last 15): median 15k tokens, $0.02; p90 15k tokens, $0.02."
    )
