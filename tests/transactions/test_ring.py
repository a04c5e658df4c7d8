"""Timers: wrap up, deadline, grace, and how long somebody waits for descendants."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clutch.core.model import Outcome, Phase
from clutch.core.policy import Limits
from clutch.transactions import control, turn
from clutch.transactions.sessions import Stale
from tests.transactions.world import World, calls

pytestmark = pytest.mark.anyio


async def test_wrap_up_note_is_injected_at_four_fifths(world: World, main: int) -> None:
    run = await world.started(main, run_timeout_s=100.0)
    world.clock.advance(79)
    await world.ring()
    assert (await run.step()).inputs == ()
    world.clock.advance(1)
    await world.ring()
    (note,) = (await run.step()).inputs
    assert note.source == "note"
    assert "20" in note.text
    assert (await world.task(run.session_id)).wake_at == (await world.task(run.session_id)).deadline_at


@pytest.mark.scenario(54)
async def test_deadline_aborts_with_the_last_words(world: World, main: int) -> None:
    run = await world.started(main, run_timeout_s=100.0)
    await run.respond(calls("read", text="half way there"))
    world.clock.advance(100)
    await world.ring()
    task = await world.task(run.session_id)
    assert (task.phase, task.outcome, task.result) == (Phase.ANNOUNCING, Outcome.TIMEOUT, "half way there")
    with pytest.raises(Stale):
        await run.results()


@pytest.mark.scenario(69)
async def test_timeout_with_only_tool_calls_tells_how_far_it_came(world: World, main: int) -> None:
    run = await world.started(main, run_timeout_s=100.0)
    await run.step("read")
    await run.respond(calls("search", text="NO_REPLY"))  # a word for silence is no finding
    world.clock.advance(100)
    await world.ring()
    result = (await world.task(run.session_id)).result or ""
    assert "2 tool calls" in result
    assert "search" in result


@pytest.mark.scenario(59)
async def test_whatever_is_committed_first_at_the_deadline_is_the_outcome(world: World, main: int) -> None:
    first = await world.started(main, "first", run_timeout_s=100.0)
    second = await world.started(main, "second", run_timeout_s=100.0)
    world.clock.advance(100)
    await first.finish("just in time")
    await world.ring()
    with pytest.raises(Stale):
        await second.finish("too late")
    assert (await world.task(first.session_id)).outcome is Outcome.OK
    assert (await world.task(second.session_id)).outcome is Outcome.TIMEOUT


async def test_time_without_a_live_owner_does_not_count(world: World, main: int) -> None:
    run = await world.started(main, run_timeout_s=100.0)
    world.clock.advance(40)
    await run.step()
    await world.die()
    world.clock.advance(1000)
    await world.ring()
    assert (await world.task(run.session_id)).phase is Phase.RUNNING
    await world.start(run.session_id)
    assert (await world.task(run.session_id)).deadline_at == world.clock.now() + 60


async def test_time_in_the_queue_does_not_count(world: World, main: int) -> None:
    task = await world.child(main, run_timeout_s=100.0)
    world.clock.advance(1000)
    await world.ring()
    await world.start(task)
    assert (await world.task(task)).deadline_at == world.clock.now() + 100


async def test_ring_before_its_time_changes_nothing(world: World, main: int) -> None:
    from clutch.transactions.workers import ring

    run = await world.started(main, run_timeout_s=100.0)
    before = await world.task(run.session_id)
    await world.db.tx(run.session_id, ring, world.policy, run.session_id)
    assert await world.task(run.session_id) == before


async def test_ring_of_a_task_that_is_gone_does_nothing(world: World, main: int) -> None:
    from clutch.transactions.workers import ring

    await world.db.tx(999, ring, world.policy, 999)


@pytest.mark.scenario(205)
async def test_children_outlive_a_parent_that_timed_out(world: World, main: int) -> None:
    parent = await world.started(main, "parent", run_timeout_s=100.0)
    child = await world.child(parent.session_id, "child")
    world.clock.advance(100)
    await world.ring()
    assert (await world.task(child)).phase is Phase.QUEUED
    await world.live()
    assert (await world.task(child)).outcome is Outcome.OK
    assert len(await world.inputs(main)) >= 1


@pytest.mark.scenario(205)
async def test_on_parent_end_kill_takes_the_children_along(world: World, main: int) -> None:
    limits = Limits(depth_max=3, on_parent_end={Outcome.TIMEOUT: "kill"})
    world.policy = replace(world.policy, limits=limits)
    parent = await world.started(main, "parent", run_timeout_s=100.0)
    child = await world.child(parent.session_id, "child")
    world.clock.advance(100)
    await world.ring()
    task = await world.task(child)
    assert (task.outcome, task.error) == (Outcome.KILLED, "parent ended: timeout")


# ---- waiting for descendants -------------------------------------------------------------------------


async def deferred(world: World, main: int) -> tuple[int, int]:
    parent = await world.started(main, "parent")
    child = await world.child(parent.session_id, "stuck")
    await parent.finish("my part")
    return parent.session_id, child


@pytest.mark.scenario(105)
async def test_descendants_that_never_settle_are_waited_for_half_an_hour(world: World, main: int) -> None:
    parent, child = await deferred(world, main)
    world.clock.advance(1799)
    await world.ring()
    assert (await world.task(parent)).phase is Phase.ANNOUNCE_DEFERRED
    world.clock.advance(1)
    await world.ring()
    task = await world.task(parent)
    assert (task.phase, task.outcome, task.result) == (Phase.ANNOUNCING, Outcome.OK, "my part")
    assert (await world.task(child)).phase is Phase.QUEUED
    await world.mail()
    world.clock.advance(1)
    await world.start(main)
    assert 'Not finished when the wait ended: "stuck"' in (await world.inputs(main))[-1]


async def test_progress_of_a_grandchild_restarts_the_wait(world: World, main: int) -> None:
    parent, child = await deferred(world, main)
    run = await world.start(child)
    grandchild = await world.started(child, "grandchild")
    await run.yields()
    world.clock.advance(1700)
    await grandchild.step()
    world.clock.advance(200)
    await world.ring()
    task = await world.task(parent)
    assert (task.phase, task.wake_at) == (Phase.ANNOUNCE_DEFERRED, world.clock.now() - 200 + 1800)


async def test_wait_stands_still_while_a_descendant_waits_for_a_person(world: World, main: int) -> None:
    parent, child = await deferred(world, main)
    await world.db.alone(control.pause, world.policy, child, "person")
    world.clock.advance(1801)
    await world.ring()
    assert (await world.task(parent)).phase is Phase.ANNOUNCE_DEFERRED
    await world.db.alone(control.resume, world.policy, child, "person")
    world.clock.advance(1801)
    await world.ring()
    assert (await world.task(parent)).phase is Phase.ANNOUNCING


async def test_findings_nobody_read_before_the_expiry_go_up_by_themselves(world: World, main: int) -> None:
    parent, _ = await deferred(world, main)
    done = await world.child(parent, "done")
    await world.end(done, "early finding")
    world.clock.advance(1801)
    await world.ring()
    await world.live()
    assert sum("early finding" in text for text in await world.inputs(main)) == 1


async def test_session_closed_by_its_timer_while_it_was_claimed_begins_nothing(
    world: World, main: int
) -> None:
    """Its last child settles and the wait expires in the same moment: the letter must not be read by the dead."""
    parent, child = await deferred(world, main)
    run = await world.start(child)
    world.clock.advance(1801)
    await run.finish("in the last moment")
    world.clock.advance(1801)
    await world.mail()
    assert parent in await world.claim()
    await world.ring()
    assert (await world.session(parent)).closed == 1
    with pytest.raises(Stale):
        await world.begin(parent)
    await world.live()
    assert sum("in the last moment" in text for text in await world.inputs(main)) == 1


async def test_grace_that_ends_while_its_session_was_claimed_begins_nothing(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    child = await world.child(parent.session_id, "child")
    await parent.yields()
    await world.end(child, "deep finding")
    reader = await world.start(parent.session_id)
    await reader.fail("no model")
    world.clock.advance(15)
    assert parent.session_id in await world.claim()
    await world.ring()
    assert (await world.task(parent.session_id)).outcome is Outcome.ERROR
    with pytest.raises(Stale):
        await world.begin(parent.session_id)
    await world.live()
    assert sum("deep finding" in text for text in await world.inputs(main)) == 1


async def test_a_run_past_its_deadline_is_not_promised_to_be_woken(world: World, main: int) -> None:
    run = await world.started(main, run_timeout_s=100.0)
    world.clock.advance(101)
    await run.yields()
    (body,) = (
        await world.rows(
            "SELECT body FROM messages WHERE session_id = ? AND kind = 'results'", run.session_id
        )
    )[0]
    assert turn.TOO_LATE in body
    assert await world.rows("SELECT hold FROM sessions WHERE id = ?", run.session_id) == [(0,)]
