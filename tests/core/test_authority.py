"""Rights only shrink on the way down, and the guard gives exactly the table it promises."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.authority import (
    NEVER_FOR_CHILDREN,
    SESSION_TOOLS,
    AgentCaller,
    AgentGrant,
    Allowed,
    Denied,
    NoSandbox,
    OperatorCaller,
    Peers,
    Request,
    Rights,
    Role,
    Rule,
    Scope,
    Target,
    ToolFilter,
    ToolPolicy,
    Verb,
    Visibility,
    can,
    canonical,
    child_rights,
    from_json,
    matches,
    role,
    root_rights,
    to_json,
    under_plan,
)
from tests.examples import examples, scaled

PLAIN = AgentGrant(depth_max=3)
NO_POLICY = ToolPolicy()
TOOLS = [*sorted(SESSION_TOOLS), *sorted(NEVER_FOR_CHILDREN), "read", "write", "shell", "bash", "web_fetch",
         "spawn_subagent", "subagent_spawn", "mcp__files__read", "*", ""]  # fmt: skip
PATTERNS = [
    "*",
    "s*",
    "*s",
    "*_*",
    "sessions_*",
    "read",
    "shell",
    "bash",
    "mcp__*",
    "*e*",
    "subagent*",
    "spawn_subagent",
]
MODELS = ["openai:big", "openai:small", "anthropic:big", "offline"]
MODEL_PATTERNS = ["*", "openai:*", "*:big", "offline"]


def is_within(child: Rights, parent: Rights) -> bool:
    """By construction, without trying any tool name: the child's every part is at most the parent's."""
    return (
        child.depth > parent.depth
        and child.depth_max <= parent.depth_max
        and child.tools.allow >= parent.tools.allow
        and child.tools.deny >= parent.tools.deny
        and child.models >= parent.models
        and child.sandbox >= parent.sandbox
        and child.network <= parent.network
        and child.read_only >= parent.read_only
    )


def child_of(
    parent: Rights, target: AgentGrant = PLAIN, request: Request | None = None, policy: ToolPolicy = NO_POLICY
) -> Rights:
    rights = child_rights(parent, target, request or Request(), policy)
    assert isinstance(rights, Rights)
    return rights


def tools_of(rights: Rights) -> set[str]:
    return {name for name in TOOLS if rights.permits_tool(name, is_read_only=False)}


# --- roles and tools --------------------------------------------------------------------------------------


def test_roles_follow_the_depth() -> None:
    assert [role(depth, 3) for depth in range(5)] == ["main", "orchestrator", "orchestrator", "leaf", "leaf"]
    assert [role(depth, 1) for depth in range(3)] == ["main", "leaf", "leaf"]


def test_main_has_every_tool() -> None:
    assert tools_of(root_rights(PLAIN)) == set(TOOLS)


def test_an_orchestrator_has_the_session_tools_and_none_of_the_reserved() -> None:
    orchestrator = child_of(root_rights(PLAIN))
    assert orchestrator.role is Role.ORCHESTRATOR
    assert tools_of(orchestrator) == set(TOOLS) - NEVER_FOR_CHILDREN
    assert orchestrator.may_spawn


def test_a_leaf_has_no_session_tool() -> None:
    leaf = child_of(root_rights(AgentGrant(depth_max=1)))
    assert leaf.role is Role.LEAF
    assert tools_of(leaf) == set(TOOLS) - NEVER_FOR_CHILDREN - SESSION_TOOLS - {
        "spawn_subagent",
        "subagent_spawn",
    }
    assert not leaf.may_spawn


@pytest.mark.scenario(41)
@pytest.mark.parametrize("also", [{"sessions_list", "sessions_history"}, {"*"}, {"sessions_*", "gateway"}])
def test_also_allow_gives_a_leaf_the_two_reads_and_nothing_more(also: set[str]) -> None:
    policy = ToolPolicy(also_allow=frozenset(also))
    leaf = child_of(root_rights(AgentGrant(depth_max=1)), policy=policy)
    assert tools_of(leaf) & (SESSION_TOOLS | NEVER_FOR_CHILDREN) == {"sessions_list", "sessions_history"}


def test_allow_does_not_give_a_leaf_what_only_also_allow_can() -> None:
    policy = ToolPolicy(allow=frozenset({"sessions_list", "read"}))
    assert tools_of(child_of(root_rights(AgentGrant(depth_max=1)), policy=policy)) == {"read"}


def test_allow_alone_is_the_whole_list_and_also_allow_adds_to_it() -> None:
    assert tools_of(child_of(root_rights(PLAIN), policy=ToolPolicy(allow=frozenset({"read"})))) == {"read"}
    both = ToolPolicy(allow=frozenset({"read"}), also_allow=frozenset({"web_*"}))
    assert tools_of(child_of(root_rights(PLAIN), policy=both)) == {"read", "web_fetch"}


@pytest.mark.scenario(41)
def test_deny_wins_over_allow() -> None:
    policy = ToolPolicy(allow=frozenset({"*"}), also_allow=frozenset({"shell"}), deny=frozenset({"sh*"}))
    orchestrator = child_of(root_rights(PLAIN), policy=policy)
    assert not tools_of(orchestrator) & {"shell", "bash"}
    assert "read" in tools_of(orchestrator)


def test_policy_cannot_give_back_what_the_parent_lacks() -> None:
    parent = root_rights(AgentGrant(depth_max=3, tools=ToolFilter(deny=frozenset({"shell"}))))
    policy = ToolPolicy(allow=frozenset({"*"}), also_allow=frozenset({"shell", "bash"}))
    assert not tools_of(child_of(parent, policy=policy)) & {"shell", "bash"}


@pytest.mark.parametrize("denied", ["bash", "shell", "ba*", "*ell"])
def test_a_denial_hits_every_spelling_of_a_tool(denied: str) -> None:
    rights = ToolFilter(deny=frozenset({denied}))
    assert not rights.permits("shell")
    assert not rights.permits("bash")


def test_an_alias_in_an_allow_list_means_the_tool() -> None:
    rights = ToolFilter(allow=frozenset({frozenset({"bash", "spawn_subagent"})}))
    assert {name for name in TOOLS if rights.permits(name)} == {
        "bash", "shell", "spawn_subagent", "subagent_spawn", "sessions_spawn",
    }  # fmt: skip
    assert canonical("subagent_spawn") == "sessions_spawn"


@pytest.mark.scenario(42)
def test_raising_the_limit_later_promotes_nobody() -> None:
    leaf = child_of(root_rights(AgentGrant(depth_max=1)))
    grandchild = child_of(leaf, AgentGrant(depth_max=5))
    assert (leaf.role, leaf.may_spawn) == (Role.LEAF, False)
    assert (grandchild.role, grandchild.may_spawn) == (Role.LEAF, False)


def test_only_read_only_tools_are_there_while_planning_and_for_what_is_spawned_meanwhile() -> None:
    planner = child_of(root_rights(PLAIN))
    for rights in (
        under_plan(planner),
        child_of(under_plan(planner)),
        child_of(child_of(under_plan(planner))),
    ):
        assert rights.permits_tool("read", is_read_only=True)
        assert not rights.permits_tool("read", is_read_only=False)
    assert planner.permits_tool("write", is_read_only=False)
    assert child_of(planner, request=Request(read_only=True)).read_only


@pytest.mark.scenario(39)
def test_a_sandboxed_requester_or_a_required_sandbox_refuses_a_plain_target() -> None:
    boxed = AgentGrant(depth_max=3, sandbox=True)
    assert isinstance(child_rights(root_rights(boxed), PLAIN, Request(), NO_POLICY), NoSandbox)
    assert isinstance(child_rights(root_rights(PLAIN), PLAIN, Request(sandbox=True), NO_POLICY), NoSandbox)
    assert child_of(root_rights(PLAIN), boxed, Request(sandbox=True)).sandbox
    assert child_of(root_rights(PLAIN), boxed).sandbox


def test_a_request_can_only_remove() -> None:
    asked = Request(frozenset({"read"}), frozenset({"openai:*"}), depth_max=1, network=False)
    child = child_of(root_rights(PLAIN), request=asked)
    assert tools_of(child) == {"read"}
    assert [child.permits_model(model) for model in MODELS] == [True, True, False, False]
    assert (child.role, child.network) == (Role.LEAF, False)
    wide = child_of(child, request=Request(frozenset({"*"}), frozenset({"*"}), depth_max=9, network=True))
    assert tools_of(wide) == {"read"}
    assert (wide.permits_model("offline"), wide.depth_max, wide.network) == (False, 1, False)


@pytest.mark.parametrize(
    ("pattern", "name", "wanted"),
    [
        ("read", "read", True), ("read", "reads", False), ("read", "Read", False), ("*", "", True),
        ("", "", True),
        ("", "a", False), ("a*a", "a", False), ("a*a", "aa", True), ("a*b*a", "aba", True),
        ("a*b*b", "ab", False),
        ("**", "x", True), ("a.c", "abc", False), ("[ab]", "a", False), ("?", "a", False),
        ("*\n", "x\n", True),
        ("read", "read\n", False), ("a*", "a\nb", True),
    ],
)  # fmt: skip
def test_only_the_star_is_special(pattern: str, name: str, wanted: bool) -> None:
    assert matches(pattern, name) is wanted


@examples(500)
@given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
def test_a_pattern_matches_what_its_definition_says(pattern: str, name: str) -> None:
    def slowly(pattern: str, name: str) -> bool:
        if pattern.startswith("*"):
            return any(slowly(pattern[1:], name[cut:]) for cut in range(len(name) + 1))
        return pattern == name == "" or (pattern[:1] == name[:1] != "" and slowly(pattern[1:], name[1:]))

    assert matches(pattern, name) is slowly(pattern, name)


def test_a_pattern_made_of_stars_is_answered_at_once() -> None:
    assert not matches("*a" * 5000 + "b", "a" * 20_000)


# --- rights in random trees -------------------------------------------------------------------------------


def some(dice: random.Random, patterns: list[str]) -> frozenset[str]:
    return frozenset(dice.sample(patterns, dice.randrange(4)))


def maybe(dice: random.Random, patterns: list[str]) -> frozenset[str] | None:
    return some(dice, patterns) if dice.random() < 0.4 else None


def some_filter(dice: random.Random) -> ToolFilter:
    lists = (maybe(dice, PATTERNS) for _ in range(2))
    return ToolFilter(frozenset(patterns for patterns in lists if patterns), some(dice, PATTERNS[3:]))


def some_grant(dice: random.Random) -> AgentGrant:
    return AgentGrant(
        dice.randint(1, 5),
        some_filter(dice),
        maybe(dice, MODEL_PATTERNS),
        dice.random() < 0.7,
        dice.random() < 0.7,
    )


def some_request(dice: random.Random) -> Request:
    return Request(
        maybe(dice, PATTERNS),
        maybe(dice, MODEL_PATTERNS),
        dice.choice([None, None, 0, 2, 9]),
        sandbox=dice.random() < 0.2,
        network=dice.random() < 0.8,
        read_only=dice.random() < 0.2,
    )


def some_policy(dice: random.Random) -> ToolPolicy:
    return ToolPolicy(maybe(dice, PATTERNS), some(dice, PATTERNS), some(dice, PATTERNS[3:]))


@cache
def powers(rights: Rights) -> frozenset[tuple[str, object]]:
    """Everything a session can do, tried out one by one."""
    tools = [name for name in TOOLS if rights.permits_tool(name, is_read_only=True)]
    return frozenset(
        {
            *(("look", name) for name in tools),
            *(("change", name) for name in tools if rights.permits_tool(name, is_read_only=False)),
            *(("model", name) for name in MODELS if rights.permits_model(name)),
            *(("unboxed", True) for _ in range(not rights.sandbox)),
            *(("network", True) for _ in range(rights.network)),
            *(("depth", depth) for depth in range(rights.depth + 1, rights.depth_max + 1)),
        }
    )


def lineages(dice: random.Random, count: int) -> Iterator[tuple[Rights, Rights]]:
    """`count` pairs of parent and child, from chains of up to five generations."""
    made = 0
    while made < count:
        parent = root_rights(some_grant(dice))
        for _ in range(5):
            child = child_rights(parent, some_grant(dice), some_request(dice), some_policy(dice))
            if isinstance(child, NoSandbox):
                break
            yield parent, child
            made += 1
            parent = child


@pytest.mark.scaled
def test_in_ten_thousand_random_spawns_no_child_can_do_more_than_its_parent() -> None:
    kinds: set[str] = set()
    shrunk = 0
    for parent, child in lineages(random.Random(12), scaled(10_000)):
        assert powers(child) <= powers(parent)
        assert is_within(child, parent)
        assert not {("look", name) for name in NEVER_FOR_CHILDREN} & powers(child)
        kinds |= {kind for kind, _ in powers(child)}
        shrunk += powers(child) < powers(parent)
    assert kinds == {"change", "look", "model", "unboxed", "network", "depth"}  # the cases are not all empty
    assert scaled(1000) < shrunk < scaled(10_000)


@pytest.mark.parametrize(
    "grown",
    [
        {"sandbox": False}, {"network": True}, {"read_only": False}, {"depth_max": 9},
        {"models": frozenset()},
        {"tools": ToolFilter(deny=frozenset({"write"}))}, {"depth": 0},
        {"tools": ToolFilter(allow=frozenset({frozenset({"read"})}))},
    ],
)  # fmt: skip
def test_a_right_that_grew_is_noticed(grown: dict[str, object]) -> None:
    tools = ToolFilter(frozenset({frozenset({"read"})}), frozenset({"write"}))
    models = frozenset({frozenset({"offline"})})
    parent = Rights(Role.MAIN, 0, 3, tools, models, sandbox=True, network=False, read_only=True)
    child = replace(parent, role=Role.ORCHESTRATOR, depth=1)
    assert is_within(child, parent)
    assert not is_within(replace(child, **grown), parent)  # type: ignore[arg-type]  # one field at a time


def test_rights_survive_storing_and_the_same_rights_are_the_same_text() -> None:
    for _, rights in lineages(random.Random(13), 500):
        text = json.dumps(to_json(rights))
        assert from_json(json.loads(text)) == rights
        assert json.dumps(to_json(from_json(json.loads(text)))) == text


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2}, {"extra": 1}, {"role": "king"}, {"depth": True}, {"depth": "1"}, {"sandbox": 0},
        {"network": None},
        {"tools_allow": ["read"]}, {"tools_deny": "read"}, {"tools_deny": [1]}, {"models": None},
    ],
)  # fmt: skip
def test_stored_rights_are_never_guessed(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"rights|Role"):
        from_json({**to_json(root_rights(PLAIN)), **change})
    with pytest.raises(ValueError, match="rights"):
        from_json({"v": 1})


# --- the guard --------------------------------------------------------------------------------------------

#   1 main ── 2 orchestrator ── 4 leaf
#         │                  └─ 5 leaf
#         └── 3 orchestrator ── 6 leaf of agent `other`
#   7 another main session of agent `main`      8 main session of agent `other`
PARENT = {2: 1, 3: 1, 4: 2, 5: 2, 6: 3}
ROLES = {1: Role.MAIN, 2: Role.ORCHESTRATOR, 3: Role.ORCHESTRATOR, 4: Role.LEAF, 7: Role.MAIN, 8: Role.MAIN}
CONTROL = {"steer", "kill", "pause", "resume", "retry", "continue", "remove"}
EVERYTHING_AGENTS_DO = {"list", "read", "send", "approve", "reject"} | CONTROL


def agent_of(session: int) -> str:
    return "other" if session in (6, 8) else "main"


def target(session: int) -> Target:
    chain: list[int] = []
    above = PARENT.get(session)
    while above is not None:
        chain.append(above)
        above = PARENT.get(above)
    return Target(session, agent_of(session), tuple(chain))


def verbs_of(caller: AgentCaller) -> dict[int, set[str]]:
    answer = {
        session: {str(verb) for verb in Verb if isinstance(can(caller, verb, target(session)), Allowed)}
        for session in range(1, 9)
    }
    return {session: verbs for session, verbs in answer.items() if verbs}


def caller(session: int, visibility: Visibility = Visibility.TREE, **more: object) -> AgentCaller:
    base = AgentCaller(session, agent_of(session), ROLES[session], visibility)
    return replace(base, **more)  # type: ignore[arg-type]  # a shorthand for the tables below


LOOK = {"list", "read"}
GRANDCHILD = EVERYTHING_AGENTS_DO - {"approve", "reject"}
MAIN_TREE = {
    1: LOOK,
    2: EVERYTHING_AGENTS_DO,
    3: EVERYTHING_AGENTS_DO,
    4: GRANDCHILD,
    5: GRANDCHILD,
    6: GRANDCHILD,
}
ORCHESTRATOR_TREE = {2: LOOK, 4: EVERYTHING_AGENTS_DO, 5: EVERYTHING_AGENTS_DO}
EVERY_PEER = Peers(enabled=True, allow=frozenset({"*"}))


def test_an_agent_touches_itself_and_its_descendants_exactly_as_the_table_says() -> None:
    assert verbs_of(caller(1)) == MAIN_TREE
    assert verbs_of(caller(2)) == ORCHESTRATOR_TREE
    assert verbs_of(caller(3)) == {3: LOOK, 6: EVERYTHING_AGENTS_DO}
    assert verbs_of(caller(4)) == {4: LOOK}
    assert verbs_of(caller(7)) == {7: LOOK}
    assert verbs_of(caller(8)) == {8: LOOK}


def test_visibility_self_shows_nothing_but_oneself() -> None:
    for session in ROLES:
        assert verbs_of(caller(session, Visibility.SELF)) == {session: LOOK}


def test_visibility_agent_adds_looking_at_sessions_of_the_same_agent_and_for_main_writing() -> None:
    assert verbs_of(caller(1, Visibility.AGENT)) == {**MAIN_TREE, 7: {*LOOK, "send"}}
    assert verbs_of(caller(2, Visibility.AGENT)) == {**ORCHESTRATOR_TREE, 1: LOOK, 3: LOOK, 7: LOOK}
    assert verbs_of(caller(4, Visibility.AGENT)) == dict.fromkeys((1, 2, 3, 4, 5, 7), LOOK)
    assert verbs_of(caller(8, Visibility.AGENT)) == {6: {*LOOK, "send"}, 8: LOOK}


def test_visibility_all_crosses_agents_only_where_agent_to_agent_connects_both() -> None:
    same_agent = verbs_of(caller(1, Visibility.AGENT))
    across = {**same_agent, 8: {*LOOK, "send"}}
    for peers, wanted in [
        (Peers(), same_agent),
        (Peers(enabled=True), same_agent),
        (Peers(enabled=False, allow=frozenset({"*"})), same_agent),
        (Peers(enabled=True, allow=frozenset({"main"})), same_agent),
        (Peers(enabled=True, allow=frozenset({"other"})), same_agent),
        (Peers(enabled=True, allow=frozenset({"main", "other"})), across),
        (EVERY_PEER, across),
    ]:
        assert verbs_of(caller(1, Visibility.ALL, peers=peers)) == wanted


@pytest.mark.parametrize("session", list(ROLES))
def test_a_sandboxed_session_sees_at_most_its_tree(session: int) -> None:
    boxed = caller(session, Visibility.ALL, peers=EVERY_PEER, is_sandboxed=True)
    assert verbs_of(boxed) == verbs_of(caller(session))
    narrow = caller(session, Visibility.SELF, is_sandboxed=True)
    assert verbs_of(narrow) == {session: LOOK}


@pytest.mark.parametrize(
    ("session", "verb", "other", "rule"),
    [
        (1, Verb.STEER, 1, Rule.SELF), (1, Verb.SEND, 1, Rule.SELF), (4, Verb.KILL, 4, Rule.SELF),
        (4, Verb.KILL, 5, Rule.LEAF), (4, Verb.SEND, 2, Rule.LEAF), (2, Verb.READ, 1, Rule.NOT_DESCENDANT),
        (2, Verb.KILL, 3, Rule.NOT_DESCENDANT), (1, Verb.APPROVE, 4, Rule.NOT_REQUESTER),
        (1, Verb.DELETE, 2, Rule.OPERATORS_ONLY), (1, Verb.ANSWER, 2, Rule.OPERATORS_ONLY),
    ],
)  # fmt: skip
def test_a_denial_names_its_rule(session: int, verb: Verb, other: int, rule: Rule) -> None:
    answer = can(caller(session), verb, target(other))
    assert isinstance(answer, Denied)
    assert answer.rule is rule


def test_more_denials_name_their_rule() -> None:
    hidden = can(caller(1, Visibility.SELF), Verb.READ, target(2))
    apart = can(caller(1, Visibility.ALL), Verb.READ, target(8))
    unscoped = can(OperatorCaller(frozenset({Scope.READ})), Verb.KILL, target(2))
    assert [answer.rule for answer in (hidden, apart, unscoped) if isinstance(answer, Denied)] == [
        Rule.VISIBILITY,
        Rule.AGENT_TO_AGENT,
        Rule.SCOPE,
    ]


def test_when_the_requester_is_gone_the_session_its_result_reaches_decides() -> None:
    orphaned = replace(target(4), controller_id=1)
    assert isinstance(can(caller(1), Verb.APPROVE, orphaned), Allowed)
    assert isinstance(can(caller(2), Verb.APPROVE, orphaned), Denied)
    # A controller that is no ancestor is a broken row, not a way to get control.
    assert isinstance(can(caller(3), Verb.APPROVE, replace(target(4), controller_id=3)), Denied)


def test_operators_act_on_anything_within_their_scopes() -> None:
    decide = {Verb.APPROVE, Verb.REJECT, Verb.ANSWER}
    look = {Verb.LIST, Verb.READ}
    wanted = {
        Scope.READ: look,
        Scope.APPROVE: decide,
        Scope.WRITE: set(Verb) - look - decide - {Verb.DELETE},
        Scope.ADMIN: set(Verb),
    }
    for scope, verbs in wanted.items():
        operator = OperatorCaller(frozenset({scope}))
        for session in range(1, 9):
            assert {
                verb for verb in Verb if isinstance(can(operator, verb, target(session)), Allowed)
            } == verbs
    assert not any(isinstance(can(OperatorCaller(frozenset()), verb, target(1)), Allowed) for verb in Verb)


TREES = st.lists(st.integers(0, 30), min_size=1, max_size=12)


@examples(300)
@given(
    TREES,
    st.sampled_from(Visibility),
    st.sampled_from(Role),
    st.booleans(),
    st.sampled_from([Peers(), EVERY_PEER]),
)
def test_in_any_tree_control_reaches_descendants_and_nobody_else(
    parents: list[int], visibility: Visibility, of: Role, boxed: bool, peers: Peers
) -> None:
    chains: list[tuple[int, ...]] = [()]
    for number, pick in enumerate(parents):
        above = pick % (number + 1)
        chains.append((above, *chains[above]))
    for session in range(len(chains)):
        agent = AgentCaller(session, "main", of, visibility, boxed, peers)
        for other, chain in enumerate(chains):
            is_below = session in chain
            may = isinstance(can(agent, Verb.KILL, Target(other, "main", chain)), Allowed)
            assert may is (is_below and of is not Role.LEAF and visibility is not Visibility.SELF)


def test_a_chain_with_a_cycle_in_it_gives_no_control_over_oneself() -> None:
    looped = Target(1, "main", (2, 1, 2))
    assert isinstance(can(caller(1), Verb.STEER, looped), Denied)


def test_an_operator_who_speaks_from_a_session_reaches_it_and_what_is_below_it_only() -> None:
    caller = OperatorCaller(frozenset(Scope), "client", within=1)
    for verb in Verb:
        for target in (Target(1, "main"), Target(2, "main", (1,)), Target(3, "main", (2, 1))):
            assert can(caller, verb, target) == Allowed()
        for target in (Target(4, "main"), Target(5, "main", (4,))):
            denied = can(caller, verb, target)
            assert isinstance(denied, Denied)
            assert denied.rule is Rule.NOT_DESCENDANT
    assert isinstance(
        can(OperatorCaller(frozenset({Scope.READ}), within=1), Verb.KILL, Target(2, "main", (1,))), Denied
    )
