"""Runs that fail: park and go on, give letters back, give up, and never tell anything twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clutch.core.model import Delivery, LetterState, Outcome, Phase
from clutch.transactions import control, messages
from clutch.transactions.control import NotPossible
from clutch.transactions.sessions import Stale
from clutch.transactions.turn_end import crash
from tests.transactions.world import Run, World, calls

pytestmark = pytest.mark.anyio


async def settled_child(world: World, main: int, text: str = "the finding") -> int:
    task = await world.child(main)
    await world.end(task, text)
    world.clock.advance(2)
    return task


# ---- the provider ------------------------------------------------------------------------------------


async def test_provider_error_parks_the_run_and_it_goes_on(world: World, main: int) -> None:
    run = await world.started(main)
    await run.step()
    now = world.clock.now()
    await run.stumble()
    assert await world.phase(run.session_id) == (Phase.PAUSED, "provider")
    session = await world.session(run.session_id)
    assert (session.owner, session.run_id, session.due) == (None, run.run_id, now + 1)
    world.clock.advance(1)
    again = await world.start(run.session_id)
    assert again.run_id == run.run_id
    assert (await world.task(run.session_id)).phase is Phase.RUNNING
    await again.finish("after all")
    assert (await world.task(run.session_id)).outcome is Outcome.OK


async def test_provider_retries_wait_longer_each_time_and_end_in_the_grace(world: World, main: int) -> None:
    run = await world.started(main)
    for wait in (1, 4, 15):
        now = world.clock.now()
        await run.stumble()
        assert await world.due(run.session_id) == now + wait
        world.clock.advance(wait)
        run = await world.start(run.session_id)
    await run.stumble()
    task = await world.task(run.session_id)
    assert (task.phase, task.reason, task.detail) == (Phase.ENDING, "error", "overloaded (4 times)")
    assert task.wake_at == world.clock.now() + 15


async def test_progress_forgets_earlier_provider_errors(world: World, main: int) -> None:
    run = await world.started(main)
    for _ in range(6):
        await run.stumble()
        world.clock.advance(20)
        run = await world.start(run.session_id)
        await run.step()
    await run.finish()
    assert (await world.task(run.session_id)).outcome is Outcome.OK


async def test_time_named_by_the_provider_is_believed(world: World, main: int) -> None:
    run = await world.started(main)
    later = world.clock.now() + 300
    await run.stumble("rate limit", retry_at=later)
    assert await world.phase(run.session_id) == (Phase.PAUSED, "quota")
    assert await world.due(run.session_id) == later


async def test_wait_beyond_the_limit_is_an_error(world: World, main: int) -> None:
    run = await world.started(main)
    await run.stumble("rate limit", retry_at=world.clock.now() + 901)
    task = await world.task(run.session_id)
    assert task.phase is Phase.ENDING
    assert "models.maxWait" in (task.error or "")


async def test_parked_time_does_not_count_against_the_timeout(world: World, main: int) -> None:
    run = await world.started(main, run_timeout_s=100.0)
    world.clock.advance(30)
    await run.stumble(retry_at=world.clock.now() + 500)
    world.clock.advance(500)
    again = await world.start(run.session_id)
    assert (await world.task(again.session_id)).deadline_at == world.clock.now() + 70


@pytest.mark.scenario(55)
async def test_error_and_a_new_start_within_the_grace_is_announced_as_ok_only(
    world: World, main: int
) -> None:
    run = await world.started(main)
    await run.fail("bad request")
    assert (await world.task(run.session_id)).phase is Phase.ENDING
    world.clock.advance(14)
    await world.db.alone(messages.steer, world.policy, run.session_id, "s", "try again", actor="person")
    await world.end(run.session_id, "it worked")
    await world.live()
    assert (await world.task(run.session_id)).outcome is Outcome.OK
    (told,) = await world.inputs(main)
    assert "completed successfully" in told


@pytest.mark.scenario(56)
async def test_error_and_silence_is_one_error_announce(world: World, main: int) -> None:
    run = await world.started(main)
    await run.respond(calls("read", text="half of it"))
    await run.fail("bad request")
    world.clock.advance(14.9)
    await world.ring()
    assert (await world.task(run.session_id)).outcome is None
    world.clock.advance(0.2)
    await world.ring()
    task = await world.task(run.session_id)
    assert (task.phase, task.outcome, task.error, task.result) == (
        Phase.ANNOUNCING,
        Outcome.ERROR,
        "bad request",
        "half of it",
    )
    await world.live()
    (told,) = await world.inputs(main)
    assert "failed: bad request" in told


async def test_final_failure_needs_no_grace(world: World, main: int) -> None:
    run = await world.started(main)
    await run.fail("step limit", is_final=True)
    task = await world.task(run.session_id)
    assert (task.phase, task.outcome, task.error) == (Phase.ANNOUNCING, Outcome.ERROR, "step limit")


async def test_broken_turn_ends_its_run_with_the_error(world: World, main: int) -> None:
    run = await world.started(main)
    await world.db.alone(crash, world.policy, run.session_id, run.fence, "internal error: oops")
    task = await world.task(run.session_id)
    assert (task.phase, task.error) == (Phase.ENDING, "internal error: oops")


async def test_turn_that_broke_before_it_began_gives_the_session_back(world: World, main: int) -> None:
    task = await world.child(main)
    await world.claim()
    fence = world.held.pop(task).fence
    await world.db.alone(crash, world.policy, task, fence, "internal error")
    session = await world.session(task)
    assert (session.owner, session.due) == (None, world.clock.now())


async def test_run_that_lost_its_session_cannot_fail_it(world: World, main: int) -> None:
    run = await world.started(main)
    await world.die()
    for late in (run.fail(), run.stumble(), run.hand_over(), run.finish(), run.step()):
        with pytest.raises(Stale):
            await late
    task = await world.task(run.session_id)
    assert (task.phase, task.seq) == (Phase.RUNNING, 2)


# ---- letters given back ------------------------------------------------------------------------------


async def failing_reader(world: World, main: int) -> Run:
    """A turn of main that took what waits and fails before its model answered."""
    run = await world.start(main)
    await run.fail("no model")
    return run


@pytest.mark.scenario(85)
async def test_two_failed_turns_wait_one_and_two_seconds_and_the_third_succeeds(
    world: World, main: int
) -> None:
    task = await settled_child(world, main)
    runs_of_child = await world.one("SELECT COUNT(*) FROM runs WHERE session_id = ?", task)
    for attempt, wait in ((1, 1), (2, 2)):
        await failing_reader(world, main)
        letter = await world.letter(task)
        assert (letter.state, letter.taken_run, letter.taken_seq) == (LetterState.OPEN, None, 1)
        assert letter.ready_at == world.clock.now() + wait
        assert (await world.task(task)).attempts == attempt
        assert await world.due(main) == world.clock.now() + wait
        world.clock.advance(wait)
    await (await world.start(main)).finish("told")
    told = await world.task(task)
    assert (told.phase, told.delivery, told.attempts) == (Phase.COMPLETED, Delivery.DELIVERED, 2)
    assert [row[:2] for row in await world.trace(task)] == [(1, "failed"), (2, "failed"), (3, "delivered")]
    assert await world.one("SELECT COUNT(*) FROM runs WHERE session_id = ?", task) == runs_of_child


async def test_letter_given_back_is_not_appended_again(world: World, main: int) -> None:
    await settled_child(world, main)
    await failing_reader(world, main)
    world.clock.advance(1)
    await (await world.start(main)).finish("told")
    (text,) = await world.inputs(main)
    assert "the finding" in text


async def test_letter_given_back_is_delivered_by_the_next_answer_although_it_yields(
    world: World, main: int
) -> None:
    task = await settled_child(world, main)
    await failing_reader(world, main)
    await world.child(main, "another")
    await world.tell(main, "go on")
    await (await world.start(main)).yields()
    assert (await world.session(main)).hold == 1
    assert (await world.task(task)).delivery is Delivery.DELIVERED


async def test_letter_given_back_does_not_wait_for_a_hold(world: World, main: int) -> None:
    """It was read between two steps of a user's turn that failed, while the session waits for another child."""
    task = await world.child(main, "aside", expects_completion=False)
    await world.child(main, "another")
    await world.tell(main, "go on")
    await (await world.start(main)).yields()
    await world.tell(main, "and?")
    run = await world.start(main)
    await world.end(task, "found")
    await world.mail()
    await run.step()
    await run.fail("no model")
    assert (await world.session(main)).hold == 1
    assert (await world.task(task)).attempts == 1
    world.clock.advance(1)
    await (await world.start(main)).finish("told")
    assert (await world.task(task)).delivery is Delivery.DELIVERED
    assert (await world.session(main)).hold == 1


