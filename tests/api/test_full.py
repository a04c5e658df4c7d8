"""Spawns of a program wait for room, in order; what will never have room is refused at once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from clutch import Clutch, ClutchError, Limits, SpawnRefused, Task
from clutch.core.messages import Answer, Input
from clutch.ports import ModelRequest, OnDelta
from clutch.store.transaction import Tx
from tests.patience import PATIENCE_S
from tests.policies import QUICK

pytestmark = pytest.mark.anyio


class Ordered:
    """Answers children in the order they are let go; a main agent at once."""

    def __init__(self, *, go: bool = False) -> None:
        self.asked: list[str] = []
        self.came = asyncio.Condition()
        self.go = asyncio.Event()
        if go:
            self.go.set()

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        first = next(message.text for message in request.transcript if isinstance(message, Input))
        if "number " in first and "task: t_" not in first:
            async with self.came:
                self.asked.append(first.partition("number ")[2].split()[0])
                self.came.notify_all()
            await self.go.wait()
        return Answer("done", model="ordered")

    async def have_come(self, count: int) -> None:
        async with self.came:
            await self.came.wait_for(lambda: len(self.asked) >= count)


def clutch(state: Path, models: Ordered, limits: Limits | None = None) -> Clutch:
    policy = replace(QUICK, limits=limits or Limits())
    return Clutch(state=state, models=models, policy=policy, workspace=state.parent)


def tasks(now: float) -> Tx[int]:
    return int((yield "SELECT COUNT(*) FROM tasks", ())[0][0])


async def spawned(c: Clutch, number: int) -> Task:
    return await c.spawn(f"number {number} ", label=str(number))


async def assert_waits(*spawning: asyncio.Task[Task]) -> None:
    """Several ticks long: each has asked and was refused, and the first has asked again."""
    done, _ = await asyncio.wait(spawning, timeout=10 * QUICK.work.tick_s)
    assert not done


async def test_thirty_spawns_of_one_main_agent_all_end_under_the_default_limits(tmp_path: Path) -> None:
    async with clutch(tmp_path / "state", Ordered(go=True)) as c:
        async with asyncio.TaskGroup() as group:
            spawning = [group.create_task(spawned(c, number)) for number in range(30)]
        results = [await one.result() for one in spawning]
        assert len({one.result().id for one in spawning}) == 30
        assert all(result.is_ok for result in results)


async def test_spawns_that_wait_are_accepted_in_the_order_they_came(tmp_path: Path) -> None:
    models = Ordered()
    async with clutch(tmp_path / "state", models, Limits(children_max=1)) as c:
        _ = await spawned(c, 0)
        await models.have_come(1)
        async with asyncio.TaskGroup() as group:
            await assert_waits(*(group.create_task(spawned(c, number)) for number in range(1, 6)))
            models.go.set()
        await models.have_come(6)
    assert models.asked == ["0", "1", "2", "3", "4", "5"]


async def test_reject_raises_at_once(tmp_path: Path) -> None:
    models = Ordered()
    async with clutch(tmp_path / "state", models) as c:
        for number in range(5):
            _ = await spawned(c, number)
        with pytest.raises(SpawnRefused, match=r"5/5 .*maxChildrenPerAgent"):
            _ = await c.spawn("one more", on_full="reject")
        assert await c.services.db.read(tasks) == 5


async def test_a_spawn_cancelled_while_it_waits_leaves_nothing_and_does_not_hold_up_others(
    tmp_path: Path,
) -> None:
    models = Ordered()
    async with clutch(tmp_path / "state", models, Limits(children_max=1)) as c:
        first = await spawned(c, 0)
        await models.have_come(1)
        gone = asyncio.create_task(spawned(c, 1))
        await assert_waits(gone)
        later = asyncio.create_task(spawned(c, 2))
        gone.cancel()
        with suppress(asyncio.CancelledError):
            _ = await gone
        models.go.set()
        assert (await first).is_ok
        assert (await (await later)).is_ok
        assert await c.services.db.read(tasks) == 2
    assert gone.cancelled()
    assert models.asked == ["0", "2"]


async def test_a_spawn_that_waits_when_clutch_closes_is_told(tmp_path: Path) -> None:
    async with clutch(tmp_path / "state", Ordered(), Limits(children_max=1)) as c:
        _ = await spawned(c, 0)
        waits = asyncio.create_task(spawned(c, 1))
        await assert_waits(waits)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(ClutchError, match="this Clutch is closed"):
            _ = await waits


async def test_a_known_key_is_answered_though_the_session_is_full(tmp_path: Path) -> None:
    async with clutch(tmp_path / "state", Ordered(), Limits(children_max=1)) as c:
        first = await c.spawn("number 0 ", idempotency_key="k")
        assert (await c.spawn("number 0 ", idempotency_key="k")).id == first.id


@pytest.mark.parametrize(
    ("limits", "agent_id", "said"),
    [
        (Limits(retained_max=1, evicts_delivered=False), None, "maxRetained"),
        (Limits(), "other", "allowAgents"),
    ],
)
async def test_what_will_never_have_room_is_refused_at_once(
    tmp_path: Path, limits: Limits, agent_id: str | None, said: str
) -> None:
    async with clutch(tmp_path / "state", Ordered(), limits) as c:
        for number in range(limits.retained_max if said == "maxRetained" else 0):
            _ = await spawned(c, number)
        with pytest.raises(SpawnRefused, match=said):
            _ = await c.spawn("number 1 ", agent_id=agent_id)
