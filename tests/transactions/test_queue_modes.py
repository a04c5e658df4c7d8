"""How announces reach a session that is busy, in every mode, and a session's own way to queue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clutch.core import delivery
from clutch.core.model import Delivery, Phase
from clutch.core.policy import QueueMode
from clutch.transactions import control, messages, wake
from tests.transactions.world import Run, World, calls

pytestmark = pytest.mark.anyio


def announcing(world: World, **rules: Any) -> None:
    world.policy = replace(world.policy, announcing=replace(world.policy.announcing, **rules))


async def queue(world: World, session_id: int, words: str) -> bool:
    known = (world.policy, session_id, delivery.parse(words))
    return await world.db.tx(session_id, wake.set_queue, *known)


async def in_background(world: World, main: int) -> Run:
    """A turn of main that nobody asked for: it reads a result."""
    await world.end(await world.child(main, "first"), "found by first")
    world.clock.advance(2)
    return await world.start(main)


# ---- interrupt ---------------------------------------------------------------------------------------


async def test_interrupt_cancels_the_turn_at_its_next_boundary_and_the_letters_have_their_own(
    world: World, main: int
) -> None:
    announcing(world, mode=QueueMode.INTERRUPT)
    run = await in_background(world, main)
    second = await world.child(main, "second")
    await world.end(second, "found by second")
    world.clock.advance(1)
    boundary = await run.step()
    assert (boundary.goes_on, boundary.interrupts, boundary.inputs) == (True, True, ())
    assert await run.interrupt()
    ended = await world.rows("SELECT stop_reason FROM runs WHERE id = ?", run.run_id)
    assert ended == [("interrupted",)]
    again = await world.start(main)
    assert again.run_id != run.run_id
    assert again.begun.senders == (second,)
    assert "found by second" in (await world.inputs(main))[-1]
    await again.finish("both")
    assert [(await world.task(task)).delivery for task in (again.begun.senders)] == [Delivery.DELIVERED]
    assert await world.trace(second) == [(1, "delivered", "queued", "queued", None)]
    await world.live()
    assert len(await world.inputs(main)) == 2


async def test_turn_started_by_a_person_is_never_interrupted(world: World, main: int) -> None:
    announcing(world, mode=QueueMode.INTERRUPT)
    await world.tell(main, "hello")
    run = await world.start(main)
    task = await world.child(main)
    await world.end(task, "found")
    assert not (await run.step()).interrupts
    await run.finish("hi")
    world.clock.advance(1)
    await (await world.start(main)).finish("found it")
    assert (await world.task(task)).delivery is Delivery.DELIVERED


async def test_crash_between_the_boundary_and_the_interruption_changes_nothing(
    world: World, main: int
) -> None:
    announcing(world, mode=QueueMode.INTERRUPT)
    run = await in_background(world, main)
    second = await world.child(main, "second")
    await world.end(second, "found by second")
    assert (await run.step()).interrupts
    await world.die()
    again = await world.start(main)
    assert again.run_id == run.run_id
    assert (await again.step()).interrupts
    assert await again.interrupt()
    await world.live()
    assert (await world.task(second)).delivery is Delivery.DELIVERED


async def test_interruption_whose_reason_is_gone_lets_the_turn_go_on(world: World, main: int) -> None:
    announcing(world, mode=QueueMode.INTERRUPT)
    run = await in_background(world, main)
    second = await world.child(main, "second")
    await world.end(second, "found by second")
    await run.respond(calls("read"))
    assert (await run.results()).interrupts
    await world.db.alone(messages.steer, world.policy, second, "steer", "look again", actor="person")
    assert not await run.interrupt()
    await run.finish("told")
    await world.live()
    assert (await world.task(second)).delivery is Delivery.DELIVERED


async def test_interrupted_child_goes_on_with_its_task_in_the_new_turn(world: World, main: int) -> None:
    announcing(world, mode=QueueMode.INTERRUPT)
    parent = await world.started(main, "parent", run_timeout_s=100)
    child = await world.child(parent.session_id, "child")
    await world.end(child, "found")
    world.clock.advance(30)
    assert (await parent.step()).interrupts
    assert await parent.interrupt()
    assert await world.phase(parent.session_id) == (Phase.PAUSED, "interrupt")
    again = await world.start(parent.session_id)
    task = await world.task(parent.session_id)
    assert (task.phase, task.deadline_at) == (Phase.RUNNING, world.clock.now() + 70)
    await again.finish("all of it")
    task = await world.task(parent.session_id)
    assert (task.result, task.generation) == ("all of it", 1)
    assert (await world.task(child)).delivery is Delivery.DELIVERED


async def test_person_who_wrote_meanwhile_comes_first_also_after_an_interruption(
    world: World, main: int
) -> None:
    announcing(world, mode=QueueMode.INTERRUPT)
    run = await in_background(world, main)
    second = await world.child(main, "second")
    await world.end(second, "found by second")
    assert (await run.step()).interrupts
    await world.tell(main, "what time is it?")
    await run.interrupt()
    again = await world.start(main)
    assert (await world.inputs(main))[-1] == "what time is it?"
    await again.finish("noon")
    await world.live()
    assert (await world.task(second)).delivery is Delivery.DELIVERED


# ---- steer and what is left over ---------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "turns"), [(QueueMode.STEER, 1), (QueueMode.STEER_BACKLOG, 2)])
async def test_letters_not_injected_before_the_turn_ended_follow_in_a_turn(
    world: World, main: int, mode: QueueMode, turns: int
) -> None:
    announcing(world, mode=mode)
    await world.tell(main, "hello")
    run = await world.start(main)
    tasks = await world.children(main, "one", "two")
    for task in tasks:
        await world.end(task, "found")
    await world.mail()
    world.clock.advance(1)
    await run.finish("hi")
    await world.live()
    assert len(await world.inputs(main)) == 1 + turns
    for task in tasks:
        (row,) = await world.rows(
            "SELECT path, tried FROM deliveries WHERE task_id = ? AND path IS NOT NULL", task
        )
        assert row == ("queued", '[["steer-primary", "turn ended first"]]')


async def test_auto_injects_what_nobody_waits_for_and_collects_the_rest(world: World, main: int) -> None:
    await world.tell(main, "hello")
    run = await world.start(main)
    waited_for = await world.child(main, "waited for")
    other = await world.child(main, "other", expects_completion=False)
    for task in (waited_for, other):
        await world.end(task, "found")
    world.clock.advance(1)
    (injected,) = (await run.step()).inputs
    assert injected.text.startswith('[INTERRUPT]\n[Subagent] "other"')
    await run.finish("hi")
    await world.live()
    assert [(await world.trace(task))[0][2] for task in (waited_for, other)] == ["queued", "steered"]


# ---- a way of its own --------------------------------------------------------------------------------


async def test_session_with_a_way_of_its_own_queues_like_that_and_others_as_configured(
    world: World, main: int
) -> None:
    assert await queue(world, main, "followup")
    for label in ("one", "two"):
        await world.end(await world.child(main, label), label)
    await world.live()
    assert [text.splitlines()[0] for text in await world.inputs(main)] == [
        '[Subagent] "one" completed successfully · unchecked',
        '[Subagent] "two" completed successfully · unchecked',
    ]
    other = await world.main("other")
    for label in ("three", "four"):
        await world.end(await world.child(other, label), label)
    await world.live()
    assert len(await world.inputs(other)) == 1


async def test_changed_way_applies_to_letters_that_wait_already(world: World, main: int) -> None:
    await world.end(await world.child(main), "found")
    await world.mail()
    now = world.clock.now()
    assert await world.due(main) == now + 1
    await queue(world, main, "collect debounce:5s")
    assert await world.due(main) == now + 5
    await queue(world, main, "default")
    assert await world.due(main) == now + 1


async def test_cap_and_drop_of_a_session_apply_to_its_next_turn(world: World, main: int) -> None:
    await queue(world, main, "collect cap:1 drop:old")
    first, second = await world.children(main, "first", "second")
    await world.end(first)
    await world.end(second)
    world.clock.advance(2)
    await (await world.start(main)).finish("ok")
    assert (await world.task(first)).delivery_reason == "dropped"
    assert (await world.task(second)).delivery is Delivery.DELIVERED


async def test_closed_or_unknown_session_has_no_queue(world: World, main: int) -> None:
    await world.db.alone(control.close_main, world.policy, main)
    assert not await queue(world, main, "followup")
    assert not await queue(world, 999_999, "followup")
