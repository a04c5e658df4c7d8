"""The files of tasks in a fleet: on the disk of the machine that works, and as blobs for every other one.

What was given goes to the blobs at the spawn, what is handed over at the end of the task. A blob store that does not
answer fails no task: its files stay on the machine that has them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from clutch.core import ids
from clutch.core.attachments import MANIFEST, Attachment, AttachmentRules, FileVersion, Handed, Side
from clutch.logs import logger
from clutch.ports import Blobs, FilesFailed
from clutch.tools.task_files import LocalTaskFiles

log = logger(__name__)


class SharedTaskFiles(LocalTaskFiles):
    def __init__(self, local: LocalTaskFiles, blobs: Blobs) -> None:
        super().__init__(local.root)
        self._blobs = blobs

    async def put(self, version: FileVersion, files: Sequence[Attachment]) -> None:
        await super().put(version, files)
        await self._upload(version, Side.IN, files)

    async def handed(self, version: FileVersion, rules: AttachmentRules) -> Handed:
        handed = await super().handed(version, rules)
        local = super().read
        contents = [Attachment(file.name, await local(version, file.name)) for file in handed.files]
        await self._upload(version, Side.OUT, contents)
        return handed

    async def read(self, version: FileVersion, name: str) -> bytes:
        # What was handed over comes first: this machine may have an older file, of a turn that another one took over.
        content = await self._blobs.get(_key(version, Side.OUT, name))
        if content is not None:
            return content
        if self.exists(version):
            return await super().read(version, name)
        raise FilesFailed("files: the machine that has it is gone, and no copy was stored")

    async def remove(self, version: FileVersion, *sides: Side) -> None:
        # The blobs first: the sweep finds what is left of a failed removal by the directory.
        for folder in [_folder(version, side) for side in sides] or [_folder(version)]:
            await self._blobs.delete(folder)
        await super().remove(version, *sides)

    async def fetch(self, version: FileVersion) -> bool:
        here = Path(self.path(version))
        for side, sign in ((Side.IN, here / Side.IN / MANIFEST), (Side.OUT, here / Side.OUT)):
            if await asyncio.to_thread(sign.exists):
                continue
            keys = await self._blobs.keys(_folder(version, side))
            found = [(key.rpartition("/")[2], await self._blobs.get(key)) for key in keys]
            if files := [Attachment(name, content) for name, content in found if content is not None]:
                await self.restore(version, side, files)
        return self.exists(version)

    async def _upload(self, version: FileVersion, side: Side, files: Sequence[Attachment]) -> None:
        try:
            for file in files:
                await self._blobs.put(_key(version, side, file.name), file.content)
        except FilesFailed as error:
            task = ids.task_id(version.task_id)
            log.warning("Files of %s not stored for other machines: %s (they stay on this one)", task, error)


def _folder(version: FileVersion, side: Side | None = None) -> str:
    folder = f"tasks/{version.task_id}.{version.number}"
    return folder if side is None else f"{folder}/{side}"


def _key(version: FileVersion, side: Side, name: str) -> str:
    return f"{_folder(version, side)}/{name}"
