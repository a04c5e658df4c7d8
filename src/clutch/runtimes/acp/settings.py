"""What a person says about one external agent. Nothing here starts it.

An agent gets nothing of ours by itself: its environment is a short list and what is named here. Who uses its own
login needs no key from us; who does not names the variable in `inherit`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from clutch.errors import InvalidInput

TIMEOUT_MAX_S = 24 * 3600.0
#: What every program needs to run at all; never a key.
INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class AcpAgent:
    """`runtime: "acp:NAME"` starts `command`. Paths may begin with `~`. Raises InvalidInput naming the field."""

    name: str
    command: str = ""  #: without one, that of the known agent of this name, with all it needs
    args: tuple[str, ...] = ()  #: of the command
    install: str = ""  #: what brings the command here; said when it is missing
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  #: variables it gets
    inherit: frozenset[str] = frozenset()  #: names of our own variables it may see beside INHERITED
    sandbox: bool = True  #: it runs behind walls where the session's tools do
    visible: tuple[str, ...] = ()  #: folders it can read behind walls, such as the one it is installed in
    writable: tuple[
        str, ...
    ] = ()  #: ... and those it may change beside the workspace: its login, its sessions
    start_timeout_s: float = 60.0  #: until it is ready for a prompt
    silence_timeout_s: float = 1800.0  #: without a word or a sign of work; a build may take long

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidInput(
                f"acp.agents.{self.name[:40]!r}", "a name is up to 32 of a-z, 0-9, - and _; rename the agent"
            )
        if not self.command.strip():
            self._be_known()
        for name in (*self.env, *self.inherit):
            if not _VARIABLE.fullmatch(name):
                self._refuse("env", f"{name[:40]!r} is no name of a variable")
            if name.startswith("CLUTCH_"):
                self._refuse("env", f"{name} is a secret of Clutch and is never given to an agent")
        for name in ("start_timeout_s", "silence_timeout_s"):
            if not 0 < getattr(self, name) <= TIMEOUT_MAX_S:
                self._refuse(name, f"must be more than 0 and at most {TIMEOUT_MAX_S:g} seconds")

    def _be_known(self) -> None:
        known = KNOWN.get(self.name)
        if known is None:
            self._refuse("command", f"must name a program; known without one: {', '.join(KNOWN)}")
        else:
            for name in ("command", "args", "install", "writable"):
                object.__setattr__(self, name, getattr(self, name) or getattr(known, name))

    def _refuse(self, key: str, rule: str) -> None:
        raise InvalidInput(f"acp.agents.{self.name}.{key}", rule)

    def environment(self) -> dict[str, str]:
        names = (*INHERITED, *sorted(self.inherit))
        return {name: os.environ[name] for name in names if name in os.environ} | dict(self.env)

    @property
    def remedy(self) -> str:
        how = f"install it with `{self.install}`, or " if self.install else ""
        return f"{how}set acp.agents.{self.name}.command to where it is"


def _known(name: str, *argv: str, install: str, keeps: tuple[str, ...]) -> AcpAgent:
    return AcpAgent(name=name, command=argv[0], args=argv[1:], install=install, writable=keeps)


#: The adapters of their makers, as they are installed: nothing is fetched while a task runs.
KNOWN: Mapping[str, AcpAgent] = MappingProxyType(
    {
        agent.name: agent
        for agent in (
            _known(
                "claude",
                "claude-agent-acp",
                install="npm install -g @agentclientprotocol/claude-agent-acp",
                keeps=("~/.claude", "~/.claude.json"),
            ),
            _known(
                "codex", "codex-acp", install="npm install -g @zed-industries/codex-acp", keeps=("~/.codex",)
            ),
            _known(
                "gemini", "gemini", "--acp", install="npm install -g @google/gemini-cli", keeps=("~/.gemini",)
            ),
            _known(
                "opencode",
                "opencode",
                "acp",
                install="npm install -g opencode-ai",
                keeps=("~/.config/opencode", "~/.local/share/opencode", "~/.local/state/opencode"),
            ),
        )
    }
)


def chosen(given: Iterable[str | AcpAgent]) -> list[AcpAgent]:
    """Names of known agents, and agents of one's own. The first is the one `runtime: "acp"` means."""
    found: dict[str, AcpAgent] = {}
    for one in given:
        agent = one if isinstance(one, AcpAgent) else KNOWN.get(one)
        if agent is None:
            raise InvalidInput("acp", f"there is no agent {one!r}; known: {', '.join(KNOWN)}; or AcpAgent(…)")
        if agent.name in found:
            raise InvalidInput(f"acp.agents.{agent.name}", "is there twice; rename one")
        found[agent.name] = agent
    return list(found.values())
