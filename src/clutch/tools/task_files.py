"""The files of tasks on this machine: `<root>/<task>/in` and `out`, made from numbers and nothing else.

A task's later shelves are `<root>/<task>.<number>`.

    in/.manifest.json   written last: names, sizes and hashes of the others. Without it, `in/` is half-made
    out/                only files right in it count; folders, links and pipes are nobody's to hand over

Everything is reached from an open directory, and no link is followed: what a task's own process put there cannot
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, ParamSpec, TypeVar

from clutch.core.attachments import (
    MANIFEST,
    Attachment,
    AttachmentRules,
    FileVersion,
    Handed,
    Side,
    StoredFile,
    name_problem,
)
from clutch.ports import FilesFailed, ToolFailed
from clutch.tools.directories import DIRECTORY, alone, remove

P = ParamSpec("P")
T = TypeVar("T")

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe must not wait for somebody to write into it.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NAME = re.compile(r"\d+(\.[1-9]\d*)?")
_LOOKED_AT_MAX = 1000  # entries of an `out/`; a task that made more hands over a folder, not files


class LocalTaskFiles:
    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, shelf: FileVersion) -> str:
        return str(self._root / _name(shelf))

    def exists(self, shelf: FileVersion) -> bool:
        return os.path.lexists(self.path(shelf))

    async def put(self, shelf: FileVersion, files: Sequence[Attachment]) -> None:
        await _in_thread(self._put, shelf, files)

    async def handed(self, shelf: FileVersion, rules: AttachmentRules) -> Handed:
        return await _in_thread(self._handed, shelf, rules)

    async def read(self, shelf: FileVersion, name: str) -> bytes:
        return await _in_thread(self._read, shelf, name)

    async def remove(self, shelf: FileVersion, *sides: Side) -> None:
        await _in_thread(self._remove, shelf, sides)

    async def kept(self) -> list[FileVersion]:
        return await _in_thread(self._kept)

    # ---- in a thread -----------------------------------------------------------------------------------

    def _put(self, shelf: FileVersion, files: Sequence[Attachment]) -> None:
        manifest = _manifest([file.stored for file in files])
        with self._at(shelf, create=True) as here, alone(here):
            if _content(here, Side.IN, MANIFEST) == manifest:
                return
            remove(here, Side.IN)
            with _entered(here, Side.IN, create=True) as folder:
                for file in files:
                    _write(folder, file.name, file.content)
                _write(folder, MANIFEST, manifest)
                os.fsync(folder)
            os.fsync(here)

    def _handed(self, shelf: FileVersion, rules: AttachmentRules) -> Handed:
        files: list[StoredFile] = []
        left_out, room = 0, rules.total_bytes_max
        with suppress(FileNotFoundError, NotADirectoryError), self._side(shelf, Side.OUT) as folder:
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

    def _read(self, shelf: FileVersion, name: str) -> bytes:
        if problem := name_problem(name):
            raise FilesFailed(f"files: the name {problem}")
        with self._side(shelf, Side.OUT) as folder, _plain(folder, name) as stream:
            return stream.read()

    def _remove(self, shelf: FileVersion, sides: Sequence[Side]) -> None:
        with suppress(FileNotFoundError):
            if not sides:
                with _opened(str(self._root)) as root:
                    return remove(root, _name(shelf))
            with suppress(NotADirectoryError), self._at(shelf) as here:
                for side in sides:
                    remove(here, side)

    def _kept(self) -> list[FileVersion]:
        try:
            return sorted(_shelf(name) for name in os.listdir(self._root) if _NAME.fullmatch(name))
        except FileNotFoundError:
            return []

    @contextmanager
    def _at(self, shelf: FileVersion, *, create: bool = False) -> Iterator[int]:
        if create:
            self._root.mkdir(0o700, parents=True, exist_ok=True)
        with _opened(str(self._root)) as root, _entered(root, _name(shelf), create=create) as here:
            yield here

    @contextmanager
    def _side(self, shelf: FileVersion, side: Side) -> Iterator[int]:
        with self._at(shelf) as here, _entered(here, side) as folder:
            yield folder


def _name(shelf: FileVersion) -> str:
    return f"{shelf.task_id}.{shelf.number}" if shelf.number else str(shelf.task_id)


def _shelf(name: str) -> FileVersion:
    return FileVersion(*map(int, name.split(".")))


async def _in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return await asyncio.to_thread(work, *args, **kwargs)
    except OSError as error:
        raise FilesFailed(f"files: {error.strerror or type(error).__name__}") from error


def _manifest(files: Sequence[StoredFile]) -> bytes:
    listed = [{"name": file.name, "bytes": file.bytes, "sha256": file.sha256} for file in files]
    return json.dumps({"files": listed}, ensure_ascii=False, indent=1).encode()


@contextmanager
def _opened(path: str, around: int | None = None) -> Iterator[int]:
    folder = os.open(path, DIRECTORY, dir_fd=around)
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def _entered(around: int, name: str, *, create: bool = False) -> Iterator[int]:
    if create:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=around)
    with _opened(name, around) as folder:
        yield folder


@contextmanager
def _plain(folder: int, name: str) -> Iterator[BinaryIO]:
    """Raises OSError for a link, a folder, a pipe."""
    file = os.open(name, _FILE, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "not a plain file")
    with os.fdopen(file, "rb") as stream:
        yield stream


def _write(folder: int, name: str, content: bytes) -> None:
    with os.fdopen(os.open(name, _NEW, 0o600, dir_fd=folder), "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _content(here: int, side: Side, name: str) -> bytes | None:
    try:
        with _entered(here, side) as folder, _plain(folder, name) as stream:
            return stream.read()
    except OSError:
        return None


def _stored(folder: int, name: str, size_max: int) -> StoredFile | None:
    """None: it is not to be handed over."""
    if name_problem(name):
        return None
    try:
        with _plain(folder, name) as stream:
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
# read here (`shelves`), and no command or program sees it.

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
        return await asyncio.to_thread(self._kept)

    async def remove(self, session_id: int) -> None:
        await asyncio.to_thread(self._remove, session_id)

    # ---- in a thread -----------------------------------------------------------------------------------

    def _keep(self, folder: Path, name: str, text: str) -> None:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        data = text.encode("utf-8", "replace")
        used = sum(_size(file) for file in folder.iterdir() if file.name != name)
        if used + len(data) > self._bytes_max:
            # The earlier ones stay: the transcript names them, and the model may be about to read them.
            raise ToolFailed(
                f"the large results of this session may have {self._bytes_max} bytes, {used} are in use"
            )
        temporary = folder / f".{secrets.token_hex(8)}.tmp"
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(file, "wb") as stream:
                stream.write(data)
            temporary.replace(folder / name)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        for old in sorted(folder.iterdir(), key=_age)[:-FILES_MAX]:
            old.unlink(missing_ok=True)

    def _kept(self) -> list[int]:
        with suppress(FileNotFoundError):
            return sorted(int(place.name) for place in self._root.iterdir() if place.name.isdecimal())
        return []

    def _remove(self, session_id: int) -> None:
        with suppress(FileNotFoundError):
            around = os.open(self._root, DIRECTORY)
            try:
                remove(around, str(session_id))
            finally:
                os.close(around)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # as below
        return 0


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another call of the same session has removed it
        return 0.0
