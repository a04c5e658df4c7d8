"""Steer, in every phase: the new instruction supersedes what runs, and only its run is announced."""

from __future__ import annotations

import pytest

from clutch.core.model import Delivery, LetterState, Outcome, Phase, Task
from clutch.transactions import control, messages
from clutch.transactions.control import NotPossible
from clutch.transactions.sessions import Stale
from tests.transactions.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.scenario(208)]


async def steer(world: World, task_id: int, text: str = "do this instead", idem: str = "steer") -> Task:
    return (await world.db.alone(messages.steer, world.policy, task_id, idem, text, actor="person")).task


@pytest.mark.scenario(122)
@pytest.mark.scenario(125)
async def test_running_task_is_superseded_and_only_the_new_run_announces(world: World, main: int) -> None:
    run = await world.started(main, "label", run_timeout_s=100.0)
    await run.step()
    started_at = (await world.task(run.session_id)).started_at
    world.clock.advance(50)
    steered = await steer(world, run.session_id)
    assert (steered.phase, steered.generation, steered.outcome) == (Phase.QUEUED, 2, None)
    with pytest.raises(Stale):
        await run.finish("old result")
    again = await world.start(run.session_id)
    assert again.run_id != run.run_id
    assert (await world.inputs(run.session_id))[-1] == "do this instead"
    task = await world.task(run.session_id)
    assert (task.deadline_at, task.started_at, task.timeout_s) == (world.clock.now() + 100, started_at, 100)
    await again.finish("new result")
    await world.live()
    (told,) = await world.inputs(main)
    assert "new result" in told
    assert "old result" not in told
    assert '"label"' in told


async def test_queued_task_reads_it_with_its_first_message(world: World, main: int) -> None:
    task = await world.child(main)
    steered = await steer(world, task)
    assert (steered.phase, steered.generation) == (Phase.QUEUED, 1)
    await world.start(task)
    first, second = await world.inputs(task)
    assert "do child" in first
    assert second == "do this instead"


async def test_queued_task_that_was_claimed_reads_it_too(world: World, main: int) -> None:
    task = await world.child(main)
    await world.claim()
    await steer(world, task)
    world.held.clear()
    await world.start(task)
    assert len(await world.inputs(task)) == 2


async def test_paused_task_reads_it_at_resume(world: World, main: int) -> None:
    run = await world.started(main)
    await world.db.alone(control.pause, world.policy, run.session_id, "person")
    await run.step()
    await steer(world, run.session_id)
    await world.mail()
    assert await world.due(run.session_id) is None
    await world.db.alone(control.resume, world.policy, run.session_id, "person")
    again = await world.start(run.session_id)
    assert (await world.inputs(run.session_id))[-1] == "do this instead"
    await again.finish("done so")
    await world.live()
    assert (await world.task(run.session_id)).delivery is Delivery.DELIVERED


async def test_task_resumed_but_not_yet_running_reads_it(world: World, main: int) -> None:
    run = await world.started(main)
    await world.db.alone(control.pause, world.policy, run.session_id, "person")
    await run.step()
    await world.db.alone(control.resume, world.policy, run.session_id, "person")
    assert await world.phase(run.session_id) == (Phase.QUEUED, "resumed")
    await steer(world, run.session_id)
    await world.start(run.session_id)
    assert (await world.inputs(run.session_id))[-1] == "do this instead"


async def test_task_parked_for_its_provider_reads_it(world: World, main: int) -> None:
    run = await world.started(main)
    await run.step()
    await run.stumble()
    await steer(world, run.session_id)
    world.clock.advance(20)
    await world.start(run.session_id)
    assert (await world.inputs(run.session_id))[-1] == "do this instead"


