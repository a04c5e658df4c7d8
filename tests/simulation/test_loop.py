"""Virtual time: an hour costs nothing, the seed decides who goes first, and a deadlock says so."""

from __future__ import annotations

import asyncio

import pytest

from clutch.testing.simulation.loop import Deadlock, run_virtual


async def _race() -> list[int]:
    order: list[int] = []

    async def runner(number: int) -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            order.append(number)

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(runner(number))
    return order


async def _wait_a_day() -> float:
    await asyncio.sleep(86_400)
    return asyncio.get_running_loop().time()


def test_a_day_passes_at_once() -> None:
    assert run_virtual(_wait_a_day()) == 86_400


def test_the_same_seed_gives_the_same_interleaving() -> None:
    assert run_virtual(_race(), 7) == run_virtual(_race(), 7)


def test_seeds_give_different_interleavings() -> None:
    assert len({tuple(run_virtual(_race(), seed)) for seed in range(10)}) > 5


def test_waiting_for_nobody_is_a_deadlock() -> None:
    with pytest.raises(Deadlock):
        run_virtual(asyncio.Event().wait())


def test_a_timeout_rings_at_its_virtual_time() -> None:
    async def give_up() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run_virtual(give_up()) == 5


def test_what_is_left_is_cancelled_at_the_end() -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.sleep(1e9)
        finally:
            ended.append("cancelled")

    async def main() -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(forever())
        await asyncio.sleep(1)
        return task

    assert run_virtual(main()).cancelled()
    assert ended == ["cancelled"]
