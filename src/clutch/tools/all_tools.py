"""All the tools of one process together: built-in ones behind the sandbox, Python functions, MCP servers.

Opened once and closed once. The registry (`box`) knows what a tool is; here is only who serves which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clutch.core.policy import Limits
from clutch.core.session_tools import SessionCall
from clutch.core.spawn import SpawnRequest
from clutch.core.validation import check
from clutch.ports import HumanQuestion, OperatorNotice, ToolContext, ToolPins, ToolSpec
from clutch.tools.file_process import FileProcess
from clutch.tools.import_guard import GUARD
from clutch.tools.mcp import McpServer, McpTools
from clutch.tools.registry import Tools, standard_tools
from clutch.tools.sandbox.policy import Sandbox
from clutch.tools.sandbox.protected_files import COMMANDS
from clutch.tools.shell import Shell, ShellArguments

SHELL = "Run a command in the workspace. No network unless granted."


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """`allow_private`: hosts `web_fetch` may reach although they are not public. `network`: for commands."""

    sandbox: Sandbox = Sandbox.ON  #: walls around commands and file tools; off is your decision, never ours
    network: bool = False  #: for commands in the sandbox, if their agent may have it
    allow_private: tuple[str, ...] = ()  #: hosts `web_fetch` may reach although they are not public
    aliases: bool = False  #: also offer tools under names other systems use
    shell_needs_approval: bool = False  #: a person approves every command
    mcp_servers: tuple[McpServer, ...] = ()  #: servers whose tools agents get

    def __post_init__(self) -> None:
        check(self)


def _setting(is_boxed: bool) -> Sandbox:
    return Sandbox.ON if is_boxed else Sandbox.OFF


class AllTools:
    """A Toolbox. `state`: where MCP servers have their folders, and what no tool may see."""

    def __init__(self, limits: Limits, settings: ToolSettings, state: Path | None) -> None:
        hidden = () if state is None else (str(state),)
        journal = None if state is None else str(state / COMMANDS)
        self._files = {
            is_boxed: FileProcess(sandbox=_setting(is_boxed), hidden=hidden) for is_boxed in (True, False)
        }
        self._shells = {
            (is_boxed, network): Shell(_setting(is_boxed), network, hidden=hidden, journal=journal)
            for is_boxed in (True, False)
            for network in (False, settings.network)
        }
        self._has_network = settings.network
        self.tools: Tools = standard_tools(
            limits, run_files=self._in_room, allow_private=settings.allow_private, aliases=settings.aliases
        )
        self.tools.add(
            self._run_shell,
            arguments=ShellArguments,
            name="shell",
            description=SHELL,
            needs_approval=settings.shell_needs_approval,
        )
        self.has_servers = bool(settings.mcp_servers)
        self.is_boxed = settings.sandbox is Sandbox.ON
        self.mcp = None if state is None else McpTools(settings.mcp_servers, state)

    async def open(self, pins: ToolPins) -> None:
        """Before the first turn: which tools of MCP servers are approved."""
        if self.mcp is not None:
            await self.mcp.open(pins)

    async def ready(self) -> None:
        """MCP servers nobody has ever seen are asked what they offer."""
        if self.mcp is not None:
            await self.mcp.ready()

    def problems(self) -> Sequence[OperatorNotice]:
        """MCP servers that do not work now."""
        return () if self.mcp is None else self.mcp.reports()

    async def close(self) -> None:
        for room in self._files.values():
            await room.close()
        if self.mcp is not None:
            await self.mcp.close()

    def _boxes(self, context: ToolContext) -> bool:
        return self.is_boxed if context.is_boxed is None else context.is_boxed

    async def _in_room(self, name: str, args: Mapping[str, Any], workspace: str, context: ToolContext) -> str:
        GUARD.protect((workspace,))
        room = self._files[self._boxes(context)]
        return await room.run(name, args, workspace, read_only=name not in ("write", "edit"))

    async def _run_shell(self, given: ShellArguments, context: ToolContext) -> str:
        if given.cwd == ".":
            given = given.model_copy(update={"cwd": context.cwd})
        GUARD.protect((context.workspace,))
        shell = self._shells[self._boxes(context), context.network and self._has_network]
        return await shell.run(given, context, context.on_output)

    # ---- a Toolbox -----------------------------------------------------------------------------------

    def specs(self) -> Sequence[ToolSpec]:
        own = self.tools.specs()
        return own if self.mcp is None else [*own, *self.mcp.specs()]

    async def run(self, name: str, args: Mapping[str, Any], context: ToolContext) -> str:
        if self.mcp is not None and not self.tools.has(name) and self.mcp.has(name):
            return await self.mcp.run(name, args, context)
        return await self.tools.run(name, args, context)

    def human_question(self, args: Mapping[str, Any]) -> HumanQuestion:
        return self.tools.human_question(args)

    def spawn_request(self, args: Mapping[str, Any]) -> SpawnRequest:
        return self.tools.spawn_request(args)

    def session_call(self, name: str, args: Mapping[str, Any]) -> SessionCall:
        return self.tools.session_call(name, args)
