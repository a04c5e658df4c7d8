"""A copy of what is approved, for those who cannot wait for the store: which tools a model is shown.

The whole definition is kept, so that a model is shown the approved words only, and a person what changed.
The copy may be old for a moment. Then a tool is withheld that was just approved, never the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clutch.core.pins import ToolOffer
from clutch.ports import ToolPins
from clutch.tools.mcp.naming import Definition


class Pins:
    def __init__(self) -> None:
        self._store: ToolPins | None = None
        self._stamp: int | None = None
        self._approved: Mapping[str, Mapping[str, Definition]] = {}

    async def open(self, store: ToolPins) -> None:
        self._store = store
        await self.look()

    def knows(self, server: str) -> bool:
        return server in self._approved

    def tools(self, server: str) -> Mapping[str, Definition]:
        return self._approved.get(server, {})

    async def look(self) -> bool:
        """Whether somebody has decided something since."""
        stamp = await self._opened.stamp()
        if stamp == self._stamp:
            return False
        approved = await self._opened.approved()
        self._approved = {
            server: {name: Definition.from_json(tool) for name, tool in tools.items()}
            for server, tools in approved.items()
        }
        self._stamp = stamp
        return True

    async def see(self, server: str, tools: Mapping[str, Definition]) -> None:
        """Approves everything a server has when it is seen for the first time."""
        if not self.knows(server):
            await self._opened.see(server, {name: tool.as_json() for name, tool in tools.items()})
        await self.look()

    async def ask(self, server: str, offers: Sequence[ToolOffer]) -> Mapping[str, str]:
        """Those that a person rejected, and what names the question about each."""
        return await self._opened.ask(server, offers)

    @property
    def _opened(self) -> ToolPins:
        assert self._store is not None, "the tools of MCP servers are opened before they are used"
        return self._store
