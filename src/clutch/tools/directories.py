"""Removing a directory with all that is in it, and nothing else, while somebody else may be changing it.

No path is looked at twice: every step is relative to an open directory and follows no link, so a process that
swaps a folder for a link while it is being removed loses its own folder and nothing else.

These functions block."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from clutch.core.attachments import Side, result_path, task_path
from clutch.ports import ToolContext, ToolFailed

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


# --------------------------------------------------------------------------------------------------
# Of several processes of a machine that make the same files, one at a time.
#
# A gateway that stood still for longer than its lease is taken for dead, and another one does its work; then it goes
# on where it was. Without this it would remove what the other has made, from under a child that works there already.

PATIENCE_S = 20.0  #: within the time that a spawn is given for its side work
_PAUSE_S = 0.05


@contextmanager
def alone(file: int) -> Iterator[None]:
    """Locked also while its process stands still. Raises TimeoutError. It blocks, and wants a thread."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not _is_locked(file):
        if time.monotonic() > give_up_at:
            raise TimeoutError(errno.ETIMEDOUT, "another process is making it and does not go on")
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


# --------------------------------------------------------------------------------------------------
# Where a path of an agent leads: into its workspace, to the files of a task, or to its own large tool results.
#
# A call that names `/task/…`, `/tasks/…` or `/results/…` runs with that directory as its root, so the guards of
# `workspace` hold there as anywhere. Who may read whose files was decided before: `ToolContext.reached`.

WRITING = frozenset(("write", "edit"))


async def found(name: str, args: Mapping[str, Any], context: ToolContext) -> tuple[Mapping[str, Any], str]:
    """The arguments of a file tool, and the directory that its path is beneath. Raises ToolFailed, InvalidInput."""
    if (result := result_path(args.get("path"))) is not None:
        return await _among_results(name, args, result, context)
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
        raise ToolFailed(f"path: there are no files in {_shown(args)}")
    return {**args, "path": named.path}, root


async def _among_results(
    name: str, args: Mapping[str, Any], path: str, context: ToolContext
) -> tuple[Mapping[str, Any], str]:
    if name in WRITING:
        raise ToolFailed("path: /results is read-only; write into the workspace")
    if context.results is None or not await asyncio.to_thread(_is_folder, context.results):
        raise ToolFailed("path: this session has no large results")
    return {**args, "path": path}, context.results


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _shown(args: Mapping[str, Any]) -> str:
    return "/".join(str(args["path"]).split("/")[:4])[:80]


def made(directory: str, side: Side) -> str:
    """The side of a task, for the first file in it. Blocks."""
    path = Path(directory)
    for folder in (path.parent, path, path / side):
        with suppress(FileExistsError):
            folder.mkdir(0o700)
    return str(path / side)
