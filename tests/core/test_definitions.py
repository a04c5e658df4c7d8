"""Which agent file or skill is in force: precedence, approval by content, and what a run may use after a skill."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from clutch.core.agents import Agent
from clutch.core.authority import ToolFilter
from clutch.core.definitions import (
    Decisions,
    DefinitionKind,
    DefinitionSource,
    DefinitionState,
    FileDefinition,
    FileProblem,
    FileTrust,
    SkillText,
    after_loading,
    decided,
    proposal,
    skills_of,
)

TOOLS = ("read", "write", "shell", "mcp__echo")
FILTERS = st.builds(
    ToolFilter,
    st.frozensets(st.frozensets(st.sampled_from((*TOOLS, "*", "mcp__*"))), max_size=2),
    st.frozensets(st.sampled_from(TOOLS)),
)
DIGESTS = st.sampled_from("abcd")
FILES = st.lists(
    st.builds(
        FileDefinition,
        kind=st.just(DefinitionKind.AGENT),
        name=st.sampled_from(("x", "y")),
        path=st.text("pq", min_size=1, max_size=2),
        source=st.sampled_from((DefinitionSource.USER, DefinitionSource.WORKSPACE)),
        digest=DIGESTS,
        agent=st.just(Agent("x")),
        problem=st.none() | st.just(FileProblem(1, "wrong")),
    ),
    max_size=6,
)


@given(st.lists(st.none() | FILTERS, max_size=4))
def test_loading_a_skill_never_widens(loaded: list[ToolFilter | None]) -> None:
    for count in range(len(loaded)):
        before, after = after_loading(loaded[:count]), after_loading(loaded[: count + 1])
        assert all(before.permits(one) for one in TOOLS if after.permits(one))


@given(FILES, st.frozensets(DIGESTS), st.frozensets(DIGESTS), st.sampled_from(FileTrust), st.booleans())
def test_only_what_a_person_wrote_or_approved_is_in_force(
    found: list[FileDefinition],
    approved: frozenset[str],
    rejected: frozenset[str],
    trust: FileTrust,
    is_listed: bool,
) -> None:
    configured = {"x"} if is_listed else set[str]()
    states = decided(found, Decisions(approved, rejected - approved), trust, configured)
    active = [one for one in states if one.state is DefinitionState.ACTIVE]
    assert len({one.name for one in active}) == len(active)
    for one in active:
        assert one.name not in configured
        assert one.problem is None
        is_own = one.source is DefinitionSource.USER or trust is FileTrust.TRUST
        assert is_own or one.digest in approved
    for one in found:
        is_users = one.source is DefinitionSource.USER and one.problem is None and one.name not in configured
        [in_force] = [it for it in active if it.name == one.name] if is_users else [None]
        assert in_force is None or in_force.source is DefinitionSource.USER


def skill(name: str, source: DefinitionSource, owner: str = "", body: str = "") -> FileDefinition:
    text = SkillText(name, "d", body)
    return FileDefinition(DefinitionKind.SKILL, name, "p", source, owner, "h", skill=text)


def test_an_agent_has_its_own_skills_then_those_of_the_user_then_those_of_its_workspace() -> None:
    found = [
        skill("a", DefinitionSource.WORKSPACE, "/w", "workspace"),
        skill("a", DefinitionSource.USER, "", "user"),
        skill("a", DefinitionSource.OWN, "ops", "own"),
        skill("b", DefinitionSource.WORKSPACE, "/other", "other"),
        replace(skill("c", DefinitionSource.USER), state=DefinitionState.PROPOSED),
    ]
    assert {name: one.body for name, one in skills_of(Agent("ops"), "/w", found).items()} == {"a": "own"}
    assert skills_of(Agent("x"), "/w", found)["a"].body == "user"
    assert skills_of(Agent("x", skills=frozenset()), "/w", found) == {}
    assert set(skills_of(Agent("x"), "/other", found)) == {"a", "b"}


def test_a_proposal_shows_every_line_and_no_invisible_character() -> None:
    text = "---\nname: a\n---\nhidden: \u200b\u202e\n" + "x" * 5000
    one = FileDefinition(DefinitionKind.AGENT, "a", "/w/a.md", DefinitionSource.WORKSPACE, digest="h")
    shown = proposal(one, text).text
    assert "hidden: \\u200b\\u202e" in shown
    assert "x" * 5000 in shown
    assert len(shown.splitlines()) == 6
