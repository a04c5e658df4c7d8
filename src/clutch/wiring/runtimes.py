"""Other ways to work on a task, by the names a spawn calls them: external agents, and functions of the program."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clutch.core.admission import OWN_RUNTIME
from clutch.errors import InvalidInput
from clutch.ports import Runtime
from clutch.runtimes import acp as external
from clutch.runtimes.acp import AcpAgent
from clutch.runtimes.function import Function, FunctionRuntime
from clutch.tools.sandbox.programs import BoxedPrograms

ACP = "acp"  #: the runtime of external agents; also where the state directory tells which of their sessions are whose
OWN_RUNTIMES = (OWN_RUNTIME, "agent", ACP)  #: names with a meaning of their own
RUNTIME_CHARS_MAX = 64


def external_agents(given: Sequence[str | AcpAgent], home: Path) -> dict[str, Runtime]:
    """`acp:NAME` each, and `acp` for the first."""
    boxes = BoxedPrograms(hidden=(str(home),))
    found: dict[str, Runtime] = {
        f"{ACP}:{agent.name}": external.AcpRuntime(agent, home / ACP, boxes)
        for agent in external.chosen(given)
    }
    return ({ACP: next(iter(found.values()))} if found else {}) | found


def check_name(name: object, known: dict[str, Runtime]) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= RUNTIME_CHARS_MAX:
        raise InvalidInput("runtime", f'needs a name of at most {RUNTIME_CHARS_MAX}: @c.runtime("crawler")')
    if name in (*OWN_RUNTIMES, *known) or name.startswith(f"{ACP}:"):
        raise InvalidInput(f"runtime {name!r}", "there is already one of this name; choose another")


def runtime_of(function: Function) -> Runtime:
    return FunctionRuntime(function)
