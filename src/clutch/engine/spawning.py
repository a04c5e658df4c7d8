"""Spawning with side work: the task is reserved, its files are made, then it is queued; or all of it is undone.

Contents of attachments live in the spawn call until they are on disk: an agent's call is in its transcript, and
whoever goes on with its run after a crash makes them again; a program that got no answer has its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TypeAlias

from clutch.core.admission import Refused
from clutch.core.model import Workspace
from clutch.engine.kit import Kit
from clutch.ports import FilesFailed, SideWorkFailed, TaskFiles, WorkspaceFailed, Workspaces
from clutch.protocol import preparing
from clutch.protocol.spawn import Accepted, Order, spawn

log = logging.getLogger(__name__)

#: A text: the side work failed and nothing is left of the spawn.
Spawned: TypeAlias = Accepted | Refused | str
NO_WORKSPACES = "workspace: no directory for isolated workspaces is configured here"
NO_FILES = "attachments: no directory for files is configured here"


async def spawn_all(
    kit: Kit, session_id: int, root_id: int, fence: int | None, orders: Sequence[Order]
) -> list[Spawned]:
    """All spawns of one answer in one transaction, then the side work of each that has some."""
    answers = await kit.door.tx((root_id, session_id), spawn, kit.policy, session_id, root_id, fence, orders)
    pairs = zip(orders, answers, strict=True)
    return list(await asyncio.gather(*(_prepared(kit, order, answer) for order, answer in pairs)))


async def _prepared(kit: Kit, order: Order, answer: Accepted | Refused) -> Spawned:
    if isinstance(answer, Refused) or not answer.is_spawning:
        return answer
    try:
        path = await _side_work(kit, order, answer)
    except Exception as error:  # noqa: BLE001 - whatever failed, nothing of the spawn may stay
        is_told = isinstance(error, SideWorkFailed)
        why = str(error) if is_told else f"side work: {type(error).__name__}: {error}"
        await undo(kit, answer.task_id, why)
        return why
    if not await kit.door.tx(answer.task_id, preparing.ready, kit.policy, answer.task_id, path):
        await _remove(kit, answer.task_id)
        return "the spawn was given up before its files were made"
    return answer


async def _side_work(kit: Kit, order: Order, answer: Accepted) -> str | None:
    """The path of its own workspace, if it has one."""
    if order.request.attachments:
        if kit.files is None:
            raise FilesFailed(NO_FILES)
        await kit.files.put(answer.task_id, order.request.attachments)
    if order.request.workspace is not Workspace.ISOLATED:
        return None
    if kit.workspaces is None:
        raise WorkspaceFailed(NO_WORKSPACES)
    return await kit.workspaces.make(answer.task_id, answer.workspace or ".")


async def undo(kit: Kit, task_id: int, why: str) -> None:
    """The row first: whoever still makes the files learns from it that they are not wanted any more."""
    if await kit.door.alone(preparing.undo, kit.policy, task_id, why):
        await _remove(kit, task_id)


async def sweep(kit: Kit) -> None:
    """At the start: whoever undid a spawn, or was about to make its files, may have died before they were gone."""
    if kit.workspaces is not None:
        for task_id in await kit.door.read(preparing.unwanted_workspaces, await kit.workspaces.kept()):
            await _gone(kit.workspaces, task_id)
    if kit.files is not None:
        for task_id in await kit.door.read(preparing.unwanted_files, await kit.files.kept()):
            await _gone(kit.files, task_id)


async def _remove(kit: Kit, task_id: int) -> None:
    if kit.workspaces is not None:
        await _gone(kit.workspaces, task_id)
    if kit.files is not None:
        await _gone(kit.files, task_id)


async def _gone(place: Workspaces | TaskFiles, task_id: int) -> None:
    try:
        await place.remove(task_id)
    except (OSError, SideWorkFailed):
        log.exception("files are left; the next start removes them", extra={"task": task_id})
