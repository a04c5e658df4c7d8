"""The files of tasks: stored with the result when a task ends, removed when it is cleaned up or swept.

A task without a directory costs one look at the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from clutch.core import ids
from clutch.core.attachments import EVERYTHING, BlobIdentity, FileVersion, Removal
from clutch.core.costs import LedgerPlace
from clutch.engine.services import BLOCK_BITS, Services
from clutch.errors import StoreError
from clutch.logs import logger
from clutch.ports import FilesFailed, SideWorkFailed, TaskFiles, Workspaces
from clutch.store.transaction import Database
from clutch.transactions import blobs, outbox, retention, task_files, usage, workers

log = logger(__name__)


async def hand_over(services: Services, version: FileVersion) -> None:
    """Store the list of the files that a task hands over, just before its end."""
    if services.files is None or not services.files.exists(version):
        return
    try:
        handed = await services.files.handed(version, services.policy.limits.attachments)
    except FilesFailed:
        log.exception("Files of %s not listed; its result names none", ids.task_id(version.task_id))
        return
    await services.db.tx(version.task_id, task_files.hands_over, version, handed)


# --------------------------------------------------------------------------------------------------
# Cleanup of a task: its files are removed first, outside of any transaction, then the removal is committed.


async def clean(services: Services, task_id: int) -> None:
    """Remove what the task's cleanup names. What fails, the timer of the task tries again."""
    try:
        wanted = await services.db.read(task_files.awaited, services.policy, task_id)
        if wanted is not None:
            await _clean(services, task_id, wanted)
    except StoreError as error:
        log.warning("Cleanup of %s: %s (its timer tries again)", ids.task_id(task_id), error)


async def _clean(services: Services, task_id: int, wanted: Removal) -> None:
    try:
        await _take_away(services, task_id, wanted)
    except Exception as error:
        log.exception("Cleanup of %s failed (its timer tries again)", ids.task_id(task_id))
        told = f"{type(error).__name__}: {error}"
        await services.db.alone(task_files.failed, services.policy, task_id, wanted, told)
        return
    await services.db.alone(task_files.cleaned, services.policy, task_id, wanted)


async def _take_away(services: Services, task_id: int, wanted: Removal) -> None:
    """A second call finds nothing and does no harm."""
    if wanted.workspace and services.workspaces is not None:
        await services.workspaces.remove(task_id)
        if services.session_files is not None:
            await services.session_files.remove(task_id)
    if wanted.sides and services.files is not None:
        sides = () if wanted.sides == EVERYTHING else wanted.sides
        await services.files.remove(FileVersion(task_id, wanted.number), *sides)


# --------------------------------------------------------------------------------------------------
# Directories without a task: the spawn was undone, or the task is archived. A worker may die before it removes them.


async def drop(services: Services, task_ids: Sequence[int]) -> None:
    """Remove the directories of these tasks that no task needs any more."""
    if services.workspaces is not None:
        await _drop_workspaces(services, services.workspaces, task_ids)
    if services.files is not None:
        await _drop_files(services.files, await services.db.read(task_files.unwanted_files_of, task_ids))


async def sweep(services: Services) -> None:
    """Remove all directories that no task needs. A disk that does not answer is left to the next sweep."""
    try:
        if services.workspaces is not None:
            await _drop_workspaces(services, services.workspaces, await services.workspaces.kept())
        if services.files is not None:
            found = await services.files.kept()
            await _drop_files(services.files, await services.db.read(task_files.unwanted_files, found))
        if services.results is not None:
            kept = await services.results.kept()
            for session_id in await services.db.read(task_files.unwanted_results, kept):
                await services.results.remove(session_id)
        if services.session_files is not None:
            for session_id in await services.db.read(task_files.unwanted_saved):
                await services.session_files.remove(session_id)
                await services.db.tx(session_id, task_files.forget_saved, session_id)
    except (OSError, SideWorkFailed):
        log.exception("Directories of tasks cannot be read (next try: the next sweep)")


async def _drop_workspaces(services: Services, workspaces: Workspaces, task_ids: Sequence[int]) -> None:
    for task_id in await services.db.read(task_files.unwanted_workspaces, task_ids):
        with _left_to_the_sweeper(task_id):
            await workspaces.remove(task_id)


async def _drop_files(files: TaskFiles, unwanted: Sequence[FileVersion]) -> None:
    for version in unwanted:
        with _left_to_the_sweeper(version.task_id):
            await files.remove(version)


@contextmanager
def _left_to_the_sweeper(task_id: int) -> Iterator[None]:
    try:
        yield
    except (OSError, SideWorkFailed):
        log.exception("Files of %s not removed (next try: the next sweep)", ids.task_id(task_id))


# --------------------------------------------------------------------------------------------------
# The sweeper adopts orphans, archives tasks that ended long ago, deletes their transcripts later, and removes
#
# directories without a task. Each step reads first and writes only on a find. Everything may be done twice, and by
# several processes at once.


