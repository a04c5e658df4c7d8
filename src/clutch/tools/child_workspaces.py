"""Directories of children that work in isolation, beneath one root, named by the task's number and nothing else."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clutch.ports import WorkspaceFailed
from clutch.tools.directories import DIRECTORY, alone, remove
from clutch.tools.sandbox import bubblewrap
from clutch.tools.sandbox.git import SandboxedGit, SandboxedGitFailed

# --------------------------------------------------------------------------------------------------
# A workspace of a child's own: made from its parent's, and taken away without touching anything else.
#
# Of a git repository it is a worktree: all tracked files at the current commit, and the history to read. Of any other
# directory it is an empty one. The child's box shows it this directory only (`sandbox`), so nothing here has to keep
# it inside. Its changes are files in this directory; somebody outside looks at them and takes them over.
#
# A repository is a program: its filters, hooks and settings name commands, and an agent may have written them. So
# git runs in a box of its own (`sandbox.git`) or not at all.
#
# These functions block, and want a thread without an event loop.


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
    except (OSError, SandboxedGitFailed, IsolationFailed) as error:
        remove_workspace(target)
        raise IsolationFailed(str(error)) from error


def is_repository(root: str) -> bool:
    """Whether `root` is the top of one. A folder inside one is not: its worktree would be the whole."""
    return os.path.lexists(f"{root}/.git")


def _check_out(source: str, target: str) -> None:
    git = SandboxedGit(_git_directory(source), target)
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
    entry = bubblewrap.worktree_entry(source)
    if entry is None:
        raise IsolationFailed(
            f"{place} names a repository elsewhere; an isolated workspace needs the repository itself"
        )
    return entry


def remove_workspace(target: str) -> None:
    """Removes what `isolated_workspace` made. What is gone already is no error; a link is not followed."""
    parent, name = os.path.split(os.path.abspath(target))
    root = os.path.join(os.path.realpath(parent), name)
    entry = bubblewrap.worktree_entry(root)
    try:
        around = os.open(parent, DIRECTORY)
    except FileNotFoundError:
        return
    except OSError as error:
        raise IsolationFailed(f"{parent}: {error.strerror}") from error
    try:
        remove(around, name)
    except OSError as error:
        raise IsolationFailed(f"{target}: {error.strerror}") from error
    finally:
        os.close(around)
    if entry is not None:
        with suppress(OSError):  # what is left of it hurts nobody, and git prunes it some day
            _forget(entry, root)


def _forget(entry: str, root: str) -> None:
    """Without git, whose `prune` would run what a repository names; and nothing but the entry of `root`."""
    around = os.open(os.path.dirname(entry), DIRECTORY)
    try:
        if bubblewrap.names_worktree(f"/proc/self/fd/{around}/{os.path.basename(entry)}", root):
            remove(around, os.path.basename(entry))
    finally:
        os.close(around)


class LocalWorkspaces:
    """`is_boxed`: tools see their workspace only. Without that, a directory of one's own isolates nobody."""

    def __init__(self, root: Path, *, is_boxed: bool) -> None:
        self._root, self._is_boxed = root, is_boxed

    def _place(self, task_id: int) -> Path:
        return self._root / str(task_id)

    def _mark(self, task_id: int) -> Path:
        """Written last: a directory without it was left half-made by a crash."""
        return self._root / f"{task_id}.made"

    async def make(self, task_id: int, source: str) -> str:
        if not self._is_boxed:
            raise WorkspaceFailed("workspace: isolated needs the sandbox, which is off here")
        try:
            await asyncio.to_thread(self._make, task_id, source)
        except (IsolationFailed, OSError) as error:
            raise WorkspaceFailed(f"workspace: {error}") from error
        return str(self._place(task_id))

    def _make(self, task_id: int, source: str) -> None:
        self._root.mkdir(0o700, parents=True, exist_ok=True)
        with self._alone(task_id):
            if self._mark(task_id).exists():
                return
            remove_workspace(str(self._place(task_id)))
            isolated_workspace(source, str(self._place(task_id)))
            self._mark(task_id).touch(0o600)
            self._lock(task_id).unlink(missing_ok=True)  # whoever waits for it finds the mark

    def _lock(self, task_id: int) -> Path:
        return self._root / f"{task_id}.making"

    @contextmanager
    def _alone(self, task_id: int) -> Iterator[None]:
        file = os.open(self._lock(task_id), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with alone(file):
                yield
        finally:
            os.close(file)

    async def kept(self) -> list[int]:
        return await asyncio.to_thread(self._kept)

    def _kept(self) -> list[int]:
        if not self._root.exists():
            return []
        return sorted(int(place.name) for place in self._root.iterdir() if place.name.isdecimal())

    async def remove(self, task_id: int) -> None:
        try:
            await asyncio.to_thread(self._remove, task_id)
        except IsolationFailed as error:
            raise WorkspaceFailed(f"workspace: {error}") from error

    def _remove(self, task_id: int) -> None:
        self._mark(task_id).unlink(missing_ok=True)
        self._lock(task_id).unlink(missing_ok=True)
        remove_workspace(str(self._place(task_id)))
