"""What model calls cost, the same on every database: groupings of one ledger, time zones, unpriced calls, budgets."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from clutch.api import costs
from clutch.api.costs import CostQuery
from clutch.core.ids import task_id
from clutch.core.policy import Budgets, OnBudget, Policy
from clutch.core.spawn import BudgetRequest
from clutch.errors import InvalidInput
from clutch.store.transaction import Tx
from clutch.transactions.read.costs import By
from tests.transactions.world import World

pytestmark = pytest.mark.anyio

DAY_S = 86_400.0
HOSTILE = "<img src=x onerror=alert(1)>"


def booked(
    now: float, session_id: int, number: int, at: float, model: str, usd: str | None, state: int = 1
) -> Tx[None]:
    """A call of 1000 tokens in and 200 out."""
    del now
    used = (1000, 200, 300) if state == 1 else (0, 0, 0)
    yield (
        "INSERT INTO usage(session_id, call_no, run_id, at, state, model, effective, input, output, cache_read, usd)"
        " VALUES(?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?)",
        (session_id, number, at, state, model, model if state == 1 else None, *used, usd),
    )


async def asked(world: World, by: By = By.ROOT, policy: Policy | None = None, **query: Any) -> Any:
    return await world.db.read(costs.spending, CostQuery(by, **query), policy)


@pytest.fixture
async def noon(world: World) -> float:
    """12:00 UTC, on a day of its own."""
    world.clock.set((world.clock.now() // DAY_S + 2.5) * DAY_S)
    return world.clock.now()


@pytest.fixture
async def ledger(world: World, main: int, noon: float) -> dict[str, int]:
    """Two trees and the main session itself, each with calls of its own."""
    first, second = await world.child(main, "first"), await world.child(main, HOSTILE)
    below = await world.child(first, "below")
    await world.db.alone(booked, main, 900, noon - 60, "dear", "0.50")
    await world.db.alone(booked, first, 900, noon - 3600, "dear", "0.20")
    await world.db.alone(booked, below, 900, noon - 7200, "cheap", "0.03")
    await world.db.alone(booked, below, 901, noon - 30 * 3600, "cheap", "0.04")
    await world.db.alone(booked, second, 900, noon - 120, "unpriced", None)
    await world.db.alone(booked, second, 901, noon - 110, "unpriced", None, 2)
    await world.db.alone(booked, second, 902, noon - 100, "dear", None, 3)  # refused: it costs nothing
    return {"main": main, "first": first, "second": second, "below": below}


def names(found: Any) -> dict[str, str | None]:
    return {one["name"]: one["usd"] for one in found["usage"]}


@pytest.mark.parametrize("by", list(By))
async def test_every_grouping_adds_up_to_the_whole(world: World, ledger: dict[str, int], by: By) -> None:
    found = await asked(world, by, hours=24)
    for name in ("calls", "input", "output", "cacheRead", "unpricedCalls"):
        assert sum(one[name] for one in found["usage"]) == found["total"][name]
        assert sum(one[name] for one in found["timeline"]["bars"]) == found["total"][name]
    assert sum(Decimal(one["usd"] or 0) for one in found["usage"]) == Decimal(found["total"]["usd"])
    assert (found["total"]["usd"], found["total"]["calls"]) == ("0.73", 6)
    assert (found["total"]["input"], found["total"]["cacheRead"]) == (4000, 1200)


async def test_trees_models_agents_and_roots_are_told_apart(world: World, ledger: dict[str, int]) -> None:
    trees = (await asked(world, By.TREE, hours=24))["usage"]
    assert [(one["name"], one["usd"], one["taskId"], one["sessionKey"]) for one in trees] == [
        ("agent:main:main", "0.5", None, "agent:main:main"),
        ("first", "0.23", task_id(ledger["first"]), "agent:main:main"),
        (HOSTILE, None, task_id(ledger["second"]), "agent:main:main"),
    ]
    assert names(await asked(world, By.MODEL, hours=24)) == {"dear": "0.7", "cheap": "0.03", "unpriced": None}
    assert names(await asked(world, By.AGENT, hours=24)) == {"main": "0.73"}
    assert names(await asked(world, By.ROOT)) == {"agent:main:main": "0.77"}


async def test_a_call_without_an_answer_counts_with_the_model_that_answered_in_the_period(
    world: World, main: int, noon: float
) -> None:
    def renamed(now: float) -> Tx[None]:
        del now
        yield "UPDATE usage SET effective = 'effective' WHERE model = 'alias' AND effective IS NOT NULL", ()

    await world.db.alone(booked, main, 900, noon - 7200, "alias", "0.50")
    await world.db.alone(booked, main, 901, noon - 60, "alias", None, 2)
    await world.db.alone(renamed)
    assert names(await asked(world, By.MODEL, hours=24)) == {"effective": "0.5"}
    assert names(await asked(world, By.MODEL, hours=1)) == {"alias": None}


async def test_an_unpriced_call_is_named_and_never_counted_as_nothing(
    world: World, ledger: dict[str, int]
) -> None:
    found = await asked(world, By.MODEL, hours=24)
    assert found["unpriced"] == [{"model": "unpriced", "calls": 2, "tokens": 1200}]
    assert found["total"]["unpricedCalls"] == 2
    (row,) = [one for one in found["usage"] if one["name"] == "unpriced"]
    assert (row["usd"], row["calls"]) == (None, 2)


async def test_days_and_hours_are_those_of_the_time_zone_that_was_given(
    world: World, ledger: dict[str, int], noon: float
) -> None:
    whole = await asked(world, By.DAY)
    assert [one["usd"] for one in whole["usage"]] == ["0.04", "0.73"]  # 06:00 the day before, and today
    east = await asked(world, By.DAY, utc_offset_minutes=-7 * 60)
    assert [one["usd"] for one in east["usage"]] == ["0.04", "0.73"]
    far = await asked(world, By.DAY, utc_offset_minutes=11 * 60)  # 12:00 is 23:00: all of it is one day, …
    assert [one["usd"] for one in far["usage"]] == ["0.04", "0.73"]
    further = await asked(world, By.DAY, utc_offset_minutes=13 * 60)  # … and here midnight lies between
    assert [one["usd"] for one in further["usage"]] == ["0.04", "0.03", "0.7"]
    hours = await asked(world, hours=24, utc_offset_minutes=330)
    assert hours["timeline"]["unit"] == "hour"
    assert len(hours["timeline"]["bars"]) == 25
    assert hours["timeline"]["bars"][0]["start"].endswith(":30:00.000Z")
    assert (await asked(world, hours=1))["timeline"]["unit"] == "5 minutes"
    assert len((await asked(world, hours=24 * 400))["timeline"]["bars"]) == 92


async def test_what_a_deleted_session_used_stays_in_the_ledger(world: World, main: int, noon: float) -> None:
    await world.db.alone(booked, 999_999, 1, noon - 5, "dear", "0.10")
    for by in By:
        found = await asked(world, by, hours=24)
        assert found["total"]["usd"] == "0.1"
        assert [(one["taskId"], one["sessionKey"]) for one in found["usage"]] == [(None, None)]


async def test_a_budget_shows_what_is_used_and_when_it_ends_at_the_rate_of_its_own_calls(
    world: World, main: int, noon: float
) -> None:
    limited = await world.child(main, "limited", budget=BudgetRequest(tokens=10_000))
    other = await world.child(main, "other", budget=BudgetRequest(tokens=10_000))

    def spent(now: float) -> Tx[None]:
        yield (
            "UPDATE purses SET tokens_spent = 8500, tokens_reserved = 600 WHERE name = ?",
            (f"task:{limited}",),
        )

    await world.db.alone(spent)
    await world.db.alone(booked, limited, 900, noon - 60, "dear", "0.10")
    await world.db.alone(booked, main, 900, noon - 16 * 60, "dear", "9.00")  # before the window
    policy = Policy(budgets=Budgets(day_usd=Decimal("1.00"), on_budget=OnBudget.END))
    found = await asked(world, policy=policy, hours=24)
    assert found["burn"]["usdPerHour"] == "0.400000"
    assert (found["burn"]["tokensPerHour"], found["burn"]["minutes"]) == (4800, 15)
    by_name = {one["name"]: one for one in found["budgets"]}
    mine = by_name[f"task:{limited}"]
    assert mine["measures"] == [
        {
            "measure": "tokens", "limit": "10000", "spent": "8500", "reserved": "600", "percent": 85,
            "heading": {
                "tasks": 1, "median": None, "p90": None, "text": "Heading: unknown when 1 open task has ended.",
            },
        }
    ]  # fmt: skip
    assert (mine["state"], mine["label"], mine["taskId"]) == ("warning", "limited", task_id(limited))
    assert "ends with the text" in mine["atLimit"]
    # 1500 tokens are left, and 1200 go in 15 minutes.
    assert mine["exhaustedAt"].endswith("T12:18:45.000Z")
    assert by_name[f"task:{other}"]["exhaustedAt"] is None
    (day,) = [one for one in found["budgets"] if one["kind"] == "day"]
    # It has no row before the first call of the day draws on it. 1.00 at 0.40 an hour.
    assert (day["measures"][0]["spent"], day["exhaustedAt"][11:16]) == ("0", "14:30")


async def test_a_daily_budget_that_lasts_until_its_day_ends_is_not_exhausted(
    world: World, main: int, noon: float
) -> None:
    await world.db.alone(booked, main, 900, noon - 60, "dear", "0.10")
    policy = Policy(budgets=Budgets(day_usd=Decimal("5.00")))
    (day,) = (await asked(world, policy=policy))["budgets"]
    assert (day["state"], day["exhaustedAt"]) == ("ok", None)


async def test_an_empty_ledger_has_zero_calls_and_one_bar(world: World, main: int, noon: float) -> None:
    found = await asked(world)
    assert (found["usage"], found["unpriced"], found["budgets"]) == ([], [], [])
    assert (found["total"]["calls"], found["total"]["usd"], found["burn"]["usdPerHour"]) == (0, None, None)
    assert len(found["timeline"]["bars"]) == 1


@pytest.mark.parametrize(
    ("given", "field"), [(("week",), "by"), (("day", 0.0), "hours"), (("day", 1.0, 900), "utcOffsetMinutes")]
)
def test_what_a_command_is_given_is_checked(given: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        costs.parsed(*given)
    assert refused.value.field == field
