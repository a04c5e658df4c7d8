"""What a task hands over is written down just before its end. A task without a directory costs one look at the disk."""

from __future__ import annotations

from clutch.core.attachments import EVERYTHING, FileVersion, Removal
from clutch.engine.services import Services
from clutch.errors import StoreError
from clutch.logs import logger
from clutch.ports import FilesFailed
from clutch.transactions import task_files

log = logger(__name__)


async def hand_over(services: Services, shelf: FileVersion) -> None:
    if services.files is None or not services.files.exists(shelf):
        return
    try:
        handed = await services.files.handed(shelf, services.policy.limits.attachments)
    except FilesFailed:
        log.exception("files are not listed", extra={"task": shelf.task_id})
        return
    await services.db.tx(shelf.task_id, task_files.hands_over, shelf, handed)


# --------------------------------------------------------------------------------------------------
# Removing what a task leaves behind: files first, outside any transaction, then the word that they are gone.


async def clean(services: Services, task_id: int) -> None:
    """Raises nothing that its timer would not try again anyway."""
    try:
        wanted = await services.db.read(task_files.awaited, services.policy, task_id)
        if wanted is not None:
            await _clean(services, task_id, wanted)
    except StoreError as error:
        log.warning("store not available", extra={"task": task_id, "error": str(error)})


async def _clean(services: Services, task_id: int, wanted: Removal) -> None:
    try:
        await _take_away(services, task_id, wanted)
    except Exception as error:
        log.exception("cleanup failed; the task's timer tries again", extra={"task": task_id})
        told = f"{type(error).__name__}: {error}"
        await services.db.alone(task_files.failed, services.policy, task_id, wanted, told)
        return
    await services.db.alone(task_files.cleaned, services.policy, task_id, wanted)


async def _take_away(services: Services, task_id: int, wanted: Removal) -> None:
    """Again and again without harm."""
    if wanted.workspace and services.workspaces is not None:
        await services.workspaces.remove(task_id)
    if wanted.sides and services.files is not None:
        sides = () if wanted.sides == EVERYTHING else wanted.sides
        await services.files.remove(FileVersion(task_id, wanted.number), *sides)
