"""The figures of a forecast on every database: finished tasks with all below them, open tasks, what is left."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from clutch.api import costs
from clutch.api.costs import CostQuery
from clutch.core.forecast import BudgetLeft, CostRange, KnownCost
from clutch.core.policy import Budgets, Policy
from clutch.core.spawn import BudgetRequest
from clutch.transactions.read import forecast
from clutch.transactions.spawn import Accepted
from tests.transactions.test_costs import booked
from tests.transactions.world import World, write

pytestmark = pytest.mark.anyio


async def ended(world: World, parent: int, label: str, usd: str | None = "0.10") -> int:
    """A task that made a call of 1200 tokens and one of 15. The newest call has the highest number: it is its own."""
    run = await world.started(parent, label)
    await world.db.alone(booked, run.session_id, -1, world.clock.now(), "dear", usd)
    await run.finish(usd="0.01")
    return run.session_id


async def test_a_task_counts_with_all_that_is_below_it(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    below = await ended(world, parent.session_id, "below")
    await world.db.alone(booked, parent.session_id, -1, world.clock.now(), "dear", "0.50")
    await parent.finish(usd="0.02")
    await world.live()
    leaf, above = sorted(await world.db.read(forecast.past), key=lambda one: one.whole.tokens)
    assert leaf.own == leaf.whole == KnownCost(1215, Decimal("0.11"))
    assert above.own.tokens > 1200
    assert above.whole == above.own + leaf.own
    await world.db.alone(write, "UPDATE tasks SET outcome = NULL WHERE id = ?", below)
    (above,) = await world.db.read(forecast.past)
    assert above.whole.unpriced > above.own.unpriced  # what is below still spends
    await world.db.alone(write, "UPDATE tasks SET outcome = 'ok' WHERE id = ?", below)


async def test_a_cost_is_not_known_where_what_is_below_a_task_was_not_read(
    world: World, main: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for label in ("one", "two"):
        parent = await world.started(main, label)
        await ended(world, parent.session_id, f"below {label}")
        await parent.finish(usd="0.02")
        await world.live()
    monkeypatch.setattr(
        forecast, "BELOW_MAX", 4
    )  # the four finished tasks themselves, and one of the two below them
    found = await world.db.read(forecast.past)
    assert sorted(one.whole.unpriced - one.own.unpriced for one in found) == [0, 0, 1, 1]


async def test_a_call_that_is_cut_or_has_no_price_makes_the_cost_a_lower_bound(
    world: World, main: int
) -> None:
    unpriced = await ended(world, main, "unpriced", None)
    cut = await ended(world, main, "cut")
    await world.db.alone(booked, cut, -2, world.clock.now(), "dear", None, 2)
    await world.db.alone(booked, cut, -3, world.clock.now(), "dear", None, 3)  # refused: it costs nothing
    newest, oldest = await world.db.read(forecast.past)
    assert (newest.own.uncounted, newest.own.unpriced) == (1, 1)
    assert (oldest.own.uncounted, oldest.own.unpriced) == (0, 1)
    assert unpriced


async def test_a_dry_run_has_the_price_of_so_many_tasks_and_what_is_left(world: World, main: int) -> None:
    for number in range(5):
        await ended(world, main, f"task {number}")
    parent = await world.started(main, "parent", budget=BudgetRequest(tokens=10_000, usd=Decimal(1)))
    before = world.policy
    world.policy = replace(before, budgets=Budgets(day_usd=Decimal("0.80")))
    (got,) = await parent.spawn("what if", dry_run=True, count=2)
    assert isinstance(got, Accepted)
    assert got.price is not None
    price, left = got.price
    assert (price.samples, price.count) == (5, 2)
    assert price.tokens == CostRange(Decimal(2430), Decimal(2430))
    assert price.usd == CostRange(Decimal("0.22"), Decimal("0.22"))
    assert left.tokens is not None
    assert left.tokens <= 10_000
    assert left.usd == Decimal("0.80")


async def test_a_budget_report_says_where_open_tasks_head(world: World, main: int) -> None:
    for number in range(5):
        await ended(world, main, f"task {number}")
    limited = await world.started(main, "limited", budget=BudgetRequest(tokens=10_000))
    policy = Policy(budgets=Budgets(day_usd=Decimal(5)))
    found = await world.db.read(costs.spending, CostQuery(), policy)
    by_kind: Any = {one["kind"]: one["measures"][0]["heading"] for one in found["budgets"]}
    assert by_kind["task"] == {
        "tasks": 1,
        "median": "1215",
        "p90": "1215",
        "text": "Heading for 1.2k tokens (p90 1.2k tokens) of 10k tokens when 1 open task has ended.",
    }
    assert by_kind["day"]["p90"] == "0.11"
    await limited.finish()
    again = await world.db.read(costs.spending, CostQuery(), policy)
    assert [one["measures"][0]["heading"] for one in again["budgets"] if one["kind"] == "day"] == [None]


async def test_what_is_left_is_the_least_of_the_chain_and_of_a_day_without_a_call(world: World) -> None:
    day = Budgets(day_tokens=500, day_usd=Decimal(2))
    assert await world.db.read(forecast.left, day, "") == BudgetLeft(500, Decimal(2))
    assert await world.db.read(forecast.left, Budgets(), "") == BudgetLeft()
