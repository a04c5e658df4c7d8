"""The ledger of model calls and its purses: whatever dies in between, the sums agree and no purse is overdrawn."""

from __future__ import annotations

import asyncio
import random
from decimal import Decimal

import pytest

from clutch.core.model import Outcome
from clutch.core.spawn import BudgetRequest, SpawnRefusal
from clutch.testing.clock import FakeClock
from clutch.testing.inline_store import InlineStore
from clutch.transactions import claims, turn_begin, turn_end, usage
from clutch.transactions.sessions import OwnedRun
from clutch.transactions.turn import ModelAnswer
from clutch.transactions.usage import Fate
from tests.examples import scaled
from tests.transactions.conftest import POLICY
from tests.transactions.trees import (
    DAY_S,
    MODEL,
    InlineDoor,
    Tree,
    budgets,
    day,
    give_more,
    on,
    reserve,
    rooted,
    said,
    step,
)
from tests.transactions.world import World

pytestmark = pytest.mark.anyio

TREES = scaled(1000)
GROVE = 50  # of them in one database


async def purse(world: World, name: str) -> tuple[int, int]:
    ((spent, reserved),) = await world.rows(
        "SELECT tokens_spent, tokens_reserved FROM purses WHERE name = ?", name
    )
    return spent, reserved


async def states(world: World, session_id: int) -> list[int]:
    rows = await world.rows("SELECT state FROM usage WHERE session_id = ? ORDER BY call_no", session_id)
    return [row[0] for row in rows]


# ---- a thousand trees --------------------------------------------------------------------------------------


