"""The state directory: private to its user, and owned by one gateway at a time.

The lock is the kernel's (`flock`), so the death of the process frees it, however it died. The pid in the
file is for operators; no code decides by it. The second line says that the owner is never served.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from clutch.core.attachments import LOCK, STATE_FILES, STATE_MARK
from clutch.errors import InvalidInput, StateDirectoryInUse, UnsafeStateDirectory

#: Keeps transcripts and tokens out of a repository whose folder the state directory is in.
IGNORE_FILE = ".gitignore"
#: What an operator may have written before there was anything else.
CONFIG_FILE = "clutch.json"
#: What a user may write before the first use: the config, agent files and skills.
WRITTEN_BEFORE = {CONFIG_FILE, "agents", "skills"}
#: A directory that holds one of them is ours. The demo writes its job before a gateway has
#: been there (an older one `last-demo`), and a gateway on PostgreSQL has nothing else here.
OWN_FILES = frozenset(("lock", "clutch.db", "demo.json", "last-demo", "token", "gateway.json"))


class StateDirectory:
    """Made private and locked by `acquire`. Files in it get their modes explicitly: the umask belongs to the
    program that embeds us, and to the files its tools write elsewhere."""

    def __init__(self, path: Path | str) -> None:
        if path == "":  # as a path it would be the current directory
            raise InvalidInput("state", "must name a directory")
        self.path = Path(path)
        self._lock: int | None = None

    def acquire(self) -> Self:
        """Raises StateDirectoryInUse, UnsafeStateDirectory."""
        with private(self.path) as here, _writable(self.path):
            lock = _marked(here)
        try:
            os.fchmod(lock, 0o600)
            self._take(lock)
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock
        return self

    def _take(self, lock: int) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(lock, 32, 0).decode("ascii", "replace").partition("\n")[0].strip() or "unknown"
            raise StateDirectoryInUse(
                f"{self.path} is in use by another process (pid {owner}); "
                f"stop it, or use another state directory"
            ) from error
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def mark(path: Path) -> None:
    """Make a directory recognisable as a state directory that has no database file, because it is in PostgreSQL."""
    path.mkdir(0o700, parents=True, exist_ok=True)
    with _writable(path):
        here = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.close(_marked(here))
        finally:
            os.close(here)


def _marked(here: int) -> int:
    """Return the lock file, open. Agents see no directory that has it beside one of STATE_FILES."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(LOCK, flags, 0o600, dir_fd=here)
    try:
        there = os.listdir(here)
        if STATE_FILES.isdisjoint(there):
            os.close(os.open(STATE_MARK, flags, 0o600, dir_fd=here))
    except BaseException:
        os.close(lock)
        raise
    if IGNORE_FILE not in there:
        _ignore(here, flags)
    return lock


def _ignore(here: int, flags: int) -> None:
    """A directory of an older version has none, and must open on a disk that is full: the next start tries again."""
    try:
        with os.fdopen(os.open(IGNORE_FILE, flags, 0o600, dir_fd=here), "w") as ignored:
            ignored.write("*\n")
    except OSError:
        with suppress(OSError):
            os.unlink(IGNORE_FILE, dir_fd=here)  # an empty one would ignore nothing, for ever


_UNSERVED = "never served"


def mark_unserved(path: Path) -> None:
    """Called by the owner, which no other process can ask for anything. The next owner removes the mark."""
    with (path / "lock").open("a") as lock:
        lock.write(f"{_UNSERVED}\n")


def is_unserved(path: Path) -> bool:
    return _UNSERVED in (path / "lock").read_text().splitlines()


@contextmanager
def private(path: Path) -> Iterator[int]:
    """The directory, open: what is looked at and made private here is one and the same, whatever its name
    comes to mean meanwhile."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700)
    except FileExistsError:
        _refuse_foreign(path, path.lstat())
    except OSError as error:
        raise UnsafeStateDirectory(
            f"{path} cannot be made ({error.strerror}); use another state directory"
        ) from error
    with _writable(path):
        here = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _refuse_foreign(path, os.fstat(here))
        with _writable(path):
            _refuse_used(path, os.listdir(here))
            os.fchmod(here, 0o700)
        yield here
    finally:
        os.close(here)


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    """Turn what the filesystem refuses into an error that names the directory and the remedy."""
    try:
        yield
    except OSError as error:
        raise UnsafeStateDirectory(
            f"the state directory {path} cannot be used ({error.strerror}): make it readable and writable for this"
            " user, or name another (--state, CLUTCH_HOME)"
        ) from error


def _refuse_foreign(path: Path, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise UnsafeStateDirectory(f"{path} is a symbolic link; name the directory itself")
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeStateDirectory(f"{path} is not a directory; use another state directory")
    if found.st_uid != os.geteuid():
        raise UnsafeStateDirectory(f"{path} belongs to user {found.st_uid}; use a directory of your own")


def _refuse_used(path: Path, names: Sequence[str]) -> None:
    """Making a shared folder private would lock its other users out."""
    if set(names) - WRITTEN_BEFORE and OWN_FILES.isdisjoint(names):
        raise UnsafeStateDirectory(f"{path} exists and holds other files; name a directory of its own")
