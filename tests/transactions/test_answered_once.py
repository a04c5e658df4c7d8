"""A letter stands in a transcript once, and the first model answer after it delivers it, whichever turn that is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clutch.core.messages import Answer, Input, Usage
from clutch.core.model import Delivery, LetterKind, LetterState, Phase
from clutch.core.policy import Direct, Drop
from clutch.core.text import announce
from clutch.transactions import control, delivery, outbox, turn_end
from clutch.transactions.turn import ModelAnswer
from tests.transactions.world import World

pytestmark = pytest.mark.anyio


async def failed_turn(world: World, main: int, label: str = "survey", **asked: object) -> int:
    """A child whose result is in its parent's transcript; the turn that read it failed."""
    task = await world.child(main, label, **asked)
    await world.end(task, f"finding of {label}")
    world.clock.advance(2)
    await (await world.start(main)).fail("no model")
    return task


async def given_up(world: World, main: int) -> int:
    rules = replace(world.policy.announcing, fast_tries=1, slow=False)
    world.policy = replace(world.policy, announcing=rules)
    return await failed_turn(world, main)


async def copies(world: World, session_id: int, label: str = "survey") -> int:
    return sum(f"finding of {label}" in text for text in await world.inputs(session_id))


async def test_answer_to_a_user_delivers_the_result_that_a_failed_turn_left(world: World, main: int) -> None:
    task = await failed_turn(world, main)
    await world.tell(main, "what did it find?")
    await (await world.start(main)).finish("it found this")
    told = await world.task(task)
    assert (told.phase, told.delivery) == (Phase.COMPLETED, Delivery.DELIVERED)
    assert (await world.letter(task)).state == LetterState.ANSWERED
    assert [row[:2] for row in await world.trace(task)] == [(1, "failed"), (2, "delivered")]


async def test_nothing_is_left_to_retry_once_a_user_was_answered(world: World, main: int) -> None:
    await failed_turn(world, main)
    await world.tell(main, "what did it find?")
    await (await world.start(main)).finish("it found this")
    await world.mail()
    assert await world.due(main) is None
    await world.live()
    answers = [said.text for said in await world.transcript(main) if isinstance(said, Answer)]
    assert answers == ["it found this"]


async def test_failed_turn_of_a_user_costs_the_result_no_attempt_and_no_time(world: World, main: int) -> None:
    task = await failed_turn(world, main)
    ready_at = (await world.letter(task)).ready_at
    await world.tell(main, "and?")
    await (await world.start(main)).fail("no model")
    assert ((await world.task(task)).attempts, (await world.letter(task)).ready_at) == (1, ready_at)
    world.clock.set(ready_at)
    await (await world.start(main)).finish("it found this")
    assert (await world.task(task)).delivery is Delivery.DELIVERED
    assert await copies(world, main) == 1


async def test_given_up_result_that_is_answered_later_becomes_delivered(world: World, main: int) -> None:
    task = await given_up(world, main)
    assert (await world.task(task)).delivery is Delivery.UNDELIVERED
    await world.tell(main, "what did it find?")
    await (await world.start(main)).finish("it found this")
    told = await world.task(task)
    assert (told.phase, told.delivery, told.wake_at) == (Phase.COMPLETED, Delivery.DELIVERED, None)
    assert (await world.letter(task)).state == LetterState.ANSWERED
    assert (await world.timeline(task))[-1] == "delivered: direct"
    with pytest.raises(control.NotPossible, match="not a dead letter"):
        await world.db.alone(control.redeliver, world.policy, task, "person")


async def test_given_up_result_stays_given_up_while_no_model_answers(world: World, main: int) -> None:
    task = await given_up(world, main)
    await world.tell(main, "what did it find?")
    await (await world.start(main)).fail("no model")
    assert (await world.task(task)).delivery is Delivery.UNDELIVERED
    assert (await world.letter(task)).state == LetterState.DEAD


async def test_run_that_is_taken_over_delivers_what_stood_there_before(world: World, main: int) -> None:
    task = await given_up(world, main)
    await world.tell(main, "what did it find?")
    await world.start(main)
    await world.die()
    run = await world.start(main)
    assert run.begun.senders == (task,)
    await run.finish("it found this")
    assert (await world.task(task)).delivery is Delivery.DELIVERED


async def test_redelivered_result_is_not_written_a_second_time(world: World, main: int) -> None:
    task = await given_up(world, main)
    await world.db.alone(control.redeliver, world.policy, task, "person")
    run = await world.start(main)
    assert isinstance((await world.transcript(main))[-1], Input)
    await run.finish("it found this")
    assert (await world.task(task)).delivery is Delivery.DELIVERED
    assert await copies(world, main) == 1


