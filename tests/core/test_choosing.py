"""What a child gets where several could say: the documented order, for every way to say nothing."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core import spawn
from clutch.core.agents import Agent, AgentDefaults, Delegation, Subagents, roster
from clutch.core.model import Thinking, Workspace
from clutch.core.policy import Policy
from clutch.core.spawn import (
    BudgetRequest,
    CleanupPolicy,
    Context,
    Mode,
    Spawner,
    SpawnRequest,
    Terms,
    check,
    digest,
    settled,
    terms,
)
from clutch.errors import InvalidInput

NAMES = st.one_of(st.none(), st.text("abc", min_size=1, max_size=3))
LEVELS = st.one_of(st.none(), st.sampled_from(Thinking))


def policy(agent: Agent | None = None, **defaults: object) -> Policy:
    return Policy(
        agents=roster([] if agent is None else [agent]),
        defaults=AgentDefaults(**defaults),  # type: ignore[arg-type]
    )


# ---- model and thinking ------------------------------------------------------------------------------


@pytest.mark.scenario(9)
@pytest.mark.scenario(8)
@given(param=NAMES, own=NAMES, agents=NAMES, common=NAMES, callers=NAMES, is_other=st.booleans())
def test_the_first_that_says_a_model_decides(
    param: str | None,
    own: str | None,
    agents: str | None,
    common: str | None,
    callers: str | None,
    is_other: bool,
) -> None:
    target = "research" if is_other else "main"
    known = policy(
        Agent(target, model=agents, subagents=Delegation(model=own)),
        model="last",
        subagents=Subagents(model=common),
    )
    caller = Spawner("main", model=callers)
    chosen = terms(SpawnRequest("x", model=param), target, caller, known).model
    order = [param, own, agents, common] if is_other else [param, own, common, callers, agents]
    assert chosen == next((said for said in order if said is not None), "last")


@pytest.mark.scenario(8)
@given(
    param=LEVELS,
    own=LEVELS,
    agents=LEVELS,
    common=LEVELS,
    callers=LEVELS,
    last=LEVELS,
    is_other=st.booleans(),
)
def test_the_first_that_says_how_much_to_think_decides(
    param: Thinking | None,
    own: Thinking | None,
    agents: Thinking | None,
    common: Thinking | None,
    callers: Thinking | None,
    last: Thinking | None,
    is_other: bool,
) -> None:
    target = "research" if is_other else "main"
    agent = Agent(target, thinking=agents, subagents=Delegation(thinking=own))
    known = policy(agent, thinking=last, subagents=Subagents(thinking=common))
    chosen = terms(
        SpawnRequest("x", thinking=param), target, Spawner("main", thinking=callers), known
    ).thinking
    order = [param, own, agents, common, last] if is_other else [param, own, common, callers, agents, last]
    assert chosen is next((said for said in order if said is not None), None)


@pytest.mark.scenario(8)
def test_what_the_config_says_for_children_comes_before_the_callers_own() -> None:
    known = policy(subagents=Subagents(model="p:small", thinking=Thinking.LOW))
    caller = Spawner("main", "p:large", Thinking.MAX)
    assert terms(SpawnRequest("x"), "main", caller, known) == Terms("p:small", Thinking.LOW, None)
    asked = SpawnRequest("x", model="p:other", thinking=Thinking.OFF)
    assert terms(asked, "main", caller, known) == Terms("p:other", Thinking.OFF, None)


@pytest.mark.scenario(9)
def test_another_agents_model_is_never_the_callers() -> None:
    assert terms(
        SpawnRequest("x"), "research", Spawner("main", "p:dear", Thinking.MAX), policy(model="p:usual")
    ) == Terms("p:usual", None, None)


# ---- time, directory, what is kept ---------------------------------------------------------------------


@pytest.mark.scenario(6)
@pytest.mark.parametrize(
    ("asked", "configured", "seconds"), [(None, 900, 900), (None, 0, 0), (0, 900, 0), (5, 900, 5), (5, 0, 5)]
)
def test_the_time_of_a_run_is_the_asked_one_else_the_configured(
    asked: float | None, configured: float, seconds: float
) -> None:
    known = policy(subagents=Subagents(run_timeout_s=configured))
    assert (settled(SpawnRequest("x", run_timeout_s=asked), known).run_timeout_s or 0) == seconds


@pytest.mark.scenario(19)
def test_a_child_of_the_same_agent_works_where_its_caller_does_and_another_agent_where_it_lives() -> None:
    known = policy(Agent("research", workspace="/research"), workspace="/usual")
    caller = Spawner("main", workspace="/here")
    assert terms(SpawnRequest("x"), "main", caller, known).directory == "/here"
    assert terms(SpawnRequest("x"), "research", caller, known).directory == "/research"
    assert terms(SpawnRequest("x"), "other", caller, known).directory == "/usual"


def test_the_kind_of_workspace_is_the_asked_one_else_the_configured() -> None:
    known = policy(subagents=Subagents(workspace=Workspace.ISOLATED))
    assert settled(SpawnRequest("x"), known).has_side_work
    assert not settled(SpawnRequest("x", workspace=Workspace.INHERIT), known).has_side_work
    assert not settled(SpawnRequest("x"), Policy()).has_side_work


@pytest.mark.scenario(14)
@pytest.mark.parametrize(
    ("request_", "kept"),
    [
        (SpawnRequest("x", cleanup=CleanupPolicy.DELETE), CleanupPolicy.DELETE),
        (SpawnRequest("x", cleanup=CleanupPolicy.DELETE, plan_mode=True), CleanupPolicy.KEEP),
        (SpawnRequest("x", cleanup=CleanupPolicy.DELETE, mode=Mode.SESSION, thread=True), CleanupPolicy.KEEP),
        (SpawnRequest("x", plan_mode=True), CleanupPolicy.KEEP),
    ],
)
def test_a_plan_and_a_session_that_stays_are_kept(request_: SpawnRequest, kept: CleanupPolicy) -> None:
    assert settled(request_, Policy()).cleanup is kept


def test_settling_twice_changes_nothing() -> None:
    known = policy(subagents=Subagents(run_timeout_s=9, workspace=Workspace.ISOLATED))
    once = settled(SpawnRequest("x", plan_mode=True, cleanup=CleanupPolicy.DELETE), known)
    assert settled(once, known) == once


# ---- what makes no sense -------------------------------------------------------------------------------

AGENTS = policy(Agent("research"))
TOOLS = ("read", "write", "shell", "sessions_spawn")


def wrong(request: SpawnRequest) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        check(request, AGENTS, TOOLS, {"crawler": None})
    return caught.value


@pytest.mark.scenario(11)
@pytest.mark.parametrize(
    "agent_id",
    ["Agent not found: x", "a/b", "../main", "Research", "RESEARCH", "", " research", "a" * 65, "research\n"],
)
def test_an_id_that_could_be_no_agents_is_an_error_whatever_it_resembles(agent_id: str) -> None:
    error = wrong(SpawnRequest("x", agent_id=agent_id))
    assert error.field == "agentId"
    assert "a-z, 0-9, _ and -, at most 64, taken as written" in error.rule
    assert ("did you mean 'research'?" in error.rule) is (agent_id.strip().lower() == "research")
    assert len(error.rule) < 300


@pytest.mark.scenario(11)
def test_a_well_formed_id_passes_the_check_of_its_form() -> None:
    check(SpawnRequest("x", agent_id="a-b_c"), AGENTS, TOOLS, ())


def test_tools_there_are_not_are_named_and_so_are_those_there_are() -> None:
    error = wrong(SpawnRequest("x", tools=frozenset({"read", "raed"})))
    assert error.field == "tools"
    assert (
        error.rule
        == "there is no tool 'raed'; did you mean 'read'? (known: read, sessions_spawn, shell, write)"
    )
    for fine in ({"read"}, {"bash"}, {"spawn_subagent"}, {"mcp__*"}, set()):
        check(SpawnRequest("x", tools=frozenset(fine)), AGENTS, TOOLS, ())
    check(SpawnRequest("x", tools=frozenset({"anything"})), AGENTS, None, ())


def test_a_runtime_there_is_not_is_named_and_so_are_those_there_are() -> None:
    assert (
        str(wrong(SpawnRequest("x", runtime="acp")))
        == "runtime: there is no 'acp' here; known: crawler, subagent"
    )


# ---- the same wishes -----------------------------------------------------------------------------------

REQUESTS = st.builds(
    SpawnRequest,
    st.text(min_size=1, max_size=3),
    label=NAMES,
    model=NAMES,
    run_timeout_s=st.one_of(st.none(), st.sampled_from([0.0, 5.0])),
    tools=st.one_of(st.none(), st.frozensets(st.sampled_from(["a", "b", "c", "d"]))),
    context=st.sampled_from(Context),
    budget=st.one_of(st.none(), st.builds(BudgetRequest, st.integers(1, 3))),
    notify_parent=st.booleans(),
    idempotency_key=NAMES,
)


@given(REQUESTS, REQUESTS)
def test_two_digests_are_equal_exactly_when_the_same_is_asked_for(
    one: SpawnRequest, other: SpawnRequest
) -> None:
    def wishes(request: SpawnRequest) -> SpawnRequest:
        return replace(request, idempotency_key=None, notify_parent=True)

    assert (digest(one) == digest(other)) is (wishes(one) == wishes(other))
    assert digest(one) == digest(wishes(one))


def test_a_digest_is_the_same_in_every_process() -> None:
    request = SpawnRequest("x", tools=frozenset({"read", "write", "shell"}), budget=BudgetRequest(5))
    assert digest(request) == "639192306d646aca"


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        (SpawnRequest("survey"), "49059229616cea45"),
        (SpawnRequest("survey", expects_completion=False), "6eed6f0528463922"),
        (
            SpawnRequest(
                "survey", "a", "research", "m", 60.0, CleanupPolicy.DELETE, plan_mode=True, thinking=Thinking.HIGH,
                tools=frozenset({"read", "exec"}), budget=BudgetRequest(5, Decimal("1.5")), output_schema="{}",
            ),
            "94af2907c312a2fb",
        ),
    ],
    ids=["task", "low priority", "many"],
)  # fmt: skip
@pytest.mark.parametrize("notifies", [True, False])
def test_a_key_kept_before_parents_could_be_left_out_is_still_valid(
    wanted: SpawnRequest, kept: str, notifies: bool
) -> None:
    """These digests are from a version in which a request did not say whether its parent is notified."""
    assert digest(replace(wanted, notify_parent=notifies, idempotency_key="k1")) == kept


def test_every_listed_agent_and_the_main_one_are_known() -> None:
    assert spawn.known_agents(AGENTS) == {"main", "research"}
    assert spawn.known_agents(Policy()) == {"main"}
