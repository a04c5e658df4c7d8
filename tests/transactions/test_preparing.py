"""A spawn with side work: nobody runs it before its files are there, and what fails leaves one line behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clutch.core.model import Outcome, Phase, Workspace
from clutch.core.spawn import BudgetRequest, Context, SpawnRefusal
from clutch.transactions import control, task_files
from clutch.transactions.spawn import Accepted
from tests.transactions.trees import rooted
from tests.transactions.world import World

pytestmark = pytest.mark.anyio

TABLES = {"sessions": "id", "tasks": "id", "messages": "session_id", "inbox": "session_id"}


async def reserved(world: World, parent: int, label: str = "child", **asked: Any) -> Accepted:
    answer = await world.ask_child(parent, label, workspace=Workspace.ISOLATED, **asked)
    assert isinstance(answer, Accepted)
    return answer


async def ready(world: World, task_id: int, path: str = "made") -> bool:
    return await world.db.tx(task_id, task_files.ready, world.policy, task_id, path)


async def rows_of(world: World, task_id: int) -> dict[str, int]:
    counts = {}
    for table, column in TABLES.items():
        counts[table] = await world.one(f"SELECT COUNT(*) FROM {table} WHERE {column} = ?", task_id)  # noqa: S608
    counts["purses"] = await world.one("SELECT COUNT(*) FROM purses WHERE name = ?", f"task:{task_id}")
    return counts


async def gone(world: World, task_id: int, why: str) -> None:
    assert await rows_of(world, task_id) == dict.fromkeys([*TABLES, "purses"], 0)
    assert await world.timeline(task_id) == [f"spawn-failed: {why}"]


async def test_reserved_child_waits_for_its_files(world: World, main: int) -> None:
    answer = await reserved(world, main)
    assert answer.is_spawning
    assert await world.phase(answer.task_id) == (Phase.SPAWNING, "")
    assert await world.claim() == []
    assert await ready(world, answer.task_id)
    assert await world.phase(answer.task_id) == (Phase.QUEUED, "admitted")
    assert await world.one("SELECT workspace FROM sessions WHERE id = ?", answer.task_id) == "made"
    await world.start(answer.task_id)
    (first,) = await world.inputs(answer.task_id)
    assert "do child" in first
    assert "depth 1 of 3" in first.lower()


async def test_files_that_are_ready_twice_start_one_child(world: World, main: int) -> None:
    answer = await reserved(world, main)
    assert await ready(world, answer.task_id, "first")
    assert await ready(world, answer.task_id, "second")
    assert await world.one("SELECT workspace FROM sessions WHERE id = ?", answer.task_id) == "first"
    await world.end(answer.task_id)
    assert await world.timeline(answer.task_id) == ["reserved", "admitted", "started", "ok", "ok"]


async def test_reserved_child_holds_a_slot_and_an_undone_one_does_not(world: World, main: int) -> None:
    world.policy = replace(world.policy, limits=replace(world.policy.limits, children_max=1))
    answer = await reserved(world, main)
    assert isinstance(await world.ask_child(main, "other"), SpawnRefusal)
    await world.db.alone(task_files.undo, world.policy, answer.task_id, "no disk")
    assert isinstance(await world.ask_child(main, "other"), Accepted)


async def test_failed_spawn_leaves_one_line_and_nothing_else(world: World, main: int) -> None:
    await rooted(world, main, 1000)
    answer = await reserved(world, main, budget=BudgetRequest(tokens=10), context=Context.FORK)
    assert (await rows_of(world, answer.task_id))["purses"] == 1
    await world.db.alone(task_files.undo, world.policy, answer.task_id, "no disk")
    await gone(world, answer.task_id, "no disk")
    assert not await ready(world, answer.task_id)
    await world.db.alone(task_files.undo, world.policy, answer.task_id, "again")
    assert await world.timeline(answer.task_id) == ["spawn-failed: no disk"]


async def test_copy_of_the_talk_goes_with_a_failed_spawn(world: World, main: int) -> None:
    await world.tell(main, "remember this")
    await (await world.start(main)).finish("I will")
    answer = await reserved(world, main, context=Context.FORK)
    assert (await rows_of(world, answer.task_id))["messages"] == 3
    await world.db.alone(task_files.undo, world.policy, answer.task_id, "no disk")
    await gone(world, answer.task_id, "no disk")


@pytest.mark.scenario(31)
async def test_child_whose_files_take_too_long_is_undone_by_its_timer(world: World, main: int) -> None:
    answer = await reserved(world, main)
    world.clock.advance(29)
    await world.ring()
    assert (await world.phase(answer.task_id))[0] is Phase.SPAWNING
    world.clock.advance(1)
    await world.ring()
    await gone(world, answer.task_id, "not ready within 30 s")
    assert not await ready(world, answer.task_id)


async def test_timer_has_no_say_once_the_files_are_there(world: World, main: int) -> None:
    answer = await reserved(world, main)
    await ready(world, answer.task_id)
    world.clock.advance(31)
    await world.ring()
    assert (await world.phase(answer.task_id))[0] is Phase.QUEUED
    await world.db.alone(task_files.undo, world.policy, answer.task_id, "too late")
    assert (await world.phase(answer.task_id))[0] is Phase.QUEUED


async def test_child_killed_while_its_files_are_made_is_cleaned_up(world: World, main: int) -> None:
    answer = await reserved(world, main)
    await world.db.alone(control.kill, world.policy, answer.task_id, "enough", "person")
    task = await world.task(answer.task_id)
    assert (task.phase, task.outcome) == (Phase.CLEANUP_PENDING, Outcome.KILLED)
    assert not await ready(world, answer.task_id), "the files are not wanted any more"
    await world.db.alone(task_files.undo, world.policy, answer.task_id, "failed as well")
    await world.clean(answer.task_id)
    assert (await world.phase(answer.task_id))[0] is Phase.COMPLETED


async def test_repeated_call_finds_the_reserved_child_and_completes_it(world: World, main: int) -> None:
    first = await reserved(world, main, idem="call:1")
    await world.die()
    second = await reserved(world, main, idem="call:1")
    assert (second.task_id, second.is_new, second.is_spawning) == (first.task_id, False, True)
    assert second.workspace == "."
    assert await ready(world, second.task_id)
    third = await reserved(world, main, idem="call:1")
    assert (third.task_id, third.is_spawning) == (first.task_id, False)


async def test_repeated_call_after_the_timer_makes_a_new_child(world: World, main: int) -> None:
    first = await reserved(world, main, idem="call:1")
    world.clock.advance(30)
    await world.ring()
    second = await reserved(world, main, idem="call:1")
    assert second.task_id != first.task_id
    assert second.is_new
