"""Agent files and skills: what their front matter may say, which file is in force, and what a person must approve.

A file can only narrow: its tools and models are limits beside those of the agent that spawns it. What it says and
cannot be kept is an error of the file, with its line. A file of a workspace is a proposal until its content, as a hash,
is approved; a change makes another hash."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from clutch.core import ids
from clutch.core.agents import DESCRIPTION_CHARS_MAX, MAIN, SKILL_TOOL, Agent, Delegation
from clutch.core.authority import EVERY_TOOL, SESSION_TOOLS, ToolFilter, ToolPolicy
from clutch.core.model import Thinking, Workspace
from clutch.core.text.format import visible
from clutch.errors import InvalidInput


class DefinitionKind(StrEnum):
    AGENT = "agent"
    SKILL = "skill"


class DefinitionSource(StrEnum):
    """Who wrote a file, by precedence."""

    OWN = "agent"  #: the skills of one agent, in the state directory
    USER = "user"  #: in the state directory, where no agent writes
    WORKSPACE = "workspace"  #: with the project: its author may be anyone


class DefinitionState(StrEnum):
    ACTIVE = "active"
    PROPOSED = "proposed"  #: waits in the inbox, and changes nothing
    REJECTED = "rejected"
    INVALID = "invalid"
    OVERRIDDEN = "overridden"  #: the config, or a file that comes before, defines the same name


class FileTrust(StrEnum):
    """What the files of a workspace are: proposals, or instructions without a question, or not read."""

    ASK = "ask"
    TRUST = "trust"
    OFF = "off"


@dataclass(unsafe_hash=True)
class FileProblem(Exception):
    """Why a file is not used. `line` counts from 1."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """Values are texts, flags, whole numbers or lists of texts. `lines`: of each key, and of the body as ""."""

    values: Mapping[str, Any]
    lines: Mapping[str, int]
    body: str

    def problem(self, key: str, text: str) -> FileProblem:
        return FileProblem(self.lines.get(key, 1), f"{key}: {text}" if key else text)

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if key in self.values and (not isinstance(value, str) or not value.strip()):
            raise self.problem(key, "must be a text; put it in quotes")
        return None if value is None else str(value).strip()

    def names(self, key: str, separator: str = ",") -> tuple[str, ...] | None:
        """A list of YAML, or names in one text."""
        value = self.values.get(key)
        if isinstance(value, str):
            value = re.findall(
                r"[^,\s(]+(?:\([^)]*\))?" if separator == " " else r"[^,(]+(?:\([^)]*\))?", value
            )
        if key not in self.values:
            return None
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.problem(key, "must be names with commas between them, or a list of names")
        return tuple(name for one in value if (name := one.strip()))


@dataclass(frozen=True, slots=True)
class SkillText:
    """`files`: paths of the other files beneath the folder of the skill, with their contents."""

    name: str
    description: str
    body: str
    allowed: ToolFilter | None = None  #: None: it says nothing of tools
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class FileDefinition:
    """One file, or the folder of one skill. `owner`: the workspace or the agent it belongs to, "" for all."""

    kind: DefinitionKind
    name: str
    path: str
    source: DefinitionSource
    owner: str = ""
    digest: str = ""  #: of all that a model may read of it
    agent: Agent | None = None
    skill: SkillText | None = None
    problem: FileProblem | None = None
    notes: tuple[FileProblem, ...] = ()
    model_line: int = 1  #: where an agent file names its model
    state: DefinitionState = DefinitionState.ACTIVE
    question: str = ""  #: the item of the inbox that decides about it


def digest(kind: DefinitionKind, name: str, contents: Mapping[str, bytes]) -> str:
    """The same for the same content under the same name, wherever it lies."""
    whole = hashlib.sha256(f"{kind}\0{name}\0".encode())
    for path, content in sorted(contents.items()):
        whole.update(path.encode("utf-8", "surrogateescape") + b"\0" + hashlib.sha256(content).digest())
    return whole.hexdigest()


# --------------------------------------------------------------------------------------------------
# Agent files.

#: Tools as other harnesses call them.
FOREIGN_TOOLS: Mapping[str, frozenset[str]] = {
    "Read": frozenset({"read"}),
    "Grep": frozenset({"search"}),
    "Glob": frozenset({"list"}),
    "LS": frozenset({"list"}),
    "Write": frozenset({"write"}),
    "Edit": frozenset({"edit"}),
    "MultiEdit": frozenset({"edit"}),
    "Bash": frozenset({"shell"}),
    "WebFetch": frozenset({"web_fetch"}),
    "Skill": frozenset({SKILL_TOOL}),
    "AskUserQuestion": frozenset({"ask_human"}),
    "Task": SESSION_TOOLS,
    "Agent": SESSION_TOOLS,
}
#: Keys that say nothing of rights, instructions or limits.
COSMETIC = frozenset({"color"})
AGENT_KEYS = frozenset(
    [
        "name",
        "description",
        "model",
        "thinking",
        "effort",
        "tools",
        "disallowedTools",
        "maxTurns",
        "skills",
        "isolation",
        "background",
    ]
)
SKILL_KEYS = frozenset({"name", "description", "license", "compatibility", "metadata", "allowed-tools"})
#: What a run needs to continue and to end, whatever skills it has loaded.
ALWAYS = frozenset({SKILL_TOOL, "submit_result", "sessions_yield", "ask_human"})
_SKILL_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
SKILL_NAME_MAX = 64


class KnownTools(NamedTuple):
    """The tools there are, empty when that is not known. `is_whole`: a program or an MCP server has no others."""

    names: frozenset[str] = frozenset()
    is_whole: bool = True


def tools_named(names: Iterable[str]) -> frozenset[str]:
    """The tools of Clutch that these names mean, in its own spelling or in that of others."""
    found: set[str] = set()
    for name in names:
        server, _, tool = name.removeprefix("mcp__").partition("__")
        is_foreign = name.startswith("mcp__")
        found |= FOREIGN_TOOLS.get(name) or {f"{server}__{tool or '*'}" if is_foreign else name}
    return frozenset(found)


def agent_of(stem: str, said: FrontMatter, known: KnownTools) -> tuple[Agent, list[FileProblem]]:
    """Return the agent of a file that is named `stem`, and notes. Raises FileProblem: nothing is ignored in silence."""
    _check_keys(said, AGENT_KEYS | COSMETIC, "agent files")
    name = said.text("name") or stem
    if problem := ids.agent_id_problem(name) or (
        "main is the agent of main sessions" if name == MAIN else None
    ):
        raise said.problem("name", f"{problem}; choose another name")
    if not (description := said.text("description")):
        raise said.problem("description", "missing: other agents choose by it")
    if not said.body.strip():
        raise said.problem("", "the file has no instructions: write them below the front matter")
    notes = [said.problem(key, "has no effect here") for key in sorted(COSMETIC & said.values.keys())]
    if said.values.get("background") is False:
        notes.append(said.problem("background", "false has no effect: every subagent runs in the background"))
    model = said.text("model")
    turns = _whole(said, "maxTurns")
    try:
        agent = Agent(
            name,
            model=None if model == "inherit" else model,
            thinking=_thinking(said),
            description=description,
            instructions=said.body.strip(),
            tools=_tools(said, known, notes),
            max_turns=turns,
            skills=None if (skills := said.names("skills")) is None else frozenset(skills),
            subagents=Delegation(workspace=_isolation(said)),
        )
    except InvalidInput as error:
        key = error.field.rpartition(".")[2]
        raise said.problem({"instructions": "", "max_turns": "maxTurns"}.get(key, key), error.rule) from error
    return agent, notes


def _check_keys(said: FrontMatter, known: frozenset[str], where: str) -> None:
    for key in said.values:
        if key not in known:
            hint = ids.hint(key, known)
            listed = ", ".join(sorted(known))
            raise said.problem(visible(key, 60), f"unknown in {where}{hint or f'; known: {listed}'}")
    if "background" in said.values and not isinstance(said.values["background"], bool):
        raise said.problem("background", "must be true or false")


def _whole(said: FrontMatter, key: str) -> int | None:
    value = said.values.get(key)
    if key in said.values and (type(value) is not int or value < 1):
        raise said.problem(key, f"must be a whole number of at least 1, not {value!r:.40}")
    return value


def _thinking(said: FrontMatter) -> Thinking | None:
    if {"thinking", "effort"} <= said.values.keys():
        raise said.problem("effort", "is another word for thinking; use one of them")
    key = "thinking" if "thinking" in said.values else "effort"
    value = said.values.get(key)
    if key not in said.values:
        return None
    levels = [one.value for one in Thinking]
    if value not in levels:
        raise said.problem(key, f"must be one of {', '.join(levels)}, not {value!r:.40}")
    return Thinking(value)


def _isolation(said: FrontMatter) -> Workspace | None:
    value = said.text("isolation")
    if value is None:
        return None
    modes = {"worktree": Workspace.ISOLATED, "isolated": Workspace.ISOLATED, "inherit": Workspace.INHERIT}
    if value not in modes:
        raise said.problem("isolation", f"must be one of {', '.join(modes)}, not {value!r:.40}")
    return modes[value]


def _tools(said: FrontMatter, known: KnownTools, notes: list[FileProblem]) -> ToolPolicy:
    allow, deny = said.names("tools"), said.names("disallowedTools")
    for key, names in (("tools", allow), ("disallowedTools", deny)):
        for name in names or ():
            if "(" in name:
                rule = f"{visible(name, 60)} limits the arguments of a tool, which files cannot do; name whole tools"
                raise said.problem(key, rule)
            for tool in tools_named([name]):
                if known.names and tool not in known.names and "__" not in tool and "*" not in tool:
                    kind = "tool" if known.is_whole else "built-in tool"
                    rule = f"there is no {kind} {visible(name, 60)}{ids.hint(tool, known.names)}"
                    if (
                        key == "disallowedTools" and known.is_whole
                    ):  # a slip there would leave the tool allowed
                        raise said.problem(key, rule)
                    notes.append(said.problem(key, rule))
    also = {SKILL_TOOL} if said.values.get("skills") and allow is not None else ()
    return ToolPolicy(
        allow=None if allow is None else tools_named(allow),
        also_allow=frozenset(also),
        deny=tools_named(deny or ()),
    )


# --------------------------------------------------------------------------------------------------
# Skills.


def skill_of(folder: str, said: FrontMatter, files: Mapping[str, bytes]) -> SkillText:
    """Return the skill of a folder of this name. Raises FileProblem."""
    _check_keys(said, SKILL_KEYS, "skills")
    name, description = said.text("name"), said.text("description")
    if name is None or description is None:
        missing = "name" if name is None else "description"
        raise said.problem(missing, "missing: a skill has a name and a description")
    if len(name) > SKILL_NAME_MAX or not _SKILL_NAME.fullmatch(name):
        raise said.problem(
            "name", f"must be a-z, 0-9 and single -, at most {SKILL_NAME_MAX}, not {visible(name, 60)}"
        )
    if name != folder:
        raise said.problem("name", f"must be that of its folder, {visible(folder, 60)}")
    if len(description) > DESCRIPTION_CHARS_MAX:
        raise said.problem("description", f"must have at most {DESCRIPTION_CHARS_MAX} characters")
    allowed = said.names("allowed-tools", " ")
    return SkillText(name, description, said.body.strip(), _only(allowed), files)


def _only(allowed: Iterable[str] | None) -> ToolFilter | None:
    """A limit of the arguments, as in `Bash(git:*)`, is that of another harness: here it names the whole tool."""
    if allowed is None:
        return None
    return ToolFilter(frozenset({tools_named(one.partition("(")[0] for one in allowed) | ALWAYS}))


def after_loading(loaded: Iterable[ToolFilter | None]) -> ToolFilter:
    """What a run may use that has loaded these skills: what each of them permits."""
    left = EVERY_TOOL
    for one in loaded:
        left = left if one is None else left.and_also(one)
    return left


# --------------------------------------------------------------------------------------------------
# Which of them is in force.


@dataclass(frozen=True, slots=True)
class Decisions:
    """What people have said about contents: `approved` and `rejected` hashes; `asked`: all hashes with a question."""

    approved: frozenset[str] = frozenset()
    rejected: frozenset[str] = frozenset()
    asked: Mapping[str, str] = field(default_factory=dict)


_ORDER = {source: place for place, source in enumerate(DefinitionSource)}


def decided(
    found: Sequence[FileDefinition], decisions: Decisions, trust: FileTrust, configured: Collection[str]
) -> list[FileDefinition]:
    """Return them with their states. `configured`: agents of the config, which come before every file."""
    taken: set[tuple[DefinitionKind, str, str]] = {(DefinitionKind.AGENT, "", name) for name in configured}
    states = []
    for one in sorted(found, key=lambda one: _ORDER[one.source]):
        state = _state(one, decisions, trust)
        place = (one.kind, one.owner if one.kind is DefinitionKind.SKILL else "", one.name)
        if state in (DefinitionState.ACTIVE, DefinitionState.PROPOSED) and place in taken:
            state = DefinitionState.OVERRIDDEN
        if state is DefinitionState.ACTIVE:
            taken.add(place)
        states.append(replace(one, state=state, question=decisions.asked.get(one.digest, "")))
    return states


def _state(one: FileDefinition, decisions: Decisions, trust: FileTrust) -> DefinitionState:
    if one.problem is not None:
        return DefinitionState.INVALID
    if (
        one.source is not DefinitionSource.WORKSPACE
        or trust is FileTrust.TRUST
        or one.digest in decisions.approved
    ):
        return DefinitionState.ACTIVE
    return DefinitionState.REJECTED if one.digest in decisions.rejected else DefinitionState.PROPOSED


def skills_of(agent: Agent, workspace: str, found: Iterable[FileDefinition]) -> dict[str, SkillText]:
    """The skills that this agent may use: its own come before those of the user, then those of its workspace."""
    usable: dict[str, SkillText] = {}
    for one in sorted(found, key=lambda one: _ORDER[one.source]):
        owner = {DefinitionSource.OWN: agent.id, DefinitionSource.WORKSPACE: workspace}.get(one.source, "")
        is_named = agent.skills is None or one.name in agent.skills
        if one.skill is not None and one.state is DefinitionState.ACTIVE and one.owner == owner and is_named:
            usable.setdefault(one.name, one.skill)
    return usable


# --------------------------------------------------------------------------------------------------
# What the user is asked. It contains everything that a model would be shown, uncut: an attacker would hide
# instructions behind a cut.


@dataclass(frozen=True, slots=True)
class Proposal:
    kind: DefinitionKind
    name: str
    path: str
    digest: str
    text: str


def proposal(one: FileDefinition, text: str) -> Proposal:
    """`text`: the file itself, of a skill its SKILL.md."""
    what = (
        "an agent: agents may start it" if one.kind is DefinitionKind.AGENT else "a skill: agents may load it"
    )
    lines = [f"{visible(one.path, 400)} proposes {what}, with these instructions, once you approve it."]
    lines += (visible(line, 10 * len(line)) for line in text.splitlines())
    files = () if one.skill is None else sorted(one.skill.files)
    if files:
        lines.append("Its files, which commands of agents may run:")
        lines += _listed(one.skill.files if one.skill else {})
    return Proposal(one.kind, one.name, one.path, one.digest, "\n  ".join(lines))


def _listed(files: Mapping[str, bytes]) -> Iterator[str]:
    for path, content in sorted(files.items()):
        yield f"{visible(path, 400)} · {len(content)} bytes · sha256 {hashlib.sha256(content).hexdigest()[:16]}"
