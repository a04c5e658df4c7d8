"""What is decided about telling without an attempt is in the trace, by the transaction that decides it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clutch.core.diagnosis import Gate
from clutch.core.model import Delivery, Phase
from clutch.core.policy import QueueMode
from clutch.transactions import control, messages
from clutch.transactions.read.why import why
from tests.transactions.test_heartbeat import MIDNIGHT, waking_by_heartbeat
from tests.transactions.world import Run, World

pytestmark = pytest.mark.anyio

BUSY = (1, "deferred(requester-busy)")


async def in_a_turn(world: World, main: int) -> Run:
    await world.tell(main, "hello")
    return await world.start(main)


async def told(world: World, task: int) -> tuple[Delivery, str]:
    row = await world.task(task)
    return row.delivery, row.delivery_reason


async def test_result_for_a_requester_in_a_turn_is_deferred_until_a_turn_reads_it(
    world: World, main: int
) -> None:
    run = await in_a_turn(world, main)
    task = await world.child(main)
    await world.end(task, "found")
    await world.mail()
    assert await told(world, task) == (Delivery.DEFERRED, "requester-busy")
    await world.mail()
    await run.step()
    assert await world.not_tried(task) == [BUSY]
    world.clock.advance(1)
    await run.finish("hi")
    world.clock.advance(1)
    reading = await world.start(main)
    assert await told(world, task) == (Delivery.WAITING, "")
    await reading.finish("it found something")
    assert await told(world, task) == (Delivery.DELIVERED, "queued")
    assert await world.trace(task) == [(1, "delivered", "queued", "queued", None)]
    assert (await world.task(task)).attempts == 0


async def test_result_that_a_turn_leaves_for_later_is_deferred_by_it(world: World, main: int) -> None:
    """It was about to be collected when a person spoke."""
    task = await world.child(main)
    await world.end(task, "found")
    await world.mail()
    assert await told(world, task) == (Delivery.WAITING, "")
    await in_a_turn(world, main)
    assert (await told(world, task), await world.not_tried(task)) == (
        (Delivery.DEFERRED, "requester-busy"),
        [BUSY],
    )


async def test_result_that_the_turn_will_read_is_not_deferred(world: World, main: int) -> None:
    world.policy = replace(world.policy, announcing=replace(world.policy.announcing, mode=QueueMode.STEER))
    run = await in_a_turn(world, main)
    task = await world.child(main)
    await world.end(task, "found")
    await world.mail()
    await run.step()
    await run.finish("hi")
    assert (await told(world, task), await world.not_tried(task)) == ((Delivery.DELIVERED, "steered"), [])


async def test_result_of_the_night_is_deferred_until_the_morning(world: World, main: int) -> None:
    waking_by_heartbeat(world)
    world.clock.set(MIDNIGHT + 3 * 3600)
    task = await world.child(main)
    await world.end(task, "found")
    await world.mail()
    assert await told(world, task) == (Delivery.DEFERRED, "quiet-hours")
    seen = await world.db.read(why, task)
    assert seen is not None
    (line,) = seen.attempts
    assert (line.outcome, line.reason, line.attempt, line.next_at) == (
        "deferred",
        "quiet-hours",
        0,
        MIDNIGHT + 9 * 3600,
    )
    assert (line.key, line.to_session, line.to_depth, line.why) == (
        f"announce:v1:{seen.task.session_key}:1",
        "agent:main:main",
        0,
        "requester",
    )
    world.clock.set(MIDNIGHT + 9 * 3600)
    await world.live()
    assert await told(world, task) == (Delivery.DELIVERED, "direct")


@pytest.mark.parametrize("how", ["well", "badly", "halted"])
async def test_result_that_waited_for_a_turn_of_the_night_waits_for_the_morning_after_it(
    world: World, main: int, how: str
) -> None:
    waking_by_heartbeat(world)
    world.clock.set(MIDNIGHT + 3 * 3600)
    await world.hire()
    run = await in_a_turn(world, main)
    task = await world.child(main)
    await world.end(task, "found")
    await world.mail()
    if how == "halted":
        await world.db.alone(control.halt, world.policy, main, "person")
    else:
        await (run.finish("good night") if how == "well" else run.fail("no"))
    assert await told(world, task) == (Delivery.DEFERRED, "quiet-hours")
    assert await world.not_tried(task) == [BUSY, (1, "deferred(quiet-hours)")]
    await world.mail()
    seen = await world.db.read(why, task)
    assert seen is not None
    assert seen.stuck is not None
    assert (seen.stuck.gate, seen.stuck.until) == (Gate.QUIET_HOURS, MIDNIGHT + 9 * 3600)
    assert len(seen.attempts) == 2


@pytest.mark.parametrize("how", ["steer", "continue", "retry"])
async def test_new_run_overtakes_what_is_not_told(world: World, main: int, how: str) -> None:
    """Never `child-active`: there is no newer run of a task beside a result of it that waits."""
    task = await world.child(main)
    await world.end(task, "first")
    if how == "steer":
        await world.db.alone(messages.steer, world.policy, task, "k", "look again", actor="person")
    else:
        await world.db.alone(control.again, world.policy, task, how, "k", text="look again", actor="person")
    assert await world.not_tried(task) == [(1, "skipped(superseded)")]
    assert await told(world, task) == (Delivery.NONE, "")
    await world.live()
    assert await world.not_tried(task) == [(1, "skipped(superseded)")]
    assert [row[1] for row in await world.trace(task)] == ["delivered"]


async def test_result_that_is_being_read_is_not_overtaken_but_told(world: World, main: int) -> None:
    task = await world.child(main)
    await world.end(task, "first")
    world.clock.advance(1)
    reading = await world.start(main)
    await world.db.alone(control.again, world.policy, task, "continue", "k", text="more", actor="person")
    await reading.finish("heard the first")
    assert await world.not_tried(task) == []
    await world.live()
    assert [row[1] for row in await world.trace(task)] == ["delivered", "delivered"]


async def test_kill_silence_and_children_leave_their_word_too(world: World, main: int) -> None:
    quiet, killed, parent = await world.children(main, "quiet", "killed", "parent")
    await world.end(quiet, "ANNOUNCE_SKIP")
    await world.db.alone(control.kill, world.policy, killed, "no", "person")
    run = await world.start(parent)
    await world.child(parent, "below")
    await run.finish("so far")
    words = [await world.not_tried(task) for task in (quiet, killed, parent)]
    assert words == [
        [(1, "skipped(announce-skip)")],
        [(1, "skipped(killed)")],
        [(1, "deferred(descendants-active)")],
    ]


async def test_missing_requester_is_in_the_trace(world: World, main: int) -> None:
    task = await world.child(main)
    await world.db.alone(control.close_main, world.policy, main)
    await world.end(task, "found")
    await world.mail()
    assert (await world.phase(task))[0] is Phase.ANNOUNCE_DEFERRED
    assert await world.not_tried(task) == [(1, "deferred(missing-requester)")]
