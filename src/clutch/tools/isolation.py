"""A workspace of a child's own: made from its parent's, and taken away without touching anything else.

Of a git repository it is a worktree: all tracked files at the current commit, and the history to read. Of any other
directory it is an empty one. The child's box shows it this directory only (`sandbox`), so nothing here has to keep
it inside. Its changes are files in this directory; somebody outside looks at them and takes them over.

A repository is a program: its filters, hooks and settings name commands, and an agent may have written them. So
git runs in a box of its own (`sandbox.git`) or not at all.

Removing looks at no path twice: every step is relative to an open directory and follows no link, so a process
that swaps a folder for a link while it is being removed loses its own folder and nothing else.

These functions block, and want a thread without an event loop.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress

from clutch.tools.sandbox import repository
from clutch.tools.sandbox.git import BoxedGit, BoxedGitFailed

ROUNDS_MAX = 100  # each meets what was swapped or written while the last one looked
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class IsolationFailed(Exception):
    """There is no such workspace now; the message says why."""


def isolated_workspace(source_root: str, target_dir: str) -> None:
    """Makes `target_dir`, which must not exist; the directory around it must."""
    source, target = os.path.realpath(source_root), os.path.realpath(target_dir)
    if os.path.lexists(target_dir):
        raise IsolationFailed(f"{target_dir} exists already")
    try:
        os.mkdir(target, 0o700)
    except OSError as error:
        raise IsolationFailed(f"{target_dir}: {error.strerror}") from error
    if not is_repository(source):
        return
    try:
        _check_out(source, target)
    except (OSError, BoxedGitFailed, IsolationFailed) as error:
        remove_workspace(target)
        raise IsolationFailed(str(error)) from error


def is_repository(root: str) -> bool:
    """Whether `root` is the top of one. A folder inside one is not: its worktree would be the whole."""
    return os.path.lexists(f"{root}/.git")


def _check_out(source: str, target: str) -> None:
    git = BoxedGit(_git_directory(source), target)
    if git.run("rev-parse", "--verify", "--quiet", "HEAD").exit_code == 1:
        raise IsolationFailed(f"{source} is a git repository without a commit; make one first")
    # Forced, because a directory of this name may have been lost without git knowing.
    done = git.run("worktree", "add", "--force", "--detach", "--quiet", "--", target, "HEAD")
    if done.exit_code:
        raise IsolationFailed(f"git worktree add: {done.said[-300:]}")


def _git_directory(source: str) -> str:
    """In the workspace, or where git itself keeps this worktree: an agent may have written a `.git` that names
    somebody else's repository."""
    place = f"{source}/.git"
    if stat.S_ISDIR(os.lstat(place).st_mode):
        return place
    entry = repository.worktree_entry(source)
    if entry is None:
        raise IsolationFailed(
            f"{place} names a repository elsewhere; an isolated workspace needs the repository itself"
        )
    return entry


def remove_workspace(target: str) -> None:
    """Removes what `isolated_workspace` made. What is gone already is no error; a link is not followed."""
    parent, name = os.path.split(os.path.abspath(target))
    entry = repository.worktree_entry(os.path.realpath(target))
    try:
        around = os.open(parent, _DIRECTORY)
    except FileNotFoundError:
        return
    except OSError as error:
        raise IsolationFailed(f"{parent}: {error.strerror}") from error
    try:
        _remove_directory(around, name)
    except OSError as error:
        raise IsolationFailed(f"{target}: {error.strerror}") from error
    finally:
        os.close(around)
    if entry is not None:
        with suppress(OSError):  # what is left of it hurts nobody, and git prunes it some day
            _forget(entry, os.path.realpath(target))


def _forget(entry: str, root: str) -> None:
    """Without git, whose `prune` would run what a repository names; and nothing but the entry of `root`."""
    around = os.open(os.path.dirname(entry), _DIRECTORY)
    try:
        if repository.names_worktree(f"/proc/self/fd/{around}/{os.path.basename(entry)}", root):
            _remove_directory(around, os.path.basename(entry))
    finally:
        os.close(around)


def _remove_directory(around: int, name: str) -> None:
    """Every folder found is first moved to the top: any depth takes two descriptors and no recursion."""
    try:
        top = _opened(around, name)
    except FileNotFoundError:
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
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
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
            if error.errno not in (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ELOOP):
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
