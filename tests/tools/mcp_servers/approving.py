"""Approvals in memory: as long as somebody holds on to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from clutch.core.model import Definition, ToolOffer
from clutch.tools.mcp import McpServer, McpTools


class MemoryPins:
    def __init__(self) -> None:
        self.offers: dict[str, Sequence[ToolOffer]] = {}  #: what waits, by server
        self._approved: dict[str, dict[str, Definition]] = {}
        self._stamp = 0

    async def stamp(self) -> int:
        return self._stamp

    async def approved(self) -> Mapping[str, Mapping[str, Definition]]:
        return {server: dict(tools) for server, tools in self._approved.items()}

    async def see(self, server: str, tools: Mapping[str, Definition]) -> None:
        self._approved.setdefault(server, dict(tools))
        self._stamp += 1

    async def ask(self, server: str, offers: Sequence[ToolOffer]) -> Mapping[str, str]:
        self.offers[server] = offers
        return {}

    def approve(self, server: str) -> None:
        """Everything that waits."""
        self._approved[server] |= {offer.tool: offer.after for offer in self.offers[server]}
        self._stamp += 1


async def opened(servers: Iterable[McpServer], state: Path, pins: MemoryPins | None = None) -> McpTools:
    tools = McpTools(servers, state)
    await tools.open(pins or MemoryPins())
    return tools
