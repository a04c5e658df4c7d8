"""Spawning with side work: the task is reserved, its files are made, then it is queued; or all of it is undone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TypeAlias

from clutch.core.admission import Refused
from clutch.engine.kit import Kit
from clutch.ports import WorkspaceFailed
from clutch.protocol import preparing
from clutch.protocol.spawn import Accepted, Order, spawn

log = logging.getLogger(__name__)

#: A text: the side work failed and nothing is left of the spawn.
Spawned: TypeAlias = Accepted | Refused | str
NO_WORKSPACES = "workspace: no directory for isolated workspaces is configured here"


async def spawn_all(
    kit: Kit, session_id: int, root_id: int, fence: int | None, orders: Sequence[Order]
) -> list[Spawned]:
    """All spawns of one answer in one transaction, then the side work of each that has some."""
    answers = await kit.door.tx((root_id, session_id), spawn, kit.policy, session_id, root_id, fence, orders)
    return list(await asyncio.gather(*(_prepared(kit, answer) for answer in answers)))


async def _prepared(kit: Kit, answer: Accepted | Refused) -> Spawned:
    if isinstance(answer, Refused) or not answer.is_spawning:
        return answer
    try:
        path = await _workspace(kit, answer)
    except Exception as error:  # noqa: BLE001 - whatever failed, nothing of the spawn may stay
        why = (
            str(error)
            if isinstance(error, WorkspaceFailed)
            else f"workspace: {type(error).__name__}: {error}"
        )
        await undo(kit, answer.task_id, why)
        return why
    if not await kit.door.tx(answer.task_id, preparing.ready, kit.policy, answer.task_id, path):
        await _remove(kit, answer.task_id)
        return "the spawn was given up before its files were made"
    return answer


async def undo(kit: Kit, task_id: int, why: str) -> None:
    """The row first: whoever still makes the files learns from it that they are not wanted any more."""
    if await kit.door.alone(preparing.undo, kit.policy, task_id, why):
        await _remove(kit, task_id)


async def sweep(kit: Kit) -> None:
    """At the start: whoever undid a spawn, or was about to make its files, may have died before they were gone."""
    if kit.workspaces is not None:
        for task_id in await kit.door.read(preparing.unwanted, await kit.workspaces.kept()):
            await _remove(kit, task_id)


async def _workspace(kit: Kit, answer: Accepted) -> str:
    if kit.workspaces is None:
        raise WorkspaceFailed(NO_WORKSPACES)
    return await kit.workspaces.make(answer.task_id, answer.workspace or ".")


async def _remove(kit: Kit, task_id: int) -> None:
    try:
        if kit.workspaces is not None:
            await kit.workspaces.remove(task_id)
    except (OSError, WorkspaceFailed):
        log.exception("files are left; the next start removes them", extra={"task": task_id})
