"""The files of tasks on this machine: `<root>/<task>/in` and `out`, named by numbers and nothing else.

A task's later versions are `<root>/<task>.<number>`.

    in/.manifest.json   written last: names, sizes and hashes of the others. Without it, `in/` is half-made
    out/                files directly in it are handed over; folders, links and pipes are not

Every file is opened relative to an open directory, and no link is followed: what a task's own process put there cannot
lead anywhere else. Directories are 0700 and files 0600."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, ParamSpec, TypeVar

from clutch.core.attachments import (
    MANIFEST,
    WRITING,
    Attachment,
    AttachmentRules,
    FileVersion,
    Handed,
    Side,
    StoredFile,
    name_problem,
    result_path,
    skill_path,
    task_path,
)
from clutch.ports import FilesFailed, ToolContext, ToolFailed
from clutch.tools.directories import alone, numbered, opened, remove

P = ParamSpec("P")
T = TypeVar("T")

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe must not wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NAME = re.compile(r"\d+(\.[1-9]\d*)?")
_LOOKED_AT_MAX = 1000  # entries of an `out/`; a task that made more hands over a folder, not files


class LocalTaskFiles:
    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, version: FileVersion) -> str:
        return str(self.root / _name(version))

    def exists(self, version: FileVersion) -> bool:
        return os.path.lexists(self.path(version))

    async def put(self, version: FileVersion, files: Sequence[Attachment]) -> None:
        await in_thread(self._put, version, files)

    async def handed(self, version: FileVersion, rules: AttachmentRules) -> Handed:
        return await in_thread(self._handed, version, rules)

    async def read(self, version: FileVersion, name: str) -> bytes:
        return await in_thread(self._read, version, name)

    async def remove(self, version: FileVersion, *sides: Side) -> None:
        await in_thread(self._remove, version, sides)

    async def fetch(self, version: FileVersion) -> bool:
        return self.exists(version)

    async def restore(self, version: FileVersion, side: Side, files: Sequence[Attachment]) -> None:
        """Write the files of one side as another machine left them. What is here already stays."""
        await in_thread(self._put if side is Side.IN else self._restore_out, version, files)

    async def kept(self) -> list[FileVersion]:
        return await in_thread(self._kept)

    # ---- in a thread -----------------------------------------------------------------------------------

    def _put(self, version: FileVersion, files: Sequence[Attachment]) -> None:
        manifest = _manifest([file.stored for file in files])
        with self._at(version, create=True) as here, alone(here):
            if _content(here, Side.IN, MANIFEST) == manifest:
                return
            remove(here, Side.IN)
            with entered(here, Side.IN, create=True) as folder:
                for file in files:
                    write(folder, file.name, file.content)
                write(folder, MANIFEST, manifest)
                os.fsync(folder)
            os.fsync(here)

    def _restore_out(self, version: FileVersion, files: Sequence[Attachment]) -> None:
        with (
            self._at(version, create=True) as here,
            alone(here),
            entered(here, Side.OUT, create=True) as folder,
        ):
            for file in files:
                with suppress(FileExistsError):
                    write(folder, file.name, file.content)

    def _handed(self, version: FileVersion, rules: AttachmentRules) -> Handed:
        files: list[StoredFile] = []
        left_out, room = 0, rules.total_bytes_max
        with suppress(FileNotFoundError, NotADirectoryError), self._side(version, Side.OUT) as folder:
            with os.scandir(folder) as found:
                names = sorted(entry.name for _, entry in zip(range(_LOOKED_AT_MAX), found, strict=False))
            for name in names:
                size = min(rules.file_bytes_max, room)
                file = _stored(folder, name, size) if len(files) < rules.files_max else None
                if file is None:
                    left_out += 1
                else:
                    room -= file.bytes
                    files.append(file)
        return Handed(tuple(files), left_out)

    def _read(self, version: FileVersion, name: str) -> bytes:
        if problem := name_problem(name):
            raise FilesFailed(f"files: the name {problem}")
        with self._side(version, Side.OUT) as folder, plain(folder, name) as stream:
            return stream.read()

    def _remove(self, version: FileVersion, sides: Sequence[Side]) -> None:
        with suppress(FileNotFoundError):
            if not sides:
                with opened(self.root) as root:
                    return remove(root, _name(version))
            with suppress(NotADirectoryError), self._at(version) as here:
                for side in sides:
                    remove(here, side)

    def _kept(self) -> list[FileVersion]:
        try:
            return sorted(_version(name) for name in os.listdir(self.root) if _NAME.fullmatch(name))
        except FileNotFoundError:
            return []

    @contextmanager
    def _at(self, version: FileVersion, *, create: bool = False) -> Iterator[int]:
        if create:
            self.root.mkdir(0o700, parents=True, exist_ok=True)
        with opened(self.root) as root, entered(root, _name(version), create=create) as here:
            yield here

    @contextmanager
    def _side(self, version: FileVersion, side: Side) -> Iterator[int]:
        with self._at(version) as here, entered(here, side) as folder:
            yield folder


def _name(version: FileVersion) -> str:
    return f"{version.task_id}.{version.number}" if version.number else str(version.task_id)


def _version(name: str) -> FileVersion:
    return FileVersion(*map(int, name.split(".")))


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return await asyncio.to_thread(work, *args, **kwargs)
    except OSError as error:
        raise FilesFailed(f"files: {error.strerror or type(error).__name__}") from error


def _manifest(files: Sequence[StoredFile]) -> bytes:
    listed = [{"name": file.name, "bytes": file.bytes, "sha256": file.sha256} for file in files]
    return json.dumps({"files": listed}, ensure_ascii=False, indent=1).encode()


@contextmanager
def entered(around: int, name: str, *, create: bool = False) -> Iterator[int]:
    if create:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=around)
    with opened(name, around) as folder:
        yield folder


@contextmanager
def plain(folder: int, name: str) -> Iterator[BinaryIO]:
    """Open a plain file. Raises OSError for a link, a folder, a pipe."""
    file = os.open(name, _FILE, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "not a plain file")
    with os.fdopen(file, "rb") as stream:
        yield stream


def write(folder: int, name: str, content: bytes) -> None:
    with os.fdopen(os.open(name, _NEW, 0o600, dir_fd=folder), "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _content(here: int, side: Side, name: str) -> bytes | None:
    try:
        with entered(here, side) as folder, plain(folder, name) as stream:
            return stream.read()
    except OSError:
        return None


def _stored(folder: int, name: str, size_max: int) -> StoredFile | None:
    """Return a file of `out`, None for one that is not handed over."""
    if name_problem(name):
        return None
    try:
        with plain(folder, name) as stream:
            data = stream.read(size_max + 1)
    except OSError:
        return None
    if len(data) > size_max:
        return None
    return StoredFile(name, len(data), hashlib.sha256(data).hexdigest())


# --------------------------------------------------------------------------------------------------
# Large tool results on this machine: `<root>/<session>/<name>`, outside every workspace.
#
# In a workspace other agents could read and replace them. Only the gateway writes here; the session's own file tools
# read here (`located`), and no command or program sees it.

FILES_MAX = 200  # of one session; the oldest is removed for a new one
BYTES_MAX = 256 * 2**20  # of one session; beyond it a result is cut and not kept


class LocalResultFiles:
    def __init__(self, root: Path, bytes_max: int = BYTES_MAX) -> None:
        self._root, self._bytes_max = root, bytes_max

    def path(self, session_id: int) -> str:
        return str(self._root / str(session_id))

    async def keep(self, session_id: int, name: str, text: str) -> None:
        await asyncio.to_thread(self._keep, Path(self.path(session_id)), name, text)

    async def kept(self) -> list[int]:
        return await asyncio.to_thread(numbered, self._root)

    async def remove(self, session_id: int) -> None:
        await asyncio.to_thread(self._remove, session_id)

    # ---- in a thread -----------------------------------------------------------------------------------

    def _keep(self, folder: Path, name: str, text: str) -> None:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        data = text.encode("utf-8", "replace")
        used = sum(_status(file)[1] for file in folder.iterdir() if file.name != name)
        if used + len(data) > self._bytes_max:
            # The earlier ones stay: the transcript names them, and the model may be about to read them.
            raise ToolFailed(
                f"the large results of this session may have {self._bytes_max} bytes, {used} are in use"
            )
        temporary = folder / f".{secrets.token_hex(8)}.tmp"
        file = os.open(temporary, _NEW, 0o600)
        try:
            with os.fdopen(file, "wb") as stream:
                stream.write(data)
            temporary.replace(folder / name)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        for old in sorted(folder.iterdir(), key=lambda file: _status(file)[0])[:-FILES_MAX]:
            old.unlink(missing_ok=True)

    def _remove(self, session_id: int) -> None:
        with suppress(FileNotFoundError), opened(self._root) as around:
            remove(around, str(session_id))


def _status(path: Path) -> tuple[float, int]:
    """Return the time and the size of a file; nothing for one that another call of the same session has removed."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0.0, 0
    return status.st_mtime, status.st_size


