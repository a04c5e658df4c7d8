"""What a child gets where several could say: the spawn, its agent, the defaults, its caller.

    model, thinking   spawn → agent's `subagents` → agent's own, if another agent than the caller
                      → defaults for subagents → the caller's, if the same agent → agent's own → defaults
    time              spawn → defaults for subagents → none
    directory         the caller's; another agent's own

`check` says what is wrong with a request before anything is counted or written; `settled` fills in what nobody has
to be asked for; `terms` chooses for one caller, under its lock. Every door goes through all three.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from clutch.core import keys
from clutch.core.admission import OWN_RUNTIME, Cleanup, Mode, SpawnRequest
from clutch.core.agents import MAIN
from clutch.core.authority import canonical
from clutch.core.model import Thinking, Workspace
from clutch.core.policy import Policy
from clutch.errors import InvalidInput

NAMES_SHOWN_MAX = 40  # of tools: more is a list nobody reads, and an error is read by a model


@dataclass(frozen=True, slots=True)
class Spawner:
    """Who spawns, as its session was set up. None = as its agent is."""

    agent_id: str
    model: str | None = None
    thinking: Thinking | None = None
    workspace: str | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    model: str
    thinking: Thinking | None  #: None = whatever the provider does by itself
    directory: str | None  #: where it works, or what its own directory is made from


def check(
    request: SpawnRequest, policy: Policy, tools: Iterable[str] | None, runtimes: Collection[str]
) -> None:
    """Raises InvalidInput naming what there is instead. `tools`: None = nobody knows them all yet."""
    if request.agent_id is not None:
        problem = keys.agent_id_problem(request.agent_id)
        if problem is not None:
            raise InvalidInput("agentId", problem + keys.hint(request.agent_id, known_agents(policy)))
    if request.runtime != OWN_RUNTIME and request.runtime not in runtimes:
        known = ", ".join(sorted({OWN_RUNTIME, *runtimes}))
        raise InvalidInput("runtime", f"there is no {request.runtime[:64]!r} here; known: {known}")
    if request.tools is not None and tools is not None:
        _check_tools(request.tools, frozenset(tools))


def _check_tools(asked: Iterable[str], known: frozenset[str]) -> None:
    """A pattern may be meant for tools that are still to come; a plain name is one there is, or a mistake."""
    for name in sorted(asked):
        if "*" not in name and canonical(name) not in known:
            shown = ", ".join(sorted(known)[:NAMES_SHOWN_MAX])
            raise InvalidInput(
                "tools", f"there is no tool {name[:64]!r}{keys.hint(name, known)} (known: {shown})"
            )


def digest(request: SpawnRequest) -> str:
    """The same for the same wishes, in every process and whatever else can be wished for one day."""
    said = [(one.name, getattr(request, one.name)) for one in fields(request)]
    plain = [
        (name, sorted(value) if isinstance(value, frozenset) else value)
        for name, value in said
        if value != getattr(_NOTHING_SAID, name) and name != "idempotency_key"
    ]
    return hashlib.sha256(repr(plain).encode()).hexdigest()[:16]


_NOTHING_SAID = SpawnRequest("")


def known_agents(policy: Policy) -> frozenset[str]:
    return frozenset({*policy.agents, MAIN})


def settled(request: SpawnRequest, policy: Policy) -> SpawnRequest:
    """With the defaults that need no look at the caller. What a person may still want to read is kept."""
    defaults, changes = policy.defaults.subagents, dict[str, Any]()
    if request.run_timeout_s is None and defaults.run_timeout_s:
        changes["run_timeout_s"] = defaults.run_timeout_s
    if request.workspace is None and defaults.workspace is not Workspace.INHERIT:
        changes["workspace"] = defaults.workspace
    if request.cleanup is not Cleanup.KEEP and (request.plan_mode or request.mode is Mode.SESSION):
        changes["cleanup"] = Cleanup.KEEP
    return replace(request, **changes) if changes else request


def terms(request: SpawnRequest, agent_id: str, caller: Spawner, policy: Policy) -> Terms:
    """`agent_id`: whose child it is to be."""
    agent, defaults, own = policy.agent(agent_id), policy.defaults, policy.agent(agent_id).subagents
    common = defaults.subagents
    if agent_id == caller.agent_id:
        model = request.model or own.model or common.model or caller.model or agent.model
        thinking = request.thinking or own.thinking or common.thinking or caller.thinking or agent.thinking
        directory = caller.workspace
    else:
        model = request.model or own.model or agent.model or common.model
        thinking = request.thinking or own.thinking or agent.thinking or common.thinking
        directory = policy.workspace_of(agent_id)
    return Terms(model or defaults.model, thinking or defaults.thinking, directory)
