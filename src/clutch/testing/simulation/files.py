"""The files of tasks: on a disk that all gateways share and that outlives them, slow, and sometimes unwilling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from clutch.core.attachments import Attachment, AttachmentRules, FileVersion, Handed, Side, StoredFile
from clutch.ports import FilesFailed
from clutch.testing.simulation.faults import Fault

if TYPE_CHECKING:
    from clutch.testing.simulation.gateway import SimDatabase
    from clutch.testing.simulation.world import World

FOUND = StoredFile("found", 5, "0" * 64)


def shelf_at(path: str) -> FileVersion:
    """The other way round."""
    return FileVersion(*map(int, path.rpartition("/")[2].split(".")))


class SimFiles:
    """As one life of a gateway sees them. Of each file version only which sides it has."""

    def __init__(self, world: World, db: SimDatabase) -> None:
        self._world, self._db = world, db

    def path(self, shelf: FileVersion) -> str:
        return f"files/{shelf.task_id}.{shelf.number}"

    def exists(self, shelf: FileVersion) -> bool:
        return shelf in self._world.files

    async def put(self, shelf: FileVersion, files: Sequence[Attachment]) -> None:
        del files
        await self._takes()
        if self._world.dice.strikes(Fault.WORKSPACE_FAILED, shelf.task_id):
            raise FilesFailed("files: no space left on device")
        self._world.files.setdefault(shelf, set()).add(Side.IN)
        await self._takes()

    async def handed(self, shelf: FileVersion, rules: AttachmentRules) -> Handed:
        del rules
        await self._takes()
        return Handed((FOUND,) if Side.OUT in self._world.files.get(shelf, ()) else ())

    async def read(self, shelf: FileVersion, name: str) -> bytes:
        raise FilesFailed(f"the simulation reads no {name} of {shelf}")

    async def remove(self, shelf: FileVersion, *sides: Side) -> None:
        await self._takes()
        if self._world.dice.strikes(Fault.CLEANUP_FAILED, shelf.task_id):
            raise FilesFailed("files: directory not empty")
        there = self._world.files.get(shelf, set())
        left = there.difference(sides or tuple(Side))
        if there != left:
            self._world.observer.removes_files(shelf, there - left)
        if left:
            self._world.files[shelf] = left
        else:
            self._world.files.pop(shelf, None)

    async def fetch(self, shelf: FileVersion) -> bool:
        return self.exists(shelf)

    async def kept(self) -> list[FileVersion]:
        return sorted(self._world.files)

    async def _takes(self) -> None:
        await self._db.takes(self._world.rng.random() * 0.1)
