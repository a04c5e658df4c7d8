"""A workspace of a child's own: made from its parent's, and taken away without touching anything else.

Of a git repository it is a worktree: all tracked files at the current commit, and the history to read. Of any other
directory it is an empty one. The child's box shows it this directory only (`sandbox`), so nothing here has to keep
it inside. Its changes are files in this directory; somebody outside looks at them and takes them over.

A repository is a program: its filters, hooks and settings name commands, and an agent may have written them. So
git runs in a box of its own (`sandbox.git`) or not at all.

These functions block, and want a thread without an event loop.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from clutch.tools.removal import DIRECTORY, remove
from clutch.tools.sandbox import repository
from clutch.tools.sandbox.git import BoxedGit, BoxedGitFailed


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
    root = os.path.join(os.path.realpath(parent), name)
    entry = repository.worktree_entry(root)
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
        if repository.names_worktree(f"/proc/self/fd/{around}/{os.path.basename(entry)}", root):
            remove(around, os.path.basename(entry))
    finally:
        os.close(around)
