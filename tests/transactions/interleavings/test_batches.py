"""Several transactions in one batch of the lockstep driver, as the pump makes it: no isolation between them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.transactions import invariants
from tests.transactions.interleavings.parts import (
    fan_out,
    filing,
    finishing,
    heard_once,
    held,
    ringing,
    told,
    waking,
    yielding,
)
from tests.transactions.interleavings.two_connections import Stage
from tests.transactions.world import World, calls

pytestmark = pytest.mark.anyio


async def test_last_two_children_in_one_batch_wake_their_parent_once(
    stage: Stage, world: World, main: int
) -> None:
    children = await held(world, main, "first", "second")
    outcomes = await stage.db.together(*(finishing(child, f"by {child.session_id}") for child in children))
    assert [outcome.error for outcome in outcomes] == [None, None]
    await world.mail()
    assert await world.due(main) == world.clock.now()
    await (await world.start(main)).finish("both")
    assert (await world.inputs(main))[-1].startswith("[2 background tasks completed]")


async def test_whole_fan_out_settles_in_one_batch_with_the_mailman(
    stage: Stage, world: World, main: int
) -> None:
    first, *rest = await held(world, main, "a", "b", "c", "d")
    await first.finish()
    await stage.db.together(*(finishing(child) for child in rest), waking(world, main))
    await world.mail()
    assert await world.due(main) == world.clock.now()
    await world.live()
    assert await told(world, main, "[4 background tasks completed]") == 1


async def test_two_branches_end_in_one_batch_with_a_wake_and_a_ring(
    stage: Stage, world: World, main: int
) -> None:
    """One batch as the pump makes it: different keys, no isolation between them."""
    left, right = await world.started(main, "left"), await world.started(main, "right", run_timeout_s=100.0)
    below = await world.started(left.session_id, "below")
    await left.yields()
    world.clock.advance(100)
    outcomes = await stage.db.together(
        finishing(below, "deep finding"),
        ringing(world, right.session_id),
        waking(world, main),
        waking(world, left.session_id),
    )
    assert [outcome.error for outcome in outcomes] == [None] * 4
    await world.die()
    await world.live()
    assert await told(world, left.session_id, "deep finding") == 1
    assert await told(world, main, '"left"') == 1
    assert await told(world, main, '"right"') == 1


@pytest.mark.parametrize("who", ["release", "last words", "hold", "expiry"])
async def test_child_ends_in_one_batch_with_what_its_parent_does(
    stage: Stage, world: World, main: int, who: str
) -> None:
    """Statements of one batch mix freely; the mailman's round afterwards must find everything."""
    if who in ("release", "hold"):
        run, (child,) = await fan_out(world, main, "child")
        await run.respond(calls("sessions_yield"))
        other = finishing(run) if who == "release" else yielding(run)
    else:
        parent = await world.started(main, "parent")
        child = await world.started(parent.session_id, "child")
        other = finishing(parent)
        if who == "expiry":
            await parent.finish("my part")
            world.clock.advance(1801)
            other = ringing(world, parent.session_id)
    outcomes = await stage.db.together(other, finishing(child, "deep finding"))
    assert [outcome.error for outcome in outcomes] == [None, None]
    await world.mail()
    await invariants.check(world)
    await invariants.nobody_sleeps_through_mail(world)
    await heard_once(world, "deep finding")
    await invariants.everything_is_over(world)


@pytest.mark.parametrize("count", [2, 8])
async def test_steps_of_many_runs_in_one_batch_stay_apart(
    stage: Stage, world: World, main: int, count: int
) -> None:
    world.policy = replace(world.policy, limits=replace(world.policy.limits, children_max=count))
    runs = [await world.started(main, f"c{number}") for number in range(count)]
    for run in runs:
        await run.respond(calls("read"))
    outcomes = await stage.db.together(*(filing(run) for run in runs))
    assert all(outcome.value.goes_on for outcome in outcomes)
    await stage.db.together(*(finishing(run, f"by {run.session_id}") for run in runs))
    for run in runs:
        assert (await world.task(run.session_id)).result == f"by {run.session_id}"
    await world.live()
    assert await told(world, main, f"[{count} background tasks completed]") == 1


async def test_child_whose_grace_ends_in_the_batch_of_its_parents_last_words_is_heard(
    stage: Stage, world: World, main: int
) -> None:
    """The child's row says ended some statements before its letter is there: the parent must not settle without it."""
    parent = await world.started(main, "parent")
    child = await world.started(parent.session_id, "child")
    await child.fail("broken")
    world.clock.advance(15)
    outcomes = await stage.db.together(finishing(parent, "my part"), ringing(world, child.session_id))
    assert [outcome.error for outcome in outcomes] == [None, None]
    await world.live()
    assert await told(world, parent.session_id, '"child"') == 1
    assert await told(world, main, '"child"') == 0