@pytest.mark.scenario(91)
async def test_slow_retries_follow_until_half_an_hour_then_it_is_a_dead_letter(
    world: World, main: int
) -> None:
    task = await settled_child(world, main)
    began, waits = world.clock.now(), []
    while (await world.task(task)).phase is Phase.ANNOUNCING:
        await failing_reader(world, main)
        ready_at = (await world.letter(task)).ready_at
        if (await world.task(task)).phase is Phase.ANNOUNCING:
            waits.append(ready_at - world.clock.now())
            world.clock.set(ready_at)
    assert waits[:2] == [1, 2]
    assert 12 <= waits[2] <= 18
    assert max(waits) <= 360
    assert world.clock.now() - began <= 1800
    given_up = await world.task(task)
    assert (given_up.phase, given_up.delivery, given_up.delivery_reason) == (
        Phase.COMPLETED_GIVEUP,
        Delivery.UNDELIVERED,
        "expiry",
    )
    assert (await world.letter(task)).state == LetterState.DEAD
    assert len(await world.inputs(main)) == 1
    assert (await world.trace(task))[-1][-1] is None


async def dead_letter(world: World, main: int) -> int:
    rules = replace(world.policy.announcing, fast_tries=1, slow=False)
    world.policy = replace(world.policy, announcing=rules)
    task = await settled_child(world, main)
    await failing_reader(world, main)
    assert (await world.task(task)).phase is Phase.COMPLETED_GIVEUP
    return task


