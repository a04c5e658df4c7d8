"""Many tasks at once: all, each as it ends, typed results, and maps that go on after a crash."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import clutch
from clutch import Clutch, IdempotencyConflict, InvalidInput
from clutch.api.actions import check_key
from clutch.api.handles import keys_of, spawn_key
from clutch.core.messages import Answer, Call, Input, Results
from clutch.core.model import Outcome
from clutch.ports import ModelRequest, OnDelta
from clutch.store.transaction import Tx
from tests.patience import PATIENCE_S
from tests.surfaces.served import FAST as SERVED
from tests.surfaces.served import Slow

pytestmark = pytest.mark.anyio


FAST = replace(SERVED, life=replace(SERVED.life, error_grace_s=0.01))


class Report(BaseModel):
    title: str
    lines: list[int]


class Worker:
    """Counts what it is asked to do; holds `held …` back; fails `bad …` the first time; submits forms."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.go = asyncio.Event()
        self.at_once = self.most = 0

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        told = [message.text for message in request.transcript if isinstance(message, Input)]
        last = told[-1].rpartition("\n")[2]
        if last == "fill in the form":
            if any(isinstance(one, Results) for one in request.transcript):
                return Answer("submitted", model="w")
            return Answer(
                "", (Call("submit_result", {"value": {"title": last, "lines": [1, 2]}}),), model="w"
            )
        if not last.startswith(("item", "held", "bad")):
            return Answer("thanks", model="w")
        self.asked[last] += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            if last.startswith("held"):
                await self.go.wait()
            await asyncio.sleep(0.01)
        finally:
            self.at_once -= 1
        if last.startswith("bad") and self.asked[last] == 1:
            return Answer("cut", model="w", stop="length")
        return Answer(f"done {last}", model="w")


@pytest.fixture
def models() -> Worker:
    return Worker()


@pytest.fixture
async def c(tmp_path: Path, models: Worker) -> AsyncIterator[Clutch]:
    async with Clutch(state=tmp_path / "state", models=models, policy=FAST, workspace=tmp_path) as opened:
        yield opened


async def test_concurrency_is_how_many_children_of_one_parent_work_at_once(tmp_path: Path) -> None:
    """More than the 5 children of a parent and the 8 slots that are the defaults; the others wait in line."""
    models = Slow()
    async with Clutch(tmp_path / "state", concurrency=12, models=models, workspace=tmp_path) as c:
        spawning = [asyncio.ensure_future(c.spawn(f"slow {number}")) for number in range(20)]
        async with asyncio.timeout(PATIENCE_S):
            while len(models.calls) < 12:  # noqa: ASYNC110 - the model counts its calls
                await asyncio.sleep(0.01)
        lanes = await c.services.db.read(taken_slots)
        assert (lanes, len(models.calls)) == (12, 12)
        models.go.set()
        assert [one.is_ok for one in await clutch.gather(*[await one for one in spawning])] == [True] * 20
    with pytest.raises(InvalidInput, match="concurrency: must be at least 1, not 0"):
        Clutch(tmp_path / "state", concurrency=0)


def taken_slots(now: float) -> Tx[int]:
    rows = yield "SELECT COUNT(*) FROM sessions WHERE owner IS NOT NULL AND is_task = 1", ()
    return int(rows[0][0])


async def test_what_is_no_task_is_named_and_not_left_behind() -> None:
    number: Any = 1
    wrongs: list[Any] = [[], asyncio.sleep(0)]
    for wrong in wrongs:
        with pytest.raises(
            InvalidInput, match=r"tasks: is a (list|coroutine) and no task: gather\(\*tasks\)"
        ):
            await clutch.gather(wrong)
    with pytest.raises(InvalidInput, match="is a int"):
        [one async for one in clutch.as_completed([number])]


async def test_all_results_come_in_the_order_of_the_tasks(c: Clutch, models: Worker) -> None:
    held = await c.spawn("held one")
    quick = await c.spawn("item two")
    order: list[str] = []
    async for task, result in clutch.as_completed([held, quick]):
        assert result.is_ok
        order.append(task.id)
        models.go.set()
    assert order == [quick.id, held.id]
    assert [one.text for one in await clutch.gather(held, quick)] == ["done held one", "done item two"]