WALK_S = 86_400.0  # between two walks through whole tables: what they delete is at least a day old


class Sweeper:
    def __init__(self, services: Services, now: Callable[[], float]) -> None:
        self._services, self._now = services, now
        self._faded_upto = self._trimmed_upto = 0.0
        self._walked_at = -WALK_S

    async def sweep(self) -> None:
        """One sweep. What fails is tried again at the next one."""
        try:
            await self._put_right()
            await self._adopt()
            await self._archive()
            await self._fade()
            await self._trim()
            await self._walk()
            await sweep(self._services)
        except StoreError as error:
            every_s = self._services.policy.keeping.sweep_s
            log.warning("Sweep failed: %s (next try in %g s)", error, every_s)
            return
        self._services.pulses.beat("sweeper", self._now(), self._services.policy.keeping.sweep_s)

    async def _put_right(self) -> None:
        """Correct waits that began under a clock that was ahead."""
        db, policy = self._services.db, self._services.policy
        misdated = await db.read(workers.misdated, policy)
        for session_id in misdated.sessions:
            log.warning("Clock was ahead: the wait of session %d is corrected", session_id)
            await db.alone(workers.correct, policy, session_id)
        for task_id in misdated.tasks:
            log.warning("Clock was ahead: the timer of %s is corrected", ids.task_id(task_id))
            await db.alone(workers.reset_timer, policy, task_id)

    async def _adopt(self) -> None:
        db, policy = self._services.db, self._services.policy
        for task_id in await db.read(retention.find):
            log.warning("Task %s has no session any more: it ends as lost", ids.task_id(task_id))
            await db.alone(retention.adopt, policy, task_id)

    async def _archive(self) -> None:
        db, policy = self._services.db, self._services.policy
        while found := await db.read(retention.due, policy):
            await drop(self._services, await db.alone(retention.archive, policy, found))

    async def _fade(self) -> None:
        db, policy = self._services.db, self._services.policy
        after_s = policy.keeping.transcript_after_s
        if after_s is None:
            return
        upto = self._now() - after_s
        while found := await db.read(retention.fading, policy, self._faded_upto):
            await drop(self._services, await db.alone(retention.fade, policy, found))
        self._faded_upto = upto
        while (session_id := await db.read(retention.leftover)) is not None:
            await db.alone(retention.shorten, policy, session_id)

    async def _trim(self) -> None:
        db, policy = self._services.db, self._services.policy
        after_s = policy.keeping.timeline_after_s
        if after_s is None:
            return
        upto = self._now() - after_s
        while found := await db.read(retention.trimmable, policy, self._trimmed_upto):
            await db.alone(retention.trim, policy, found)
        self._trimmed_upto = upto

    async def _walk(self) -> None:
        """Go through tables that have no index for what is old. Each step reads a bounded part of one."""
        now, keeping = self._now(), self._services.policy.keeping
        if now < self._walked_at + WALK_S:
            return
        if keeping.sent_after_s is not None:
            await self._delete_sent(now - keeping.sent_after_s)
        if keeping.usage_after_s is not None:
            await self._sum_usage(now - keeping.usage_after_s)
        self._walked_at = now

    async def _delete_sent(self, before: float) -> None:
        db, last = self._services.db, 0
        while found := await db.read(outbox.sent_before, before, last, retention.ROWS_MAX):
            await db.alone(outbox.delete_sent, found)
            last = found[-1]

    async def _sum_usage(self, before: float) -> None:
        db, place = self._services.db, LedgerPlace(0, 0)
        while True:
            found = await db.read(usage.summable, before, place, retention.ROWS_MAX)
            if found.is_any:
                await db.alone(usage.sum_up, before, place, retention.ROWS_MAX)
            if found.next is None:
                return
            place = found.next


# --------------------------------------------------------------------------------------------------
# Contents of files in the database, where several machines work on it.


async def blob_identity(db: Database, new: str) -> BlobIdentity:
    """Return under which name this database stores files where others do, too. `new`: for one that has none yet."""
    name, processes = await db.tx((), blobs.identity, new)
    return BlobIdentity(name, (processes + 1) << BLOCK_BITS if processes else 0)


class DatabaseBlobs:
    """`clutch.ports.Blobs` on the database itself. A busy database fails no task: the files stay on the disk."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def put(self, key: str, content: bytes) -> None:
        with _unavailable():
            await self._db.tx((), blobs.put, key, content)

    async def get(self, key: str) -> bytes | None:
        with _unavailable():
            return await self._db.read(blobs.get, key)

    async def keys(self, folder: str) -> list[str]:
        with _unavailable():
            return await self._db.read(blobs.names, folder)

    async def delete(self, folder: str) -> None:
        with _unavailable():
            await self._db.tx((), blobs.delete, folder)


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise FilesFailed(f"files: {error}") from error
