"""Removing a directory with all that is in it, and nothing else, while somebody else may be changing it.

No path is looked at twice: every step is relative to an open directory and follows no link, so a process that
swaps a folder for a link while it is being removed loses its own folder and nothing else.

These functions block.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
ROUNDS_MAX = 100  # each meets what was swapped or written while the last one looked
#: What stands at a name is no folder, or not the one that stood there a moment ago.
_SWAPPED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def remove(around: int, name: str) -> None:
    """What is there no more is no error, and of a link only the link goes.

    Every folder found is first moved to the top: any depth takes two descriptors and no recursion."""
    try:
        top = _opened(around, name)
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
    raise OSError(errno.ENOTEMPTY, "somebody still writes into it")


def _flatten(top: int, folder: str) -> None:
    try:
        here = _opened(top, folder)
    except OSError as error:
        if error.errno in _SWAPPED:
            return  # swapped while we looked: the next round sees what it is now
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
    """False when somebody has put something into it again: another round takes it."""
    try:
        os.rmdir(folder, dir_fd=around)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        return False
    return True


def _emptied(here: int) -> list[str]:
    """Everything in `here` but its folders is gone now; their names, made writable to be moved."""
    folders = []
    with os.scandir(here) as found:
        names = [entry.name for entry in found]
    for name in names:
        try:
            is_folder = stat.S_ISDIR(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode)
            if not is_folder:
                os.unlink(name, dir_fd=here)
                continue
            os.close(_opened(here, name))
            folders.append(name)
        except OSError as error:
            if error.errno not in (errno.EISDIR, *_SWAPPED):
                raise
    return folders


def _opened(around: int, name: str) -> int:
    """An open directory that we may read and change, whatever its owner forbade itself."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=around)
    try:
        if os.fstat(handle).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)
    finally:
        os.close(handle)
