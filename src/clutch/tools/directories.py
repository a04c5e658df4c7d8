"""Remove a directory with its content and nothing else, while another process may be changing it; lock a directory.

No path is resolved twice: every step is relative to an open directory and follows no link. A process that swaps a
folder for a link while it is being removed loses its own folder and nothing else.

These functions block."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
ROUNDS_MAX = 100  # each removes what was swapped or written during the one before
#: The name is no folder, or not the folder that it was a moment ago.
_SWAPPED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


@contextmanager
def opened(path: str | Path, around: int | None = None) -> Iterator[int]:
    """Open a directory, relative to the open directory `around`. A link is not followed."""
    folder = os.open(path, DIRECTORY, dir_fd=around)
    try:
        yield folder
    finally:
        os.close(folder)


def numbered(root: Path) -> list[int]:
    """Return the entries of a directory that are numbers; none where there is no such directory."""
    with suppress(FileNotFoundError):
        return sorted(int(place.name) for place in root.iterdir() if place.name.isdecimal())
    return []


def remove(around: int, name: str) -> None:
    """Remove `name` from the open directory `around`. A missing one is no error; of a link only the link is removed."""
    # Every folder that is found is first moved to the top: any depth takes two descriptors and no recursion.
    try:
        top = _changeable(around, name)
    except OSError as error:
        if error.errno not in _SWAPPED:
            raise
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=around)
        return
    try:
        for _ in range(ROUNDS_MAX):
            while waiting := _emptied(top):
                for folder in waiting:
                    _flatten(top, folder)
            if _is_removed(name, around):
                return
    finally:
        os.close(top)
    raise OSError(errno.ENOTEMPTY, "another process still writes into it")


def _flatten(top: int, folder: str) -> None:
    try:
        here = _changeable(top, folder)
    except OSError as error:
        if error.errno in _SWAPPED:
            return  # it was swapped: the next round sees what it is now
        raise
    try:
        for name in _emptied(here):
            with suppress(FileNotFoundError):
                os.rename(name, f".{secrets.token_hex(16)}", src_dir_fd=here, dst_dir_fd=top)
    finally:
        os.close(here)
    with suppress(FileNotFoundError, NotADirectoryError):
        _is_removed(folder, top)


def _is_removed(folder: str, around: int) -> bool:
    """Return False when another process has put something into it: the next round removes that."""
    try:
        os.rmdir(folder, dir_fd=around)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        return False
    return True


def _emptied(here: int) -> list[str]:
    """Remove everything in `here` but its folders; return their names. They are made writable, to be moved."""
    folders = []
    with os.scandir(here) as found:
        names = [entry.name for entry in found]
    for name in names:
        try:
            is_folder = stat.S_ISDIR(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode)
            if not is_folder:
                os.unlink(name, dir_fd=here)
                continue
            os.close(_changeable(here, name))
            folders.append(name)
        except OSError as error:
            if error.errno not in (errno.EISDIR, *_SWAPPED):
                raise
    return folders


def changeable_by_name(around: int, name: str) -> int:
    """Open a directory that we may read and change, whatever mode its owner gave it, on a system without /proc.

    A folder that another process swaps for a link is not entered, and the target of the link keeps its mode."""
    status = os.stat(name, dir_fd=around, follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode) and status.st_mode & 0o700 != 0o700:
        os.chmod(name, 0o700, dir_fd=around, follow_symlinks=False)
    return os.open(name, DIRECTORY, dir_fd=around)


if sys.platform == "linux":

    def _changeable(around: int, name: str) -> int:
        """Open a directory that we may read and change, whatever mode its owner gave it."""
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=around)
        try:
            if os.fstat(handle).st_mode & 0o700 != 0o700:
                os.chmod(f"/proc/self/fd/{handle}", 0o700)
            return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)
        finally:
            os.close(handle)

else:
    _changeable = changeable_by_name


# --------------------------------------------------------------------------------------------------
# Of several processes of a machine that make the same files, one at a time.
#
# A gateway that stood still for longer than its lease counts as dead, and another one does its work; then it resumes.
# Without the lock it would remove what the other has made, from under a child that works there already.

PATIENCE_S = 20.0  #: less than the time that a spawn has for its side work
_PAUSE_S = 0.05


@contextmanager
def alone(file: int) -> Iterator[None]:
    """Hold the lock of an open file, also while this process stands still. Raises TimeoutError. Blocks."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not _is_locked(file):
        if time.monotonic() > give_up_at:
            raise TimeoutError(errno.ETIMEDOUT, "another process is making it and does not continue")
        time.sleep(_PAUSE_S)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
