"""Where file tools run: never in this process, but in boxed workers that see one workspace and nothing else.

A worker serves one request at a time; it is started when first needed, kept for the next request and ended when
nobody asked for a while. Another for the same workspace is started only when a request had to wait, so a burst of
quick reads shares one, and a search that hangs does not stand in the way of the others. A worker that gives no
answer in time, or whose request was cancelled, is killed: nobody knows what state it is in.

Walls: bubblewrap, else Landlock, else nothing runs unless the settings say so. See `sandbox.process`.
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
#: An edit that was done is refused the second time, and the model would think that it never was.
REPEATABLE = frozenset(("read", "list", "search", "write"))


class _WorkerDied(ToolFailed):
    """Nobody knows whether it did what it was asked."""


class _Key(NamedTuple):
    root: str
    is_writable: bool


@dataclass(slots=True)
class _Desk:
    """The workers of one workspace. None in the queue says: one is gone, there is room for another."""

    idle: asyncio.LifoQueue[Process | None] = field(default_factory=asyncio.LifoQueue)
    workers: int = 0
    callers: int = 0
    closing: asyncio.TimerHandle | None = None


class FileProcess:
    """`hidden`: directories no agent may see, such as the state directory, wherever they lie."""

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
        self._desks: dict[_Key, _Desk] = {}
        self._calls = asyncio.Semaphore(CALLS_MAX)
        self._dying: set[Process] = set()

    async def run(self, name: str, args: Mapping[str, Any], root: str, read_only: bool) -> str:
        """One call of a file tool. `read_only`: nothing in the workspace can be changed by it."""
        key = _Key(_real(root), not read_only)
        async with self._calls:
            desk = self._sit_down(key)
            try:
                return await self._call(key, desk, name, args)
            except _WorkerDied:
                if name not in REPEATABLE:
                    raise
                return await self._call(key, desk, name, args)
            finally:
                self._stand_up(key, desk)

    async def close(self) -> None:
        """Ends every worker. Calls must have ended before."""
        desks, self._desks = list(self._desks.values()), {}
        for desk in desks:
            if desk.closing is not None:
                desk.closing.cancel()
            while not desk.idle.empty():
                if worker := desk.idle.get_nowait():
                    self._drop(worker)
        for worker in self._dying:
            await end(worker)

    def _sit_down(self, key: _Key) -> _Desk:
        desk = self._desks.setdefault(key, _Desk())
        desk.callers += 1
        if desk.closing is not None:
            desk.closing.cancel()
            desk.closing = None
        return desk

    def _stand_up(self, key: _Key, desk: _Desk) -> None:
        desk.callers -= 1
        if not desk.callers:
            desk.closing = asyncio.get_running_loop().call_later(self._idle_s, self._clear, key)
        others = [other for other, its in self._desks.items() if other != key and not its.callers]
        while others and sum(its.workers for its in self._desks.values()) > CALLS_MAX:
            self._clear(others.pop(0))

    def _clear(self, key: _Key) -> None:
        desk = self._desks.pop(key)
        if desk.closing is not None:
            desk.closing.cancel()
        while not desk.idle.empty():
            if worker := desk.idle.get_nowait():
                self._drop(worker)

    def _drop(self, worker: Process) -> None:
        """Killed now; that it is gone is seen later, at the latest when the room is closed."""
        kill(worker)
        self._dying = {other for other in self._dying if other.returncode is None} | {worker}

    async def _call(self, key: _Key, desk: _Desk, name: str, args: Mapping[str, Any]) -> str:
        worker = await self._worker(key, desk)
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
                desk.workers -= 1
            desk.idle.put_nowait(worker if is_well else None)
        if "failed" in answer:
            raise ToolFailed(answer["failed"])
        return str(answer["text"])

    async def _worker(self, key: _Key, desk: _Desk) -> Process:
        has_waited = False
        while True:
            may_start = desk.workers < (PER_WORKSPACE_MAX if has_waited else 1)
            if may_start and desk.idle.empty():
                return await self._start(key, desk)
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S if desk.workers < PER_WORKSPACE_MAX else None):
                    worker = await desk.idle.get()
                    if worker is not None and worker.returncode is None:
                        return worker
                    desk.workers -= worker is not None
                    continue
            has_waited = True

    async def _start(self, key: _Key, desk: _Desk) -> Process:
        desk.workers += 1
        try:
            return await self._started(key)
        except BaseException:
            desk.workers -= 1
            desk.idle.put_nowait(None)
            raise

    async def _started(self, key: _Key) -> Process:
        holding = await asyncio.to_thread(sandbox_kind, self._sandbox, for_shell=False)
        python = tuple(place for place in bubblewrap.python_places() if not is_beneath(place, "/usr"))
        try:
            box = SandboxPolicy(
                key.root, key.is_writable, read_only=python, hidden=self._hidden, limits=LIMITS
            )
        except ValueError as error:
            raise ToolFailed(str(error)) from error
        _refuse_unseen(box, holding)
        mode = (
            "boxed" if holding is not SandboxKind.LANDLOCK else "writable" if key.is_writable else "readable"
        )
        words = [sys.executable, "-I", "-m", file_worker.__name__, key.root, mode, *python]
        # No walk: the worker itself checks every path against the protected files, also those made later.
        return await start(box, words, walls=holding, cwd="/", guards=own_guards(box), is_served=True)


def _refuse_unseen(box: SandboxPolicy, holding: SandboxKind) -> None:
    """Landlock knows only what is allowed: it cannot take a directory out of one that is."""
    inside = [path for path in box.hidden if is_beneath(path, box.root)]
    if holding is SandboxKind.LANDLOCK and inside:
        raise ToolFailed(
            f"file tools refused: {inside[0]} lies in the workspace and no agent may see it. "
            "Choose a state directory outside the workspace, or install bubblewrap"
        )


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