async def plant(world: World, number: int) -> Tree:
    """A tree with budgets of its own, on a day of its own."""
    chance = random.Random(number)
    start = (world.clock.now() // DAY_S + 3 + chance.random()) * DAY_S
    world.clock.set(start)
    tree = Tree(world, chance, await world.main(f"m{number}"), born_at=start)
    root, today = tree.limits(), tree.limits()
    budgets(world, root_tokens=root[0], root_usd=root[1], day_tokens=today[0], day_usd=today[1])
    if world.policy.budgets.has_root:
        await world.db.alone(usage.give_root, world.policy, tree.root)
    await world.tell(tree.root, "go")
    await world.mail()
    await tree.grow()
    await tree.pick_up()
    return tree


@pytest.mark.slow
@pytest.mark.scaled
async def test_a_thousand_random_trees_never_overdraw_and_leave_nothing_reserved() -> None:
    refusals = 0
    for grove in range(0, TREES, GROVE):
        clock = FakeClock()
        world = World(InlineDoor(InlineStore(clock)), clock, POLICY)
        await world.hire()
        for number in range(grove, grove + GROVE):
            tree = await plant(world, number)
            for _ in range(tree.chance.randint(4, 12)):
                await tree.act()
                await tree.judge()
            await tree.rest()
            assert await tree.judge(), "something stayed reserved"
            refusals += tree.refusals
    assert refusals > TREES // 2, "the budgets were never in the way"


# ---- on every database -------------------------------------------------------------------------------------


async def test_call_has_a_row_before_it_is_sent_and_its_cost_after(world: World, main: int) -> None:
    run = await world.started(main)
    assert await states(world, run.session_id) == [0]
    await step(run, 7, Decimal("0.002"))
    rows = await world.rows("SELECT state, input, usd, effective FROM usage ORDER BY call_no")
    assert rows == [(1, 7, "0.002", MODEL), (0, 0, None, None)]


async def test_nothing_reserved_is_lost_when_many_go_on_after_a_crash_at_once(
    world: World, main: int
) -> None:
    """All at the same moment, as a worker does it: on PostgreSQL they share a batch."""
    await rooted(world, main, 10_000)
    runs = [await world.started(main, f"c{number}") for number in range(5)]
    await asyncio.gather(*(reserve(run, 100) for run in runs))
    assert await purse(world, f"root:{main}") == (0, 500)
    await world.die()
    claimed = await world.db.alone(claims.claim, world.worker, 100)
    assert [one.purses for one in claimed] == [f"root:{main}"] * 5
    await asyncio.gather(
        *(
            world.db.tx(
                (one.session_id, *usage.keys(world.policy, one.purses)),
                turn_begin.begin,
                OwnedRun(world.policy, one.session_id, one.fence, world.number()),
                world.nonce(),
            )
            for one in claimed
        )
    )
    assert await purse(world, f"root:{main}") == (500, 0)


async def test_purse_holds_against_many_who_reserve_at_once(world: World, main: int) -> None:
    await rooted(world, main, 250)
    runs = [await world.started(main, f"c{number}") for number in range(5)]
    held = await asyncio.gather(*(reserve(run, 100) for run in runs))
    assert [refused is None for refused in held].count(True) == 3
    assert await purse(world, f"root:{main}") == (0, 300)


async def test_reservation_is_taken_from_all_purses_or_from_none(world: World, main: int) -> None:
    await rooted(world, main, 1000)
    run = await world.started(main, budget=BudgetRequest(tokens=100))
    assert await reserve(run, 100) is None
    refused = await reserve(run, 100)  # the first is charged as reserved, and then nothing is left
    assert refused is not None
    assert (refused.name, refused.may_free_up) == (f"task:{run.session_id}", False)
    assert await purse(world, f"task:{run.session_id}") == (100, 0)
    assert await purse(world, f"root:{main}") == (100, 0)


async def test_call_of_yesterday_is_charged_to_yesterday(world: World, main: int) -> None:
    budgets(world, day_tokens=1000)
    run = await world.started(main)
    before = day(world.clock.now())
    await reserve(run, 100)
    world.clock.advance(DAY_S)
    await step(run, 70)
    assert await purse(world, before) == (70, 0)
    await reserve(run, 100)
    assert await purse(world, day(world.clock.now())) == (0, 100)
    world.clock.advance(-DAY_S)


@pytest.mark.parametrize(("fate", "spent", "left"), [
    (Fate.UNSENT, 0, []),
    (Fate.FREE, 0, [3]),
    (Fate.UNKNOWN, 100, [2]),
])  # fmt: skip
async def test_call_without_an_answer_costs_what_it_may_have_cost(
    world: World, main: int, fate: Fate, spent: int, left: list[int]
) -> None:
    await rooted(world, main, 1000)
    run = await world.started(main)
    await reserve(run, 100)
    await on(run, turn_end.stumble, "overloaded", True, None, fate=fate)
    assert await purse(world, f"root:{main}") == (spent, 0)
    assert await states(world, run.session_id) == left


async def test_answer_that_counts_nothing_is_charged_as_reserved_and_has_no_price(
    world: World, main: int
) -> None:
    await rooted(world, main, 1000)
    run = await world.started(main)
    await reserve(run, 100)
    await on(run, turn_end.finish, ModelAnswer(said(0), True, Decimal(0)))
    assert await purse(world, f"root:{main}") == (100, 0)
    assert await world.rows("SELECT state, usd FROM usage") == [(1, None)]


async def test_crash_loop_leaves_nothing_reserved(world: World, main: int) -> None:
    await rooted(world, main, 10_000)
    run = await world.started(main, runtime="mine")  # executing at every death
    for _ in range(world.policy.life.crash_limit - 1):
        await reserve(run, 100)
        await world.die()
        run = await world.start(run.session_id)
    await reserve(run, 100)
    await world.die()
    await world.claim()
    assert await world.begin(run.session_id) is None
    task = await world.task(run.session_id)
    assert (task.outcome, task.error) == (Outcome.ERROR, "crash loop")
    assert await purse(world, f"root:{main}") == (300, 0)


async def test_child_gets_at_most_what_is_left_and_none_without_anything(world: World, main: int) -> None:
    await rooted(world, main, 1000)
    first = await world.started(main, budget=BudgetRequest(tokens=600))
    await reserve(first, 500)
    second = await world.child(main, "second", budget=BudgetRequest(tokens=900))
    assert await world.one("SELECT tokens_max FROM purses WHERE name = ?", f"task:{second}") == 500
    await reserve(await world.start(second), 500)
    answer = await world.ask_child(main, "third")
    assert isinstance(answer, SpawnRefusal)
    assert "budget" in answer.error


async def test_raised_limit_counts_from_what_is_spent(world: World, main: int) -> None:
    await rooted(world, main, 100)
    run = await world.started(main)
    await reserve(run, 500)
    await step(run, 500)
    assert await reserve(run, 500) is not None
    await world.db.alone(give_more, f"root:{main}")
    assert await world.one("SELECT tokens_max FROM purses") == 600
    assert await reserve(run, 50) is None


async def test_second_purse_of_a_root_is_never_made(world: World, main: int) -> None:
    await rooted(world, main, 100)
    run = await world.started(main)
    await reserve(run, 50)
    await rooted(world, main, 700)
    assert await world.rows("SELECT tokens_max, tokens_reserved FROM purses") == [(100, 50)]
