"""The last two tasks of a conversation end in every order: each device is notified once, and not never."""

from __future__ import annotations

import pytest

from clutch.core.delivery import PUSH_CHANNEL
from clutch.core.devices import DONE_PAUSE_S, Subscription
from clutch.transactions import push
from tests.transactions.interleavings.parts import finishing, held
from tests.transactions.interleavings.two_connections import Ended, Stage
from tests.transactions.world import World, select

pytestmark = pytest.mark.anyio

DEVICES = ("d_1", "d_2")
_WAITING = "SELECT target FROM outbox WHERE channel = ? AND due = ? ORDER BY target"


async def subscribe(world: World) -> None:
    for device in DEVICES:
        one = Subscription(f"https://push.example.org/{device}", "key", "secret")
        await world.db.alone(push.subscribe, device, one, world.clock.now() + 1000.0)


async def each_once(world: World) -> None:
    due = world.clock.now() + DONE_PAUSE_S
    assert await world.db.read(select, _WAITING, PUSH_CHANNEL, due) == [(device,) for device in DEVICES]


async def test_the_end_of_the_last_two_tasks_is_notified_once(stage: Stage, world: World, main: int) -> None:
    await subscribe(world)
    first, last = await held(world, main, "first", "last")

    async def check(*_: Ended) -> None:
        await each_once(world)

    await stage.every_order(finishing(first), finishing(last), check)


async def test_two_ends_in_one_batch_are_notified_once(stage: Stage, world: World, main: int) -> None:
    await subscribe(world)
    outcomes = await stage.db.together(*map(finishing, await held(world, main, "first", "last")))
    assert [outcome.error for outcome in outcomes] == [None, None]
    await each_once(world)