# --------------------------------------------------------------------------------------------------
# Where a path of an agent leads: into its workspace, to the files of a task, or to its own large tool results.
#
# A call that names `/task/…`, `/tasks/…` or `/results/…` runs with that directory as its root, so the path checks of
# `workspace` apply there as well. The engine has decided whose files the agent may read: `ToolContext.reached`.


async def located(name: str, args: Mapping[str, Any], context: ToolContext) -> tuple[Mapping[str, Any], str]:
    """Return the arguments of a file tool and the root of its path. Raises ToolFailed, InvalidInput."""
    if (result := result_path(args.get("path"))) is not None:
        return await _in_results(name, args, result, context)
    if (copy := skill_path(args.get("path"))) is not None:
        return await _in_skills(name, args, copy, context)
    named = task_path(args.get("path"))
    if named is None:
        return args, context.workspace
    directory = context.files if named.task_id is None else context.reached
    if directory is None:
        raise ToolFailed("path: only a task has files of its own here")
    if name in WRITING:
        if named.task_id is not None or named.side is not Side.OUT:
            raise ToolFailed("path: only /task/out can be written; what was given is there to be read")
        await asyncio.to_thread(made, directory, Side.OUT)
    root = f"{directory}/{named.side}"
    if not await asyncio.to_thread(_is_folder, root):
        raise ToolFailed(f"path: there are no files in {_beginning(args)}")
    return {**args, "path": named.path}, root


