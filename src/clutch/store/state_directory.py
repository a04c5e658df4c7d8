"""The state directory: private to its user, and owned by one gateway at a time.

The lock is the kernel's (`flock`), so the death of the process frees it, however it died. The pid in the
file is for people; nobody decides by it.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

from clutch.errors import StateDirectoryInUse, UnsafeStateDirectory


class StateDirectory:
    """Made private and locked by `acquire`. Files in it get their modes explicitly: the umask belongs to the
    program that embeds us, and to the files its tools write elsewhere."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock: int | None = None

    def acquire(self) -> Self:
        """Raises StateDirectoryInUse, UnsafeStateDirectory."""
        _make_private(self.path)
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
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
            owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise StateDirectoryInUse(
                f"another gateway (pid {owner}) owns {self.path}; "
                f"stop it (`kill {owner}`), or choose another directory with CLUTCH_HOME"
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


def _make_private(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        _refuse_foreign(path, path.lstat())
    path.chmod(0o700)


def _refuse_foreign(path: Path, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise UnsafeStateDirectory(f"{path} is a symbolic link; name the directory itself in CLUTCH_HOME")
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeStateDirectory(f"{path} is not a directory; choose another one with CLUTCH_HOME")
    if found.st_uid != os.geteuid():
        raise UnsafeStateDirectory(f"{path} belongs to user {found.st_uid}; choose one of your own")
