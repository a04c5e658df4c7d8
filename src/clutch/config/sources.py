"""The config of one process: its file, if there is one, and the arguments of the program, which win over the file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clutch.config.keys import Settings
from clutch.core.agents import Agent, roster
from clutch.core.policy import Policy, with_concurrency
from clutch.surfaces.discovery import CONFIG_FILE, stamp_of
from clutch.tools.sandbox.policy import Sandbox


@dataclass(frozen=True, slots=True)
class GivenConfig:
    """What a program passes to `Clutch` beside the file. None: the file decides."""

    policy: Policy | None = None
    model: str | None = None
    workspace: Path | str | None = None
    agents: Sequence[Agent] = ()
    is_headless: bool = False
    concurrency: int | None = None


class ConfigSource:
    """`named`: the file that was named; None for the one in the state directory `home`, which may be absent."""

    def __init__(self, home: Path, named: Path | str | None, given: GivenConfig | None = None) -> None:
        self._home, self._named, self._given = home, named, given or GivenConfig()
        self.settings = Settings()  #: as the file was when the process applied it
        self.stamp: tuple[int, ...] | None = None  #: of the file that was read last

    @property
    def file(self) -> Path:
        return self._home / CONFIG_FILE if self._named is None else Path(self._named).absolute()

    @property
    def is_changed(self) -> bool:
        """Whether the file differs from the one that was read last."""
        return stamp_of(self.file) != self.stamp

    def load(self) -> Settings:
        """Read the file, to apply it. Raises ConfigInvalid."""
        # The stamp is taken before the file is read: a change in between counts as one.
        self.stamp = stamp_of(self.file)
        return self.read()

    def read(self) -> Settings:
        """Return what the file says now. A state directory without one costs a look and no import.

        Raises ConfigInvalid."""
        given = self._given.policy
        if self._named is None and not os.path.lexists(self._home / CONFIG_FILE):
            return Settings() if given is None else Settings(policy=given)
        from clutch.config import load

        config = load.load(self._home, self._named)
        found = config.settings if given is None else replace(config.settings, policy=given)
        if config.path is not None and found.tools.sandbox is Sandbox.ON:
            # The operator vouches for a config that they name; an unnamed one may be older than its state directory.
            home = self._home if self._named is None else Path("/")
            load.refuse_writable(config.path, home, self._workspaces(found))
        return found

    @property
    def given_names(self) -> tuple[str, ...]:
        """The arguments of the program that win over the file."""
        given = self._given
        named = {
            "policy": given.policy,
            "model": given.model,
            "workspace": given.workspace,
            "agents": given.agents,
            "headless": given.is_headless,
            "concurrency": given.concurrency,
        }
        return tuple(name for name, value in named.items() if value)

    def _workspaces(self, settings: Settings) -> set[str]:
        policy = self.policy(settings)
        agents = {agent.workspace for agent in policy.agents.values() if agent.workspace}
        return {policy.defaults.workspace or ".", *agents}

    def policy(self, settings: Settings) -> Policy:
        """Return the policy in effect: an argument of the program replaces what the file says of the same thing."""
        policy, given = settings.policy, self._given
        listed = policy.agents
        if given.policy is None:
            named = {getattr(agent, "id", None) for agent in given.agents}
            listed = {name: agent for name, agent in listed.items() if name not in named}
        defaults = policy.defaults
        place = str(Path(given.workspace or defaults.workspace or ".").absolute())
        model = defaults.model if given.model is None else given.model
        if given.concurrency is not None:
            policy = with_concurrency(policy, given.concurrency)
        return replace(
            policy,
            is_headless=policy.is_headless or given.is_headless,
            agents=roster([*listed.values(), *given.agents]),
            defaults=replace(defaults, model=model, workspace=place),
        )