async def _in_results(
    name: str, args: Mapping[str, Any], path: str, context: ToolContext
) -> tuple[Mapping[str, Any], str]:
    if name in WRITING:
        raise ToolFailed("path: /results is read-only; write into the workspace")
    if context.results is None or not await asyncio.to_thread(_is_folder, context.results):
        raise ToolFailed("path: this session has no large results")
    return {**args, "path": path}, context.results


async def _in_skills(
    name: str, args: Mapping[str, Any], path: str, context: ToolContext
) -> tuple[Mapping[str, Any], str]:
    """A copy is named by its content, which only a session that has loaded the skill knows."""
    if name in WRITING:
        raise ToolFailed("path: /skills is read-only; write into the workspace")
    seen, _, inner = path.partition("/")
    root = f"{context.skills}/{seen}"
    is_copy = context.skills is not None and seen.isalnum()
    if not is_copy or not await asyncio.to_thread(_is_folder, root):
        raise ToolFailed("path: there is no such skill; load one with `skill`")
    return {**args, "path": inner or "."}, root


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _beginning(args: Mapping[str, Any]) -> str:
    return "/".join(str(args["path"]).split("/")[:4])[:80]


def made(directory: str, side: Side) -> str:
    """Make a directory of a task, and return its path. Blocks."""
    path = Path(directory)
    for folder in (path.parent, path, path / side):
        with suppress(FileExistsError):
            folder.mkdir(0o700)
    return str(path / side)
