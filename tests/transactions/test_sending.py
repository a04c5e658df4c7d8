"""`announce.direct: send`: a result goes to the person as it is, and its task is told what became of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from clutch.core.delivery import LOCAL_CHANNEL
from clutch.core.model import Delivery, LetterKind, LetterState, Phase
from clutch.core.policy import Direct, QueueMode
from clutch.store.transaction import Tx
from clutch.transactions import control, delivery, inbox, outbox
from clutch.transactions.control import NotPossible
from clutch.transactions.outbox import OutboxMessage
from clutch.transactions.read import answers as answers_tx
from clutch.transactions.read import lists
from clutch.transactions.read import why as why_of
from clutch.transactions.read.inbox import UnreadReplies, unread_replies, unsent
from clutch.transactions.spawn import Accepted
from tests.transactions.world import World, calls

pytestmark = pytest.mark.anyio


@pytest.fixture
def sender(world: World, main: int) -> int:
    world.policy = replace(world.policy, announcing=replace(world.policy.announcing, direct=Direct.SEND))
    return main


async def sent(world: World, main: int, text: str = "the finding") -> tuple[int, OutboxMessage]:
    """A child that ended, and the parcel a courier has just claimed."""
    task = await world.child(main, "survey")
    await world.end(task, text)
    world.clock.advance(2)
    return task, await claimed(world, main)


async def claimed(world: World, main: int) -> OutboxMessage:
    await world.mail()
    assert await world.claim() == [main]
    assert await world.begin(main) is None
    (parcel,) = await world.db.alone(outbox.claim, world.worker, "terminal", 10)
    return parcel


async def test_result_goes_verbatim_to_the_person_and_into_the_transcript_without_a_model(
    world: World, sender: int
) -> None:
    task, parcel = await sent(world, sender, "line one\nline two")
    assert parcel.body == '[Subagent] "survey" completed successfully · unchecked\n\nline one\nline two'
    assert (parcel.target, parcel.task_id, parcel.generation) == ("main", task, 1)
    (text,) = await world.inputs(sender)
    assert "line two" in text
    assert "nothing left to tell" in text
    assert (await world.task(task)).delivery is Delivery.WAITING
    await world.db.tx(task, delivery.done, world.policy, world.worker, parcel, "receipt")
    told = await world.task(task)
    assert (told.phase, told.delivery, told.delivery_reason) == (
        Phase.COMPLETED,
        Delivery.DELIVERED,
        "direct",
    )
    assert (await world.letter(task)).state == LetterState.ANSWERED
    assert await world.one("SELECT COUNT(*) FROM usage WHERE session_id = ?", sender) == 0
    await world.live()
    assert len(await world.inputs(sender)) == 1


async def test_two_claims_never_get_the_same_message(world: World, main: int) -> None:
    for number in range(20):
        await world.db.tx((), outbox.post, main, f"k{number}", "mail:ada", "hello")
    owners = [await world.hire() for _ in range(4)]
    claims = await asyncio.gather(*(world.db.alone(outbox.claim, owner, "mail", 7) for owner in owners))
    claimed_ids = [message.id for messages in claims for message in messages]
    assert len(claimed_ids) == len(set(claimed_ids)) == 20


@pytest.mark.scenario(92)
async def test_failed_send_is_tried_again_by_the_letters_own_clock_and_lost_it_is_not(
    world: World, sender: int
) -> None:
    task, parcel = await sent(world, sender)
    for attempt, wait in ((1, 1), (2, 2)):
        await world.db.tx(task, delivery.failed, world.policy, world.worker, parcel, "no route")
        assert (await world.task(task)).attempts == attempt
        await world.mail()
        assert await world.due(sender) == world.clock.now() + wait
        world.clock.advance(wait)
        parcel = await claimed(world, sender)
        assert parcel.body.endswith("the finding")
    await world.db.tx(task, delivery.done, world.policy, world.worker, parcel, None)
    assert (await world.task(task)).delivery is Delivery.DELIVERED
    assert len(await world.inputs(sender)) == 1
    assert [(one.attempt, one.outcome) for one in await world.db.read(inbox.attempts, task)] == [
        (1, "failed"),
        (2, "failed"),
        (3, "delivered"),
    ]


@pytest.mark.scenario(85)
async def test_permanent_error_of_the_channel_is_a_dead_letter_at_once(world: World, sender: int) -> None:
    task, parcel = await sent(world, sender)
    await world.db.tx(task, delivery.refused, world.policy, world.worker, parcel, "you are blocked")
    state = await world.task(task)
    assert (state.phase, state.delivery, state.delivery_reason, state.attempts) == (
        Phase.COMPLETED_GIVEUP,
        Delivery.UNDELIVERED,
        "permanent-error",
        1,
    )
    assert (await world.letter(task)).state == LetterState.DEAD
    await world.db.alone(control.redeliver, world.policy, task, "person")
    world.clock.advance(2)
    await world.mail()
    await world.claim()
    await world.begin(sender)
    again = {parcel.key for parcel in await world.db.alone(outbox.claim, world.worker, "terminal", 10)}
    assert parcel.key in again


async def test_send_without_an_answer_is_unsure_and_never_repeated(world: World, sender: int) -> None:
    task, parcel = await sent(world, sender)
    await world.db.tx(task, delivery.unconfirmed, world.policy, world.worker, parcel, "cut")
    state = await world.task(task)
    assert (state.phase, state.delivery, state.delivery_reason, state.detail) == (
        Phase.COMPLETED,
        Delivery.UNSURE,
        "unsure",
        "terminal: cut",
    )
    (attempt,) = await world.db.read(inbox.attempts, task)
    assert (attempt.outcome, attempt.path, attempt.reason) == ("unsure", "direct", "terminal: cut")
    (message,) = await world.db.read(unsent)
    assert (message.task_id, message.channel, message.target) == (task, "terminal", "main")
    assert (message.outcome, message.error) == ("unsure", "cut")
    found = await world.db.read(why_of.why, task)
    assert found is not None
    assert found.unsent == (message,)
    await world.live()
    assert await world.db.alone(outbox.claim, world.worker, "terminal", 10) == []


async def test_unsure_message_is_sent_again_when_an_operator_says_so(world: World, sender: int) -> None:
    task, parcel = await sent(world, sender)
    await world.db.tx(task, delivery.unconfirmed, world.policy, world.worker, parcel, "cut")
    decision = (world.policy, parcel.id, "operator")
    await world.db.alone(delivery.resend, *decision)
    with pytest.raises(NotPossible, match="needs no decision"):
        await world.db.alone(delivery.resend, *decision)
    assert await world.db.read(unsent) == []
    (again,) = await world.db.alone(outbox.claim, world.worker, "terminal", 10)
    assert (again.key, again.attempt) == (parcel.key, 1)
    await world.db.tx(task, delivery.done, world.policy, world.worker, again, None)
    assert (await world.task(task)).delivery is Delivery.DELIVERED
    (line,) = await world.rows("SELECT detail FROM events WHERE task_id = ? AND actor = 'operator'", task)
    assert line == ("its message is sent again",)


async def test_unsure_message_is_dismissed_once(world: World, sender: int) -> None:
    task, parcel = await sent(world, sender)
    await world.db.tx(task, delivery.unconfirmed, world.policy, world.worker, parcel, "cut")
    decision = (world.policy, parcel.id, "operator")
    await world.db.alone(delivery.dismiss, *decision)
    assert await world.db.read(unsent) == []
    for verb in (delivery.dismiss, delivery.resend):
        with pytest.raises(NotPossible, match="needs no decision"):
            await world.db.alone(verb, *decision)
    assert await world.db.alone(outbox.claim, world.worker, "terminal", 10) == []
    assert (await world.task(task)).delivery is Delivery.UNSURE


async def test_message_that_is_being_sent_or_sent_again_by_itself_needs_no_decision(
    world: World, sender: int
) -> None:
    task, parcel = await sent(world, sender)
    for verb in (delivery.dismiss, delivery.resend):
        with pytest.raises(NotPossible, match="needs no decision"):
            await world.db.alone(verb, world.policy, parcel.id, "operator")
    await world.db.tx(task, delivery.failed, world.policy, world.worker, parcel, "no network")
    with pytest.raises(NotPossible, match="needs no decision"):
        await world.db.alone(delivery.resend, world.policy, parcel.id, "operator")


async def test_whoever_lost_the_parcel_has_no_say_about_the_task(world: World, sender: int) -> None:
    task, parcel = await sent(world, sender)
    for outcome in (delivery.failed, delivery.refused):
        await world.db.tx(task, outcome, world.policy, world.worker + 1, parcel, "late news")
    await world.db.tx(task, delivery.unconfirmed, world.policy, world.worker + 1, parcel, "cut")
    await world.db.tx(task, delivery.done, world.policy, world.worker + 1, parcel, None)
    assert (await world.task(task)).delivery is Delivery.WAITING
    assert await world.trace(task) == []


async def test_counter_hands_a_result_out_once_and_then_it_is_told(world: World, sender: int) -> None:
    task = await world.child(sender, "survey")
    await world.end(task, "the finding")
    world.clock.advance(2)
    await world.mail()
    await world.claim()
    await world.begin(sender)
    known = (world.policy, sender, "terminal")
    assert "the finding" in (await world.db.alone(delivery.hand_out, *known) or "")
    assert await world.db.alone(delivery.hand_out, *known) is None
    assert (await world.task(task)).delivery is Delivery.DELIVERED


async def test_what_a_session_sleeps_for_is_read_by_its_model(world: World, sender: int) -> None:
    await world.tell(sender, "go")
    run = await world.start(sender)
    await run.spawn("survey")
    await run.results()
    await run.yields()
    (task,) = [row[0] for row in await world.rows("SELECT id FROM tasks")]
    await world.end(task, "the finding")
    await (await world.start(sender)).finish("it says so")
    assert (await world.task(task)).delivery is Delivery.DELIVERED
    assert await world.rows("SELECT body FROM outbox") == [("it says so",)]


async def test_results_of_grandchildren_are_never_only_sent(world: World, sender: int) -> None:
    parent = await world.started(sender, "parent")
    child = await world.child(parent.session_id, "child")
    await world.end(child, "deep finding")
    world.clock.advance(2)
    await parent.finish("my part")
    await (await world.start(parent.session_id)).finish("both parts")
    assert [row[0] for row in await world.rows("SELECT body FROM outbox")] == []


async def test_closed_and_reopened_session_does_not_send_twice(world: World, sender: int) -> None:
    task, parcel = await sent(world, sender)
    await world.db.alone(control.close_main, world.policy, sender)
    await world.mail()
    assert (await world.task(task)).phase is Phase.ANNOUNCE_DEFERRED
    await world.db.alone(control.open_main, world.policy, sender)
    await world.mail()
    await world.claim()
    await world.begin(sender)
    await world.db.tx(task, delivery.done, world.policy, world.worker, parcel, None)
    assert (await world.task(task)).delivery is Delivery.DELIVERED
    assert await world.db.alone(outbox.claim, world.worker, "terminal", 10) == []
    assert len(await world.inputs(sender)) == 1


async def test_words_nobody_has_heard_are_counted_and_those_no_channel_took_apart(
    world: World, main: int
) -> None:
    for text in ("one", "two"):
        await world.tell(main, text)
        await (await world.start(main)).finish(f"answer to {text}")
    assert await world.db.read(unread_replies, main) == UnreadReplies(2, 0, ("agent:main:main",))
    first, second = await world.db.alone(outbox.claim, world.worker, "terminal", 10)
    await world.db.tx((), delivery.refused, world.policy, world.worker, first, "you are blocked")
    await world.db.tx((), delivery.failed, world.policy, world.worker, second, "no route")
    assert await world.db.read(unread_replies) == UnreadReplies(0, 1)
    assert (await world.db.read(lists.summary)).unsent == 1
    assert await world.db.read(unread_replies, main + 1) == UnreadReplies(0, 0)


async def test_the_answer_to_a_message_is_of_the_turn_that_read_it(world: World, main: int) -> None:
    """And of a later one, when that had nothing to say; not of one in which another person is answered."""

    async def asked(key: str) -> str:
        await world.db.tx(main, inbox.post, main, key, LetterKind.USER, "hello")
        return key

    async def answer(key: str) -> str | None:
        found = await world.db.read(answers_tx.answer_to, key)
        return None if found is None else found.body

    async def answers(key: str) -> list[bool]:
        return [await world.db.read(answers_tx.answers, key, one.run_id) for one in runs]

    first = await asked("user:1")
    runs = [await world.start(main)]
    (child,) = await runs[0].spawn("survey")
    assert isinstance(child, Accepted)
    await runs[0].yields()
    second = await asked("user:2")
    world.clock.advance(1)
    runs.append(await world.start(main))
    await runs[1].finish("to the second")
    assert (await answer(first), await answer(second)) == (None, "to the second")
    world.clock.advance(1)
    await world.end(child.task_id, "found")
    runs.append(await world.start(main))
    await runs[2].finish("to the first")
    assert (await answer(first), await answer(second)) == ("to the first", "to the second")
    assert (await answers(first), await answers(second)) == ([True, False, True], [False, True, True])
    calls = [(await world.db.read(answers_tx.spent_on, key)).calls for key in (first, second)]
    assert calls == [2, 1], "to spawn and to tell of it; and the one in between"


@pytest.mark.parametrize("has_asked", [False, True])
async def test_an_answer_to_a_person_is_to_be_read_though_the_result_it_tells_is_known(
    world: World, main: int, has_asked: bool
) -> None:
    world.policy = replace(world.policy, announcing=replace(world.policy.announcing, mode=QueueMode.STEER))
    task = await world.child(main, "survey")
    asked = None
    if has_asked:
        await world.tell(main, "what is the answer?")
        asked = await world.start(main)
        await asked.respond(calls("dig"))
    await world.end(task, "the finding")
    world.clock.advance(2)
    await world.mail()
    if asked is not None:
        await asked.results()
    run = asked or await world.start(main)
    await run.finish("42; by the way, the survey is done")
    assert (await world.task(task)).delivery is Delivery.DELIVERED
    known = (world.policy, main, "terminal")
    await world.db.alone(delivery.known_already, *known, task)
    assert (await world.db.alone(delivery.hand_out, *known) is not None) == has_asked


async def test_a_reply_about_a_result_that_was_read_before_it_was_delivered_is_not_to_be_read(
    world: World, main: int
) -> None:
    await world.db.alone(_talk_here, main)
    task = await world.child(main, "survey")
    await world.end(task, "the finding")
    known = (world.policy, main, LOCAL_CHANNEL)
    await world.db.alone(delivery.known_already, *known, task)
    world.clock.advance(2)
    await world.mail()
    await (await world.start(main)).finish("the survey is done")
    assert (await world.task(task)).delivery is Delivery.DELIVERED
    assert await world.db.alone(delivery.hand_out, *known) is None
    other = await world.child(main, "count")
    await world.end(other, "42")
    world.clock.advance(2)
    await world.mail()
    await (await world.start(main)).finish("there are 42")
    assert await world.db.alone(delivery.hand_out, *known) == "there are 42"


def _talk_here(now: float, session_id: int) -> Tx[None]:
    yield "UPDATE sessions SET route = ? WHERE id = ?", (LOCAL_CHANNEL, session_id)


async def test_a_given_up_result_that_a_person_reads_later_is_delivered_once(
    world: World, sender: int
) -> None:
    task = await world.child(sender, "survey")
    await world.end(task, "the finding")
    world.clock.advance(2)
    await world.mail()
    await world.claim()
    await world.begin(sender)
    await world.db.alone(control.close_main, world.policy, sender)
    await world.mail()
    world.clock.advance(world.policy.announcing.until_s)
    await world.ring()
    assert (await world.task(task)).delivery is Delivery.UNDELIVERED
    await world.db.alone(control.open_main, world.policy, sender)
    known = (world.policy, sender, "terminal")
    assert "the finding" in (await world.db.alone(delivery.hand_out, *known) or "")
    assert (await world.task(task)).delivery is Delivery.DELIVERED
    assert (await world.letter(task)).state == LetterState.ANSWERED
    await world.tell(sender, "and?")
    await (await world.start(sender)).finish("it found this")
    assert [row[:2] for row in await world.trace(task)] == [(1, "delivered")]
