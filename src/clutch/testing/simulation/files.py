"""The files of tasks: on a disk that all gateways share and that outlives them, slow, and sometimes unwilling."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from clutch.core.attachments import Attachment, AttachmentRules, Handed, Side, StoredFile
from clutch.ports import FilesFailed
from clutch.testing.simulation.faults import Dead, Fault

if TYPE_CHECKING:
    from clutch.testing.simulation.gateway import SimDoor
    from clutch.testing.simulation.world import World

FOUND = StoredFile("found", 5, "0" * 64)


class SimFiles:
    """As one life of a gateway sees them. Of each task only which sides it has."""

    def __init__(self, world: World, door: SimDoor) -> None:
        self._world, self._door = world, door

    def path(self, task_id: int) -> str:
        return f"files/{task_id}"

    def exists(self, task_id: int) -> bool:
        return task_id in self._world.files

    async def put(self, task_id: int, files: Sequence[Attachment]) -> None:
        del files
        await self._takes()
        if self._world.dice.strikes(Fault.WORKSPACE_FAILED, task_id):
            raise FilesFailed("files: no space left on device")
        self._world.files.setdefault(task_id, set()).add(Side.IN)
        await self._takes()

    async def handed(self, task_id: int, rules: AttachmentRules) -> Handed:
        del rules
        await self._takes()
        return Handed((FOUND,) if Side.OUT in self._world.files.get(task_id, ()) else ())

    async def read(self, task_id: int, name: str) -> bytes:
        raise FilesFailed(f"nobody reads {name} of {task_id} here")

    async def remove(self, task_id: int, *sides: Side) -> None:
        self._world.witness.removes_files(task_id, sides or tuple(Side))
        await self._takes()
        if self._world.dice.strikes(Fault.CLEANUP_FAILED, task_id):
            raise FilesFailed("files: directory not empty")
        left = self._world.files.get(task_id, set()).difference(sides or tuple(Side))
        if left:
            self._world.files[task_id] = left
        else:
            self._world.files.pop(task_id, None)

    async def kept(self) -> list[int]:
        return sorted(self._world.files)

    async def _takes(self) -> None:
        await asyncio.sleep(self._world.rng.random() * 0.1)
        if self._door.is_dead:
            raise Dead
