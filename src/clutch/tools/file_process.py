"""Where file tools run: never in this process, but in sandboxed workers that see one workspace and nothing else.

A worker serves one request at a time; it is started when first needed, kept for the next request and ended when it was
idle for a while. Another one for the same workspace is started only when a request had to wait, so a burst of quick
reads shares one, and a search that hangs does not block the others. A worker that gives no answer in time, or whose
request was cancelled, is killed: its state is unknown.

The sandbox is bubblewrap, else Landlock; without both, Linux lets file tools run only with the setting "off". On a
system that has no sandbox, the path checks of `workspace` alone confine the worker (`sandbox.process`).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from clutch.ports import ToolFailed
from clutch.tools import file_worker
from clutch.tools.file_worker import WorkerMode
from clutch.tools.sandbox import bubblewrap
from clutch.tools.sandbox.policy import MIB, Sandbox, SandboxLimits, SandboxPolicy, is_beneath
from clutch.tools.sandbox.process import SandboxKind, end, kill, sandbox_kind, start
from clutch.tools.sandbox.protected_files import own_guards

CALLS_MAX = 8  # at once, over all workspaces; each may be a worker of about 15 MiB
PER_WORKSPACE_MAX = 4
PATIENCE_S = 0.05  # about what starting another worker takes
ANSWER_S = 30.0  # beyond the 15 s after which a search ends by itself
IDLE_S = 60.0
LIMITS = SandboxLimits(memory_bytes=512 * MIB, processes=16, file_bytes=64 * MIB, scratch_bytes=MIB)
#: An edit that was done is refused the second time, and the model would conclude that it never was.
REPEATABLE = frozenset(("read", "list", "search", "inspect", "write"))


class _WorkerDied(ToolFailed):
    """The worker ended without an answer; whether it did its work is unknown."""


class _Key(NamedTuple):
    root: str
    is_writable: bool


@dataclass(slots=True)
class _WorkspaceWorkers:
    """The workers of one workspace. None in the queue means that one has ended and another may be started."""

    idle: asyncio.LifoQueue[Process | None] = field(default_factory=asyncio.LifoQueue)
    workers: int = 0
    callers: int = 0
    closing: asyncio.TimerHandle | None = None


class FileProcess:
    """`hidden`: directories that no agent may see, such as the state directory."""

    def __init__(
        self,
        *,
        sandbox: Sandbox = Sandbox.ON,
        hidden: tuple[str, ...] = (),
        answer_s: float = ANSWER_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._sandbox = sandbox
        self._hidden = hidden
        self._answer_s = answer_s
        self._idle_s = idle_s
        self._pools: dict[_Key, _WorkspaceWorkers] = {}
        self._calls = asyncio.Semaphore(CALLS_MAX)
        self._dying: set[Process] = set()

    async def run(self, name: str, args: Mapping[str, Any], root: str, read_only: bool) -> str:
        """Run one call of a file tool. `read_only`: its worker cannot change the workspace."""
        key = _Key(_real(root), not read_only)
        async with self._calls:
            pool = self._enter(key)
            try:
                return await self._call(key, pool, name, args)
            except _WorkerDied:
                if name not in REPEATABLE:
                    raise
                return await self._call(key, pool, name, args)
            finally:
                self._leave(key, pool)

    async def close(self) -> None:
        """End every worker. Calls must have ended before."""
        for key in tuple(self._pools):
            self._close_pool(key)
        for worker in self._dying:
            await end(worker)

    def _enter(self, key: _Key) -> _WorkspaceWorkers:
        pool = self._pools.setdefault(key, _WorkspaceWorkers())
        pool.callers += 1
        if pool.closing is not None:
            pool.closing.cancel()
            pool.closing = None
        return pool

    def _leave(self, key: _Key, pool: _WorkspaceWorkers) -> None:
        pool.callers -= 1
        if not pool.callers:
            pool.closing = asyncio.get_running_loop().call_later(self._idle_s, self._close_pool, key)
        others = [other for other, its in self._pools.items() if other != key and not its.callers]
        while others and sum(its.workers for its in self._pools.values()) > CALLS_MAX:
            self._close_pool(others.pop(0))

    def _close_pool(self, key: _Key) -> None:
        pool = self._pools.pop(key)
        if pool.closing is not None:
            pool.closing.cancel()
        while not pool.idle.empty():
            if worker := pool.idle.get_nowait():
                self._drop(worker)

    def _drop(self, worker: Process) -> None:
        """Kill a worker now; `close` waits for its end."""
        kill(worker)
        self._dying = {other for other in self._dying if not _is_closed(other)} | {worker}

    async def _call(self, key: _Key, pool: _WorkspaceWorkers, name: str, args: Mapping[str, Any]) -> str:
        worker = await self._worker(key, pool)
        is_well = False
        try:
            async with asyncio.timeout(self._answer_s):
                answer = await _ask(worker, {"name": name, "args": dict(args)})
            is_well = True
        except TimeoutError as error:
            raise ToolFailed(f"{name}: no answer within {self._answer_s:g} s") from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise _WorkerDied(
                f"{name}: the process for files ended; look at the file, then try again"
            ) from error
        finally:
            if not is_well:
                self._drop(worker)
                pool.workers -= 1
            pool.idle.put_nowait(worker if is_well else None)
        if "failed" in answer:
            raise ToolFailed(answer["failed"])
        return str(answer["text"])

    async def _worker(self, key: _Key, pool: _WorkspaceWorkers) -> Process:
        has_waited = False
        while True:
            may_start = pool.workers < (PER_WORKSPACE_MAX if has_waited else 1)
            if may_start and pool.idle.empty():
                return await self._start(key, pool)
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S if pool.workers < PER_WORKSPACE_MAX else None):
                    worker = await pool.idle.get()
                    if worker is not None and worker.returncode is None:
                        return worker
                    if worker is not None:
                        pool.workers -= 1
                        self._drop(worker)
                    continue
            has_waited = True

    async def _start(self, key: _Key, pool: _WorkspaceWorkers) -> Process:
        pool.workers += 1
        try:
            return await self._started(key)
        except BaseException:
            pool.workers -= 1
            pool.idle.put_nowait(None)
            raise

    async def _started(self, key: _Key) -> Process:
        kind = await asyncio.to_thread(sandbox_kind, self._sandbox, for_shell=False)
        python = tuple(place for place in bubblewrap.python_places() if not is_beneath(place, "/usr"))
        try:
            policy = SandboxPolicy(
                key.root, key.is_writable, read_only=python, hidden=self._hidden, limits=LIMITS
            )
        except ValueError as error:
            raise ToolFailed(str(error)) from error
        _refuse_unseen(policy, kind)
        mode = _mode(kind, is_writable=key.is_writable)
        words = [sys.executable, "-I", "-m", file_worker.__name__, key.root, mode, *python]
        # No walk: the worker itself checks every path against the protected files, also those that are made later.
        return await start(policy, words, kind=kind, cwd="/", guards=own_guards(policy), is_served=True)


def _mode(kind: SandboxKind, *, is_writable: bool) -> WorkerMode:
    if kind is SandboxKind.LANDLOCK:
        return WorkerMode.WRITABLE if is_writable else WorkerMode.READABLE
    if kind in (SandboxKind.PATH_CHECKS, SandboxKind.NONE) and not is_writable:
        return WorkerMode.CAREFUL
    return WorkerMode.SANDBOXED


def _refuse_unseen(policy: SandboxPolicy, kind: SandboxKind) -> None:
    # Landlock can only allow directories: a hidden one inside an allowed one would be visible. Path checks recognise a
    # state directory by its files, which it does not have from its first moment on.
    inside = [path for path in policy.hidden if is_beneath(path, policy.root)]
    other = {SandboxKind.LANDLOCK: ", or install bubblewrap", SandboxKind.PATH_CHECKS: ""}
    if kind in other and inside:
        raise ToolFailed(
            f"file tools refused: {inside[0]} lies in the workspace and no agent may see it. "
            f"Choose a state directory outside the workspace{other[kind]}"
        )


def _is_closed(worker: Process) -> bool:
    """Whether it has ended and its pipes are closed: a process that has ended may keep its pipes open for a moment."""
    return worker.returncode is not None and worker.stdout is not None and worker.stdout.at_eof()


def _real(root: str) -> str:
    path = os.path.realpath(root)
    if not os.path.isdir(path):
        raise ToolFailed(f"workspace: {path} is not a directory")
    return path


async def _ask(worker: Process, request: dict[str, Any]) -> dict[str, Any]:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(file_worker.frame(request))
    await worker.stdin.drain()
    size = file_worker.LENGTH.unpack(await worker.stdout.readexactly(file_worker.LENGTH.size))[0]
    answer: dict[str, Any] = json.loads(await worker.stdout.readexactly(size))
    return answer
