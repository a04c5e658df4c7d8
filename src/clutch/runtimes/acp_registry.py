"""External agents as a list: those that Clutch knows, and those of a registry in the format of the protocol's own.

A registry says how an agent is installed and started. Nothing here installs, starts or fetches anything."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from clutch.errors import InvalidInput
from clutch.runtimes.acp_process import KNOWN, AcpAgent, found_program

TEXT_CHARS_MAX: Final = 2000  # of an entry's text; a longer one is no description
ENTRIES_MAX: Final = 1000
#: The registry's word for a machine, where `platform` has another.
MACHINES: Final = {"arm64": "aarch64", "amd64": "x86_64"}


@dataclass(frozen=True, slots=True)
class AcpListing:
    """One line of the list. `name`: as in `runtime: "acp:NAME"`, or the id in the registry."""

    name: str
    version: str | None  #: None: not known without a registry
    description: str
    command: tuple[str, ...]  #: that starts it
    install: str  #: what to do to install it; empty: not known
    program: str | None  #: where it was found; None: it is not installed
    is_configured: bool = False


def known_listings(configured: Iterable[AcpAgent]) -> list[AcpListing]:
    """The agents of the config, then those that need no more there than their name."""
    own = {agent.name: agent for agent in configured}
    others = {name: agent for name, agent in KNOWN.items() if name not in own}
    return [
        AcpListing(
            name=agent.name,
            version=None,
            description="",
            command=(agent.command, *agent.args),
            install=agent.install,
            program=found_program(agent, agent.environment().get("PATH")),
            is_configured=agent.name in own,
        )
        for agent in (own | others).values()
    ]


def registry_listings(document: bytes) -> list[AcpListing]:
    """The agents of a registry's index that this machine can run. Raises InvalidInput for what is no registry."""
    try:
        index = json.loads(document)
    except ValueError as error:
        raise InvalidInput("registry", f"is not JSON: {error}") from error
    agents = index.get("agents") if isinstance(index, dict) else None
    if not isinstance(agents, list) or len(agents) > ENTRIES_MAX:
        rule = (
            f'must be an object with "agents", a list of at most {ENTRIES_MAX}, as the registry publishes it'
        )
        raise InvalidInput("registry", rule)
    found = (_listing(one, f"registry.agents.{place}") for place, one in enumerate(agents))
    return [one for one in found if one is not None]


class AcpDistribution(NamedTuple):
    """How an entry is started and installed, and the name of its program once it is."""

    command: tuple[str, ...]
    install: str
    program: str


def _listing(entry: Any, place: str) -> AcpListing | None:
    distribution = _object(_object(entry, place).get("distribution"), f"{place}.distribution")
    way = _way(distribution, f"{place}.distribution")
    if way is None:
        return None
    return AcpListing(
        name=_text(entry, "id", place),
        version=_text(entry, "version", place),
        description=_text(entry, "description", place, default=""),
        command=way.command,
        install=way.install,
        program=shutil.which(way.program),
    )


def _way(distribution: Mapping[str, Any], place: str) -> AcpDistribution | None:
    """Return the first way of this machine. None: there is a program for other machines only."""
    for kind, installs in (("npx", "npm install -g"), ("uvx", "uv tool install")):
        if kind in distribution:
            here = f"{place}.{kind}"
            package = _text(_object(distribution[kind], here), "package", here)
            command = (kind, package, *_args(distribution[kind], here))
            return AcpDistribution(command, f"{installs} {package}", program_of(package))
    target = (
        f"{platform.system().lower()}-{MACHINES.get(platform.machine().lower(), platform.machine().lower())}"
    )
    binary = _object(distribution.get("binary", {}), f"{place}.binary").get(target)
    if binary is None:
        return None
    here = f"{place}.binary.{target}"
    program = PurePosixPath(_text(_object(binary, here), "cmd", here)).name
    return AcpDistribution(
        (program, *_args(binary, here)), f"unpack {_text(binary, 'archive', here)}", program
    )


def program_of(package: str) -> str:
    """Return the program that a package usually installs: `@scope/name@1.2` is `name`. Known adapters say it."""
    bare = package[:1] + package[1:].partition("@")[0]
    known = (agent.command for agent in KNOWN.values() if agent.install.split()[-1:] == [bare])
    return next(known, bare.rpartition("/")[2].partition("==")[0])


def _object(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(place, "must be an object")
    return value


def _text(entry: Mapping[str, Any], name: str, place: str, default: str | None = None) -> str:
    value = entry.get(name, default)
    if not isinstance(value, str) or len(value) > TEXT_CHARS_MAX:
        raise InvalidInput(f"{place}.{name}", f"must be a text of at most {TEXT_CHARS_MAX} characters")
    return value


def _args(entry: Mapping[str, Any], place: str) -> tuple[str, ...]:
    args = entry.get("args", [])
    if not isinstance(args, list) or not all(isinstance(one, str) for one in args):
        raise InvalidInput(f"{place}.args", "must be a list of texts")
    return tuple(args)
