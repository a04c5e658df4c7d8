"""A workspace of a child's own: made from its parent's, and taken away without touching anything else.

Of a git repository it is a worktree: all tracked files at the current commit, and the history to read. Of any other
directory it is an empty one. The child's box shows it this directory only (`sandbox`), so nothing here has to keep
it inside. Its changes are files in this directory; somebody outside looks at them and takes them over.

Removing looks at no path twice: every step is relative to an open directory and follows no link, so a process
that swaps a folder for a link while it is being removed loses its own folder and nothing else.

These functions block.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import subprocess
from contextlib import suppress
from pathlib import Path

from clutch.tools.sandbox import bubblewrap

GIT_S = 300
ROUNDS_MAX = 100  # each meets what was swapped or written while the last one looked
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class IsolationFailed(Exception):
    """There is no such workspace now; the message says why."""


def isolated_workspace(source_root: str, target_dir: str) -> None:
    """Makes `target_dir`, which must not exist; the directory around it must."""
    if os.path.lexists(target_dir):
        raise IsolationFailed(f"{target_dir} exists already")
    if not is_repository(source_root):
        try:
            os.mkdir(target_dir, 0o700)
        except OSError as error:
            raise IsolationFailed(f"{target_dir}: {error.strerror}") from error
        return
    if _git(source_root, "rev-parse", "--verify", "--quiet", "HEAD").returncode:
        raise IsolationFailed(f"{source_root} is a git repository without a commit; make one first")
    done = _git(source_root, "worktree", "add", "--detach", "--quiet", "--", target_dir, "HEAD")
    if done.returncode:
        if os.path.lexists(target_dir):
            remove_workspace(target_dir)
        raise IsolationFailed(f"git worktree add: {done.stderr.decode(errors='replace').strip()[-300:]}")


def is_repository(root: str) -> bool:
    """Whether `root` is the top of one. A folder inside one is not: its worktree would be the whole."""
    return Path(root, ".git").exists()


def _git(root: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    """No hook runs: it might be the work of an agent, and this is outside any box."""
    quiet = ["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"]
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.environ.get("HOME", "/"),
        "LC_ALL": "C",
    }
    try:
        return subprocess.run(  # noqa: S603 - fixed words and paths of ours
            ["git", *quiet, "-C", root, *words],  # noqa: S607 - git is where the user has it
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**environment, "GIT_TERMINAL_PROMPT": "0"},
            timeout=GIT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise IsolationFailed("git is not installed, and the workspace is a git repository") from error
    except subprocess.TimeoutExpired as error:
        raise IsolationFailed(f"git {words[0]}: no answer within {GIT_S} s") from error


def remove_workspace(target: str) -> None:
    """Removes what `isolated_workspace` made. What is gone already is no error; a link is not followed."""
    parent, name = os.path.split(os.path.abspath(target))
    repositories = bubblewrap.history_of(os.path.realpath(target))
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
    for repository in repositories:
        _git(repository, "worktree", "prune")


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
