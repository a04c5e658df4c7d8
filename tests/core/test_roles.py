"""Roles: agents that files define. They have at most the rights of the agent that spawns them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.agents import Agent, AgentDefaults, Delegation, Subagents, roster
from clutch.core.authority import NoSandbox, Request, ToolPolicy, child_rights, root_rights
from clutch.core.model import Thinking, Workspace
from clutch.core.policy import Life, Limits, Policy
from clutch.core.spawn import Spawner, SpawnRequest, known_agents, settled, spawnable, terms
from clutch.errors import InvalidInput

REVIEWER = Agent("reviewer", description="Reviews.", instructions="Review.", max_turns=7)
TOOLS = ("read", "write", "edit", "shell", "web_fetch", "sessions_spawn", "mcp__echo")
PATTERNS = st.frozensets(st.sampled_from((*TOOLS, "*", "mcp__*", "w*")), max_size=4)
POLICIES = st.builds(ToolPolicy, allow=st.none() | PATTERNS, also_allow=PATTERNS, deny=PATTERNS)


def with_roles(*agents: Agent, **policy: object) -> Policy:
    return replace(Policy(roles=roster(agents)), **policy)  # type: ignore[arg-type]


@given(POLICIES, POLICIES, st.booleans(), st.booleans())
def test_a_role_has_no_tool_that_its_parent_lacks(
    own: ToolPolicy, of_file: ToolPolicy, is_sandboxed: bool, has_network: bool
) -> None:
    main = Agent("main", tools=own, sandbox=is_sandboxed, network=has_network)
    policy = Policy(agents=roster([main]), roles=roster([replace(REVIEWER, tools=of_file)]))
    parent = root_rights(policy.grant("main"))
    rights = child_rights(parent, policy.grant("reviewer"), Request(), policy.tools)
    assert not isinstance(rights, NoSandbox)
    for name in TOOLS:
        permitted = rights.permits_tool(name, is_read_only=False)
        assert not permitted or parent.permits_tool(name, is_read_only=False)
        assert not permitted or of_file.filter.permits(name)
    assert rights.sandbox >= parent.sandbox
    assert rights.network <= parent.network


def test_the_config_comes_before_a_file() -> None:
    policy = replace(with_roles(REVIEWER), agents=roster([Agent("reviewer", instructions="Mine.")]))
    assert policy.agent("reviewer").instructions == "Mine."
    assert not policy.is_role("reviewer")
    assert not policy.grant("reviewer").follows_parent


def test_a_role_may_be_spawned_unless_a_list_names_others() -> None:
    assert spawnable(with_roles(REVIEWER), "main") == {"reviewer"}
    assert spawnable(with_roles(REVIEWER), "reviewer") == frozenset()
    assert (
        spawnable(with_roles(REVIEWER, limits=Limits(allow_agents=frozenset({"ops"}))), "main") == frozenset()
    )
    own = roster([Agent("main", subagents=Delegation(allow_agents=frozenset({"ops"})))])
    assert spawnable(with_roles(REVIEWER, agents=own), "main") == frozenset()
    assert spawnable(with_roles(REVIEWER, limits=Limits(allow_agents=frozenset({"*"}))), "main") == {
        "reviewer"
    }
    assert "reviewer" in known_agents(with_roles(REVIEWER))
    assert (policy := Policy()).limits_of("main") is policy.limits


def test_a_role_works_where_its_caller_works_and_thinks_as_it_does() -> None:
    main = Agent("main", model="a:own", workspace="/main")
    policy = with_roles(
        REVIEWER, agents=roster([main]), defaults=AgentDefaults(model="a:default", workspace="/w")
    )
    caller = Spawner("main", thinking=Thinking.HIGH)
    found = terms(SpawnRequest("x"), "reviewer", caller, policy)
    assert (found.model, found.thinking, found.directory) == ("a:own", Thinking.HIGH, "/main")
    found = terms(SpawnRequest("x"), "reviewer", replace(caller, model="a:chat", workspace="/chat"), policy)
    assert (found.model, found.directory) == ("a:chat", "/chat")


def test_the_model_of_a_role_comes_before_that_of_the_defaults() -> None:
    common = AgentDefaults(subagents=Subagents(model="a:common"))
    policy = with_roles(replace(REVIEWER, model="a:file"), defaults=common)
    assert terms(SpawnRequest("x"), "reviewer", Spawner("main"), policy).model == "a:file"
    assert terms(SpawnRequest("x", model="a:asked"), "reviewer", Spawner("main"), policy).model == "a:asked"


def test_an_agent_can_only_lower_the_limit_of_steps() -> None:
    policy = with_roles(REVIEWER, Agent("long", max_turns=10_000), life=Life(steps_max=50))
    assert [policy.steps_max(one) for one in ("reviewer", "long", "main")] == [7, 50, 50]


def test_an_isolated_role_gets_a_directory_of_its_own_unless_the_spawn_says_otherwise() -> None:
    policy = with_roles(replace(REVIEWER, subagents=Delegation(workspace=Workspace.ISOLATED)))
    assert settled(SpawnRequest("x", agent_id="reviewer"), policy).workspace is Workspace.ISOLATED
    asked = SpawnRequest("x", agent_id="reviewer", workspace=Workspace.INHERIT)
    assert settled(asked, policy).workspace is Workspace.INHERIT
    assert settled(SpawnRequest("x"), policy).workspace is None


@pytest.mark.parametrize(
    ("field", "value"), [("instructions", "x" * 40_000), ("description", "x" * 2000), ("max_turns", 0)]
)
def test_texts_and_turns_of_an_agent_are_bounded(field: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=f"Agent.{field}"):
        Agent("a", **{field: value})  # type: ignore[arg-type]
