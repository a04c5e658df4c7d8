"""Where the tools of MCP servers learn what is approved: the store, asked through the one door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clutch.core import keys
from clutch.core.pins import Definition, ToolOffer
from clutch.engine.insisting import surely
from clutch.engine.kit import Kit
from clutch.protocol import pins


class StoredPins:
    """The port `ToolPins`."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit

    async def stamp(self) -> int:
        return await self._kit.door.read(pins.stamp)

    async def approved(self) -> Mapping[str, Mapping[str, Definition]]:
        return await self._kit.door.read(pins.approved)

    async def see(self, server: str, tools: Mapping[str, Definition]) -> None:
        kit = self._kit
        await surely(kit.policy.work.tick_s, lambda: kit.door.alone(pins.see, server, tools))

    async def ask(self, server: str, offers: Sequence[ToolOffer]) -> Mapping[str, str]:
        kit = self._kit
        asked = (kit.policy, server, offers, [kit.ids.next() for _ in offers])
        rejected = await surely(kit.policy.work.tick_s, lambda: kit.door.alone(pins.ask, *asked))
        return {tool: f"{keys.question_id(number)}, hash {seen}" for tool, (number, seen) in rejected.items()}
