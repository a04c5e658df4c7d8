"""Agent files and skills: of a running engine, and for commands that read them without a gateway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path

from clutch.agents.catalogue import Catalogue
from clutch.agents.folders import file_at
from clutch.api import agents
from clutch.api.report_objects import Agents
from clutch.config.sources import ConfigSource
from clutch.core.agents import SKILL_TOOL, Agent
from clutch.core.definitions import Decisions, FileDefinition, KnownTools, decided
from clutch.core.policy import Policy
from clutch.engine.services import Services, StoredFilePins
from clutch.tools.registry import AllTools, standard_tools
from clutch.tools.sandbox.protected_files import is_settled


def open_definitions(
    own_tools: AllTools | None, services: Services, home: Path, check_model: Callable[[str], None] | None
) -> Callable[[], Awaitable[None]]:
    """Read agent files and skills before each turn; the present policy has the agents of the files in force."""

    def in_force(roles: Mapping[str, Agent]) -> None:
        services.policy = replace(services.policy, roles=roles)

    catalogue = Catalogue(
        home,
        lambda: services.policy,
        StoredFilePins(services),
        known_tools=lambda: KnownTools(
            frozenset(one.name for one in own_tools.specs()) if own_tools else frozenset()
        ),
        is_settled=is_settled,
        check_model=check_model,
        on_change=in_force,
    )
    if own_tools is not None and own_tools.open_skills(catalogue, catalogue.copies):
        services.skills = catalogue
    services.definitions = catalogue
    has_servers = own_tools is not None and own_tools.has_servers

    async def refresh() -> None:
        if own_tools is not None and has_servers:
            await own_tools.ready()
        await catalogue.refresh()

    services.refresh = refresh
    return catalogue.refresh


def parsed(path: Path) -> FileDefinition:
    """Parse one agent file or `SKILL.md`, wherever it lies."""
    return file_at(str(path), _built_in())


def _built_in() -> KnownTools:
    """The tools that are known without a gateway: programs and MCP servers add others."""
    return KnownTools(
        frozenset({SKILL_TOOL, *(one.name for one in standard_tools().specs())}), is_whole=False
    )


def found(home: Path, config: Path | None = None) -> list[FileDefinition]:
    """All files that a gateway of this state directory would read from this folder. Raises ConfigInvalid."""
    return [one.found for one in _catalogue(home, _policy(home, config)).look()]


def listed(home: Path, decisions: Decisions) -> Agents:
    """What `GET /v1/agents` would answer. Raises ConfigInvalid."""
    policy = _policy(home, None)
    catalogue = _catalogue(home, policy)
    states = decided([one.found for one in catalogue.look()], decisions, policy.file_trust, policy.agents)
    catalogue.definitions = states
    return agents.agents(replace(policy, roles=catalogue.roles()), states)


def _policy(home: Path, config: Path | None) -> Policy:
    source = ConfigSource(home, config)
    return source.policy(source.read())


def _catalogue(home: Path, policy: Policy) -> Catalogue:
    return Catalogue(home, lambda: policy, known_tools=_built_in)
