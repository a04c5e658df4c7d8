"""A task whose session row is gone: what it had said is told, without any it is lost, and nobody waits for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clutch.core.model import Delivery, Outcome, Phase
from clutch.core.policy import OnOrphan
from clutch.transactions import retention, workers
from tests.transactions.world import World, calls, write

pytestmark = pytest.mark.anyio


async def lose(world: World, task_id: int) -> None:
    await world.db.alone(write, "DELETE FROM sessions WHERE id = ?", task_id)


async def adopt(world: World) -> list[int]:
    found = await world.db.read(retention.find)
    for task_id in found:
        await world.db.alone(retention.adopt, world.policy, task_id)
    return found


@pytest.mark.scenario(132)
@pytest.mark.parametrize("stage", ["queued", "running"])
async def test_a_task_without_a_session_and_without_a_result_is_lost_and_told(
    world: World, main: int, stage: str
) -> None:
    task = await world.child(main)
    if stage == "running":
        await (await world.start(task)).step()
    await lose(world, task)
    assert await adopt(world) == [task]
    assert await adopt(world) == [], "once"
    lost = await world.task(task)
    assert (lost.phase, lost.outcome, lost.error) == (Phase.ANNOUNCING, Outcome.LOST, "its session is gone")
    world.clock.advance(2)
    await (await world.start(main)).finish("what a pity")
    assert "lost" in (await world.inputs(main))[-1]
    assert (await world.task(task)).delivery is Delivery.DELIVERED


async def test_whoever_comes_second_to_a_spawn_that_was_undone_finds_nothing_to_do(
    world: World, main: int
) -> None:
    task = await world.child(main)
    await lose(world, task)
    await world.db.alone(write, "DELETE FROM tasks WHERE id = ?", task)
    await world.db.alone(retention.adopt, world.policy, task)
    assert await world.db.alone(workers.ring, world.policy, task) is None
    assert await world.rows("SELECT id FROM sessions WHERE id = ?", task) == []


@pytest.mark.scenario(132)
async def test_with_a_frozen_result_it_is_still_delivered(world: World, main: int) -> None:
    task = await world.child(main)
    await world.end(task, "kept by value")
    await lose(world, task)
    await adopt(world)
    world.clock.advance(2)
    await (await world.start(main)).finish("heard")
    done = await world.task(task)
    assert (done.phase, done.outcome, done.delivery) == (Phase.COMPLETED, Outcome.OK, Delivery.DELIVERED)
    assert "kept by value" in (await world.inputs(main))[-1]


@pytest.mark.scenario(132)
async def test_pruned_orphans_are_told_to_nobody(world: World, main: int) -> None:
    world.policy = replace(world.policy, keeping=replace(world.policy.keeping, on_orphan=OnOrphan.PRUNE))
    task = await world.child(main)
    await lose(world, task)
    await adopt(world)
    await world.live()
    lost = await world.task(task)
    assert (lost.phase, lost.outcome, lost.delivery) == (Phase.COMPLETED, Outcome.LOST, Delivery.SKIPPED)
    assert await world.inputs(main) == []


async def test_a_parent_that_sleeps_until_its_children_have_settled_is_woken(world: World, main: int) -> None:
    await world.tell(main, "go")
    run = await world.start(main)
    (answer,) = await run.spawn("child")
    await run.results()
    await run.yields()
    task_id = (await world.rows("SELECT id FROM tasks"))[0][0]
    await lose(world, task_id)
    await adopt(world)
    world.clock.advance(2)
    again = await world.start(main)
    assert "lost" in (await world.inputs(main))[-1]
    await again.finish("so be it")
    del answer


async def test_what_comes_from_below_an_orphan_rises_past_it(world: World, main: int) -> None:
    parent = await world.child(main, "parent")
    await (await world.start(parent)).respond(calls("read"))
    grandchild = await world.child(parent, "grandchild")
    await world.end(grandchild, "from below")
    await lose(world, parent)
    await world.mail()
    await adopt(world)
    await world.live()
    task = await world.task(grandchild)
    assert (task.phase, task.delivery) == (Phase.COMPLETED, Delivery.DELIVERED)
    said = "\n".join(await world.inputs(main))
    assert "from below" in said
    assert "lost" in said


async def test_a_half_made_orphan_is_undone(world: World, main: int) -> None:
    from clutch.core.model import Workspace

    task = await world.child(main, workspace=Workspace.ISOLATED)
    await lose(world, task)
    await adopt(world)
    assert await world.rows("SELECT 1 FROM tasks WHERE id = ?", task) == []
    assert await world.timeline(task) == ["spawn-failed: its session is gone"]


async def test_the_timer_of_an_orphan_rings_once_and_then_waits_for_the_sweeper(
    world: World, main: int
) -> None:
    task = await world.child(main, run_timeout_s=10)
    await world.start(task)
    await lose(world, task)
    world.clock.advance(11)
    assert task in (await world.peek()).alarms
    await world.db.tx(task, workers.ring, world.policy, task)
    assert task not in (await world.peek()).alarms
    await adopt(world)
    assert (await world.task(task)).outcome is Outcome.LOST
