"""Workspaces of children that work in isolation, beneath one root, named by the task's number and nothing else.

The workspace of a child is made from its parent's and removed without touching anything else. Of a git repository it is
a worktree: all tracked files at the current commit, and the history to read. Of any other directory it is an empty one.
The child's sandbox shows it this directory only, so nothing here has to keep the child inside. Its changes are files in
this directory, which the parent or a user takes over.

A repository is a program: its filters, hooks and settings name commands, and an agent may have written them. So git
runs in a sandbox of its own (`SandboxedGit`) or not at all."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from clutch.contain import BackgroundTasks
from clutch.ports import ToolFailed, WorkspaceFailed
from clutch.tools.directories import alone, numbered, opened, remove
from clutch.tools.sandbox import bubblewrap
from clutch.tools.sandbox.lifetime import FirstProcess
from clutch.tools.sandbox.policy import Sandbox, SandboxPolicy
from clutch.tools.sandbox.process import CHUNK_BYTES, SandboxKind, end, kill_over_limit, sandbox_kind, start


class IsolationFailed(Exception):
    """There is no such workspace now; the message says why."""


# --------------------------------------------------------------------------------------------------
# Git in a sandbox of its own: one repository and one directory to check out into, no network, nothing else.
#
# The files of the workspace are not visible there, only its `.git`: changes of an agent since the last commit have no
# part in this. Neither is the user's home: filters that are set up there (git-lfs) do not run.

GIT_S = 300
OUTPUT_BYTES = 4096  # kept, from the end
MISSING = 127  # exit code of a shell for a program that does not exist

#: The repository may lie where a sandboxed command runs, which could put a link to another one in its place while
#: bubblewrap mounts it. So the first step inside is to check that this is the directory that was meant.
_STAT = "stat -f %d:%i" if sys.platform == "darwin" else "stat -c %d:%i --"
_CHECKED = f"""
[ "$({_STAT} "$1")" = "$2" ] || {{ echo "the repository was replaced"; exit 2; }}
shift 2
exec "$@"
"""
# fmt: off
_SETTINGS = (
    "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false",
    "-c", "worktree.useRelativePaths=false",  # `bubblewrap.worktree_entry` compares absolute paths
)
# fmt: on


class GitResult(NamedTuple):
    exit_code: int
    output: str


class SandboxedGit:
    """`git_directory`: `.git`, or `.git/worktrees/NAME` of a worktree. Both directories must exist."""

    def __init__(self, git_directory: str, target: str) -> None:
        try:
            self._kind = sandbox_kind(Sandbox.ON, for_shell=True)
        except ToolFailed as failed:
            raise IsolationFailed(
                f"isolated workspaces of git repositories need a sandbox for commands: {failed}"
            ) from failed
        is_worktree = os.path.basename(os.path.dirname(git_directory)) == "worktrees"
        self._git_directory = git_directory
        self._whole = os.path.dirname(os.path.dirname(git_directory)) if is_worktree else git_directory
        with opened(self._whole) as handle:
            status = os.fstat(handle)
        self._identity = f"{status.st_dev}:{status.st_ino}"
        self._policy = SandboxPolicy(target, writable=(self._whole,), keeps_protected=False)

    def run(self, *words: str) -> GitResult:
        """Blocks, in a thread without an event loop. Raises IsolationFailed."""
        git = ["git", *_SETTINGS, f"--git-dir={self._git_directory}", *words]
        command = ["/bin/sh", "-c", _CHECKED, "git", self._whole, self._identity, *git]
        try:
            done = asyncio.run(_git_ended(self._policy, self._kind, command))
        except TimeoutError as error:
            raise IsolationFailed(f"git {words[0]}: no answer within {GIT_S} s") from error
        if done.exit_code == MISSING:
            raise IsolationFailed("git is not installed in /usr, and the workspace is a git repository")
        return done


async def _git_ended(policy: SandboxPolicy, kind: SandboxKind, command: list[str]) -> GitResult:
    output = b""
    with closing(FirstProcess()) as first:
        process = await start(policy, command, kind=kind, cwd="/", first=first)
        assert process.stdout is not None
        try:
            async with BackgroundTasks() as tasks, asyncio.timeout(GIT_S):
                watching = tasks.call(kill_over_limit(process, policy), "clutch-git-limits")
                while data := await process.stdout.read(CHUNK_BYTES):
                    output = (output + data)[-OUTPUT_BYTES:]
                exit_code = await process.wait()
        finally:
            await end(process)
            await asyncio.to_thread(first.wait)
    if watching.done() and not watching.cancelled():
        raise IsolationFailed(f"git was ended: {watching.result()}")
    return GitResult(exit_code, output.decode("utf-8", "replace").strip())


# --------------------------------------------------------------------------------------------------
# The workspace of one child. These functions block, and want a thread without an event loop.


def isolated_workspace(source_root: str, target_dir: str) -> None:
    """Make `target_dir`, which must not exist; the directory around it must. Raises IsolationFailed."""
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
    except (OSError, IsolationFailed) as error:
        remove_workspace(target)
        raise IsolationFailed(str(error)) from error


def is_repository(root: str) -> bool:
    """Whether `root` is the top of a repository. A folder inside one is not: its worktree would be the whole."""
    return os.path.lexists(f"{root}/.git")


def _check_out(source: str, target: str) -> None:
    git = SandboxedGit(_git_directory(source), target)
    if git.run("rev-parse", "--verify", "--quiet", "HEAD").exit_code == 1:
        raise IsolationFailed(f"{source} is a git repository without a commit; make one first")
    # Forced, because a directory of this name may have been lost without git knowing.
    done = git.run("worktree", "add", "--force", "--detach", "--quiet", "--", target, "HEAD")
    if done.exit_code:
        raise IsolationFailed(f"git worktree add: {done.output[-300:]}")


def _git_directory(source: str) -> str:
    """Return `.git` of the workspace, or the directory in which git itself keeps this worktree."""
    # An agent may have written a file `.git` that names another user's repository: only git's own entry counts.
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
    """Remove what `isolated_workspace` made. A missing one is no error; a link is not followed."""
    parent, name = os.path.split(os.path.abspath(target))
    root = os.path.join(os.path.realpath(parent), name)
    entry = bubblewrap.worktree_entry(root)
    try:
        with opened(parent) as around:
            try:
                remove(around, name)
            except OSError as error:
                raise IsolationFailed(f"{target}: {error.strerror}") from error
    except FileNotFoundError:
        return
    except OSError as error:
        raise IsolationFailed(f"{parent}: {error.strerror}") from error
    if entry is not None:
        with suppress(OSError):  # an entry that is left does no harm, and git prunes it one day
            _forget(entry, root)


def _forget(entry: str, root: str) -> None:
    """Remove the entry of `root` and nothing else, without git, whose `prune` runs what a repository names."""
    with opened(os.path.dirname(entry)) as around:
        if bubblewrap.names_worktree(os.path.basename(entry), root, around):
            remove(around, os.path.basename(entry))


class CameWith(NamedTuple):
    """What a workspace had when it was made. A file that has changed since has a later change time."""

    until_ns: int = 0
    files: frozenset[str] = frozenset()


NOTHING_CAME = CameWith()
LISTED_MAX = 20_000  #: files of a new workspace; of a larger one it is not known what is removed later


class LocalWorkspaces:
    """`is_sandboxed`: tools see their workspace only. Without that, a directory of its own isolates no child.
    `is_shared`: its work may continue on another machine, so what comes with a workspace is written down."""

    def __init__(self, root: Path, *, is_sandboxed: bool, is_shared: bool = False) -> None:
        self._root, self._is_sandboxed, self._is_shared = root, is_sandboxed, is_shared

    def path(self, task_id: int) -> str:
        return str(self._place(task_id))

    def came_with(self, task_id: int) -> CameWith:
        """Blocks."""
        try:
            status, text = self._mark(task_id).stat(), self._mark(task_id).read_text()
        except FileNotFoundError:
            return NOTHING_CAME
        return CameWith(status.st_mtime_ns, frozenset(json.loads(text) if text else ()))

    def _place(self, task_id: int) -> Path:
        return self._root / str(task_id)

    def _mark(self, task_id: int) -> Path:
        """Written last: a directory without it was left half-made by a crash."""
        return self._root / f"{task_id}.made"

    def _lock(self, task_id: int) -> Path:
        return self._root / f"{task_id}.making"

    async def make(self, task_id: int, source: str) -> str:
        if not self._is_sandboxed:
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
            if self._is_shared:
                self._mark(task_id).write_text(json.dumps(_files_below(self._place(task_id))))
            self._lock(task_id).unlink(missing_ok=True)  # a process that waits for the lock finds the mark

    @contextmanager
    def _alone(self, task_id: int) -> Iterator[None]:
        file = os.open(self._lock(task_id), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with alone(file):
                yield
        finally:
            os.close(file)

    async def kept(self) -> list[int]:
        return await asyncio.to_thread(numbered, self._root)

    async def remove(self, task_id: int) -> None:
        try:
            await asyncio.to_thread(self._remove, task_id)
        except IsolationFailed as error:
            raise WorkspaceFailed(f"workspace: {error}") from error

    def _remove(self, task_id: int) -> None:
        self._mark(task_id).unlink(missing_ok=True)
        self._lock(task_id).unlink(missing_ok=True)
        remove_workspace(str(self._place(task_id)))


def _files_below(top: Path) -> list[str]:
    """Return the files of a new workspace, none if they are too many."""
    found: list[str] = []
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name != ".git"]
        within = os.path.relpath(folder, top)
        found += [name if within == "." else f"{within}/{name}" for name in names if name != ".git"]
        if len(found) > LISTED_MAX:
            return []
    return found