async def test_a_result_has_the_type_that_was_asked_for(c: Clutch) -> None:
    task = await c.spawn("fill in the form", output_type=Report)
    result = await task
    assert result.value == Report(title="fill in the form", lines=[1, 2])
    again = await c.get(task.id, output_type=Report)
    assert isinstance((await again).value, Report)
    with pytest.raises(InvalidInput, match="both"):
        _ = await c.spawn("form", output_type=Report, output_schema={"type": "object"})
    with pytest.raises(InvalidInput, match="output_type"):
        _ = await c.spawn("form", output_type=asyncio.Event)


async def test_a_map_runs_each_item_once_and_only_so_many_at_a_time(c: Clutch, models: Worker) -> None:
    items = [f"item {number}" for number in range(12)]
    results = await c.map(items, str, name="twelve", concurrency=3)
    assert [one.text for one in results] == [f"done {item}" for item in items]
    assert models.most <= 3
    assert await c.map(items, str, name="twelve", concurrency=3) == results
    assert set(models.asked.values()) == {1}
    with pytest.raises(IdempotencyConflict):
        await c.map(items, lambda item: f"{item} otherwise", name="twelve")


async def test_a_map_reports_each_item_as_it_ends_with_its_last_attempt(c: Clutch) -> None:
    shown: list[tuple[str, Outcome]] = []
    for _ in range(2):  # the second time nothing runs, and all are reported
        await c.map(
            ["item 1", "bad 2"], str, name="shown", retries=1,
            on_result=lambda item, result: shown.append((item, result.outcome)),
        )  # fmt: skip
    assert Counter(shown) == {("item 1", Outcome.OK): 2, ("bad 2", Outcome.OK): 2}

    def fail(item: str, result: clutch.TaskResult) -> None:
        raise ValueError(item)

    with pytest.raises(ValueError, match="item 1"):
        await c.map(["item 1"], str, name="shown", on_result=fail)


async def test_what_failed_is_tried_again_as_often_as_allowed(c: Clutch, models: Worker) -> None:
    once = await c.map(["bad luck"], str, name="once", retries=0)
    assert [one.outcome for one in once] == [Outcome.ERROR]
    again = await c.map(["bad apple"], str, name="again", retries=1)
    assert [one.text for one in again] == ["done bad apple"]
    assert models.asked["bad apple"] == 2
    await c.map(["bad apple"], str, name="again", retries=1)
    assert models.asked["bad apple"] == 2


async def test_a_map_that_was_cut_off_repeats_nothing_that_had_ended(tmp_path: Path) -> None:
    items = ["item a", "item b", "held c", "item d"]
    state = tmp_path / "state"
    first = Worker()
    async with Clutch(state=state, models=first, policy=FAST, workspace=tmp_path) as c:
        mapping = asyncio.ensure_future(c.map(items, str, name="cut", concurrency=2))
        async with asyncio.timeout(PATIENCE_S):
            async for event in c.events():
                ended = {task.label for task in await c.tasks(outcome="ok")}
                if event.name == "lifecycle:end" and {"item a", "item b", "item d"} <= ended:
                    break
        mapping.cancel()
    second = Worker()
    second.go.set()
    async with Clutch(state=state, models=second, policy=FAST, workspace=tmp_path) as c:
        results = await c.map(items, str, name="cut", concurrency=2)
    assert [one.text for one in results] == [f"done {item}" for item in items]
    assert set(second.asked) == {"held c"}


async def test_two_items_with_one_key_are_refused_before_anything_starts(c: Clutch) -> None:
    with pytest.raises(InvalidInput, match="items 0 and 2 have the same key"):
        await c.map(["item a", "item b", "item a"], str, name="twins")
    for wrong in ({"name": "No Spaces"}, {"name": "x", "concurrency": 0}, {"name": "x", "retries": -1}):
        with pytest.raises(InvalidInput):
            await c.map(["item a"], str, **wrong)
    assert await c.tasks() == []


@given(st.lists(st.text(), unique=True, max_size=20))
def test_every_item_has_a_key_of_its_own_that_a_spawn_takes(items: list[str]) -> None:
    made = [spawn_key("m", key, 0) for key in keys_of(items, str)]
    assert len(set(made)) == len(items)
    for key in made:
        check_key(key)
