"""The channel of a simulated world: slow, sometimes down, and sometimes silent about what it has done.

People read what it brings at once; that outlives every process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clutch.testing.simulation.faults import Fault

if TYPE_CHECKING:
    from clutch.testing.simulation.gateway import Gateway, SimDatabase

NAMES: Final = ("terminal", "web")
SENDS_S: Final = (0.01, 0.05, 0.3, 1.0)
HANGS_S: Final = 8.0  # longer than a simulated send may take


class SimChannel:
    """As one life of a gateway sees it."""

    def __init__(self, gateway: Gateway, db: SimDatabase) -> None:
        self._gateway, self._world, self._db = gateway, gateway.world, db

    async def send(self, target: str, body: str, key: str) -> str | None:
        dice = self._world.dice
        self._world.observer.tries(key)
        await self._db.takes(self._world.rng.choice(SENDS_S))
        if dice.strikes(Fault.CHANNEL_DOWN, key):
            raise ConnectionError("503")
        if dice.strikes(Fault.CHANNEL_REFUSES, key):
            raise PermissionError("there is no such thread any more")
        self._world.observer.sends(target, body, key)
        if dice.strikes(Fault.CHANNEL_CUT, key):
            self._world.observer.unanswered(key)
            raise ConnectionResetError("cut")
        if dice.strikes(Fault.CHANNEL_UNHEARD, key):
            self._world.observer.unanswered(key)
            await self._db.takes(HANGS_S)
        return None if dice.strikes(Fault.CHANNEL_NO_RECEIPT, key) else f"receipt of {key}"

    async def open_thread(self, target: str, title: str, key: str) -> str:
        del target, title
        await self._db.takes(self._world.rng.choice(SENDS_S))
        return key
