"""Spawning, for every door: the order, the transaction, the side work, the answer.

With side work the task is reserved, its files are made, then it is queued; or all of it is undone.
Contents of attachments live in the spawn call until they are on disk: an agent's call is in its transcript, and
whoever goes on with its run after a crash makes them again; a program that got no answer has its own.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeAlias, TypeGuard

from clutch.core import keys, wording
from clutch.core.admission import Refused, SpawnRequest
from clutch.core.attachments import Shelf, receipt
from clutch.core.model import Phase, Workspace
from clutch.engine import threads
from clutch.engine.kit import Kit
from clutch.errors import InvalidInput
from clutch.ports import FilesFailed, SideWorkFailed, TaskFiles, WorkspaceFailed, Workspaces
from clutch.protocol import preparing
from clutch.protocol.bindings import ThreadTaken
from clutch.protocol.spawn import Accepted, Order, spawn

log = logging.getLogger(__name__)

#: A text: the side work failed and nothing is left of the spawn.
Spawned: TypeAlias = Accepted | Refused | str
NO_WORKSPACES = "workspace: no directory for isolated workspaces is configured here"
NO_FILES = "attachments: no directory for files is configured here"
STILL_SPAWNING = "idempotencyKey: a spawn with this key is still under way; ask again"
PAUSE_S = 0.05
LATE_TICKS = 10  # a reservation that ran out is undone by whoever looks at the alarms next


def order(kit: Kit, request: SpawnRequest, key: str, place: int = 0) -> Order:
    """`key`: of this call; one that the caller chose comes before it, and is the same at every door."""
    chosen = request.idempotency_key
    return Order(key if chosen is None else f"key:{chosen}", kit.ids.next(), kit.ids.uuid4(), request, place)


def named_anew(kit: Kit, wanted: Order) -> Order:
    return replace(wanted, child_id=kit.ids.next(), uuid=kit.ids.uuid4())


async def spawn_all(
    kit: Kit, session_id: int, root_id: int, fence: int | None, orders: Sequence[Order]
) -> list[Spawned]:
    """All spawns of one answer in one transaction, then the side work of each that has some."""
    answers = await kit.door.tx((root_id, session_id), spawn, kit.policy, session_id, root_id, fence, orders)
    if not any(map(_is_unfinished, answers)):
        return list(answers)
    pairs = zip(orders, answers, strict=True)
    again = partial(spawn_all, kit, session_id, root_id, fence)
    return list(await asyncio.gather(*(_brought_about(kit, one, answer, again) for one, answer in pairs)))


def _is_unfinished(answer: Accepted | Refused) -> TypeGuard[Accepted]:
    """Most have no side work, and their answer waits for nothing more."""
    return isinstance(answer, Accepted) and answer.is_spawning


async def _brought_about(
    kit: Kit,
    wanted: Order,
    answer: Accepted | Refused,
    again: Callable[[Sequence[Order]], Awaitable[list[Spawned]]],
) -> Spawned:
    if not _is_unfinished(answer):
        return answer
    if answer.is_new or not wanted.request.digest:
        return await _prepared(kit, wanted, answer)
    # Of a key that somebody chose: they may be alive and at it. Of a call, they are dead, or this is not the owner.
    phase = await _left_to_others(kit, answer.task_id)
    if phase is None:
        return (await again([named_anew(kit, wanted)]))[0]
    return STILL_SPAWNING if phase is Phase.SPAWNING else answer._replace(is_spawning=False)


async def _left_to_others(kit: Kit, task_id: int) -> Phase | None:
    """What became of it. Without an end of their work the alarm undoes it, and there is no such task any more."""
    patience_s = kit.policy.limits.reservation_s + LATE_TICKS * kit.policy.work.tick_s
    for _ in range(math.ceil(patience_s / PAUSE_S)):
        phase = await kit.door.read(preparing.phase_of, task_id)
        if phase is not Phase.SPAWNING:
            return phase
        await asyncio.sleep(PAUSE_S)
    return Phase.SPAWNING


async def _prepared(kit: Kit, wanted: Order, answer: Accepted) -> Spawned:
    try:
        said = await threads.ask_hooks(kit, wanted, answer)
        if said.veto is not None:
            await undo(kit, answer.task_id, said.veto)
            return Refused(said.veto)
        path = await _side_work(kit, wanted, answer)
        thread = await threads.thread_for(kit, wanted, answer, said)
    except Exception as error:  # noqa: BLE001 - whatever failed, nothing of the spawn may stay
        is_told = isinstance(error, SideWorkFailed)
        why = str(error) if is_told else f"side work: {type(error).__name__}: {error}"
        await undo(kit, answer.task_id, why)
        return why
    known = (kit.policy, answer.task_id, path, thread)
    try:
        is_wanted = await kit.door.tx(answer.task_id, preparing.ready, *known)
    except ThreadTaken as error:
        await undo(kit, answer.task_id, str(error), has_thread=True)
        return str(error)
    if not is_wanted:
        await drop(kit, [answer.task_id])
        return "the spawn was given up before its files were made"
    return answer._replace(warnings=(*answer.warnings, *said.warnings)) if said.warnings else answer


async def _side_work(kit: Kit, wanted: Order, answer: Accepted) -> str | None:
    """The path of its own workspace, if it has one."""
    if wanted.request.attachments:
        if kit.files is None:
            raise FilesFailed(NO_FILES)
        await kit.files.put(Shelf(answer.task_id), wanted.request.attachments)
    if wanted.request.workspace is not Workspace.ISOLATED:
        return None
    if kit.workspaces is None:
        raise WorkspaceFailed(NO_WORKSPACES)
    return await kit.workspaces.make(answer.task_id, answer.workspace or ".")


async def undo(kit: Kit, task_id: int, why: str, *, has_thread: bool = False) -> None:
    """The row first: whoever still makes the files learns from it that they are not wanted any more."""
    if await kit.door.alone(preparing.undo, kit.policy, task_id, why, has_thread):
        await drop(kit, [task_id])


async def sweep(kit: Kit) -> None:
    """Whoever was to remove directories may have died before they were gone. A disk that does not answer is no
    reason to stop working: the next sweep looks again."""
    try:
        if kit.workspaces is not None:
            await _drop_workspaces(kit, kit.workspaces, await kit.workspaces.kept())
        if kit.files is not None:
            found = await kit.files.kept()
            await _drop_files(kit.files, await kit.door.read(preparing.unwanted_files, found))
    except (OSError, SideWorkFailed):
        log.exception("the directories of tasks cannot be looked at")


async def drop(kit: Kit, task_ids: Sequence[int]) -> None:
    """What is there of them and wanted by nobody: their spawn was undone, or they are over and out of the lists."""
    if kit.workspaces is not None:
        await _drop_workspaces(kit, kit.workspaces, task_ids)
    if kit.files is not None:
        await _drop_files(kit.files, await kit.door.read(preparing.unwanted_files_of, task_ids))


def wrong(error: InvalidInput) -> dict[str, object]:
    """The answer to arguments that make no sense."""
    return {"status": "error", "error": str(error), "code": "invalid_input", "field": error.field}


def answer(wanted: Order, got: Spawned) -> dict[str, object]:
    """The answer of `sessions_spawn`, in the words of the surfaces."""
    if isinstance(got, str):
        return {"status": "error", "error": got}
    if isinstance(got, Refused):
        if got.is_conflict:
            return {"status": "error", "error": got.error, "code": "idempotency_conflict"}
        return {"status": "forbidden", "error": got.error} | ({"limit": dict(got.limit)} if got.limit else {})
    request = wanted.request
    note = wording.spawn_note(expects_completion=request.expects_completion, plan_mode=request.plan_mode)
    ids: dict[str, object] = {
        "taskId": keys.task_id(got.task_id),
        "runId": keys.run_id(got.task_id),  # of its first run, see `turns.begin`
        "childSessionKey": got.session_key,
    }
    if got.is_dry:
        ids, note = {"dryRun": True, **dict.fromkeys(ids)}, "This would be accepted now. Nothing was started."
    said = {
        "status": "accepted",
        **ids,
        "label": got.label,
        "mode": request.mode,
        "model": got.model,
        "thinking": got.thinking,
        "context": got.context,
        "note": note,
        "warnings": list(got.warnings),
    }
    if request.attachments:
        said["attachments"] = receipt(file.stored for file in request.attachments)
    return said


async def _drop_workspaces(kit: Kit, workspaces: Workspaces, task_ids: Sequence[int]) -> None:
    for task_id in await kit.door.read(preparing.unwanted_workspaces, task_ids):
        with _left_to_the_sweeper(task_id):
            await workspaces.remove(task_id)


async def _drop_files(files: TaskFiles, unwanted: Sequence[Shelf]) -> None:
    for shelf in unwanted:
        with _left_to_the_sweeper(shelf.task_id):
            await files.remove(shelf)


@contextmanager
def _left_to_the_sweeper(task_id: int) -> Iterator[None]:
    try:
        yield
    except (OSError, SideWorkFailed):
        log.exception("files are left; the next sweep removes them", extra={"task": task_id})
