"""All agent files and skills of one process, and which of them are in force.

The folders are looked at again when a turn begins, at most every `FRESH_S`. Decisions of people are read from the
store; until then a file of a workspace changes nothing. The files of a skill in force are copied to a folder that only
this process writes and that every sandbox shows: the copy has exactly the approved content."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from clutch.agents.folders import Content, contents, user_places, workspace_places
from clutch.core.agents import MAIN, Agent, OnInvalidModel
from clutch.core.authority import ToolFilter
from clutch.core.definitions import (
    Decisions,
    DefinitionSource,
    DefinitionState,
    FileDefinition,
    FileProblem,
    FileTrust,
    KnownTools,
    Proposal,
    SkillText,
    decided,
    proposal,
    skills_of,
)
from clutch.core.policy import Policy
from clutch.errors import InvalidInput
from clutch.ports import ToolFailed

FRESH_S = 2.0  # a fan-out starts hundreds of turns; an edit may wait as long
SKILL_FILES = "skill-files"  #: in the state directory: copies by content, `<digest>/NAME/…`


class FilePins(Protocol):
    """What people have decided about files of workspaces, and are asked once about each content."""

    async def known(self) -> Decisions: ...

    async def propose(self, proposals: Sequence[Proposal]) -> None: ...


@dataclass(slots=True)
class Catalogue:
    """`is_settled`: see `folders.contents`. `on_change`: is given the agents of the files in force."""

    state: Path
    policy: Callable[[], Policy]
    pins: FilePins | None = None
    known_tools: Callable[[], KnownTools] = KnownTools
    is_settled: Callable[[str], bool] = lambda _: True
    check_model: Callable[[str], None] | None = None  #: raises InvalidInput for a model that cannot be asked
    on_change: Callable[[Mapping[str, Agent]], None] = lambda _: None
    definitions: Sequence[FileDefinition] = ()
    _contents: Sequence[Content] = ()
    _decisions: Decisions = field(default_factory=Decisions)
    #: by agent and skill: what a loaded skill permits holds for its run, also when its file changes or goes meanwhile
    _permitted: dict[tuple[str, str], ToolFilter | None] = field(default_factory=dict)
    _looked_at: float | None = None
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def refresh(self, *, at_once: bool = False) -> None:
        """Look again, and say so if something changed. `at_once`: however short ago it looked."""
        async with self._looking:
            now = asyncio.get_running_loop().time()
            is_stale = at_once or self._looked_at is None or now - self._looked_at >= FRESH_S
            if is_stale:
                self._contents = await asyncio.to_thread(self.look)
                self._looked_at = now
            waits = any(one.state is not DefinitionState.ACTIVE for one in self.definitions)
            if is_stale or waits:
                before, self.definitions = self.definitions, await self._decided()
                if [*map(_shown, before)] != [*map(_shown, self.definitions)]:
                    self.on_change(self.roles())

    def look(self) -> list[Content]:
        """Read all folders. Blocks."""
        policy, known = self.policy(), self.known_tools()
        places = list(user_places(str(self.state)))
        if policy.file_trust is not FileTrust.OFF:
            common = _absolute(policy.workspace_of(MAIN))
            spaces = dict.fromkeys([common, *(_absolute(policy.workspace_of(one)) for one in policy.agents)])
            for one in spaces:
                places += workspace_places(one, has_agents=one == common)
        read = [found for place in places for found in contents(place, known, self.is_settled)]
        return [replace(one, found=self._with_model(one.found, policy)) for one in read]

    def _with_model(self, found: FileDefinition, policy: Policy) -> FileDefinition:
        """Check the model that the file names: an unknown one is an error, or left out where the config says so."""
        if found.agent is None or found.agent.model is None or self.check_model is None:
            return found
        try:
            self.check_model(found.agent.model)
        except InvalidInput as error:
            problem = FileProblem(found.model_line, f"model: {error.rule}; or write `inherit`")
            if policy.defaults.subagents.on_invalid_model is OnInvalidModel.ERROR:
                return replace(found, problem=problem, agent=None)
            return replace(found, agent=replace(found.agent, model=None), notes=(*found.notes, problem))
        return found

    async def _decided(self) -> list[FileDefinition]:
        policy, found = self.policy(), [one.found for one in self._contents]
        asks = policy.file_trust is FileTrust.ASK and self.pins is not None
        if asks and any(one.source is DefinitionSource.WORKSPACE for one in found):
            await self._ask(found)
        return decided(found, self._decisions, policy.file_trust, policy.agents)

    async def _ask(self, found: Sequence[FileDefinition]) -> None:
        """Read the decisions, and propose what no person was asked about yet."""
        assert self.pins is not None
        self._decisions = await self.pins.known()
        states = decided(found, self._decisions, FileTrust.ASK, self.policy().agents)
        waiting = {one.digest for one in states if one.state is DefinitionState.PROPOSED}
        if waiting - self._decisions.asked.keys():
            shown = {one.found.digest: proposal(one.found, one.text) for one in self._contents}
            await self.pins.propose([shown[one] for one in sorted(waiting)])
            self._decisions = await self.pins.known()

    def roles(self) -> Mapping[str, Agent]:
        """The agents of the files in force."""
        active = (one.agent for one in self.definitions if one.state is DefinitionState.ACTIVE)
        return {agent.id: agent for agent in active if agent is not None}

    # ---- the port `Skills` ---------------------------------------------------------------------------

    def offered(self, agent_id: str) -> Sequence[tuple[str, str]]:
        return [(name, one.description) for name, one in sorted(self._skills(agent_id).items())]

    def narrowed(self, agent_id: str, name: str) -> ToolFilter | None:
        found = self._skills(agent_id).get(name)
        return self._permitted.get((agent_id, name)) if found is None else found.allowed

    async def load(self, agent_id: str, name: str) -> str:
        skills = self._skills(agent_id)
        if name not in skills:
            raise ToolFailed(
                f"there is no skill {name[:64]!r} for you; there are: {', '.join(sorted(skills)) or 'none'}"
            )
        found, text = skills[name], [f"# Skill {name}", skills[name].body]
        self._permitted[agent_id, name] = found.allowed
        if found.files:
            folder = await asyncio.to_thread(self._copied, found)
            listed = "\n".join(f"- {path}" for path in sorted(found.files))
            text.append(
                f"Files of this skill, read-only. `read` them as /skills/{folder.parent.name}/{name}/PATH; commands"
                f" find them in {folder}:\n{listed}"
            )
        return "\n\n".join(text)

    def _skills(self, agent_id: str) -> dict[str, SkillText]:
        policy = self.policy()
        workspace = _absolute(policy.workspace_of(agent_id))
        return skills_of(policy.agent(agent_id), workspace, self.definitions)

    @property
    def copies(self) -> str:
        return str(self.state / SKILL_FILES)

    def _copied(self, skill: SkillText) -> Path:
        """Write the files of a skill where sandboxes show them; what is there already is the same. Blocks."""
        seen = next(one.digest for one in self.definitions if one.skill is skill)[:16]
        copies = Path(self.copies)
        made = copies / seen
        if not made.is_dir():
            copies.mkdir(0o700, exist_ok=True)
            temporary = copies / f".{secrets.token_hex(8)}.tmp"
            for path, content in skill.files.items():
                file = temporary / skill.name / path
                file.parent.mkdir(0o700, parents=True, exist_ok=True)
                file.write_bytes(content)
                file.chmod(0o500 if content.startswith(b"#!") else 0o400)
            try:
                temporary.rename(made)
            except OSError:  # another call made it meanwhile
                shutil.rmtree(temporary, ignore_errors=True)
        return made / skill.name


def _absolute(workspace: str | None) -> str:
    return os.path.abspath(os.path.expanduser(workspace or "."))


def _shown(one: FileDefinition) -> tuple[str, str, str, str]:
    return one.path, one.digest, one.state, one.question
