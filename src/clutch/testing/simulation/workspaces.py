"""The directories of isolated children: slow to make, on a disk that all gateways share and that outlives them.

A process that dies or is stopped while it makes one leaves it half-made.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from clutch.ports import WorkspaceFailed
from clutch.testing.simulation.faults import Fault

if TYPE_CHECKING:
    from clutch.testing.simulation.gateway import SimDatabase
    from clutch.testing.simulation.world import World

MAKES_S: Final = (0.05, 0.3, 1.0, 2.0, 6.0)
HANGS_S: Final = 12.0  # longer than a simulated spawn may take


class Directory(StrEnum):
    HALF_MADE = "half-made"
    MADE = "made"


def path_of(task_id: int) -> str:
    return f"isolated/{task_id}"


class SimWorkspaces:
    """As one life of a gateway sees them."""

    def __init__(self, world: World, db: SimDatabase) -> None:
        self._world, self._db = world, db

    async def make(self, task_id: int, source: str) -> str:
        del source
        if self._world.directories.get(task_id) is not Directory.MADE:
            await self._copy(task_id)
        return path_of(task_id)

    async def _copy(self, task_id: int) -> None:
        world = self._world
        world.directories[task_id] = Directory.HALF_MADE
        await self._db.takes(world.rng.choice(MAKES_S))
        if world.dice.strikes(Fault.WORKSPACE_HANGS, task_id):
            await self._db.takes(HANGS_S)
        if world.dice.strikes(Fault.WORKSPACE_FAILED, task_id):
            raise WorkspaceFailed("workspace: no space left on device")
        world.directories[task_id] = Directory.MADE

    async def remove(self, task_id: int) -> None:
        await self._db.takes(self._world.rng.random() * 0.1)
        if self._world.dice.strikes(Fault.CLEANUP_FAILED, task_id):
            raise WorkspaceFailed("workspace: directory not empty")
        self._world.observer.removes(task_id)
        self._world.directories.pop(task_id, None)

    async def kept(self) -> list[int]:
        return sorted(self._world.directories)