async def test_redelivered_dead_letter_is_told_once(world: World, main: int) -> None:
    task = await dead_letter(world, main)
    assert await world.claim() == []
    await world.db.alone(control.redeliver, world.policy, task, "person")
    assert (await world.task(task)).phase is Phase.ANNOUNCING
    await world.mail()
    world.clock.advance(1)
    await (await world.start(main)).finish("told")
    told = await world.task(task)
    assert (told.phase, told.delivery) == (Phase.COMPLETED, Delivery.DELIVERED)


async def test_dismissed_dead_letter_is_over(world: World, main: int) -> None:
    task = await dead_letter(world, main)
    await world.db.alone(control.dismiss, world.policy, task, "person")
    dismissed = await world.task(task)
    assert (dismissed.delivery, dismissed.delivery_reason) == (Delivery.SKIPPED, "dismissed")
    for verb in (control.redeliver, control.dismiss):
        with pytest.raises(NotPossible, match="not a dead letter"):
            await world.db.alone(verb, world.policy, task, "person")


@pytest.mark.parametrize("verb", [control.redeliver, control.dismiss])
async def test_only_dead_letters_are_redelivered_or_dismissed(world: World, main: int, verb: object) -> None:
    task = await settled_child(world, main)
    with pytest.raises(NotPossible, match="not a dead letter"):
        await world.db.alone(verb, world.policy, task, "person")  # type: ignore[arg-type]


async def test_failed_turn_gives_back_only_what_it_took(world: World, main: int) -> None:
    first = await settled_child(world, main)
    run = await world.start(main)
    second = await world.child(main, "second")
    await world.end(second)
    await run.fail("no model")
    assert (await world.task(first)).attempts == 1
    assert (await world.task(second)).attempts == 0
    assert await world.trace(second) == []


async def test_person_whose_turn_failed_hears_of_it_and_is_not_asked_again(world: World, main: int) -> None:
    await world.tell(main, "hello")
    run = await world.start(main)
    await run.fail("no model")
    assert await world.rows("SELECT idem, body FROM outbox") == [
        (f"reply:{run.run_id}", "(this turn failed: no model)")
    ]
    await world.mail()
    assert await world.due(main) is None


async def test_crash_of_the_reader_is_no_attempt(world: World, main: int) -> None:
    task = await settled_child(world, main)
    await world.start(main)
    await world.die()
    assert (await world.task(task)).attempts == 0
    await (await world.start(main)).finish("told")
    assert await world.trace(task) == [(1, "delivered", "direct", "direct", None)]
    assert len(await world.inputs(main)) == 1


async def test_letters_of_a_task_that_ends_for_good_go_one_level_up(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    child = await world.child(parent.session_id, "child")
    await parent.yields()
    await world.end(child, "deep finding")
    reader = await world.start(parent.session_id)
    await reader.fail("step limit", is_final=True)
    await world.live()
    texts = "\n".join(await world.inputs(main))
    assert texts.count("deep finding") == 1
    assert '"parent" (failed: step limit)' in texts
    assert "late" in texts


async def test_wrap_up_note_of_an_old_run_wakes_nobody(world: World, main: int) -> None:
    run = await world.started(main, run_timeout_s=100.0)
    await world.child(run.session_id)
    world.clock.advance(80)
    await world.ring()
    await run.yields()
    await world.mail()
    session = await world.session(run.session_id)
    assert session.due == session.hold_until


async def test_wrap_up_note_is_not_shown_to_the_run_that_follows_a_steer(world: World, main: int) -> None:
    run = await world.started(main, run_timeout_s=100.0)
    world.clock.advance(80)
    await world.ring()
    await world.db.alone(messages.steer, world.policy, run.session_id, "s", "something else", actor="person")
    await world.start(run.session_id)
    assert (await world.inputs(run.session_id))[1:] == ["something else"]
