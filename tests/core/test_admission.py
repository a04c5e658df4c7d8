"""Limits at their boundaries, the allow-list letter by letter, and: never over any limit."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.model import Lane
from clutch.core.policy import Limits, Policy, with_concurrency
from clutch.core.spawn import (
    SpawnAdmission,
    SpawnCounts,
    SpawnRefusal,
    SpawnRequest,
    admit,
    counting,
    label_of,
)

KEY = "agents.defaults.subagents."
REQUEST = SpawnRequest("look into it")
MAIN = SpawnCounts(agent_id="main", depth=0)
LIMITS = Limits()


def admitted(
    request: SpawnRequest = REQUEST, census: SpawnCounts = MAIN, limits: Limits = LIMITS
) -> SpawnAdmission:
    verdict = admit(request, census, limits)
    assert isinstance(verdict, SpawnAdmission), verdict
    return verdict


def refused(
    request: SpawnRequest = REQUEST, census: SpawnCounts = MAIN, limits: Limits = LIMITS
) -> SpawnRefusal:
    verdict = admit(request, census, limits)
    assert isinstance(verdict, SpawnRefusal), verdict
    return verdict


# ---- each limit --------------------------------------------------------------------------------------

BOUNDARIES: tuple[tuple[str, str, int], ...] = (
    ("depth", "maxSpawnDepth", 1),
    ("children", "maxChildrenPerAgent", 5),
    ("descendants", "maxDescendants", 50),
    ("retained", "maxRetained", 15),
    ("undelivered", "undeliveredBacklog", 50),
)


def with_count(name: str, count: int) -> SpawnCounts:
    changes: dict[str, Any] = {name: count}
    return replace(MAIN, **changes)


@pytest.mark.scenario(22)
@pytest.mark.scenario(26)
@pytest.mark.parametrize(("counted", "key", "limit"), BOUNDARIES)
def test_limit_admits_below_and_refuses_at_it_with_both_numbers_and_the_key(
    counted: str, key: str, limit: int
) -> None:
    admitted(census=with_count(counted, limit - 1))
    for used in (limit, limit + 3):
        refusal = refused(census=with_count(counted, used))
        assert f"{used}/{limit}" in refusal.error
        assert KEY + key in refusal.error
        assert refusal.limit == {"key": KEY + key, "used": used, "max": limit}


def test_child_is_one_level_below_its_parent() -> None:
    assert admitted().depth == 1
    assert admitted(census=replace(MAIN, depth=3), limits=Limits(depth_max=4)).depth == 4


def test_backlog_of_zero_means_no_limit() -> None:
    admitted(census=replace(MAIN, undelivered=10_000), limits=Limits(undelivered_max=0))


def test_dead_parent_cannot_spawn_whatever_its_limits() -> None:
    assert "dead parent" in refused(census=replace(MAIN, is_closed=True)).error


def test_limits_in_the_thousands_work() -> None:
    limits = Limits(children_max=5000, descendants_max=5000, retained_max=5000)
    census = replace(MAIN, children=4999, descendants=4999, retained=4999)
    assert admitted(census=census, limits=limits).evict == 0
    assert "5000/5000" in refused(census=counting(census), limits=limits).error


@pytest.mark.parametrize(("counted", "free_one"), [("children", 4), ("descendants", 49), ("retained", 14)])
def test_ten_requests_with_one_free_slot_admit_exactly_one(counted: str, free_one: int) -> None:
    census, verdicts = with_count(counted, free_one), []
    limits = Limits(children_max=5 if counted == "children" else 100)
    for _ in range(10):
        verdict = admit(REQUEST, census, limits)
        verdicts.append(verdict)
        census = counting(census) if isinstance(verdict, SpawnAdmission) else census
    assert [isinstance(verdict, SpawnAdmission) for verdict in verdicts] == [True] + [False] * 9


# ---- retained records --------------------------------------------------------------------------------


@pytest.mark.scenario(32)
@pytest.mark.parametrize(
    ("retained", "evictable", "evict"),
    [(14, 14, 0), (15, 1, 1), (15, 15, 1), (17, 3, 3), (20, 20, 6), (15, 0, None), (17, 2, None)],
)
def test_only_as_many_delivered_records_leave_the_quota_as_are_needed(
    retained: int, evictable: int, evict: int | None
) -> None:
    census = replace(MAIN, retained=retained, evictable=evictable)
    if evict is None:
        assert refused(census=census).limit["key"] == KEY + "maxRetained"
    else:
        assert admitted(census=census).evict == evict


@pytest.mark.scenario(32)
@pytest.mark.scenario(34)
def test_without_eviction_delivered_records_fill_the_quota_too() -> None:
    census = replace(MAIN, retained=15, evictable=15)
    limits = Limits(evicts_delivered=False)
    assert "15/15" in refused(census=census, limits=limits).error
    admitted(census=replace(census, retained=14), limits=limits)


def test_evictions_of_one_batch_add_up_and_stop_when_nothing_is_left_to_evict() -> None:
    census, evictions = replace(MAIN, retained=15, evictable=3), []
    limits = Limits(children_max=100)
    while isinstance(verdict := admit(REQUEST, census, limits), SpawnAdmission):
        evictions.append(verdict.evict)
        census = counting(census)
    assert evictions == [1, 2, 3]


# ---- which agent -------------------------------------------------------------------------------------

CONFIGURED = frozenset({"main", "research", "a-b_c"})
ODD_IDS = (
    *("Research", "RESEARCH", "rEsearch", "researcH", "ReSeArCh"),
    *(" research", "research ", " research ", "re search", "\tresearch", "research\n", "research\r\n"),
    *("research\x00", "\x00research", "research\u00a0", "\u2009research", "research\u3000", "\ufeffresearch"),
    *("res\u200bearch", "re\u200dsearch", "re\u2060search", "\u202eresearch", "research\u200e", "re\u00adsearch"),
    *("r\u0435search", "rese\u0430rch", "resea\u0433ch", "resear\u0441h", "researc\u04bb", "\u0455research"),
    *("r\u212fsearch", "\uff52esearch", "\uff52\uff45\uff53\uff45\uff41\uff52\uff43\uff48", "researc\u210e"),
    *("resea\u0301rch", "rese\u00e1rch", "\U0001d42besearch", "\u24e1esearch", "re\u017fearch"),
    *("research/", "/research", "../research", "research/..", "main/research", "research\\", "./research"),
    *("research*", "*research", "res*", "*", "**", "re?earch", "[r]esearch", "resea.ch", "^research$", ".*"),
    *("research,main", "research;main", '"research"', "'research'", "[research]", "{research}", "(research)"),
    *("agent:research:main", "agent:research", "research:main", "@research", "#research", "research#1"),
    *("research%20", "research%00", "%72esearch", "research&", "research|main", "$research", "`research`"),
    *("researc", "esearch", "researchh", "rresearch", "research1", "research-", "research_", "-research"),
    *("None", "null", "true", "0", "self", "default", "agents", "Agent not found: research", "research" * 9),
)  # fmt: skip


def test_odd_ids_are_many_and_some_are_folded_into_the_real_one_by_unicode() -> None:
    assert len(set(ODD_IDS)) == len(ODD_IDS) >= 50
    folded = [one for one in ODD_IDS if unicodedata.normalize("NFKC", one).casefold().strip() == "research"]
    assert len(folded) > 10


@pytest.mark.scenario(35)
@pytest.mark.parametrize("allow", [frozenset({"research"}), frozenset({"*"}), frozenset({"research", "*"})])
@pytest.mark.parametrize("agent_id", ODD_IDS)
def test_id_that_is_not_exactly_the_allowed_one_is_refused(agent_id: str, allow: frozenset[str]) -> None:
    census = replace(MAIN, configured_agents=CONFIGURED)
    refusal = refused(SpawnRequest("x", agent_id=agent_id), census, Limits(allow_agents=allow))
    assert refusal.limit == {"key": KEY + "allowAgents"}
    assert KEY + "allowAgents" in refusal.error


def test_an_agent_that_is_configured_but_not_allowed_is_not_taken_for_a_slip_of_the_pen() -> None:
    census = replace(MAIN, configured_agents=CONFIGURED)
    assert "did you mean" not in refused(SpawnRequest("x", agent_id="research"), census, Limits()).error
    assert (
        "did you mean 'research'?" in refused(SpawnRequest("x", agent_id="reseach"), census, Limits()).error
    )


@given(st.text(min_size=1), st.sampled_from(["research", "a-b_c"]))
def test_only_the_very_same_id_passes(agent_id: str, allowed: str) -> None:
    request = SpawnRequest("x", agent_id=agent_id)
    limits = Limits(allow_agents=frozenset({allowed}))
    census = replace(MAIN, configured_agents=frozenset({"main", allowed}))
    assert isinstance(admit(request, census, limits), SpawnAdmission) is (agent_id in (allowed, "main"))


@pytest.mark.scenario(35)
@pytest.mark.parametrize(
    ("agent_id", "allow", "is_admitted"),
    [
        (None, frozenset(), True),
        ("main", frozenset(), True),
        ("research", frozenset(), False),
        ("research", frozenset({"research"}), True),
        ("research", frozenset({"*"}), True),
        ("unheard-of", frozenset({"*"}), False),
        ("a-b_c", frozenset({"research"}), False),
    ],
)
def test_allow_list(agent_id: str | None, allow: frozenset[str], is_admitted: bool) -> None:
    census = replace(MAIN, configured_agents=CONFIGURED)
    verdict = admit(SpawnRequest("x", agent_id=agent_id), census, Limits(allow_agents=allow))
    assert isinstance(verdict, SpawnAdmission) is is_admitted
    if isinstance(verdict, SpawnAdmission):
        assert verdict.agent_id == (agent_id or "main")


def test_an_agent_that_is_allowed_but_not_configured_is_refused_and_the_nearest_one_named() -> None:
    census = replace(MAIN, configured_agents=CONFIGURED)
    request = SpawnRequest("x", agent_id="reserch")
    refusal = refused(request, census, Limits(allow_agents=frozenset({"reserch"})))
    assert refusal.limit == {"key": "agents.list"}
    assert "is allowed, but not configured: add it to agents.list" in refusal.error
    assert "did you mean 'research'?" in refusal.error


def test_agent_must_be_named_where_that_is_required() -> None:
    limits = Limits(require_agent_id=True)
    assert KEY + "requireAgentId" in refused(limits=limits).error
    admitted(SpawnRequest("x", agent_id="main"), limits=limits)


def test_refusal_does_not_echo_a_long_id() -> None:
    assert len(refused(SpawnRequest("x", agent_id="z" * 10_000)).error) < 200


# ---- label -------------------------------------------------------------------------------------------


def test_label_is_the_given_one_or_the_first_72_characters_of_the_task_in_one_line() -> None:
    assert label_of(SpawnRequest("task", label=" mine "), LIMITS) == "mine"
    assert label_of(SpawnRequest("read\n  the\tfiles"), LIMITS) == "read the files"
    assert label_of(SpawnRequest("word " * 40), LIMITS) == ("word " * 40)[:72].strip()


# ---- never over --------------------------------------------------------------------------------------

SMALL = st.integers(0, 6)
COUNTS = st.fixed_dictionaries(
    {
        "depth": st.integers(0, 3),
        "children": SMALL,
        "descendants": SMALL,
        "retained": SMALL,
        "undelivered": SMALL,
    }
)
LIMIT_SETS = st.builds(
    Limits,
    children_max=st.integers(1, 6),
    depth_max=st.integers(1, 3),
    descendants_max=st.integers(1, 6),
    retained_max=st.integers(1, 6),
    evicts_delivered=st.booleans(),
    undelivered_max=st.integers(0, 6),
)


@given(COUNTS, LIMIT_SETS, st.lists(st.sampled_from(["spawn", "spawn", "end", "tell", "lose"]), max_size=30))
def test_no_sequence_of_spawns_and_ends_goes_over_any_limit(
    counts: dict[str, Any], limits: Limits, acts: list[str]
) -> None:
    """The census is kept by hand, as the store would: what is evicted leaves the quota."""
    census = replace(MAIN, **counts, evictable=0)
    for act in acts:
        if act == "spawn":
            census = _spawn(census, limits)
        elif act == "end" and census.children and census.descendants:
            census = replace(census, children=census.children - 1, descendants=census.descendants - 1)
        elif act == "tell" and census.evictable < census.retained - census.children:
            census = replace(census, evictable=census.evictable + 1)
        elif act == "lose":
            census = replace(census, undelivered=census.undelivered + 1)


def _spawn(census: SpawnCounts, limits: Limits) -> SpawnCounts:
    verdict = admit(REQUEST, census, limits)
    if isinstance(verdict, SpawnRefusal):
        return census
    assert 0 <= verdict.evict <= census.evictable
    after = counting(census)
    after = replace(after, retained=after.retained - verdict.evict, evictable=after.evictable - verdict.evict)
    assert verdict.depth <= limits.depth_max
    assert after.children <= limits.children_max
    assert after.descendants <= limits.descendants_max
    assert after.retained <= limits.retained_max
    assert not limits.undelivered_max or census.undelivered < limits.undelivered_max
    return after


@given(COUNTS, LIMIT_SETS)
def test_spawn_is_refused_only_at_a_limit(counts: dict[str, Any], limits: Limits) -> None:
    census = replace(MAIN, **counts)
    is_full = (
        census.depth >= limits.depth_max
        or census.children >= limits.children_max
        or census.descendants >= limits.descendants_max
        or census.retained >= limits.retained_max
        or 0 < limits.undelivered_max <= census.undelivered
    )
    assert isinstance(admit(REQUEST, census, limits), SpawnRefusal) is is_full


def test_a_refused_agent_names_the_list_that_is_in_force() -> None:
    request, limits = SpawnRequest("x", agent_id="ada"), Limits(allow_agents=frozenset({"bob"}))
    of_defaults = admit(request, MAIN, limits)
    own = admit(request, replace(MAIN, has_own_list=True), limits)
    assert isinstance(of_defaults, SpawnRefusal)
    assert isinstance(own, SpawnRefusal)
    assert of_defaults.limit == {"key": "agents.defaults.subagents.allowAgents"}
    assert own.limit == {"key": "agents.list[].subagents.allowAgents"}
    assert "agents.list[].subagents.allowAgents of agent 'main' ['bob']" in own.error


@given(st.integers(1, 5000), st.integers(1, 300), st.integers(1, 300), st.integers(1, 300))
def test_concurrency_leaves_room_for_all_children_of_one_parent_and_lowers_no_limit(
    children: int, children_max: int, descendants_max: int, retained_max: int
) -> None:
    before = Limits(children_max=children_max, descendants_max=descendants_max, retained_max=retained_max)
    policy = with_concurrency(Policy(limits=before), children)
    assert policy.work.lanes == {**Policy().work.lanes, Lane.SUBAGENT: children}
    raised = ("children_max", "descendants_max", "retained_max")
    assert all(getattr(policy.limits, name) == max(getattr(before, name), children) for name in raised)
    assert replace(policy.limits, **{name: getattr(before, name) for name in raised}) == before
    full = replace(MAIN, children=children - 1, descendants=children - 1, retained=children - 1)
    assert isinstance(admit(REQUEST, full, policy.limits), SpawnAdmission)
