"""Removing what a task leaves behind: files first, outside any transaction, then the word that they are gone."""

from __future__ import annotations

import logging

from clutch.core.attachments import Shelf
from clutch.core.cleaning import EVERYTHING, Removal
from clutch.engine.kit import Kit
from clutch.errors import StoreError
from clutch.protocol import cleaning

log = logging.getLogger(__name__)


async def clean(kit: Kit, task_id: int) -> None:
    """Raises nothing that its timer would not try again anyway."""
    try:
        wanted = await kit.door.read(cleaning.awaited, kit.policy, task_id)
        if wanted is not None:
            await _clean(kit, task_id, wanted)
    except StoreError as error:
        log.warning("store not available", extra={"task": task_id, "error": str(error)})


async def _clean(kit: Kit, task_id: int, wanted: Removal) -> None:
    try:
        await _take_away(kit, task_id, wanted)
    except Exception as error:
        log.exception("cleanup failed; the task's timer tries again", extra={"task": task_id})
        told = f"{type(error).__name__}: {error}"
        await kit.door.alone(cleaning.failed, kit.policy, task_id, wanted, told)
        return
    await kit.door.alone(cleaning.cleaned, kit.policy, task_id, wanted)


async def _take_away(kit: Kit, task_id: int, wanted: Removal) -> None:
    """Again and again without harm."""
    if wanted.workspace and kit.workspaces is not None:
        await kit.workspaces.remove(task_id)
    if wanted.sides and kit.files is not None:
        sides = () if wanted.sides == EVERYTHING else wanted.sides
        await kit.files.remove(Shelf(task_id, wanted.number), *sides)
