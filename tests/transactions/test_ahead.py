"""What a gateway that wants to end looks at: who works or is about to, and what needs somebody to be there."""

from __future__ import annotations

import pytest

from clutch.core.model import Phase
from clutch.transactions import workers
from tests.transactions.world import World

pytestmark = pytest.mark.anyio


async def working(world: World, within_s: float = 0.0) -> list[tuple[str | None, str | None]]:
    return [(one.label, one.phase) for one in await world.db.read(workers.working, within_s)]


async def needs_a_gateway(world: World) -> bool:
    return await world.db.read(workers.is_anything, ())


async def test_from_the_spawn_to_the_last_word_somebody_is_waited_for(world: World, main: int) -> None:
    assert await working(world) == []
    assert not await needs_a_gateway(world)
    child = await world.child(main, "survey")
    assert ("survey", "queued") in await working(world)
    run = await world.start(child)
    assert await working(world) == [("survey", "running")]
    await run.finish("all done")
    assert (None, None) in await working(world, within_s=5.0)  # the parent is told after its debounce
    assert await needs_a_gateway(world)
    await world.live()
    assert await working(world, within_s=60.0) == []
    assert not await needs_a_gateway(world)


async def test_who_waits_for_a_person_holds_nobody_up(world: World, main: int) -> None:
    run = await world.started(main, "planner", plan_mode=True)
    await run.finish("1. look 2. tell")
    await world.live()  # the main agent is told of the plan
    assert (await world.task(run.session_id)).phase is Phase.AWAITING_APPROVAL
    assert await working(world, within_s=60.0) == []


async def test_a_timer_of_unfinished_work_keeps_a_gateway_there(world: World, main: int) -> None:
    run = await world.started(main, "later", run_timeout_s=7200.0)
    await run.hand_over()
    world.clock.advance(1)
    assert await needs_a_gateway(world)