async def test_yielded_task_reads_it_and_still_hears_its_children(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    child = await world.child(parent.session_id, "child")
    await parent.yields()
    await steer(world, parent.session_id)
    again = await world.start(parent.session_id)
    assert (await world.inputs(parent.session_id))[-1] == "do this instead"
    await again.finish("did that")
    assert (await world.task(parent.session_id)).phase is Phase.ANNOUNCE_DEFERRED
    await world.end(child, "the finding")
    await world.live()
    assert sum("the finding" in text for text in await world.inputs(parent.session_id)) == 1


async def test_plan_that_awaits_approval_is_not_steered(world: World, main: int) -> None:
    run = await world.started(main, plan_mode=True)
    await run.finish("a plan")
    with pytest.raises(NotPossible, match="use `reject`"):
        await steer(world, run.session_id)
    assert await world.rows("SELECT id FROM inbox WHERE kind = 'instruction'") == []


async def test_failed_task_in_its_grace_starts_anew(world: World, main: int) -> None:
    run = await world.started(main)
    await run.fail("broken")
    steered = await steer(world, run.session_id)
    assert (steered.phase, steered.generation, steered.error) == (Phase.QUEUED, 2, None)
    await world.end(run.session_id, "better")
    assert (await world.task(run.session_id)).outcome is Outcome.OK


@pytest.mark.scenario(126)
async def test_ended_orchestrator_with_live_children_gets_a_new_run(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    child = await world.child(parent.session_id, "child")
    await parent.finish("first words")
    steered = await steer(world, parent.session_id)
    assert (steered.phase, steered.generation) == (Phase.QUEUED, 2)
    await world.end(parent.session_id, "second words")
    await world.end(child, "the finding")
    await world.live(lambda session_id, _: "final words" if session_id == parent.session_id else "ok")
    assert (await world.task(parent.session_id)).result == "final words"
    assert len(await world.inputs(main)) == 1


async def test_ended_task_whose_letter_nobody_took_gets_a_new_run(world: World, main: int) -> None:
    run = await world.started(main)
    await run.finish("old words")
    steered = await steer(world, run.session_id)
    assert (steered.phase, steered.generation, steered.delivery) == (Phase.QUEUED, 2, Delivery.NONE)
    await world.end(run.session_id, "new words")
    await world.live()
    (told,) = await world.inputs(main)
    assert "new words" in told
    assert "old words" not in told
    assert (await world.letter(run.session_id, 1)).state == LetterState.VOID


async def test_task_whose_result_is_being_read_is_not_steered(world: World, main: int) -> None:
    run = await world.started(main)
    await run.finish("words")
    world.clock.advance(2)
    reader = await world.start(main)
    with pytest.raises(NotPossible, match="use `continue`"):
        await steer(world, run.session_id)
    await reader.finish("told")
    with pytest.raises(NotPossible, match="use `continue`"):
        await steer(world, run.session_id)
    assert (await world.task(run.session_id)).generation == 1


async def test_killed_task_is_not_steered(world: World, main: int) -> None:
    run = await world.started(main)
    await world.db.alone(control.kill, world.policy, run.session_id, "no", "person")
    with pytest.raises(NotPossible):
        await steer(world, run.session_id)


async def test_result_nobody_could_be_told_yet_is_steered(world: World, main: int) -> None:
    run = await world.started(main)
    await run.finish("for nobody")
    await world.db.alone(control.close_main, world.policy, main)
    await world.mail()
    steered = await steer(world, run.session_id)
    assert (steered.phase, steered.generation) == (Phase.QUEUED, 2)
    await world.end(run.session_id, "again for nobody")
    await world.mail()
    assert (await world.task(run.session_id)).reason == "missing-requester"


async def test_same_steer_twice_is_one(world: World, main: int) -> None:
    run = await world.started(main)
    first = await steer(world, run.session_id)
    assert await steer(world, run.session_id) == first
    await world.start(run.session_id)
    assert (await world.inputs(run.session_id)).count("do this instead") == 1


async def test_interrupted_run_is_superseded_too(world: World, main: int) -> None:
    run = await world.started(main)
    await world.die()
    steered = await steer(world, run.session_id)
    assert (steered.phase, steered.generation) == (Phase.QUEUED, 2)
    again = await world.start(run.session_id)
    assert not again.begun.is_resumed


async def test_superseded_run_gives_back_the_findings_it_took(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    child = await world.child(parent.session_id, "child")
    await parent.yields()
    await world.end(child, "the finding")
    await world.start(parent.session_id)
    await steer(world, parent.session_id)
    again = await world.start(parent.session_id)
    texts = await world.inputs(parent.session_id)
    assert sum("the finding" in text for text in texts) == 1
    assert texts[-1] == "do this instead"
    await again.finish("all of it")
    await world.live()
    assert (await world.task(child)).delivery is Delivery.DELIVERED
    assert (await world.task(child)).attempts == 0


async def test_task_that_is_to_pause_at_its_next_step_is_paused_when_it_is_steered(
    world: World, main: int
) -> None:
    """The step it was to pause at never comes: its run has been superseded."""
    run = await world.started(main, run_timeout_s=100.0)
    await world.db.alone(control.pause, world.policy, run.session_id, "person")
    assert (await world.task(run.session_id)).phase is Phase.RUNNING
    steered = await steer(world, run.session_id)
    assert (steered.phase, steered.reason, steered.generation) == (Phase.PAUSED, "pause", 2)
    assert await world.due(run.session_id) is None
    await world.db.alone(control.resume, world.policy, run.session_id, "person")
    again = await world.start(run.session_id)
    assert (await world.inputs(run.session_id))[-1] == "do this instead"
    await again.finish("new result")
    assert (await world.task(run.session_id)).outcome is Outcome.OK
