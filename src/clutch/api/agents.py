"""The agents of a gateway, and the files that define agents and skills, as objects."""

from __future__ import annotations

from collections.abc import Sequence

from clutch.api import report_objects as objects
from clutch.core.agents import MAIN
from clutch.core.definitions import DefinitionKind, DefinitionState, FileDefinition, FileProblem
from clutch.core.policy import Policy


def agents(policy: Policy, found: Sequence[FileDefinition]) -> objects.Agents:
    """`found`: the files with their states."""
    active = [
        one for one in found if one.kind is DefinitionKind.AGENT and one.state is DefinitionState.ACTIVE
    ]
    files = {one.name: one for one in active}
    names = sorted({MAIN, *policy.agents, *policy.roles})
    return {
        "agents": [_agent(policy, name, files.get(name) if policy.is_role(name) else None) for name in names],
        "files": [_file(one) for one in found],
    }


def _agent(policy: Policy, name: str, file: FileDefinition | None) -> objects.AgentAnswer:
    agent = policy.agent(name)
    return {
        "agentId": name,
        "model": policy.model_of(name),
        "workspace": policy.workspace_of(name),
        "description": agent.description,
        "source": "config" if file is None else file.source.value,
        "file": None if file is None else file.path,
        "instructions": agent.instructions,
        "thinking": agent.thinking,
        "maxTurns": policy.steps_max(name),
        "toolsAllowed": None
        if agent.tools.allow is None
        else sorted(agent.tools.allow | agent.tools.also_allow),
        "toolsDenied": sorted(agent.tools.deny),
        "skills": None if agent.skills is None else sorted(agent.skills),
    }


def _file(one: FileDefinition) -> objects.DefinitionFile:
    about = one.agent or one.skill
    return {
        "kind": one.kind.value,
        "name": one.name,
        "description": "" if about is None else about.description,
        "source": one.source.value,
        "owner": one.owner or None,
        "state": one.state.value,
        "file": one.path,
        "problems": [] if one.problem is None else [_problem(one.problem)],
        "notes": [_problem(note) for note in one.notes],
        "question": one.question or None,
    }


def _problem(one: FileProblem) -> objects.FileNotice:
    return {"line": one.line, "text": one.text}
