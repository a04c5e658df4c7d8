"""What an accepted child is given is in its rows, on each database; what it may not have is refused before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clutch.core import ids
from clutch.core.agents import Agent, AgentDefaults, Delegation, Subagents, roster
from clutch.core.authority import ToolPolicy, from_text
from clutch.core.events import PlanVerdict
from clutch.core.ids import plan_hash
from clutch.core.model import Thinking
from clutch.core.spawn import CleanupPolicy, Context, SpawnRefusal, SpawnRequest
from clutch.transactions import control, messages
from clutch.transactions.spawn import Accepted
from tests.transactions.world import World

pytestmark = pytest.mark.anyio


def configured(world: World, *agents: Agent, limits: dict[str, Any] | None = None, **defaults: Any) -> None:
    world.policy = replace(
        world.policy,
        limits=replace(world.policy.limits, **(limits or {})),
        agents=roster(agents),
        defaults=AgentDefaults(**defaults),
    )


async def row(world: World, task_id: int, *columns: str) -> tuple[Any, ...]:
    (found,) = await world.rows(f"SELECT {', '.join(columns)} FROM sessions WHERE id = ?", task_id)  # noqa: S608
    return tuple(found)


async def rows(world: World) -> list[int]:
    tables = ("sessions", "tasks", "inbox", "events", "runs", "purses", "messages")
    return [await world.one(f"SELECT COUNT(*) FROM {table}") for table in tables]  # noqa: S608 - names from here


async def accepted(world: World, parent: int, **asked: Any) -> Accepted:
    answer = await world.ask_child(parent, **asked)
    assert isinstance(answer, Accepted), answer
    return answer


async def refused(world: World, parent: int, **asked: Any) -> SpawnRefusal:
    before = await rows(world)
    answer = await world.ask_child(parent, **asked)
    assert isinstance(answer, SpawnRefusal), answer
    assert await rows(world) == before
    return answer


# ---- what it gets ------------------------------------------------------------------------------------


@pytest.mark.scenario(8)
@pytest.mark.scenario(9)
async def test_model_and_thinking_are_chosen_in_order_and_stored(world: World, main: int) -> None:
    research = Agent("research", model="p:own", subagents=Delegation(thinking=Thinking.HIGH))
    allowed = {"allow_agents": frozenset({"research"})}
    configured(world, research, limits=allowed, model="p:last", subagents=Subagents(model="p:small"))
    stored = [
        await row(world, (await accepted(world, main, **asked)).task_id, "model", "thinking")
        for asked in (
            {},
            {"model": "p:asked", "thinking": Thinking.OFF},
            {"agent_id": "research"},
            {"agent_id": "research", "model": "p:asked"},
        )
    ]
    assert stored == [("p:small", None), ("p:asked", "off"), ("p:own", "high"), ("p:asked", "high")]


async def test_a_childs_model_does_not_change_with_the_config(world: World, main: int) -> None:
    configured(world, model="p:then")
    child = await accepted(world, main)
    configured(world, model="p:now")
    assert await row(world, child.task_id, "model") == ("p:then",)
    assert (await accepted(world, child.task_id)).model == "p:then", "of the same agent: its caller's"


@pytest.mark.scenario(19)
async def test_the_same_agent_inherits_the_directory_and_another_has_its_own(world: World, main: int) -> None:
    allowed = {"allow_agents": frozenset({"*"})}
    configured(world, Agent("research", workspace="/research"), limits=allowed, workspace="/usual")
    same = await accepted(world, main)
    other = await accepted(world, main, agent_id="research")
    assert await row(world, same.task_id, "agent_id", "workspace") == ("main", ".")
    assert await row(world, other.task_id, "agent_id", "workspace") == ("research", "/research")
    assert other.session_key.startswith("agent:research:subagent:")


async def test_the_talk_of_one_agent_is_not_copied_for_another(world: World, main: int) -> None:
    configured(world, Agent("research"), limits={"allow_agents": frozenset({"*"})})
    await world.tell(main, "a secret")
    await (await world.start(main)).finish("noted")
    same = await accepted(world, main, context=Context.FORK)
    other = await accepted(world, main, context=Context.FORK, agent_id="research")
    assert (same.context, other.context) == (Context.FORK, Context.ISOLATED)
    assert "starts without it" in other.warnings[0]
    assert await world.one("SELECT COUNT(*) FROM messages WHERE session_id = ?", other.task_id) == 0


async def test_the_first_message_counts_the_depth_the_child_was_born_with(world: World, main: int) -> None:
    configured(world, limits={"depth_max": 2})
    root = await world.main("narrow")
    child = await world.child(root)
    configured(world, limits={"depth_max": 3})
    grandchild = await world.child(child)
    await world.start(grandchild)
    assert "depth 2 of 2" in (await world.inputs(grandchild))[0]


@pytest.mark.scenario(1)
async def test_the_run_that_a_spawn_names_is_the_first_of_its_task(world: World, main: int) -> None:
    child = await world.child(main)
    run = await world.start(child)
    assert ids.run_id(run.run_id) == ids.run_id(child)
    await world.db.alone(messages.steer, world.policy, child, "steer:1", "otherwise", actor="person")
    assert (await world.start(child)).run_id != child


async def test_a_run_superseded_before_it_began_leaves_its_name_to_the_next(world: World, main: int) -> None:
    child = await world.child(main)
    await world.claim()
    await world.db.alone(control.pause, world.policy, child, "person")
    assert await world.begin(child) is None
    await world.db.alone(control.resume, world.policy, child, "person")
    assert (await world.start(child)).run_id == child


# ---- keys --------------------------------------------------------------------------------------------


async def test_a_key_for_other_wishes_is_a_conflict_and_makes_nothing(world: World, main: int) -> None:
    first = await accepted(world, main, idem="key:k", digest="one")
    same = await accepted(world, main, idem="key:k", digest="one")
    assert (same.task_id, same.is_new) == (first.task_id, False)
    answer = await refused(world, main, idem="key:k", digest="two")
    assert answer.is_conflict
    used = f"it was used for {ids.task_id(first.task_id)} with other arguments"
    assert answer.error == f"idempotencyKey: {used}; use a new key"
    assert ids.task_id(first.task_id) in answer.error


async def test_a_key_used_twice_in_one_answer_is_one_task(world: World, main: int) -> None:
    orders = [
        world.order(SpawnRequest("x", digest=digest), "key:k", place)
        for place, digest in enumerate(("one", "one", "two"))
    ]
    first, second, third = await world.db.tx(main, world.spawning(main, None, orders))
    assert isinstance(first, Accepted)
    assert isinstance(second, Accepted)
    assert (second.task_id, second.is_new) == (first.task_id, False)
    assert isinstance(third, SpawnRefusal)
    assert third.is_conflict
    assert await world.one("SELECT COUNT(*) FROM tasks") == 1


# ---- asking only -------------------------------------------------------------------------------------


async def test_a_dry_run_answers_as_the_real_one_and_writes_nothing(world: World, main: int) -> None:
    configured(world, model="p:m", limits={"children_max": 1})
    before = await rows(world)
    answer = await accepted(world, main, dry_run=True, cleanup=CleanupPolicy.DELETE)
    assert await rows(world) == before
    assert (answer.is_dry, answer.is_spawning, answer.model, answer.label) == (True, False, "p:m", "child")
    await world.child(main)
    assert "1/1" in (await refused(world, main, dry_run=True)).error


async def test_a_dry_run_takes_no_slot_from_what_follows_it_in_the_same_answer(
    world: World, main: int
) -> None:
    configured(world, limits={"children_max": 1})
    orders = [
        world.order(SpawnRequest("x", dry_run=dry), f"k{place}", place)
        for place, dry in enumerate((True, False, True))
    ]
    answers = await world.db.tx(main, world.spawning(main, None, orders))
    assert [isinstance(answer, Accepted) for answer in answers] == [True, True, False]


# ---- what it may not have ----------------------------------------------------------------------------


@pytest.mark.scenario(36)
async def test_an_agent_without_a_list_uses_that_of_the_defaults(world: World, main: int) -> None:
    others = (Agent("writer"), Agent("research"))
    configured(world, Agent("main"), *others, limits={"allow_agents": frozenset({"writer"})})
    assert isinstance(await world.ask_child(main, agent_id="writer"), Accepted)
    own = Agent("main", subagents=Delegation(allow_agents=frozenset({"research"})))
    configured(world, own, *others, limits={"allow_agents": frozenset({"writer"})})
    assert isinstance(await world.ask_child(main, agent_id="research"), Accepted)
    answer = await refused(world, main, agent_id="writer")
    assert "['research']" in answer.error


@pytest.mark.scenario(35)
@pytest.mark.parametrize("agent_id", ["Research", "research ", "rese\u0430rch", "researc", "unheard-of"])
async def test_any_configured_agent_means_exactly_those(world: World, main: int, agent_id: str) -> None:
    configured(world, Agent("research"), limits={"allow_agents": frozenset({"*"})})
    assert isinstance(await world.ask_child(main, agent_id="research"), Accepted)
    answer = await refused(world, main, agent_id=agent_id)
    assert answer.limit == {"key": "agents.defaults.subagents.allowAgents"}
    assert ("did you mean 'research'?" in answer.error) is (agent_id != "unheard-of")


async def test_an_agent_that_must_be_named_is_asked_for(world: World, main: int) -> None:
    configured(world, Agent("main", subagents=Delegation(require_agent_id=True)))
    assert "requireAgentId" in (await refused(world, main)).error
    assert isinstance(await world.ask_child(main, agent_id="main"), Accepted)


async def test_a_task_that_goes_on_need_not_name_its_agent_again(world: World, main: int) -> None:
    child = await world.child(main)
    await world.end(child)
    world.clock.advance(5)
    await (await world.start(main)).finish("told")
    configured(world, limits={"require_agent_id": True})
    await world.db.alone(
        control.again, world.policy, child, "continue", "again:1", text="more", actor="person"
    )
    assert (await world.task(child)).generation == 2


@pytest.mark.scenario(39)
async def test_a_sandboxed_requester_and_a_required_sandbox_refuse_a_plain_agent(
    world: World, main: int
) -> None:
    agents = (Agent("boxed", sandbox=True), Agent("plain", sandbox=False))
    configured(world, *agents, limits={"allow_agents": frozenset({"*"})})
    rights = from_text(
        (await row(world, (await accepted(world, main, agent_id="boxed")).task_id, "rights"))[0]
    )
    assert rights.sandbox
    boxed = await world.child(main, agent_id="boxed")
    assert "sandboxed" in (await refused(world, boxed, agent_id="plain")).error
    assert "sandbox is required" in (await refused(world, main, agent_id="plain", needs_sandbox=True)).error
    assert isinstance(await world.ask_child(boxed, agent_id="boxed", needs_sandbox=True), Accepted)


async def test_a_model_outside_the_lists_of_parent_and_agent_is_refused(world: World, main: int) -> None:
    frugal = Agent("frugal", model="p:small", models=frozenset({"p:small*", "q:*"}))
    configured(world, frugal, limits={"allow_agents": frozenset({"*"})}, model="p:large")
    child = await world.child(main, agent_id="frugal")
    assert isinstance(await world.ask_child(main, agent_id="frugal", model="q:any"), Accepted)
    answer = await refused(world, main, agent_id="frugal", model="p:large")
    assert "'p:large'" in answer.error
    assert answer.limit == {"key": "agents.list[].models"}
    assert "'p:large'" in (await refused(world, child, agent_id="main")).error, (
        "a child's list is its children's too"
    )


async def test_rights_of_a_child_are_those_of_parent_agent_and_request_together(
    world: World, main: int
) -> None:
    agent = Agent("research", network=False, tools=ToolPolicy(deny=frozenset({"shell"})))
    configured(world, agent, limits={"allow_agents": frozenset({"*"})})
    world.policy = replace(world.policy, tools=ToolPolicy(deny=frozenset({"web_*"})))
    asked = frozenset({"read", "shell", "web_fetch", "sessions_spawn"})
    child = await accepted(world, main, agent_id="research", tools=asked)
    rights = from_text((await row(world, child.task_id, "rights"))[0])
    names = (
        "read",
        "write",
        "shell",
        "bash",
        "web_fetch",
        "sessions_spawn",
        "sessions_send",
        "gateway",
        "cron",
    )
    assert [name for name in names if rights.tools.permits(name)] == ["read", "sessions_spawn"]
    assert not rights.network
    grandchild = await accepted(world, child.task_id, agent_id="main")
    given = from_text((await row(world, grandchild.task_id, "rights"))[0])
    assert not given.network
    assert [name for name in names if given.tools.permits(name)] == ["read", "sessions_spawn"]


@pytest.mark.scenario(42)
async def test_a_leaf_stays_one_when_the_limit_is_raised(world: World, main: int) -> None:
    configured(world, limits={"depth_max": 1})
    root = await world.main("narrow")
    leaf = await world.child(root)
    configured(world, limits={"depth_max": 3})
    assert (await row(world, leaf, "role")) == ("leaf",)
    answer = await refused(world, leaf)
    assert answer.limit == {"key": "agents.defaults.subagents.maxSpawnDepth", "used": 1, "max": 1}


# ---- the quota of records ------------------------------------------------------------------------------


@pytest.mark.scenario(32)
async def test_a_task_that_goes_on_makes_room_for_its_record(world: World, main: int) -> None:
    configured(world, limits={"retained_max": 2})
    first = await told(world, main, "first")
    second, third = await told(world, main, "second"), await told(world, main, "third")
    assert await retained(world) == [second, third]
    await world.db.alone(
        control.again, world.policy, first, "continue", "again:1", text="more", actor="person"
    )
    assert await retained(world) == [first, third]
    await world.end(first)
    world.clock.advance(5)
    await (await world.start(main)).finish("told")
    await world.db.alone(
        control.again, world.policy, third, "continue", "again:2", text="more", actor="person"
    )
    assert await retained(world) == [first, third], "one that is in the quota needs no room"


async def told(world: World, parent: int, label: str) -> int:
    child = await world.child(parent, label)
    await world.end(child)
    world.clock.advance(5)
    await (await world.start(parent)).finish("told")
    return child


async def retained(world: World) -> list[int]:
    return [number for (number,) in await world.rows("SELECT id FROM tasks WHERE retained = 1 ORDER BY id")]


# ---- while a plan is made ----------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["drafting", "approved"])
async def test_children_of_a_draft_may_only_read_and_those_of_an_approved_plan_may_more(
    world: World, main: int, phase: str
) -> None:
    planner = await world.started(main, "planner", plan_mode=True)
    if phase == "approved":
        await planner.finish("the plan")
        verdict = (PlanVerdict.APPROVE, plan_hash("the plan"))
        await world.db.alone(
            messages.decide, world.policy, planner.session_id, *verdict, text="", actor="boss"
        )
        planner = await world.start(planner.session_id)
    child = await world.child(planner.session_id, "child")
    below = await world.child(child, "below")
    read_only = [from_text((await row(world, one, "rights"))[0]).read_only for one in (child, below)]
    assert read_only == [phase == "drafting"] * 2


async def test_nobody_plans_with_code_that_keeps_to_no_filter(world: World, main: int) -> None:
    planner = await world.started(main, "planner", plan_mode=True)
    answer = await refused(world, planner.session_id, runtime="other")
    assert answer.error.startswith("runtime: 'other'")
    await accepted(world, main, runtime="other")
