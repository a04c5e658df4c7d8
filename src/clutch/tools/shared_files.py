"""The files of tasks in a fleet: on the disk of the machine that works, and as blobs for every other one.

What was given goes to the blobs at the spawn, what is handed over at the end of the task, what else a session wrote
whenever it is released. A blob store that does not answer fails no task: its files stay on the machine that has them.

    tasks/TASK.VERSION/in/NAME, …/out/NAME     given, and handed over
    sessions/SESSION/SHA256/content            what else it wrote, and the list of that"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from clutch.core import ids
from clutch.core.attachments import (
    MANIFEST,
    Attachment,
    AttachmentRules,
    FetchedFiles,
    FileVersion,
    Handed,
    SavedFiles,
    SavedRoot,
    Side,
    WrittenFile,
    is_restorable,
    saved_files,
    to_save,
)
from clutch.core.text.prompts import WHOLE_REPOSITORY, WHOLE_WORKSPACE
from clutch.logs import logger
from clutch.ports import Blobs, FilesFailed, WorkspaceFailed
from clutch.tools.child_workspaces import NOTHING_CAME, CameWith, LocalWorkspaces
from clutch.tools.directories import opened, remove
from clutch.tools.task_files import LocalResultFiles, LocalTaskFiles, entered, in_thread, plain, write

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


# --------------------------------------------------------------------------------------------------
# What a session wrote: an isolated workspace of its own, large tool results, files that it has not handed over yet.

PLACE = "place"
_LOOKED_AT_MAX = 50_000  # entries of a workspace; a larger one takes longer than a turn should wait


def place_at(home: Path) -> str:
    """The name of a state directory, made once. It stays the same when its gateway restarts, or its host is renamed.
    Blocks."""
    home.mkdir(0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        temporary = home / f".{secrets.token_hex(8)}.tmp"
        temporary.write_text(secrets.token_hex(8))
        try:
            os.link(temporary, home / PLACE)  # never half-written, and the first of two gateways names it
        finally:
            temporary.unlink()
    return (home / PLACE).read_text()


class SharedSessionFiles:
    """Implements the port `SessionFiles`."""

    def __init__(
        self,
        place: str,
        local: tuple[LocalWorkspaces, LocalResultFiles, LocalTaskFiles],
        blobs: Blobs,
        *,
        bytes_max: int,
        file_bytes_max: int,
    ) -> None:
        self.place = place
        self._workspaces, self._results, self._files = local
        self._blobs, self._bytes_max, self._file_bytes_max = blobs, bytes_max, file_bytes_max

    def roots(
        self, version: FileVersion, *, is_isolated: bool, is_end: bool = False
    ) -> dict[SavedRoot, Path]:
        """The directories that exist. At an end `out` is stored as part of the result."""
        found = {SavedRoot.RESULTS: Path(self._results.path(version.task_id))}
        if is_isolated:
            found[SavedRoot.WORKSPACE] = Path(self._workspaces.path(version.task_id))
        if not is_end:
            found[SavedRoot.OUT] = Path(self._files.path(version)) / Side.OUT
        return {root: path for root, path in found.items() if os.path.isdir(path)}

    async def save(
        self, version: FileVersion, roots: Mapping[SavedRoot, Path], head: int, before: str | None
    ) -> str | None:
        if not roots and before is None:
            return None
        known = set(await self._hashes(version.task_id, before))
        found = await in_thread(self._found, version.task_id, roots)
        limits = {"file_bytes_max": self._file_bytes_max, "bytes_max": self._bytes_max}
        chosen, left_out = to_save(found.files, **limits)
        stored: list[tuple[WrittenFile, str]] = []
        for file in chosen:
            content = await in_thread(_read, roots[file.root], file.path, file.bytes)
            if content is None:  # gone, or grown, since it was listed
                left_out.append(file)
                continue
            digest = hashlib.sha256(content).hexdigest()
            if digest not in known:
                await self._blobs.put(_content_key(version.task_id, digest), content)
                known.add(digest)
            stored.append((file, digest))
        names = (*(file.shown for file in left_out), *found.left_out)
        listed = SavedFiles(head, tuple(stored), found.removed, names, found.has_repository)
        text = listed.to_text().encode()
        ref = hashlib.sha256(text).hexdigest()
        await self._blobs.put(_content_key(version.task_id, ref), text)
        return ref

    async def settle(self, session_id: int, before: str | None, now: str) -> None:
        """Delete what only the former list named, once the new one is current."""
        if before in (None, now):
            return
        old, new = await self._hashes(session_id, before), await self._listed(session_id, now)
        for digest in sorted({before, *old} - {now, *new.hashes}):
            await self._blobs.delete(f"{_session_folder(session_id)}/{digest}")

    async def fetch(self, version: FileVersion, saved: str | None, source: str | None) -> FetchedFiles:
        missing: list[str] = []
        listed, workspace = None, None
        if saved is not None:
            try:
                listed = await self._listed(version.task_id, saved)
            except FilesFailed as error:
                log.warning("Files of session %d not fetched: %s", version.task_id, error)
        if source is not None:
            workspace = await self._made_anew(version.task_id, source, listed, missing)
        if listed is None:
            return FetchedFiles(workspace, None, tuple(missing))
        if any(file.root is SavedRoot.OUT for file, _ in listed.files):
            await LocalTaskFiles.remove(self._files, version, Side.OUT)
        roots = {
            SavedRoot.RESULTS: self._results.path(version.task_id),
            SavedRoot.OUT: f"{self._files.path(version)}/{Side.OUT}",
            **({} if workspace is None else {SavedRoot.WORKSPACE: workspace}),
        }
        for file, digest in listed.files:
            if not await self._restored(version.task_id, file, digest, roots.get(file.root)):
                missing.append(file.shown)
        if workspace is not None:
            await in_thread(_delete, Path(workspace), listed.removed)
        return FetchedFiles(workspace, listed, (*missing, *listed.left_out))

    async def remove(self, session_id: int) -> None:
        await self._blobs.delete(_session_folder(session_id))

    async def _listed(self, session_id: int, ref: str) -> SavedFiles:
        content = await self._blobs.get(_content_key(session_id, ref))
        if content is None:
            raise FilesFailed("the list of its files is not in the store")
        return saved_files(content.decode())

    async def _hashes(self, session_id: int, ref: str | None) -> frozenset[str]:
        """What a former list named. A store that lost it must not keep a session from being saved anew."""
        if ref is None or await self._blobs.get(_content_key(session_id, ref)) is None:
            return frozenset()
        return (await self._listed(session_id, ref)).hashes

    async def _made_anew(
        self, task_id: int, source: str, listed: SavedFiles | None, missing: list[str]
    ) -> str | None:
        """Its workspace on this machine. The list is newer than what the session left here, if it was here before."""
        try:
            if listed is not None:
                await self._workspaces.remove(task_id)
            workspace = await self._workspaces.make(task_id, source)
        except WorkspaceFailed as error:
            log.warning("Workspace of %s not made: %s (its note says so)", ids.task_id(task_id), error)
            missing.append(WHOLE_WORKSPACE)
            return None
        was_checkout = listed is not None and listed.has_repository
        if was_checkout and not await asyncio.to_thread(os.path.lexists, f"{workspace}/.git"):
            missing.append(WHOLE_REPOSITORY)
        return workspace

    async def _restored(self, session_id: int, file: WrittenFile, digest: str, root: str | None) -> bool:
        if root is None or not is_restorable(file.path):
            return False
        try:
            content = await self._blobs.get(_content_key(session_id, digest))
            if content is None:
                return False
            await in_thread(_restore, Path(root), file, content)
        except FilesFailed as error:
            log.warning("A file of session %d not fetched: %s", session_id, error)
            return False
        return True

    def _found(self, session_id: int, roots: Mapping[SavedRoot, Path]) -> _Found:
        found = _Found()
        for root, path in roots.items():
            came = self._workspaces.came_with(session_id) if root is SavedRoot.WORKSPACE else NOTHING_CAME
            found.look(root, path, came)
        return found


class _Found:
    """What lies below the directories of a session. Nothing is read yet, and no link is followed."""

    def __init__(self) -> None:
        self.files: list[WrittenFile] = []
        self.left_out: list[str] = []
        self.removed: tuple[str, ...] = ()
        self.has_repository = False

    def look(self, root: SavedRoot, top: Path, came: CameWith) -> None:
        seen, looked_at = set(), 0
        for folder, folders, names, handle in os.fwalk(top, follow_symlinks=False):
            within = os.path.relpath(folder, top)
            prefix = "" if within == "." else f"{within}/"
            self.has_repository |= root is SavedRoot.WORKSPACE and not prefix and ".git" in (*folders, *names)
            folders[:] = [name for name in folders if is_restorable(f"{prefix}{name}")]
            looked_at += len(names)
            if looked_at > _LOOKED_AT_MAX:
                self.left_out.append(WrittenFile(root, f"{prefix}…", 0).shown)
                return  # nothing can be said of what was removed
            for name in names:
                path = f"{prefix}{name}"
                seen.add(path)
                with suppress(FileNotFoundError):
                    self._add(root, path, os.stat(name, dir_fd=handle, follow_symlinks=False), came)
        self.removed += tuple(sorted(came.files - seen))

    def _add(self, root: SavedRoot, path: str, status: os.stat_result, came: CameWith) -> None:
        # The change time cannot be set by a program, the modification time can.
        if status.st_ctime_ns < came.until_ns or not is_restorable(path) or not _is_text(path):
            return
        file = WrittenFile(root, path, status.st_size, bool(status.st_mode & stat.S_IXUSR))
        if stat.S_ISREG(status.st_mode):
            self.files.append(file)
        else:
            self.left_out.append(file.shown)


def _is_text(path: str) -> bool:
    """A list of names is UTF-8."""
    return not any("\ud800" <= char <= "\udfff" for char in path)


def _read(root: Path, path: str, size: int) -> bytes | None:
    try:
        with _parent(root, path) as (folder, name), plain(folder, name) as stream:
            content = stream.read(size + 1)
    except OSError:
        return None
    return None if len(content) > size else content


def _restore(root: Path, file: WrittenFile, content: bytes) -> None:
    root.mkdir(0o700, parents=True, exist_ok=True)
    with _parent(root, file.path, create=True) as (folder, name):
        remove(folder, name)
        write(folder, name, content)
        if file.is_executable:
            os.chmod(name, 0o700, dir_fd=folder)


def _delete(root: Path, paths: Sequence[str]) -> None:
    for path in filter(is_restorable, paths):
        with suppress(OSError), _parent(root, path) as (folder, name):
            os.unlink(name, dir_fd=folder)


@contextmanager
def _parent(root: Path, path: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
    """Open the folder of a file below `root`, part by part: a checkout may have a link in the way, which is not
    followed."""
    *parts, name = path.split("/")
    with ExitStack() as stack:
        folder = stack.enter_context(opened(root))
        for part in parts:
            folder = stack.enter_context(entered(folder, part, create=create))
        yield folder, name


def _session_folder(session_id: int) -> str:
    return f"sessions/{session_id}"


def _content_key(session_id: int, digest: str) -> str:
    return f"{_session_folder(session_id)}/{digest}/content"
