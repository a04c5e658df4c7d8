"""Notifications of devices, on each database: one row per device and fact, and none that waits for a decision."""

from __future__ import annotations

import pytest

from clutch.core.delivery import PUSH_CHANNEL
from clutch.core.push import PushKey, Subscription
from clutch.transactions import delivery, outbox, push
from clutch.transactions.outbox import OutboxMessage
from clutch.transactions.read.inbox import unsent
from tests.transactions.world import World

pytestmark = pytest.mark.anyio

ONE, TWO = (Subscription(f"https://push.example.org/{name}", "key", "secret") for name in "ab")


async def claimed(world: World) -> list[OutboxMessage]:
    return await world.db.alone(outbox.claim, world.worker, PUSH_CHANNEL, 10)


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
    assert [(one.target, one.body) for one in await claimed(world)] == [("d_1", "done"), ("d_2", "done")]


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
    assert await statements_of_an_end("two") == without + 1
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
