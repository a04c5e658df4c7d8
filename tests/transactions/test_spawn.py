"""Spawn: admitted or refused under the lock, one row per key, nothing written by a refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clutch.core.agents import Agent, roster
from clutch.core.model import Phase
from clutch.core.policy import Limits, Policy
from clutch.core.spawn import SpawnRefusal, SpawnRequest
from clutch.transactions import control
from clutch.transactions.sessions import Stale
from clutch.transactions.spawn import Accepted
from tests.transactions.world import World

pytestmark = pytest.mark.anyio


def limited(world: World, **limits: object) -> None:
    world.policy = replace(world.policy, limits=replace(world.policy.limits, **limits))  # type: ignore[arg-type]


async def count(world: World, table: str) -> int:
    return int(await world.one(f"SELECT COUNT(*) FROM {table}"))  # noqa: S608 - a name from this file


async def everything(world: World) -> list[int]:
    return [await count(world, table) for table in ("sessions", "tasks", "inbox", "events", "runs")]


@pytest.mark.scenario(1)
async def test_accepted_task_is_a_row_with_its_own_session_and_a_first_letter(
    world: World, main: int
) -> None:
    answer = await world.ask_child(main, "research")
    assert isinstance(answer, Accepted)
    assert answer.session_key.startswith("agent:main:subagent:")
    assert await world.phase(answer.task_id) == (Phase.QUEUED, "admitted")
    session = await world.session(answer.task_id)
    assert (session.owner, session.due) == (None, world.clock.now())
    run = await world.start(answer.task_id)
    assert "do research" in (await world.inputs(answer.task_id))[0]
    assert "depth 1 of 3" in (await world.inputs(answer.task_id))[0].lower()
    assert (await world.task(run.session_id)).phase is Phase.RUNNING


async def test_same_key_finds_its_task_instead_of_a_twin(world: World, main: int) -> None:
    first = await world.ask_child(main, "one", idem="again")
    second = await world.ask_child(main, "one", idem="again")
    assert isinstance(first, Accepted)
    assert isinstance(second, Accepted)
    assert (second.task_id, second.session_key, second.is_new) == (first.task_id, first.session_key, False)
    assert await count(world, "tasks") == 1


async def test_known_key_is_answered_even_when_no_slot_is_free(world: World, main: int) -> None:
    first = await world.ask_child(main, idem="again")
    limited(world, children_max=1)
    assert isinstance(await world.ask_child(main, idem="other"), SpawnRefusal)
    assert await world.ask_child(main, idem="again") == first._replace(is_new=False)  # type: ignore[union-attr]


async def test_same_key_of_another_requester_is_another_task(world: World, main: int) -> None:
    parent = await world.child(main, "parent")
    assert await world.child(main, idem="k") != await world.child(parent, idem="k")


@pytest.mark.scenario(26)
async def test_sixth_active_child_is_refused_with_both_numbers(world: World, main: int) -> None:
    for place in range(5):
        await world.child(main, place=place)
    before = await everything(world)
    refused = await world.ask_child(main)
    assert isinstance(refused, SpawnRefusal)
    assert "5/5" in refused.error
    assert refused.limit == {"key": "agents.defaults.subagents.maxChildrenPerAgent", "used": 5, "max": 5}
    assert await everything(world) == before


@pytest.mark.scenario(22)
@pytest.mark.scenario(24)
async def test_depth_is_counted_from_the_row_and_its_limit_holds(world: World, main: int) -> None:
    parent = main
    for depth in range(3):
        parent = await world.child(parent, f"level {depth + 1}")
    refused = await world.ask_child(parent)
    assert isinstance(refused, SpawnRefusal)
    assert "3/3 (agents.defaults.subagents.maxSpawnDepth)" in refused.error


async def test_raising_the_depth_later_does_not_promote_a_leaf(world: World, main: int) -> None:
    limited(world, depth_max=1)
    root = await world.main("narrow")
    leaf = await world.child(root)
    limited(world, depth_max=3)
    refused = await world.ask_child(leaf)
    assert isinstance(refused, SpawnRefusal)
    assert "1/1" in refused.error


async def test_descendants_of_one_root_are_counted_over_all_parents(world: World, main: int) -> None:
    limited(world, descendants_max=3)
    left, right = await world.children(main, "left", "right")
    await world.child(left)
    for parent in (main, left, right):
        refused = await world.ask_child(parent)
        assert isinstance(refused, SpawnRefusal)
        assert "3/3 (agents.defaults.subagents.maxDescendants)" in refused.error


async def test_other_roots_do_not_count(world: World, main: int) -> None:
    limited(world, descendants_max=1)
    await world.child(main)
    other = await world.main("other")
    assert isinstance(await world.ask_child(other), Accepted)


@pytest.mark.scenario(28)
async def test_ended_child_with_a_live_grandchild_still_counts(world: World, main: int) -> None:
    limited(world, children_max=1)
    parent = await world.child(main, "parent")
    grandchild = await world.child(parent, "grandchild")
    await world.end(parent)
    world.clock.advance(3600)
    await world.ring()
    assert (await world.task(parent)).phase is Phase.ANNOUNCING
    assert isinstance(await world.ask_child(main), SpawnRefusal)
    await world.db.alone(control.kill, world.policy, grandchild, "enough", "person")
    assert isinstance(await world.ask_child(main), Accepted)


@pytest.mark.scenario(32)
@pytest.mark.scenario(34)
async def test_retained_records_refuse_until_one_was_told(world: World, main: int) -> None:
    limited(world, retained_max=2)
    first, second = await world.children(main, "first", "second")
    await world.end(first)
    await world.end(second)
    refused = await world.ask_child(main)
    assert isinstance(refused, SpawnRefusal)
    assert "2/2 (agents.defaults.subagents.maxRetained)" in refused.error
    world.clock.advance(5)
    await (await world.start(main)).finish("told")
    assert isinstance(await world.ask_child(main), Accepted)
    kept = await world.rows("SELECT id FROM tasks WHERE retained = 1 ORDER BY id")
    assert len(kept) == 2
    assert (first,) not in kept


async def test_without_eviction_a_told_record_refuses_too(world: World, main: int) -> None:
    limited(world, retained_max=1, evicts_delivered=False)
    await world.end(await world.child(main))
    world.clock.advance(5)
    await (await world.start(main)).finish("told")
    assert isinstance(await world.ask_child(main), SpawnRefusal)


async def test_dead_letters_of_the_root_refuse_new_work_beyond_the_backlog(world: World, main: int) -> None:
    limited(world, undelivered_max=1)
    await world.end(await world.child(main))
    await world.db.alone(control.close_main, world.policy, main)
    await world.mail()
    world.clock.advance(1801)
    await world.ring()
    await world.db.alone(control.open_main, world.policy, main)
    refused = await world.ask_child(main)
    assert isinstance(refused, SpawnRefusal)
    assert "1/1 (agents.defaults.subagents.undeliveredBacklog)" in refused.error


async def test_killed_parent_cannot_spawn(world: World, main: int) -> None:
    run = await world.started(main)
    await world.db.alone(control.kill, world.policy, run.session_id, "no", "person")
    before = await everything(world)
    refused = await world.ask_child(run.session_id)
    assert isinstance(refused, SpawnRefusal)
    assert "dead parent" in refused.error
    with pytest.raises(Stale):
        await world.db.tx(run.session_id, world.spawning(run.session_id, run.fence, run.orders()))
    assert await everything(world) == before


async def test_spawn_of_a_run_that_lost_its_session_writes_nothing(world: World, main: int) -> None:
    await world.tell(main, "go")
    run = await world.start(main)
    await world.die()
    before = await everything(world)
    order = world.order(SpawnRequest("x"), "k")
    with pytest.raises(Stale):
        await world.db.tx(main, world.spawning(main, run.fence, [order]))
    assert await everything(world) == before


async def test_orders_of_one_answer_are_admitted_in_their_order(world: World, main: int) -> None:
    limited(world, children_max=2)
    await world.tell(main, "go")
    answers = await (await world.start(main)).spawn("first", "second", "third")
    labels = [answer.label if isinstance(answer, Accepted) else answer.error for answer in answers]
    assert labels[:2] == ["first", "second"]
    assert "2/2" in labels[2]
    ordered = await world.rows("SELECT label FROM tasks ORDER BY spawn_order")
    assert ordered == [("first",), ("second",)]


async def test_spawn_order_follows_the_answers(world: World, main: int) -> None:
    await world.tell(main, "go")
    run = await world.start(main)
    await run.spawn("a", "b")
    await run.results()
    await run.spawn("c")
    ordered = await world.rows("SELECT label FROM tasks ORDER BY spawn_order")
    assert ordered == [("a",), ("b",), ("c",)]


async def test_repeating_a_batch_makes_only_what_is_missing(world: World, main: int) -> None:
    await world.tell(main, "go")
    run = await world.start(main)
    first = await run.spawn("a", "b")
    again = await run.repeat_spawn()
    assert [answer.task_id for answer in again if isinstance(answer, Accepted)] == [
        answer.task_id for answer in first if isinstance(answer, Accepted)
    ]
    assert await count(world, "tasks") == 2


@pytest.mark.scenario(35)
async def test_another_agent_needs_the_allow_list(world: World, main: int) -> None:
    refused = await world.ask_child(main, agent_id="writer")
    assert isinstance(refused, SpawnRefusal)
    assert "allowAgents" in refused.error
    limited(world, allow_agents=frozenset({"writer"}))
    refused = await world.ask_child(main, agent_id="writer")
    assert isinstance(refused, SpawnRefusal)
    assert "not configured" in refused.error
    world.policy = replace(world.policy, agents=roster([Agent("writer")]))
    accepted = await world.ask_child(main, agent_id="writer")
    assert isinstance(accepted, Accepted)
    assert accepted.session_key.startswith("agent:writer:subagent:")


async def test_label_without_one_is_the_beginning_of_the_task(world: World, main: int) -> None:
    answer = await world.ask_child(main, label=None, task="read  all\nthe files " + "x" * 100)  # type: ignore[arg-type]
    assert isinstance(answer, Accepted)
    assert answer.label.startswith("read all the files xxx")
    assert len(answer.label) == 72


@pytest.mark.scenario(212)
async def test_limits_in_the_thousands_work(world: World, main: int) -> None:
    world.policy = Policy(limits=Limits(children_max=5000, descendants_max=5000, retained_max=5000))
    orders = [world.order(SpawnRequest(f"task {n}"), f"k{n}", n) for n in range(100)]
    answers = await world.db.tx(main, world.spawning(main, None, orders))
    assert all(isinstance(answer, Accepted) for answer in answers)
    assert await count(world, "tasks") == 100
