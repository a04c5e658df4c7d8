"""The tools an agent has: one registry that checks arguments, runs, and keeps answers storable.

Who may use which tool is not decided here. `sessions_spawn` and `sessions_yield` are described here like all
others, but they change the ledger, so the engine carries them out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from clutch.core.admission import SpawnRequest
from clutch.core.policy import Limits
from clutch.errors import InvalidInput
from clutch.ports import ToolContext, ToolFailed, ToolSpec
from clutch.tools import files, sessions
from clutch.tools.arguments import checked, schema_of

ANSWER_CHARS_MAX = 256 * 1024  # one answer must never fill a context window by itself
ERROR_CHARS_MAX = 500

A = TypeVar("A", bound=BaseModel)

SPAWN = ToolSpec(
    "sessions_spawn",
    "Give a task to a child that works in the background. Answers at once. The result is pushed to you when "
    "the child is done: do not poll, and answer only after ALL children have reported.",
    schema_of(sessions.SpawnArguments),
)
YIELD = ToolSpec(
    "sessions_yield",
    "Wait until all your children have reported. Their results come as your next message.",
    schema_of(sessions.YieldArguments),
    replay_safe=True,
    read_only=True,
)


@dataclass(frozen=True, slots=True)
class _Tool:
    spec: ToolSpec
    run: Callable[[Mapping[str, Any], ToolContext], Awaitable[str]]


class Tools:
    """A Toolbox. Empty but for the session tools; `standard_tools` has the file tools too."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._tools: dict[str, _Tool] = {}

    def add(
        self,
        function: Callable[[A, ToolContext], Awaitable[str]],
        *,
        arguments: type[A],
        name: str | None = None,
        description: str | None = None,
        replay_safe: bool = False,
        read_only: bool = False,
    ) -> None:
        """Without a name or description, the function's own are used."""
        name = name or function.__name__
        if name in self._tools or name in (SPAWN.name, YIELD.name):
            raise ValueError(f"there is already a tool named {name!r}")
        description = description or (function.__doc__ or "").strip()
        spec = ToolSpec(name, description, schema_of(arguments), replay_safe, read_only)

        async def run(args: Mapping[str, Any], context: ToolContext) -> str:
            return await function(checked(arguments, args), context)

        self._tools[name] = _Tool(spec, run)

    def specs(self) -> Sequence[ToolSpec]:
        return [*(tool.spec for tool in self._tools.values()), SPAWN, YIELD]

    async def run(self, name: str, args: Mapping[str, Any], context: ToolContext) -> str:
        tool = self._tools.get(name)
        if tool is None:
            raise ToolFailed(f"there is no tool named {name[:80]!r}; there are: {', '.join(self._tools)}")
        try:
            return storable(await tool.run(args, context))
        except (InvalidInput, ToolFailed) as error:
            raise ToolFailed(storable(str(error))) from error
        except Exception as error:  # a tool is a stranger's code; the model hears what it raised
            raise ToolFailed(storable(f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX])) from error

    def spawn_request(self, args: Mapping[str, Any]) -> SpawnRequest:
        return sessions.request_of(args, self._limits)


def standard_tools(limits: Limits | None = None) -> Tools:
    tools = Tools(limits)
    tools.add(files.read, arguments=files.ReadArguments, replay_safe=True, read_only=True)
    tools.add(files.list_files, name="list", arguments=files.ListArguments, replay_safe=True, read_only=True)
    tools.add(files.search, arguments=files.SearchArguments, replay_safe=True, read_only=True)
    # Writing the same text again changes nothing, so a crash in between is no reason to ask.
    tools.add(files.write, arguments=files.WriteArguments, replay_safe=True)
    return tools


def storable(text: str) -> str:
    """No database takes NUL or half a surrogate pair, and no model a text without end."""
    clean = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if len(clean) <= ANSWER_CHARS_MAX:
        return clean
    return f"{clean[:ANSWER_CHARS_MAX]}\n(cut: {len(clean)} characters, {ANSWER_CHARS_MAX} shown)"
