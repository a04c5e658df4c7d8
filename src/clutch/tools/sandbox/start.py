"""Starting a process in a box, and ending it with everything it started."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from clutch.tools.sandbox import bubblewrap, command_line, seccomp
from clutch.tools.sandbox.box import Box
from clutch.tools.sandbox.probe import Walls, probe

CHUNK_BYTES = 64 * 1024
DRAIN_S = 5.0


@dataclass(slots=True)
class _Held:
    guards: tuple[bubblewrap.Guard, ...]
    boxes: int = 0


#: What is guarded in each workspace where something runs; see `bubblewrap`. Of the whole process: two owners
#: of boxes in one workspace must agree.
_held: dict[str, _Held] = {}


@contextmanager
def guarding(box: Box) -> Iterator[tuple[bubblewrap.Guard, ...]]:
    """The guards of a box, the same ones for every box of this workspace until the last has ended."""
    hidden = bubblewrap.hidden_in(box)
    if not box.is_writable:
        yield hidden
        return
    held = _held.setdefault(box.root, _Held(bubblewrap.guards_of(box)))
    held.boxes += 1
    try:
        yield (*hidden, *bubblewrap.unhidden(held.guards, hidden))
    finally:
        held.boxes -= 1
        if not held.boxes:
            del _held[box.root]


class FirstProcess:
    """The first process of a box. Bubblewrap reports the end of the command while the rest of the box is still
    being ended; when its first process is gone, so is every other."""

    def __init__(self) -> None:
        self._heard, self.told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    async def gone(self) -> None:
        """After bubblewrap has ended. Without walls, nobody told anything and there is nothing to wait for."""
        try:
            said = os.read(self._heard, 4096)
        except BlockingIOError:
            return
        with suppress(ProcessLookupError, ValueError):
            handle = os.pidfd_open(json.loads(said)["child-pid"])
            try:
                await asyncio.to_thread(select.select, [handle], [], [], DRAIN_S)
            finally:
                os.close(handle)

    def close(self) -> None:
        os.close(self._heard)
        os.close(self.told)


async def start(
    box: Box,
    command: Sequence[str],
    *,
    walls: Walls,
    cwd: str,
    guards: Sequence[bubblewrap.Guard] = (),
    first: FirstProcess | None = None,
    is_served: bool = False,
) -> Process:
    """`is_served`: it is spoken to through stdin, and what it prints beside its answers is thrown away."""
    program = probe().bubblewrap
    if walls is not Walls.BUBBLEWRAP or program is None:
        words = command_line.limited(box.limits, command, counts_processes=False)
        return await _spawn(words, box, is_served, cwd=cwd)
    filter_file = seccomp.as_file()
    kept = () if filter_file is None else (filter_file,)
    try:
        words = command_line.boxed(
            program,
            box,
            command,
            cwd=cwd,
            guards=guards,
            seccomp_fd=filter_file,
            info_fd=None if first is None else first.told,
        )
        passed = kept if first is None else (*kept, first.told)
        return await _spawn(words, box, is_served, cwd="/", kept=passed)
    finally:
        for file in kept:
            os.close(file)


async def _spawn(
    words: Sequence[str], box: Box, is_served: bool, *, cwd: str, kept: tuple[int, ...] = ()
) -> Process:
    """The environment is clean from the start: the first process of a box can be read by all others in it."""
    return await asyncio.create_subprocess_exec(
        *words,
        stdin=PIPE if is_served else DEVNULL,
        stdout=PIPE,
        stderr=DEVNULL if is_served else STDOUT,
        env=box.variables(),
        cwd=cwd,
        pass_fds=kept,
        start_new_session=True,
        limit=1 << 20,
    )


async def end(process: Process) -> None:
    """At once, with all it started: the first process of a PID namespace takes every other along."""
    kill(process)
    with suppress(TimeoutError):  # without walls, a process that left the group may hold the pipe open
        async with asyncio.timeout(DRAIN_S):
            # A full pipe would keep asyncio from noticing the end; what is left is at most a few buffers.
            while process.stdout is not None and await process.stdout.read(CHUNK_BYTES):
                pass
            await process.wait()


def kill(process: Process) -> None:
    """Before bubblewrap has divided the processes, they are still one group; later, they die with the first."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
