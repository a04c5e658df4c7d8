"""Notifications of devices, on each database: one row per device and fact, and none that waits for a decision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clutch.core.delivery import PUSH_CHANNEL
from clutch.core.devices import DONE_PAUSE_S, PushKey, PushKind, Subscription, parse_notification
from clutch.core.model import NO_SESSION, Hook
from clutch.core.questions import Decision
from clutch.transactions import delivery, outbox, push
from clutch.transactions.outbox import OutboxMessage
from clutch.transactions.read import timeline
from clutch.transactions.read.inbox import UnreadReplies, unread_replies, unsent
from tests.transactions.test_questions import PAY, WHICH, asks, decide, waiting
from tests.transactions.world import World, select

pytestmark = pytest.mark.anyio

ONE, TWO = (Subscription(f"https://push.example.org/{name}", "key", "secret") for name in "ab")


async def claimed(world: World) -> list[OutboxMessage]:
    """What is due when the pause before the last text is over."""
    world.clock.advance(DONE_PAUSE_S)
    return await world.db.alone(outbox.claim, world.worker, PUSH_CHANNEL, 10)


def kind_of(one: OutboxMessage) -> PushKind:
    return parse_notification(one.body).kind


async def subscribed(world: World, device: str, one: Subscription, lasts_s: float = 1000.0) -> None:
    await world.db.alone(push.subscribe, device, one, world.clock.now() + lasts_s)


async def test_every_device_is_notified_when_the_last_task_of_the_tree_has_ended(
    world: World, main: int
) -> None:
    await subscribed(world, "d_1", ONE)
    await subscribed(world, "d_2", TWO)
    first, last = await world.child(main, "first"), await world.child(main, "last")
    await world.end(first, "done")
    assert await claimed(world) == []
    await world.end(last, "done")
    assert [(one.target, kind_of(one)) for one in await claimed(world)] == [
        ("d_1", PushKind.DONE),
        ("d_2", PushKind.DONE),
    ]


async def test_without_a_device_nothing_is_written(world: World, main: int) -> None:
    await subscribed(world, "d_1", ONE, lasts_s=0.0)  # its session has expired
    await world.end(await world.child(main, "only"), "done")
    assert await claimed(world) == []


async def test_without_a_device_the_end_of_a_task_costs_no_statement(world: World, main: int) -> None:
    async def statements_of_an_end(label: str) -> int:
        child = await world.child(main, label)
        before = world.db.stats.statements
        await world.end(child, "done")
        return world.db.stats.statements - before

    await world.child(main, "stays")
    await statements_of_an_end("zero")  # what main does at the first result it does once
    without = await statements_of_an_end("one")
    await subscribed(world, "d_1", ONE)
    assert await statements_of_an_end("two") == without + 2  # locks the root, and asks for open tasks
    await world.db.alone(push.forget, ["d_1"])
    assert await statements_of_an_end("three") == without


async def test_a_browser_has_one_device_and_a_device_one_subscription(world: World, main: int) -> None:
    await subscribed(world, "d_1", ONE)
    await subscribed(world, "d_1", TWO)
    await subscribed(world, "d_2", TWO)
    assert await world.db.read(push.subscribed) == {"d_2"}
    assert await world.db.read(push.find, "d_2") == TWO
    await world.db.alone(push.forget, ["d_2", "d_3"])
    assert await world.db.read(push.subscribed) == frozenset()


async def test_the_first_key_pair_stays(world: World, main: int) -> None:
    assert await world.db.read(push.key) is None
    first = PushKey("private", "public")
    assert await world.db.alone(push.keep_key, first) == first
    assert await world.db.alone(push.keep_key, PushKey("other", "other")) == first


async def test_a_notification_that_is_given_up_needs_no_decision(world: World, main: int) -> None:
    await subscribed(world, "d_1", ONE)
    await world.end(await world.child(main, "only"), "done")
    (parcel,) = await claimed(world)
    known = (world.policy, world.worker, parcel)
    # Unsure whether it arrived: it is sent again, because a second one replaces the first.
    await world.db.alone(delivery.unconfirmed, *known, "no answer")
    due = await world.db.read(outbox.next_due, PUSH_CHANNEL)
    assert due is not None
    world.clock.advance(due - world.clock.now())
    (again,) = await claimed(world)
    assert (again.key, again.attempt) == (parcel.key, 2)
    await world.db.alone(delivery.refused, world.policy, world.worker, again, "403")
    assert await world.db.read(unsent) == []
    assert await world.db.read(outbox.next_due, PUSH_CHANNEL) is None


# ---- notifications are no replies ------------------------------------------------------------------------


async def test_notifications_and_hooks_are_no_replies_of_an_agent(world: World, main: int) -> None:
    world.policy = replace(world.policy, hooks=frozenset(Hook))
    await subscribed(world, "d_1", ONE)
    await asks(world, main, PAY)
    await world.db.alone(outbox.attention_required, world.policy, main, "approval", "1:0")
    assert len(await world.db.read(select, "SELECT 1 FROM outbox WHERE session_id = ?", main)) == 2
    assert await world.db.read(unread_replies) == UnreadReplies(0, 0)
    assert (await world.db.read(timeline.figures, main)).replies == ()
    await world.db.alone(outbox.post, main, "reply:1", "terminal:", "the answer")
    assert (await world.db.read(unread_replies)).waiting == 1
    assert (await world.db.read(timeline.figures, main)).replies == ("the answer",)


# ---- once, and only what still holds ---------------------------------------------------------------------


async def test_one_child_after_another_is_notified_once(world: World, main: int) -> None:
    await subscribed(world, "d_1", ONE)
    for label in ("first", "second", "third"):
        await world.end(await world.child(main, label), "done")
        world.clock.advance(DONE_PAUSE_S / 2)
    (only,) = await claimed(world)
    assert await world.db.read(push.is_current, only.key)


async def test_the_ends_of_two_conversations_are_notified_each(world: World, main: int) -> None:
    await subscribed(world, "d_1", ONE)
    other = await world.main("other")
    for root in (main, other):
        await world.end(await world.child(root, "only"), "done")
    assert len(await claimed(world)) == 2


async def test_the_end_does_not_hold_any_more_when_a_task_was_added(world: World, main: int) -> None:
    await subscribed(world, "d_1", ONE)
    await world.end(await world.child(main, "first"), "done")
    (early,) = await claimed(world)
    assert await world.db.read(push.is_current, early.key)
    await world.child(main, "second")
    assert not await world.db.read(push.is_current, early.key)


async def test_a_decision_that_was_taken_is_not_asked_for_any_more(world: World, main: int) -> None:
    await subscribed(world, "d_1", ONE)
    await asks(world, main, PAY, WHICH)
    (parcel,) = await claimed(world)
    assert kind_of(parcel) is PushKind.ATTENTION
    first, second = await waiting(world)
    await decide(world, first)
    assert await world.db.read(push.is_current, parcel.key)
    await decide(world, second, Decision.REJECT)
    assert not await world.db.read(push.is_current, parcel.key)


async def test_a_notification_says_since_when_it_holds(world: World, main: int) -> None:
    await subscribed(world, "d_1", ONE)
    before = world.clock.now()
    await world.end(await world.child(main, "only"), "done")
    (parcel,) = await claimed(world)
    assert parse_notification(parcel.body).at == before


@pytest.mark.parametrize("is_sent", [True, False])
async def test_a_test_notification_leaves_when_it_was_sent_or_refused(
    world: World, main: int, *, is_sent: bool
) -> None:
    await world.db.alone(outbox.push_test, "d_1", "key")
    (parcel,) = await claimed(world)
    assert await world.db.read(push.is_current, parcel.key)
    how = delivery.done if is_sent else delivery.refused
    await world.db.tx((), how, world.policy, world.worker, parcel, "403")
    assert await world.db.read(select, "SELECT 1 FROM outbox WHERE session_id = ?", NO_SESSION) == []
