"""The config of one process: its file, if there is one, and what the program says beside it, which wins."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from clutch.config.keys import Settings
from clutch.core.agents import Agent, roster
from clutch.core.policy import Policy
from clutch.surfaces.discovery import CONFIG_FILE, stamp_of
from clutch.tools.sandbox.policy import Sandbox


class ConfigSource:
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
        self.stamp: tuple[int, ...] | None = None  #: of the file that was read last

    @property
    def file(self) -> Path:
        return self._home / CONFIG_FILE if self._named is None else Path(self._named).absolute()

    @property
    def is_changed(self) -> bool:
        """The file is another one than the one that was read last."""
        return stamp_of(self.file) != self.stamp

    def load(self) -> Settings:
        """A state directory without a file costs a look and no import. Raises ConfigInvalid."""
        self.stamp = stamp_of(self.file)  # before it is read: a change in between is seen as one
        if self._named is None and not os.path.lexists(self._home / CONFIG_FILE):
            return Settings() if self._policy is None else Settings(policy=self._policy)
        from clutch.config import load

        config = load.load(self._home, self._named)
        found = config.settings
        found = found if self._policy is None else replace(found, policy=self._policy)
        if config.path is not None and found.tools.sandbox is Sandbox.ON:
            # A config that a person names is the person's word, so only an unnamed one may be too early.
            home = self._home if self._named is None else Path("/")
            load.refuse_writable(config.path, home, self._workspaces(found))
        return found

    def _workspaces(self, said: Settings) -> set[str]:
        policy = self.policy(said)
        agents = {agent.workspace for agent in policy.agents.values() if agent.workspace}
        return {policy.defaults.workspace or ".", *agents}

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
