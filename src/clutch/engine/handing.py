"""What a task hands over is written down just before its end. A task without a directory costs one look at the disk."""

from __future__ import annotations

import logging

from clutch.core.attachments import Shelf
from clutch.engine.kit import Kit
from clutch.ports import FilesFailed
from clutch.protocol import preparing

log = logging.getLogger(__name__)


async def hand_over(kit: Kit, shelf: Shelf) -> None:
    if kit.files is None or not kit.files.exists(shelf):
        return
    try:
        handed = await kit.files.handed(shelf, kit.policy.limits.attachments)
    except FilesFailed:
        log.exception("files are not listed", extra={"task": shelf.task_id})
        return
    await kit.door.tx(shelf.task_id, preparing.hands_over, shelf, handed)
