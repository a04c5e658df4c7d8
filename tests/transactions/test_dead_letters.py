"""What could not be told: the person hears so once, it is listed for a while, and its files wait for the verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clutch.core import ids
from clutch.core.model import Delivery, Phase
from clutch.core.spawn import CleanupPolicy
from clutch.store.transaction import Row
from clutch.transactions import control, task_files
from clutch.transactions.read import status, tasks
from tests.transactions.world import World, write

pytestmark = pytest.mark.anyio

DAY_S = 86_400


async def given_up(world: World, main: int, **asked: object) -> int:
    """Its requester's model fails, and there is only one try."""
    rules = replace(world.policy.announcing, fast_tries=1, slow=False)
    world.policy = replace(world.policy, announcing=rules)
    task = await world.child(main, "survey", **asked)
    await world.end(task, "the finding")
    world.clock.advance(2)
    await (await world.start(main)).fail("no model")
    return task


async def lines(world: World) -> list[Row]:
    return await world.rows("SELECT session_id, channel, target, body FROM outbox ORDER BY id")


async def test_person_gets_one_line_when_a_result_could_not_be_told(world: World, main: int) -> None:
    task = await given_up(world, main)
    ((session_id, channel, target, body),) = await lines(world)
    assert (session_id, channel, target) == (main, "terminal", "main")
    name = ids.task_id(task)
    assert all(
        word in body for word in ('"survey"', name, "retry limit reached", f"/subagents redeliver {name}")
    )
    assert "the finding" not in body


async def test_it_is_shown_since_it_was_given_up_and_not_after_it_is_redelivered(
    world: World, main: int
) -> None:
    task = await given_up(world, main)
    at = world.clock.now()
    world.clock.advance(60)
    shown = await world.db.read(tasks.one, task)
    assert shown is not None
    assert (shown.delivery.at, shown.delivery.attempts) == (at, 1)
    await world.db.alone(control.redeliver, world.policy, task, "person")
    shown = await world.db.read(tasks.one, task)
    assert shown is not None
    assert shown.delivery.at is None


async def test_it_stands_in_every_list_however_old_it_is(world: World, main: int) -> None:
    task = await given_up(world, main)
    world.clock.advance(DAY_S)
    for shown in (status.children, status.tree):
        assert ids.task_id(task) in await world.db.alone(shown, world.policy, "person", main)


async def test_redelivered_and_given_up_again_is_said_again_and_told_is_not(world: World, main: int) -> None:
    task = await given_up(world, main)
    await world.db.alone(control.redeliver, world.policy, task, "person")
    world.clock.advance(2)
    await (await world.start(main)).fail("no model")
    assert len(await lines(world)) == 2
    await world.db.alone(control.redeliver, world.policy, task, "person")
    world.clock.advance(2)
    await (await world.start(main)).finish("NO_REPLY")
    assert (await world.task(task)).delivery is Delivery.DELIVERED
    assert len(await lines(world)) == 2


async def test_dead_letter_expires_after_a_week_and_its_result_stays(world: World, main: int) -> None:
    task = await given_up(world, main)
    world.clock.advance(7 * DAY_S - 1)
    await world.ring()
    assert (await world.task(task)).delivery is Delivery.UNDELIVERED
    world.clock.advance(1)
    await world.ring()
    state = await world.task(task)
    assert (state.phase, state.delivery, state.delivery_reason, state.result) == (
        Phase.COMPLETED_GIVEUP,
        Delivery.SKIPPED,
        "expired",
        "the finding",
    )
    assert (await world.timeline(task))[-1] == "expired"
    assert (await world.peek()).alarms == ()


async def test_dead_letter_of_a_deleted_session_expires_too(world: World, main: int) -> None:
    task = await given_up(world, main)
    await world.db.alone(write, "DELETE FROM sessions WHERE id = ?", task)
    world.clock.advance(7 * DAY_S)
    await world.ring()
    state = await world.task(task)
    assert (state.delivery_reason, state.result, state.wake_at) == ("expired", "the finding", None)


async def test_what_is_to_be_deleted_waits_until_the_letter_is_dismissed(world: World, main: int) -> None:
    task = await given_up(world, main, cleanup=CleanupPolicy.DELETE)
    assert await world.db.read(task_files.awaited, world.policy, task)
    await world.clean(task)
    assert (await world.task(task)).phase is Phase.COMPLETED_GIVEUP
    assert not await world.db.read(task_files.awaited, world.policy, task)
    await world.db.alone(control.dismiss, world.policy, task, "person")
    assert await world.db.read(task_files.awaited, world.policy, task)
    assert (await world.task(task)).wake_at == world.clock.now() + 60
    await world.clean(task)
    assert not await world.db.read(task_files.awaited, world.policy, task)
    assert (await world.task(task)).wake_at is None


async def test_redelivered_task_is_cleaned_when_it_has_been_told(world: World, main: int) -> None:
    task = await given_up(world, main, cleanup=CleanupPolicy.DELETE)
    await world.clean(task)
    await world.db.alone(control.redeliver, world.policy, task, "person")
    assert not await world.db.read(task_files.awaited, world.policy, task)
    world.clock.advance(2)
    await (await world.start(main)).finish("told")
    assert (await world.task(task)).phase is Phase.CLEANUP_PENDING
    assert await world.db.read(task_files.awaited, world.policy, task)


@pytest.mark.scenario(111)
async def test_crash_after_the_telling_is_cleaned_and_not_told_again(world: World, main: int) -> None:
    task = await world.child(main, cleanup=CleanupPolicy.DELETE)
    await world.end(task, "the finding")
    world.clock.advance(2)
    await (await world.start(main)).finish("told")
    await world.die()
    assert (await world.task(task)).phase is Phase.CLEANUP_PENDING
    world.clock.advance(60)
    await world.ring()
    assert await world.db.read(task_files.awaited, world.policy, task)
    await world.clean(task)
    await world.live()
    assert (await world.task(task)).phase is Phase.COMPLETED
    assert len(await world.inputs(main)) == 1
    assert len(await world.trace(task)) == 1
