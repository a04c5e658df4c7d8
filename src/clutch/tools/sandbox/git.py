"""Git in a box of its own: one repository and one directory to check out into, no network, nothing else.

The files of the workspace are not there, only its `.git`: what an agent changed since the last commit has no
part in this. Neither is the user's home: filters that are set up there (git-lfs) do not run.

The repository may lie where a boxed command is at work, which could put a link to another one in its place
before bubblewrap looks. So the box begins by looking whether it holds the directory that was meant.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import Process
from contextlib import closing
from typing import NamedTuple

from clutch.contain import BackgroundTasks
from clutch.ports import ToolFailed
from clutch.tools.sandbox.policy import Sandbox, SandboxPolicy
from clutch.tools.sandbox.process import (
    CHUNK_BYTES,
    FirstProcess,
    SandboxKind,
    broken_limit,
    end,
    kill,
    sandbox_kind,
    start,
)

GIT_S = 300
SAID_BYTES = 4096  # kept, from the end
MISSING = 127  # what a shell says of a program that is not there

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHECKED = """
[ "$(stat -c %d:%i -- "$1")" = "$2" ] || { echo "the repository was replaced"; exit 2; }
shift 2
exec "$@"
"""
# fmt: off
_SETTINGS = (
    "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false",
    "-c", "worktree.useRelativePaths=false",  # others look for this worktree by its whole path
)
# fmt: on


class SandboxedGitFailed(Exception):
    """There was no box for git, or it had to be ended; the message says why."""


class Done(NamedTuple):
    exit_code: int
    said: str


class SandboxedGit:
    """`git_directory`: `.git`, or `.git/worktrees/NAME` of a worktree. Both directories must exist."""

    def __init__(self, git_directory: str, target: str) -> None:
        try:
            sandbox_kind(Sandbox.ON, for_shell=True)
        except ToolFailed as failed:
            raise SandboxedGitFailed(
                f"isolated workspaces of git repositories need bubblewrap: {failed}"
            ) from failed
        is_worktree = os.path.basename(os.path.dirname(git_directory)) == "worktrees"
        self._git_directory = git_directory
        self._whole = os.path.dirname(os.path.dirname(git_directory)) if is_worktree else git_directory
        self._identity = _identity(self._whole)
        self._box = SandboxPolicy(target, writable=(self._whole,))

    def run(self, *words: str) -> Done:
        """Blocks, in a thread without an event loop."""
        git = ["git", *_SETTINGS, f"--git-dir={self._git_directory}", *words]
        command = ["/bin/sh", "-c", _CHECKED, "git", self._whole, self._identity, *git]
        try:
            done = asyncio.run(_ended(self._box, command))
        except TimeoutError as error:
            raise SandboxedGitFailed(f"git {words[0]}: no answer within {GIT_S} s") from error
        if done.exit_code == MISSING:
            raise SandboxedGitFailed("git is not installed in /usr, and the workspace is a git repository")
        return done


def _identity(directory: str) -> str:
    handle = os.open(directory, _DIRECTORY)
    try:
        status = os.fstat(handle)
    finally:
        os.close(handle)
    return f"{status.st_dev}:{status.st_ino}"


async def _ended(box: SandboxPolicy, command: list[str]) -> Done:
    said = b""
    with closing(FirstProcess()) as first:
        process = await start(box, command, walls=SandboxKind.BUBBLEWRAP, cwd="/", first=first)
        assert process.stdout is not None
        try:
            async with BackgroundTasks() as tasks, asyncio.timeout(GIT_S):
                watching = tasks.call(_watch(process, box), "clutch-git-limits")
                while data := await process.stdout.read(CHUNK_BYTES):
                    said = (said + data)[-SAID_BYTES:]
                exit_code = await process.wait()
        finally:
            await end(process)
            await first.gone()
    if watching.done() and not watching.cancelled():
        raise SandboxedGitFailed(f"git was ended: {watching.result()}")
    return Done(exit_code, said.decode("utf-8", "replace").strip())


async def _watch(process: Process, box: SandboxPolicy) -> str:
    verdict = await broken_limit(process.pid, box)
    kill(process)
    return verdict
