"""Rows of schedules: a slot is decided once, with its task; pauses, overlaps, budgets and the config keep to it."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from clutch.core import schedule as rules
from clutch.core.authority import AgentGrant, root_rights
from clutch.core.authority import to_text as rights_text
from clutch.core.schedule import Missed, Overlap, ScheduleSpec
from clutch.core.spawn import SpawnRefusal, SpawnRequest
from clutch.errors import InvalidInput, NotFound
from clutch.transactions import control, schedules
from clutch.transactions.schedules import PlannedRun, ScheduleStepped, SlotState, StoredSchedule
from clutch.transactions.sessions import NewMain
from clutch.transactions.spawn import Accepted, ChildRequest
from tests.transactions.world import World, write

pytestmark = pytest.mark.anyio

KEY = "agent:main:main"


def minutes(name: str = "nightly", **given: Any) -> ScheduleSpec:
    known: dict[str, Any] = {"every_s": 60.0, "task": "work"} | given
    return ScheduleSpec(name, **known)


async def add(world: World, one: ScheduleSpec) -> StoredSchedule:
    world.clock.advance(60 - world.clock.now() % 60)  # as far from the next slot on each database
    return await world.db.alone(schedules.add, world.number(), one)


def planned(world: World, found: StoredSchedule) -> PlannedRun:
    rights = rights_text(root_rights(AgentGrant(depth_max=3)))
    main = NewMain(world.number(), KEY, "main", rights, f"local:{KEY}", ".")
    number = world.number()
    uuid = f"00000000-0000-4000-8000-{number:012x}"
    order = ChildRequest("unused", number, uuid, SpawnRequest("work", found.name), 0)
    return PlannedRun(found.id, rules.dump(found.schedule), main, order)


async def tick(world: World, seconds: float = 60.0) -> list[ScheduleStepped]:
    """Time passes, and every schedule that is due is looked at until nothing is left to do now."""
    world.clock.advance(seconds)
    done: list[ScheduleStepped] = []
    while due := await world.db.read(schedules.due):
        for one in due:
            stepped = await world.db.alone(
                schedules.run_due, world.policy, planned(world, one), world.nonce()
            )
            done += [] if stepped is None else [stepped]
    return done


def started(done: list[ScheduleStepped]) -> list[int]:
    return [one.answer.task_id for one in done if isinstance(one.answer, Accepted)]


def reasons(done: list[ScheduleStepped]) -> list[str]:
    return [reason.value for one in done for _, reason in one.skipped]


async def end(world: World, task_id: int) -> None:
    await world.claim()
    await (await world.start(task_id)).finish()


async def seen(world: World, name: str = "nightly") -> list[tuple[str, str]]:
    found = await world.db.read(schedules.find, name)
    return [(one.state.value, one.reason) for one in await world.db.read(schedules.history, found.id)]


async def test_each_slot_starts_one_task_whose_key_names_it(world: World) -> None:
    await add(world, minutes(overlap=Overlap.REPLACE))
    (first,) = started(await tick(world))
    (second,) = started(await tick(world))
    keys = [row[0] for row in await world.rows("SELECT idem FROM tasks ORDER BY created_at, id")]
    origins = [rules.origin(key) for key in keys]
    assert first != second
    assert [origin and origin[0] for origin in origins] == ["nightly", "nightly"]
    assert len(set(origins)) == 2
    assert await world.one("SELECT outcome FROM tasks WHERE id = ?", first) == "killed"


async def test_a_run_that_cannot_be_spawned_replaces_nothing(world: World) -> None:
    found = await add(world, minutes(overlap=Overlap.REPLACE))
    (task,) = started(await tick(world))
    world.clock.advance(60)
    refused = replace(planned(world, found), order=SpawnRefusal("there is no such model"))
    await world.db.alone(schedules.run_due, world.policy, refused, world.nonce())
    await world.db.alone(schedules.run_now, world.policy, refused, world.nonce())
    assert await world.one("SELECT outcome FROM tasks WHERE id = ?", task) is None
    assert (await seen(world))[0] == ("skipped", "refused")


async def test_two_workers_that_look_at_the_same_slot_start_it_once(world: World) -> None:
    found = await add(world, minutes())
    world.clock.advance(60)
    both = [planned(world, found), planned(world, found)]
    done = await asyncio.gather(
        *(world.db.alone(schedules.run_due, world.policy, one, world.nonce()) for one in both)
    )
    assert sorted(one is None for one in done) == [False, True]
    assert await world.one("SELECT COUNT(*) FROM tasks") == 1


async def test_a_worker_with_a_clock_ahead_or_behind_repeats_no_slot(world: World) -> None:
    await add(world, minutes(missed=Missed.ONCE))
    (task,) = started(await tick(world, 600))
    world.clock.advance(-590)
    assert await world.db.read(schedules.due) == []
    world.clock.advance(590)
    await end(world, task)
    assert len(started(await tick(world))) == 1
    assert await world.one("SELECT COUNT(*) FROM tasks") == 2


async def test_a_slot_whose_predecessor_works_is_skipped_waits_or_replaces_it(world: World) -> None:
    await add(world, minutes("skip"))
    await add(world, minutes("queue", overlap=Overlap.QUEUE))
    first = await tick(world)
    second = await tick(world)
    assert reasons(second) == ["overlap"]
    assert started(second) == []
    assert (await world.db.read(schedules.find, "queue")).state.queue != ()
    for task in started(first):
        await end(world, task)
    assert len(started(await tick(world, rules.LOOK_S))) == 1
    assert (await world.db.read(schedules.find, "queue")).state.queue == ()


async def test_slots_of_a_pause_are_skipped_whatever_the_policy_says(world: World) -> None:
    await add(world, minutes(missed=Missed.ALL, overlap=Overlap.QUEUE))
    paused = await world.db.alone(schedules.pause, "nightly")
    assert (paused.paused, paused.next_at) == (True, None)
    assert await tick(world, 180) == []
    await world.db.alone(schedules.resume, "nightly")
    done = await tick(world, 0)
    assert (started(done), reasons(done)) == ([], ["paused"] * 3)
    assert len(started(await tick(world))) == 1


async def test_catching_up_starts_one_run_at_a_time(world: World) -> None:
    await add(world, minutes(missed=Missed.ALL, overlap=Overlap.QUEUE, catch_up=3))
    done = await tick(world, 600 + 30)
    assert len(started(done)) == 1
    assert reasons(done) == ["missed"] * 6
    assert len((await world.db.read(schedules.find, "nightly")).state.queue) == 3


async def test_the_budget_of_a_schedule_bounds_all_of_its_runs_together(world: World) -> None:
    found = await add(world, minutes(total_tokens=100, total_usd=Decimal("0.50")))
    (task,) = started(await tick(world))
    assert found.budget == f"schedule:{found.id}"
    assert found.budget in await world.one("SELECT purses FROM sessions WHERE id = ?", task)
    await end(world, task)
    await world.db.alone(write, "UPDATE purses SET tokens_spent = 100 WHERE name = ?", found.budget)
    done = await tick(world)
    assert (started(done), reasons(done)) == ([], ["refused"])
    (last, *_) = await world.db.read(schedules.history, found.id)
    assert "budget is used up" in last.detail


async def test_a_refused_run_does_not_count_and_the_last_one_ends_the_schedule(world: World) -> None:
    found = await add(world, minutes(max_runs=1))
    world.clock.advance(60)
    refused = replace(planned(world, found), order=SpawnRefusal("model: there is none"))
    await world.db.alone(schedules.run_due, world.policy, refused, world.nonce())
    assert (await world.db.read(schedules.find, "nightly")).state.runs == 0
    assert len(started(await tick(world))) == 1
    assert reasons(await tick(world)) == ["max_runs"]
    assert (await world.db.read(schedules.find, "nightly")).next_at is None
    assert await tick(world, 600) == []


async def test_a_run_by_hand_is_beside_the_slots_and_waits_for_no_other(world: World) -> None:
    found = await add(world, minutes())
    first = await world.db.alone(schedules.run_now, world.policy, planned(world, found), world.nonce())
    assert first is not None
    assert isinstance(first.answer, Accepted)
    with pytest.raises(control.NotPossible, match="has not ended"):
        await world.db.alone(schedules.run_now, world.policy, planned(world, found), world.nonce())
    assert await seen(world) == [(SlotState.MANUAL.value, "")]
    assert (await world.db.read(schedules.find, "nightly")).next_at == found.next_at


async def test_a_schedule_that_changed_meanwhile_is_not_run_as_it_was(world: World) -> None:
    found = await add(world, minutes())
    world.clock.advance(60)
    stale = replace(planned(world, found), spec=rules.dump(minutes(task="other")))
    assert await world.db.alone(schedules.run_due, world.policy, stale, world.nonce()) is None


async def test_names_are_taken_once_and_the_same_schedule_again_is_the_same(world: World) -> None:
    found = await add(world, minutes())
    assert (await add(world, minutes())).id == found.id
    with pytest.raises(InvalidInput, match="another schedule 'nightly'"):
        await add(world, minutes(every_s=120.0))
    with pytest.raises(InvalidInput, match="in the past"):
        await add(world, ScheduleSpec("once", at="2001-01-01T00:00", task="x"))
    with pytest.raises(NotFound, match="no schedule 'daily'"):
        await world.db.alone(schedules.remove, "daily")
    await world.db.alone(schedules.remove, "nightly")
    assert await world.db.read(schedules.listed) == []


async def test_the_config_owns_its_schedules(world: World) -> None:
    await add(world, minutes("mine"))
    await world.db.alone(
        schedules.configure, [(world.number(), minutes("a")), (world.number(), minutes("b"))]
    )
    with pytest.raises(InvalidInput, match="belongs to the config"):
        await world.db.alone(schedules.remove, "a")
    before = await world.db.read(schedules.find, "a")
    world.clock.advance(59)
    await world.db.alone(schedules.configure, [(world.number(), minutes("a", total_tokens=5))])
    after = await world.db.read(schedules.find, "a")
    assert [one.name for one in await world.db.read(schedules.listed)] == ["a", "mine"]
    assert (after.id, after.schedule.total_tokens, after.budget) == (before.id, 5, f"schedule:{before.id}")
    await world.db.alone(schedules.configure, [(world.number(), minutes("a", total_tokens=9))])
    assert await world.one("SELECT tokens_max FROM purses WHERE name = ?", after.budget) == 9


async def test_gateways_that_start_together_add_the_schedules_of_the_config_once(world: World) -> None:
    names = [f"s{number}" for number in range(20)]
    given = [[(world.number(), minutes(name)) for name in names] for _ in range(2)]
    await asyncio.gather(*(world.db.alone(schedules.configure, one) for one in given))
    assert [one.name for one in await world.db.read(schedules.listed)] == sorted(names)


async def test_the_history_is_bounded(world: World) -> None:
    found = await add(world, minutes(missed=Missed.SKIP, every_s=1.0))
    await tick(world, 90 + rules.LATE_S)
    assert len(await world.db.read(schedules.history, found.id)) == schedules.SLOTS_KEPT
    cursor = (await world.db.read(schedules.find, "nightly")).state.cursor
    assert cursor == math.floor(world.clock.now())


async def test_a_schedule_with_a_time_zone_that_is_unknown_here_keeps_no_other_from_running(
    world: World,
) -> None:
    """Another machine of the fleet may have newer time zones."""
    await add(world, minutes("here"))
    await add(world, ScheduleSpec("there", cron="* * * * *", timezone="Europe/Berlin", task="work"))
    await world.db.tx((), write, "UPDATE schedules SET spec = REPLACE(spec, 'Europe/Berlin', 'Mars/Base')")
    world.clock.advance(60)
    assert [one.schedule.name for one in await world.db.read(schedules.due)] == ["here"]