async def test_result_redelivered_while_a_turn_that_shows_it_runs_is_answered_by_that_turn(
    world: World, main: int
) -> None:
    task = await given_up(world, main)
    await world.tell(main, "what did it find?")
    run = await world.start(main)
    await world.db.alone(control.redeliver, world.policy, task, "person")
    await run.finish("it found this")
    assert (await world.task(task)).delivery is Delivery.DELIVERED
    await world.live()
    assert await copies(world, main) == 1


async def test_dismissed_result_stays_dismissed_whoever_reads_it(world: World, main: int) -> None:
    task = await given_up(world, main)
    await world.db.alone(control.dismiss, world.policy, task, "person")
    await world.tell(main, "hello")
    await (await world.start(main)).finish("hi")
    told = await world.task(task)
    assert (told.delivery, told.delivery_reason) == (Delivery.SKIPPED, "dismissed")


async def test_result_dismissed_while_a_turn_that_shows_it_runs_stays_dismissed(
    world: World, main: int
) -> None:
    task = await given_up(world, main)
    await world.tell(main, "hello")
    run = await world.start(main)
    await world.db.alone(control.dismiss, world.policy, task, "person")
    await run.finish("hi")
    assert (await world.task(task)).delivery is Delivery.SKIPPED
    assert (await world.letter(task)).state in (LetterState.DEAD, LetterState.VOID)


@pytest.mark.parametrize("drop", [Drop.OLD, Drop.NEW, Drop.SUMMARIZE])
async def test_result_that_stands_in_the_transcript_is_not_dropped_by_the_cap(
    world: World, main: int, drop: Drop
) -> None:
    rules = replace(world.policy.announcing, cap=1, drop=drop)
    world.policy = replace(world.policy, announcing=rules)
    first = await failed_turn(world, main, "one")
    second = await world.child(main, "two")
    await world.end(second, "finding of two")
    world.clock.advance(20)
    await (await world.start(main)).finish("both")
    assert [(await world.task(task)).delivery for task in (first, second)] == [Delivery.DELIVERED] * 2
    assert [await copies(world, main, label) for label in ("one", "two")] == [1, 1]


async def test_child_woken_with_nothing_new_is_not_asked_to_answer_its_own_answer(
    world: World, main: int
) -> None:
    """It waits for a child whose result was read in a turn in between, and the last answer of that turn was cut."""
    parent = await world.started(main, "parent")
    child = await world.child(parent.session_id, "child", expects_completion=False)
    await parent.yields()
    await world.tell(parent.session_id, "one more thing", LetterKind.INSTRUCTION)
    run = await world.start(parent.session_id)
    await world.end(child, "found")
    await world.mail()
    await run.step()
    await run.step()
    assert (await world.task(child)).delivery is Delivery.DELIVERED
    cut = Answer("and in the end", (), Usage(1, 1), "scripted", "length")
    await world.db.tx(
        parent.session_id, turn_end.fail, run.owned, "cut", False, ModelAnswer(cut, is_unanswered=False)
    )
    await world.start(parent.session_id)
    assert (await world.inputs(parent.session_id))[-1] == announce.NOTHING_NEW
    assert isinstance((await world.transcript(parent.session_id))[-1], Input)


async def test_result_that_was_answered_before_anyone_noted_it_is_not_asked_about_without_words(
    world: World, main: int
) -> None:
    """As an older version left it: open, and an answer stands after it."""
    task = await failed_turn(world, main)
    await world.tell(main, "and?")
    run = await world.start(main)
    run.is_unanswered = False
    await run.finish("it found this")
    world.clock.advance(60)
    run = await world.start(main)
    assert isinstance((await world.transcript(main))[-1], Input)
    await run.finish("NO_REPLY")
    assert (await world.task(task)).delivery is Delivery.DELIVERED
    assert await copies(world, main) == 1


async def test_message_to_a_person_is_sent_although_a_turn_has_answered_the_result(
    world: World, main: int
) -> None:
    """`announce.direct: send`: the result is in the transcript, the message on its way."""
    world.policy = replace(world.policy, announcing=replace(world.policy.announcing, direct=Direct.SEND))
    task = await world.child(main, "survey")
    await world.end(task, "finding of survey")
    world.clock.advance(2)
    await world.mail()
    await world.claim()
    assert await world.begin(main) is None
    (parcel,) = await world.db.alone(outbox.claim, world.worker, "terminal", 10)
    await world.tell(main, "what did it find?")
    await (await world.start(main)).finish("it found this")
    assert (await world.task(task)).delivery is Delivery.DELIVERED
    again_at = await world.db.tx(task, delivery.failed, world.policy, world.worker, parcel, "no route")
    assert again_at is not None
    world.clock.set(again_at)
    (parcel, _) = await world.db.alone(outbox.claim, world.worker, "terminal", 10)
    await world.db.tx(task, delivery.done, world.policy, world.worker, parcel, None)
    assert [row[:2] for row in await world.trace(task)] == [(1, "delivered")]
    await world.live()
    assert await copies(world, main) == 1
