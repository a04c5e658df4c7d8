"""Agent files and skills as text: what is accepted, and the line and reason of what is not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.agents import folders
from clutch.agents.folders import agent_file, contents, file_at, workspace_places
from clutch.agents.front_matter import front_matter
from clutch.core.definitions import DefinitionKind, DefinitionSource, FileDefinition, KnownTools
from clutch.core.model import Thinking, Workspace
from tests.examples import examples

TOOLS = frozenset({"read", "search", "list", "write", "edit", "shell", "web_fetch", "skill"})
KNOWN = KnownTools(TOOLS)
FULL = """---
name: reviewer
description: "Reviews changes: use it for every diff."
model: inherit
effort: high
tools: Read, Grep, mcp__wiki__find
disallowedTools: [Bash]
maxTurns: 12
skills:
  - style
isolation: worktree
background: true
color: red
---
You review.
"""


def parsed(text: str | bytes, name: str = "a.md") -> FileDefinition:
    data = text if isinstance(text, bytes) else text.encode()
    return agent_file(f"/w/.agents/{name}", data, KNOWN, DefinitionSource.WORKSPACE)


def test_a_file_of_another_harness_is_an_agent() -> None:
    found = parsed(FULL)
    assert found.problem is None
    agent = found.agent
    assert agent is not None
    assert (agent.id, agent.model, agent.thinking) == ("reviewer", None, Thinking.HIGH)
    assert agent.description == "Reviews changes: use it for every diff."
    assert (agent.instructions, agent.max_turns, agent.skills) == ("You review.", 12, frozenset({"style"}))
    assert agent.subagents.workspace is Workspace.ISOLATED
    permits = agent.tools.filter.permits
    assert [one for one in (*sorted(TOOLS), "wiki__find", "sessions_spawn") if permits(one)] == [
        "read",
        "search",
        "skill",
        "wiki__find",
    ]
    assert [(note.line, note.text) for note in found.notes] == [(13, "color: has no effect here")]


def with_line(line: str) -> str:
    return f"---\ndescription: x\n{line}\n---\nDo it.\n"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("You review.", 1, "must begin with front matter"),
        ("---\nname: a\n", 1, "has no end"),
        ("---\nname: a\n---\nDo it.", 1, "description: missing"),
        ("---\ndescription: x\n---\n \n", 4, "has no instructions"),
        (with_line("permissionMode: plan"), 3, "permissionMode: unknown in agent files"),
        (with_line("disalowedTools: Bash"), 3, "did you mean 'disallowedTools'?"),
        (with_line("disallowedTools: Bsh"), 3, "there is no tool Bsh"),
        (with_line("tools: Bash(git *)"), 3, "limits the arguments of a tool"),
        (with_line("name: main"), 3, "main is the agent of main sessions"),
        (with_line("name: Not One"), 3, "is not valid: a-z"),
        (with_line("name: [a]"), 3, "must be a text"),
        (with_line("maxTurns: 0"), 3, "must be a whole number of at least 1"),
        (with_line("maxTurns: many"), 3, "must be a whole number"),
        (with_line("effort: huge"), 3, "must be one of off, "),
        (with_line("thinking: low\neffort: low"), 4, "is another word for thinking"),
        (with_line("isolation: moon"), 3, "must be one of worktree, isolated, inherit"),
        (with_line("background: maybe"), 3, "must be true or false"),
        (with_line("tools: {a: b}"), 3, "must be names"),
        (with_line("description: y"), 3, "is there twice"),
        (with_line("model: a: b"), 3, "not valid YAML"),
        (with_line("tools: &x [a]\nskills: *x"), 3, "aliases and anchors are not accepted"),
        (with_line("model: !!python/object:os.system x"), 3, "tags are not accepted"),
        (with_line("tools: [[[[[a]]]]]"), 3, "nests deeper"),
        ("---\n- a\n---\nDo it.", 2, "must be keys with values"),
        (with_line("color: " + "x" * 20_000), 1, "at most 16384 characters"),
        (b"---\ndescription: \xff\n---\nx", 2, "is not UTF-8"),
        ("---\ndescription: x\n---\n\0", 4, "has a NUL character"),
        (f"---\ndescription: x\n---\n{'y' * 40_000}", 4, "must have at most 32768 characters"),
    ],
)
def test_what_cannot_be_kept_is_an_error_with_its_line(text: str | bytes, line: int, words: str) -> None:
    problem = parsed(text).problem
    assert problem is not None
    assert words in problem.text
    assert problem.line == line


def test_a_name_comes_from_the_file_and_unknown_tools_of_an_allow_list_are_noted() -> None:
    found = parsed(with_line("tools: Read, WebSearch\nbackground: false"), "finder.md")
    assert found.problem is None
    assert found.name == "finder"
    assert [(one.line, one.text) for one in found.notes] == [
        (4, "background: false has no effect: every subagent runs in the background"),
        (3, "tools: there is no tool WebSearch; did you mean 'search'?"),
    ]


def test_without_a_gateway_a_tool_that_is_not_built_in_is_noted() -> None:
    text = with_line("disallowedTools: Bsh").encode()
    found = agent_file("/w/a.md", text, KnownTools(TOOLS, is_whole=False), DefinitionSource.WORKSPACE)
    assert found.problem is None
    assert [(note.line, note.text) for note in found.notes] == [
        (3, "disallowedTools: there is no built-in tool Bsh")
    ]


@examples(200)
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: f"---\n{text}\n---\nx".encode()))
def test_no_file_breaks_the_reader(data: bytes) -> None:
    found = parsed(data).problem
    assert found is None or (found.line >= 1 and found.text.isprintable())


# ---- folders -------------------------------------------------------------------------------------------------


def found_in(workspace: Path) -> dict[str, FileDefinition]:
    places = workspace_places(str(workspace), has_agents=True)
    return {one.found.name: one.found for place in places for one in contents(place, KNOWN, lambda _: True)}


def skill(workspace: Path, name: str, head: str = "", body: str = "Do it so.") -> Path:
    folder = workspace / ".claude" / "skills" / name
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(f"---\nname: {name}\ndescription: Style.\n{head}---\n{body}\n")
    return folder


def test_the_hash_of_a_skill_covers_all_of_its_files(tmp_path: Path) -> None:
    folder = skill(tmp_path, "style")
    (folder / "scripts").mkdir()
    script = folder / "scripts" / "run.sh"
    seen = set()
    for content in ("echo 1", "echo 2"):
        script.write_text(content)
        seen.add(found_in(tmp_path)["style"].digest)
    script.rename(folder / "scripts" / "other.sh")
    seen.add(found_in(tmp_path)["style"].digest)
    assert len(seen) == 3


def test_one_file_is_read_wherever_it_lies(tmp_path: Path) -> None:
    folder = skill(tmp_path, "style", "hooks: x\n")
    (tmp_path / "a.md").write_text(with_line("maxTurns: 0"))
    for path, line, words in (
        (folder / "SKILL.md", 4, "hooks: unknown in skills"),
        (tmp_path / "a.md", 3, "maxTurns: must be"),
        (tmp_path / "b.md", 1, "No such file"),
        (folder, 1, "not a plain file"),
        (tmp_path / "no" / "SKILL.md", 1, "no such file"),
    ):
        found = file_at(str(path), KNOWN)
        assert found.problem is not None
        assert (found.path, found.problem.line, words in found.problem.text) == (str(path), line, True)


def test_a_folder_with_the_name_of_a_file_hides_no_other_file(tmp_path: Path) -> None:
    (tmp_path / ".agents" / "a.md").mkdir(parents=True)
    (tmp_path / ".agents" / "b.md").write_text(with_line("name: b"))
    found = found_in(tmp_path)
    assert found["b"].problem is None
    assert found["a"].problem is not None
    assert found["a"].problem.text == "a.md: is not a plain file"


def test_links_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.md"
    secret.write_text(with_line("name: a"))
    workspace = tmp_path / "w"
    (workspace / ".agents").mkdir(parents=True)
    (workspace / ".agents" / "a.md").symlink_to(secret)
    folder = skill(workspace, "style")
    (folder / "more").symlink_to(secret)
    found = found_in(workspace)
    assert [(one.agent, one.skill) for one in found.values()] == [(None, None)] * 2
    assert all("links are not followed" in str(one.problem.text) for one in found.values() if one.problem)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / ".agents").symlink_to(workspace / ".agents")
    assert found_in(tmp_path / "x") == {}


def test_a_name_that_is_no_text_is_a_problem_of_its_file_alone(tmp_path: Path) -> None:
    skill(tmp_path, "style")
    (skill(tmp_path, "other") / os.fsdecode(b"bad\xff")).write_text("x")
    (tmp_path / ".agents").mkdir(exist_ok=True)
    (tmp_path / ".agents" / os.fsdecode(b"bad\xff.md")).write_text(with_line("name: reviewer"))
    folder = skill(tmp_path, "more")
    folder.rename(folder.with_name(os.fsdecode(b"bad\xff")))
    found = found_in(tmp_path)
    assert [name for name, one in found.items() if one.problem is None] == ["style"]
    assert {"other", "bad\\udcff"} < found.keys()
    assert all("cannot be shown" in one.problem.text for one in found.values() if one.problem)
    json.dumps(
        [(one.path, one.problem and one.problem.text) for one in found.values()], ensure_ascii=False
    ).encode()


@pytest.mark.parametrize("value", ['"\\uDCFF"', '"a\\0b"'])
def test_values_that_cannot_be_stored_are_refused(value: str) -> None:
    problem = parsed(with_line(f"model: {value}")).problem
    assert problem is not None
    assert (problem.line, "cannot be stored" in problem.text) == (3, True)


@pytest.mark.parametrize(
    ("head", "words"),
    [("hooks: x\n", "hooks: unknown in skills"), ("allowed-tools: [[a]]\n", "allowed-tools: must be names")],
)
def test_errors_of_a_skill_name_the_line(tmp_path: Path, head: str, words: str) -> None:
    skill(tmp_path, "style", head)
    problem = found_in(tmp_path)["style"].problem
    assert problem is not None
    assert (problem.line, words in problem.text) == (4, True)


def test_the_same_content_is_parsed_once() -> None:
    good, bad = with_line("model: [a]").encode(), with_line("model: [a").encode()
    assert front_matter(good) is front_matter(bytes(bytearray(good)))
    problems = [parsed(bad).problem for _ in range(3)]
    assert problems[0] is not None
    assert problems == [problems[0]] * 3


def test_large_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / ".agents").mkdir()
    (tmp_path / ".agents" / "big.md").write_text(with_line("name: big") + "x" * 70_000)
    folder = skill(tmp_path, "style")
    (folder / "data").write_bytes(b"x" * 5 * 2**20)
    for one in found_in(tmp_path).values():
        assert one.problem is not None
        assert "must have at most" in one.problem.text
    assert {one.kind for one in found_in(tmp_path).values()} == set(DefinitionKind)


def test_files_of_all_skills_of_a_folder_are_bounded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "FOLDER_BYTES_MAX", 100)
    for name in ("a", "b", "c"):
        (skill(tmp_path, name) / "data").write_bytes(b"x" * 60)
    found = found_in(tmp_path)
    assert [found[name].problem is None for name in ("a", "b", "c")] == [True, False, False]


def test_allowed_tools_of_a_skill_narrow_whole_tools(tmp_path: Path) -> None:
    skill(tmp_path, "style", "allowed-tools: Read Bash(git:*)\n")
    made = found_in(tmp_path)["style"].skill
    assert made is not None
    assert made.allowed is not None
    assert [one for one in sorted(TOOLS) if made.allowed.permits(one)] == ["read", "shell", "skill"]
