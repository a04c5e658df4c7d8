"""What an agent hears when it spawns, and what its child is told: in a running house, through the tool."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from clutch.core import ids
from clutch.core.agents import Agent, AgentDefaults, OnInvalidModel, Subagents, roster
from clutch.core.messages import Answer, Call, Input, Results, Usage
from clutch.core.model import Outcome
from clutch.core.policy import Policy
from clutch.errors import InvalidInput
from clutch.ports import ModelRequest, ToolContext
from tests.engine.conftest import Build
from tests.engine.house import POLICY, Anything, House, opening, step

pytestmark = pytest.mark.anyio


def script(*calls: dict[str, Any]) -> Callable[[ModelRequest], Any]:
    wanted = tuple(Call("sessions_spawn", call) for call in calls)

    async def says(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return "sent" if step(request) else Answer("", wanted, Usage(10, 5), "scripted", "tools")
        return "done"

    return says


async def heard(
    build: Build, *calls: dict[str, Any], policy: Policy = POLICY, **more: Any
) -> tuple[House, list[Any]]:
    """A house in which main made these calls, and the answers it got."""
    house = await build(script(*calls), policy)
    house.more = more
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    (results,) = [entry for entry in house.model.of("go")[-1].transcript if isinstance(entry, Results)]
    return house, [json.loads(result.text) for result in results.results]


def of_children(house: House) -> list[ModelRequest]:
    return [request for request in house.model.requests if "You are a subagent" in request.system]


@pytest.mark.scenario(18)
@pytest.mark.scenario(1)
async def test_the_answer_names_everything_and_tells_what_happens_next(build: Build) -> None:
    house, (answer,) = await heard(build, {"task": "look", "label": "one", "thinking": "low"})
    task = await house.task("one")
    ((key,),) = await house.rows("SELECT key FROM sessions WHERE id = ?", task.id)
    ((run,),) = await house.rows("SELECT id FROM runs WHERE session_id = ?", task.id)
    note = answer.pop("note")
    assert answer == {
        "status": "accepted",
        "taskId": ids.task_id(task.id),
        "runId": ids.run_id(run),
        "childSessionKey": key,
        "label": "one",
        "mode": "run",
        "model": "offline",
        "thinking": "low",
        "context": "isolated",
        "warnings": [],
    }
    for words in ("pushed to you", "do not poll", "only after ALL"):
        assert words in note


@pytest.mark.scenario(21)
async def test_a_child_is_told_its_task_label_requester_depth_and_how_to_spawn_only_if_it_may(
    build: Build,
) -> None:
    deep = replace(POLICY, limits=replace(POLICY.limits, depth_max=2))
    flat = replace(POLICY, limits=replace(POLICY.limits, depth_max=1))
    for policy, depth, may_spawn in ((deep, "1 of 2", True), (flat, "1 of 1", False)):
        house, _ = await heard(build, {"task": "look into it", "label": "looking"}, policy=policy)
        (request,) = of_children(house)
        (first,) = [entry.text for entry in request.transcript if isinstance(entry, Input)]
        assert "look into it" in first
        assert f"depth {depth}" in first
        for words in (
            '"looking"',
            "requester: agent:main:main",
            f"depth: {depth}",
            "your session: agent:main:subagent:",
        ):
            assert words in request.system
        assert ("# Children of your own" in request.system) is may_spawn
        assert ("sessions_spawn" in [tool.name for tool in request.tools]) is may_spawn


async def test_a_spawn_that_makes_no_sense_is_an_answer_and_no_task(build: Build) -> None:
    bad: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "task: is required"),
        (
            {"task": "x", "thinking": "hard"},
            "thinking: must be 'off', 'minimal', 'low', 'medium', 'high' or 'max'",
        ),
        ({"task": "x", "agentId": "Main"}, "agentId: agent id 'Main' is not valid"),
        (
            {"task": "x", "tools": ["raed"]},
            "tools: there is no tool 'raed' (known: agents_list, ask_human",
        ),
        ({"task": "x", "runtime": "acp"}, "runtime: there is no 'acp' here; known: subagent"),
        ({"task": "x", "mode": "session"}, "mode: session needs thread: true"),
        ({"task": "x", "channel": "sms"}, "channel: is not accepted"),
    )
    house, answers = await heard(build, *(call for call, _ in bad))
    for answer, (_, words) in zip(answers, bad, strict=True):
        assert answer["status"] == "error"
        assert words in answer["error"]
    assert await house.rows("SELECT COUNT(*) FROM tasks") == [(0,)]


async def test_a_thread_that_nobody_can_bind_leaves_nothing(build: Build) -> None:
    house, (answer,) = await heard(build, {"task": "x", "thread": True})
    assert answer["status"] == "error"
    assert "thread" in answer["error"]
    assert await house.rows("SELECT COUNT(*) FROM tasks") == [(0,)]


def only(known: str) -> Callable[[str], None]:
    def check(model: str) -> None:
        if model != known:
            raise InvalidInput("model", f"there is no provider of {model!r} (known: {known})")

    return check


async def test_a_model_there_is_not_is_an_error_or_by_config_a_warning(build: Build) -> None:
    call = {"task": "x", "label": "one", "model": "p:nothing"}
    house, (answer,) = await heard(build, call, check_model=only("offline"))
    assert answer["status"] == "error"
    assert "(known: offline)" in answer["error"]
    assert await house.rows("SELECT COUNT(*) FROM tasks") == [(0,)]
    falls = replace(
        POLICY, defaults=AgentDefaults(subagents=Subagents(on_invalid_model=OnInvalidModel.FALLBACK))
    )
    house, (answer,) = await heard(build, call, policy=falls, check_model=only("offline"))
    assert (answer["status"], answer["model"]) == ("accepted", "offline")
    assert "p:nothing" in answer["warnings"][0]
    assert (await house.task("one")).outcome is Outcome.OK


async def test_the_model_of_a_request_is_the_one_that_was_chosen(build: Build) -> None:
    policy = replace(
        POLICY,
        limits=replace(POLICY.limits, allow_agents=frozenset({"*"})),
        agents=roster([Agent("research", model="p:research")]),
        defaults=AgentDefaults(model="p:usual"),
    )
    house, _ = await heard(
        build,
        {"task": "x"},
        {"task": "y", "agentId": "research"},
        {"task": "z", "model": "p:z"},
        policy=policy,
    )
    models = {request.transcript[0].text[-1]: request.model for request in of_children(house)}  # type: ignore[union-attr]
    assert models == {"x": "p:usual", "y": "p:research", "z": "p:z"}
    assert {request.model for request in house.model.of("go")} == {"p:usual"}


async def test_an_agent_may_choose_a_key_and_only_ask(build: Build) -> None:
    calls: tuple[Mapping[str, Any], ...] = (
        {"task": "x", "label": "one", "idempotencyKey": "k"},
        {"task": "x", "label": "one", "idempotencyKey": "k"},
        {"task": "y", "label": "two", "idempotencyKey": "k"},
        {"task": "z", "label": "three", "dryRun": True},
    )
    house, (first, second, third, dry) = await heard(build, *map(dict, calls))
    assert first["taskId"] == second["taskId"]
    assert (third["status"], third["code"]) == ("error", "idempotency_conflict")
    assert (dry["status"], dry["dryRun"], dry["taskId"], dry["runId"]) == ("accepted", True, None, None)
    assert await house.rows("SELECT label FROM tasks") == [("one",)]


async def test_the_words_of_a_refusal_name_the_key_and_both_numbers(build: Build) -> None:
    policy = replace(POLICY, limits=replace(POLICY.limits, children_max=1))
    _, (_, answer) = await heard(build, {"task": "x"}, {"task": "y"}, policy=policy)
    assert answer == {
        "status": "forbidden",
        "error": "limit reached: 1/1 (agents.defaults.subagents.maxChildrenPerAgent)",
        "limit": {"key": "agents.defaults.subagents.maxChildrenPerAgent", "used": 1, "max": 1},
    }


async def test_walls_hold_for_whoever_was_born_behind_them_and_once_they_are_up_for_everybody(
    build: Build,
) -> None:
    """Main was born without: it is let out only by an agent that says so."""
    agents = roster([Agent("boxed", sandbox=True), Agent("plain", sandbox=False)])
    limits = replace(POLICY.limits, allow_agents=frozenset({"*"}))
    for is_up in (False, True):
        seen: dict[str, bool | None] = {}

        async def says(request: ModelRequest) -> Answer | str:
            if opening(request) == "go":
                wanted = tuple(
                    Call("sessions_spawn", {"task": name, "agentId": name}) for name in ("boxed", "plain")
                )
                return (
                    "sent"
                    if step(request)
                    else Answer("", (*wanted, Call("look", {})), Usage(1, 1), "x", "tools")
                )
            return "done" if step(request) else Answer("", (Call("look", {}),), Usage(1, 1), "x", "tools")

        async def look(arguments: Anything, context: ToolContext, seen: dict[str, bool | None] = seen) -> str:
            seen[context.session_key.split(":")[1]] = context.is_sandboxed
            return "seen"

        house = await build(
            says, replace(POLICY, limits=limits, agents=agents, defaults=AgentDefaults(sandbox=is_up))
        )
        house.tools.add(look, arguments=Anything, name="look", description="look")
        await house.hire()
        await house.say("go")
        await house.until_quiet()
        assert seen == {"main": is_up, "boxed": True, "plain": False}
