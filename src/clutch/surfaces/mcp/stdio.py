"""`clutch mcp`: a client of the gateway on one side, an MCP server on stdin and stdout on the other.

It owns nothing: the work is done by the gateway of the state directory, which goes on when this process ends. Where
the gateway is, is looked up for each call, so that one that was started again is found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from mcp.server.stdio import stdio_server

from clutch.surfaces.client import Client
from clutch.surfaces.mcp.server import Context, client_name, make_server, session_key
from clutch.surfaces.mcp.tools import Tool


@dataclass(frozen=True, slots=True)
class Remote:
    """The gateway in another process, in the name of a session."""

    connect: Callable[[], Client]
    session: str

    async def call(self, tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
        body: dict[str, Any] = await asyncio.to_thread(self._ask, tool, arguments)
        return body

    def _ask(self, tool: Tool, arguments: Mapping[str, Any]) -> Any:
        named, rest = tool.place(arguments)
        path = tool.entry.path.format_map({name: quote(value, safe="") for name, value in named.items()})
        client = replace(self.connect(), session=self.session)
        return client.post(path, rest) if tool.entry.is_write else client.get(path, **rest)


async def serve(connect: Callable[[], Client], agent_id: str, name: str | None) -> None:
    """Until stdin ends. `name`: of its session; without one, what the client calls itself."""

    def door_of(context: Context) -> Remote:
        return Remote(connect, session_key(agent_id, name or client_name(context)))

    server = make_server(door_of)
    async with stdio_server() as (heard, said):
        await server.run(heard, said, server.create_initialization_options())
