"""The config of one process: its file, if there is one, and what the program says beside it, which wins."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from clutch.config.settings import Settings
from clutch.core.agents import Agent, roster
from clutch.core.policy import Policy
from clutch.surfaces.address import CONFIG_FILE


class Given:
    """`settings`: what the file said when it was taken."""

    def __init__(
        self,
        home: Path,
        named: Path | str | None,
        policy: Policy | None,
        model: str | None,
        workspace: Path | str | None,
        agents: Sequence[Agent],
        *,
        is_headless: bool = False,
    ) -> None:
        self._home, self._named, self._is_headless = home, named, is_headless
        self._policy, self._model, self._workspace, self._agents = policy, model, workspace, agents
        self.settings = Settings()

    def load(self) -> Settings:
        """A state directory without a file costs a look and no import. Raises ConfigInvalid."""
        if self._named is None and not os.path.lexists(self._home / CONFIG_FILE):
            return Settings() if self._policy is None else Settings(policy=self._policy)
        from clutch.config import files

        found = files.load(self._home, self._named).settings
        return found if self._policy is None else replace(found, policy=self._policy)

    def stamp(self) -> tuple[int, ...] | None:
        """Another one when the file is another one; None: there is none."""
        try:
            status = os.stat(self._home / CONFIG_FILE if self._named is None else self._named)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def policy(self, said: Settings) -> Policy:
        """What the program gives takes the place of what the file says of the same thing."""
        base = replace(said.policy, is_headless=said.policy.is_headless or self._is_headless)
        if self._policy is None:
            given = {getattr(agent, "id", None) for agent in self._agents}
            listed = {name: agent for name, agent in said.policy.agents.items() if name not in given}
            base = replace(base, agents=listed)
        return _settled(base, self._model, self._workspace, self._agents)


def _settled(
    policy: Policy, model: str | None, workspace: Path | str | None, agents: Sequence[Agent]
) -> Policy:
    """What was said beside the policy wins over what it says."""
    defaults = policy.defaults
    place = str(Path(workspace or defaults.workspace or ".").absolute())
    return replace(
        policy,
        agents=roster([*policy.agents.values(), *agents]),
        defaults=replace(defaults, model=defaults.model if model is None else model, workspace=place),
    )
