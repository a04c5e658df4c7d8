"""Where an item of the inbox comes from: path, directory, sandbox and budget, the same on every database."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from clutch.core.model import NO_SESSION
from clutch.core.policy import OnReject, Policy
from clutch.core.questions import Decision, QuestionKind
from clutch.transactions import mcp_tools
from clutch.transactions.questions import NewQuestion, call_body
from clutch.transactions.read.inbox import ItemOrigin, origins, waiting_items
from clutch.transactions.turn_end import ask
from tests.transactions.test_pins import offer, tool
from tests.transactions.world import Run, World

pytestmark = pytest.mark.anyio


async def asks(world: World, run: Run, *bodies: str, kind: QuestionKind = QuestionKind.APPROVAL) -> None:
    new = [NewQuestion(world.number(), place, kind, body) for place, body in enumerate(bodies)]
    await run._tx(ask, 1, new, world.nonce())


async def found(world: World, policy: Policy | None = None) -> list[ItemOrigin]:
    return await world.db.read(origins, await world.db.read(waiting_items), policy)


def sandboxing(world: World, *, is_on: bool) -> Policy:
    return replace(world.policy, defaults=replace(world.policy.defaults, sandbox=is_on))


async def test_the_path_leads_from_the_main_session_to_who_asks(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    child = await world.started(parent.session_id, "child")
    await asks(world, child, call_body("pay", {}))
    (origin,) = await found(world)
    steps = [(step.task_id, step.label) for step in origin.path]
    assert steps == [(None, None), (parent.session_id, "parent"), (child.session_id, "child")]
    assert (origin.agent_id, origin.directory, origin.is_sandboxed) == ("main", None, None)


async def test_a_command_has_a_directory_and_the_sandbox_of_now(world: World, main: int) -> None:
    run = await world.started(main, "child")
    there = call_body("shell", {"command": "ls", "cwd": "./src//deep"})
    await asks(world, run, call_body("bash", {"command": "ls"}), there)
    ((workspace,),) = await world.rows("SELECT workspace FROM sessions WHERE id = ?", run.session_id)
    first, second = await found(world, sandboxing(world, is_on=False))
    assert (first.directory, second.directory) == (workspace or ".", f"{workspace or '.'}/src/deep")
    assert (first.is_sandboxed, second.is_sandboxed) == (False, False)
    assert "after 1 other item of the same run is decided" in first.consequences[Decision.APPROVE]
    assert [one.is_sandboxed for one in await found(world, sandboxing(world, is_on=True))] == [True, True]
    assert [one.is_sandboxed for one in await found(world)] == [None, None]


async def test_a_plan_says_what_its_rejection_does(world: World, main: int) -> None:
    run = await world.started(main, "plans", plan_mode=True)
    await run.finish("the plan")
    (revised,) = await found(world, world.policy)
    assert "writes a new plan (rejection 1 of 3)" in revised.consequences[Decision.REJECT]
    strict = replace(world.policy, life=replace(world.policy.life, on_reject=OnReject.END))
    (ended,) = await found(world, strict)
    assert "ends the task" in ended.consequences[Decision.REJECT]


async def test_the_gateway_asks_without_a_path_and_a_budget_may_be_gone(world: World, main: int) -> None:
    await world.db.alone(mcp_tools.see, "web", {"say": tool("v1")})
    await world.db.alone(mcp_tools.ask_pin, world.policy, "web", [offer("v2")], [world.number()])
    run = await world.started(main, "child")
    gone = json.dumps({"purse": "task:1", "text": "used up"})
    await asks(world, run, gone, kind=QuestionKind.BUDGET)
    items = await world.db.read(waiting_items)
    by_session = dict(zip((one.session_id for one in items), await found(world), strict=True))
    assert by_session[NO_SESSION].path == ()
    assert "to all agents" in by_session[NO_SESSION].consequences[Decision.APPROVE]
    assert by_session[run.session_id].budget is None
    assert await world.db.read(origins, []) == []
