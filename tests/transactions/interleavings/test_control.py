"""Kill, steer and pause against whatever a run or a reader does at the same time, in every order."""

from __future__ import annotations

import pytest

from clutch.core.model import Delivery, Outcome, Phase
from clutch.core.spawn import SpawnRefusal
from clutch.transactions import control, messages, wake
from clutch.transactions.control import NotPossible
from clutch.transactions.sessions import Stale
from clutch.transactions.spawn import Accepted
from tests.transactions.interleavings.parts import (
    beginning,
    claiming,
    filing,
    finishing,
    heard_once,
    killing,
    spawning,
    steering,
    told,
    yielding,
)
from tests.transactions.interleavings.two_connections import Ended, Stage
from tests.transactions.world import World, calls

pytestmark = pytest.mark.anyio


# ---- 5. kill ------------------------------------------------------------------------------------------


async def all_dead(world: World) -> None:
    alive = await world.rows("SELECT id, phase FROM tasks WHERE outcome IS NULL OR outcome <> 'killed'")
    assert alive == []


async def test_nothing_is_born_below_a_killed_parent(stage: Stage, world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    await parent.respond(calls("sessions_spawn"))

    async def check(_: Ended, born: Ended) -> None:
        assert born.error is None or isinstance(born.error, Stale)
        await all_dead(world)

    await stage.every_order(
        killing(world, parent.session_id), spawning(world, parent.session_id, parent.fence), check
    )


async def test_nothing_is_born_below_a_killed_grandparent(stage: Stage, world: World, main: int) -> None:
    grandparent = await world.started(main, "grandparent")
    parent = await world.started(grandparent.session_id, "parent")

    async def check(*_: Ended) -> None:
        await all_dead(world)

    await stage.every_order(
        killing(world, grandparent.session_id), spawning(world, parent.session_id, parent.fence), check
    )


async def test_person_cannot_spawn_below_a_killed_parent(stage: Stage, world: World, main: int) -> None:
    parent = await world.started(main, "parent")

    async def check(_: Ended, born: Ended) -> None:
        assert isinstance(born.value[0], Accepted | SpawnRefusal)
        await all_dead(world)

    await stage.every_order(killing(world, parent.session_id), spawning(world, parent.session_id), check)


async def test_killed_task_is_not_claimed(stage: Stage, world: World, main: int) -> None:
    task = await world.child(main)

    async def check(*_: Ended) -> None:
        session = await world.session(task)
        assert (session.owner, session.closed, session.due) == (None, 1, None)

    await stage.every_order(killing(world, task), claiming(world), check)


async def test_killed_task_does_not_begin(stage: Stage, world: World, main: int) -> None:
    task = await world.child(main)
    await world.claim()

    async def check(_: Ended, begun: Ended) -> None:
        assert begun.error is None or isinstance(begun.error, Stale)
        await all_dead(world)
        assert (await world.session(task)).run_id is None

    await stage.every_order(killing(world, task), beginning(world, task), check)


async def test_kill_and_finish_make_one_outcome(stage: Stage, world: World, main: int) -> None:
    run = await world.started(main)

    async def check(killed: Ended, finished: Ended) -> None:
        task = await world.task(run.session_id)
        if finished.error is None:
            assert (task.outcome, killed.value.already_finished) == (Outcome.OK, (run.session_id,))
        else:
            assert isinstance(finished.error, Stale)
            assert (task.outcome, killed.value.stopped) == (Outcome.KILLED, (run.session_id,))

    await stage.every_order(killing(world, run.session_id), finishing(run), check)


async def test_result_for_a_parent_that_is_being_killed_goes_nowhere(
    stage: Stage, world: World, main: int
) -> None:
    parent = await world.started(main, "parent")
    child = await world.started(parent.session_id, "child")

    async def check(*_: Ended) -> None:
        task = await world.task(child.session_id)
        assert task.delivery is Delivery.SKIPPED
        await world.mail()
        assert await world.due(main) is None

    await stage.every_order(killing(world, parent.session_id), finishing(child), check)


async def test_kill_of_a_parent_that_reads_a_finding(stage: Stage, world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    child = await world.started(parent.session_id, "child")
    await parent.yields()
    await child.finish("deep finding")
    await world.mail()
    await world.claim()

    async def check(*_: Ended) -> None:
        assert (await world.task(child.session_id)).delivery is Delivery.SKIPPED
        assert await world.due(main) is None

    await stage.every_order(killing(world, parent.session_id), beginning(world, parent.session_id), check)


async def test_kill_and_the_taking_of_a_late_letter_agree(stage: Stage, world: World, main: int) -> None:
    """The child's letter has gone up to main; its ended parent is killed while main reads."""
    parent = await world.started(main, "parent")
    child = await world.started(parent.session_id, "child")
    await parent.finish("my part")
    world.clock.advance(1801)
    await world.ring()
    await child.finish("late finding")
    world.clock.advance(2)
    await world.mail()
    await world.claim()

    async def check(*_: Ended) -> None:
        is_told = await told(world, main, "late finding") == 1
        is_skipped = (await world.task(child.session_id)).delivery is Delivery.SKIPPED
        assert is_told != is_skipped

    await stage.every_order(killing(world, parent.session_id), beginning(world, main), check)


async def test_two_kills_of_one_tree(stage: Stage, world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    child = await world.started(parent.session_id, "child")
    await world.child(child.session_id, "grandchild")

    async def check(first: Ended, second: Ended) -> None:
        await all_dead(world)
        stopped = [*first.value.stopped, *second.value.stopped]
        assert sorted(set(stopped)) == sorted(stopped)
        assert len(stopped) == 3

    await stage.every_order(killing(world, parent.session_id), killing(world, child.session_id), check)


# ---- 6. steer -----------------------------------------------------------------------------------------


async def steered(world: World, task_id: int, outcome: Ended) -> None:
    """The steer was refused, or the task reads it and only what it says then is announced."""
    task = await world.task(task_id)
    if outcome.error is not None:
        assert isinstance(outcome.error, NotPossible)
        return
    await world.die()
    await world.live(lambda session_id, _: "new words" if session_id == task_id else "ok")
    assert (await world.inputs(task_id)).count("do this instead") == 1
    task = await world.task(task_id)
    assert (task.result, task.delivery) == ("new words", Delivery.DELIVERED)
    assert await told(world, task.requester_id, "old words") == 0


@pytest.mark.parametrize("what", ["finish", "results", "begin", "claim", "yield"])
async def test_steer_and_a_step_of_the_run(stage: Stage, world: World, main: int, what: str) -> None:
    task = await world.child(main)
    if what == "claim":
        other = claiming(world)
    elif what == "begin":
        await world.claim()
        other = beginning(world, task)
    else:
        run = await world.start(task)
        if what == "yield":
            await world.child(task, "grandchild")
        await run.respond(calls("sessions_yield" if what == "yield" else "read"))
        other = {"finish": finishing(run, "old words"), "results": filing(run), "yield": yielding(run)}[what]

    async def check(steer: Ended, stepped: Ended) -> None:
        assert stepped.error is None or isinstance(stepped.error, Stale)
        await steered(world, task, steer)

    await stage.every_order(steering(world, task), other, check)


async def test_steer_and_the_reading_of_the_result_cannot_both_win(
    stage: Stage, world: World, main: int
) -> None:
    run = await world.started(main)
    await run.finish("old words")
    world.clock.advance(2)
    await world.mail()
    await world.claim()

    async def check(steer: Ended, begun: Ended) -> None:
        is_read = await told(world, main, "old words") == 1
        assert is_read == (begun.value is not None)
        assert is_read == (steer.error is not None)
        await steered(world, run.session_id, steer)

    await stage.every_order(steering(world, run.session_id), beginning(world, main), check)


async def test_late_finish_of_a_superseded_run_changes_nothing(stage: Stage, world: World, main: int) -> None:
    run = await world.started(main)
    await stage.db.alone(
        messages.steer, world.policy, run.session_id, "steer", "do this instead", actor="person"
    )
    await world.claim()

    async def check(begun: Ended, finished: Ended) -> None:
        assert begun.error is None
        assert isinstance(finished.error, Stale)
        await heard_once(world, "do this instead")
        assert await told(world, main, "old words") == 0

    await stage.every_order(beginning(world, run.session_id), finishing(run, "old words"), check)


# ---- pause ------------------------------------------------------------------------------------------


async def test_pause_and_finish(stage: Stage, world: World, main: int) -> None:
    run = await world.started(main)

    async def check(*_: Ended) -> None:
        assert (await world.task(run.session_id)).phase is Phase.ANNOUNCING

    await stage.every_order(
        lambda now: control.pause(now, world.policy, run.session_id, "person"), finishing(run), check
    )


async def test_pause_and_a_boundary(stage: Stage, world: World, main: int) -> None:
    run = await world.started(main)
    await run.respond(calls("read"))

    async def check(_: Ended, filed: Ended) -> None:
        session = await world.session(run.session_id)
        if filed.value.goes_on:
            assert (session.owner, session.paused) == (world.worker, 1)
        else:
            assert (session.owner, session.due) == (None, None)
        await stage.db.alone(control.resume, world.policy, run.session_id, "person")

    await stage.every_order(
        lambda now: control.pause(now, world.policy, run.session_id, "person"), filing(run), check
    )


async def test_reopened_main_session_hears_what_was_being_given_up(
    stage: Stage, world: World, main: int
) -> None:
    run = await world.started(main)
    await run.finish("for nobody")
    await stage.db.alone(control.close_main, world.policy, main)

    async def check(*_: Ended) -> None:
        await heard_once(world, "for nobody")

    await stage.every_order(
        lambda now: control.open_main(now, world.policy, main),
        lambda now: wake.orphan(now, world.policy, main),
        check,
    )
