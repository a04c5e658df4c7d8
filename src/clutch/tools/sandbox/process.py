"""Starting a process in a box, and ending it with everything it started."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from clutch.ports import ToolFailed
from clutch.tools.sandbox import bubblewrap, cgroup, policy, seccomp
from clutch.tools.sandbox.policy import MIB, Sandbox, SandboxPolicy

# --------------------------------------------------------------------------------------------------
# What no wall counts: the memory of all processes of a box together, and the disk they fill.
#
# The kernel holds each process alone (`bubblewrap.limited`); a plain user has no way to make it hold them as a
# group. So this looks every quarter of a second, and a box over its limit is ended whole.

PERIOD_S = 0.25
DISK_SLACK_BYTES = 16 * MIB  # a disk that was full before is not this command's doing


async def broken_limit(pid: int, box: SandboxPolicy) -> str:
    """Waits until the box of the process `pid` has broken a limit, and says which."""
    limits = box.limits
    disks = [box.root, *box.task_sides()]
    before = [_free(disk) for disk in disks]
    while True:
        await asyncio.sleep(PERIOD_S)
        if await asyncio.to_thread(uses_more, pid, limits.memory_bytes):
            return f"it used more than {limits.memory_bytes // MIB} MiB of memory"
        if any(map(_fills, disks, before, [limits.disk_free_bytes] * len(disks))):
            return f"it left less than {limits.disk_free_bytes // MIB} MiB free on the disk of the workspace"


def _fills(disk: str, before: int, least: int) -> bool:
    return (free := _free(disk)) < least and free < before - DISK_SLACK_BYTES


def _free(root: str) -> int:
    try:
        status = os.statvfs(root)
    except OSError:  # removed while the command runs
        return 0
    return status.f_bavail * status.f_frsize


def uses_more(pid: int, memory_bytes: int) -> bool:
    """Resident pages first, which is cheap; shared ones count once per process there, so then exactly."""
    family = list(_family(pid))
    if sum(map(_resident, family)) <= memory_bytes:
        return False
    return sum(map(_proportional, family)) > memory_bytes


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # it ended while it was looked at
        return
    for thread in threads:
        for child in _text(Path(f"/proc/{pid}/task/{thread}/children")).split():
            yield from _family(int(child))


def _resident(pid: int) -> int:
    return _kilobytes(Path(f"/proc/{pid}/status"), "VmRSS:", "VmSwap:")


def _proportional(pid: int) -> int:
    return _kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss:", "SwapPss:")


def _kilobytes(table: Path, *names: str) -> int:
    """In bytes. What was paged out is used, too."""
    lines = (line.split() for line in _text(table).splitlines())
    return sum(int(words[1]) * 1024 for words in lines if words and words[0] in names)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:  # ended since it was named
        return ""


# --------------------------------------------------------------------------------------------------
# What this machine offers to hold a box, found out by making one; and what to do where it offers nothing.

LANDLOCK_NEEDED = 3  # before it, a file outside could be truncated


class SandboxKind(StrEnum):
    BUBBLEWRAP = "bubblewrap"
    LANDLOCK = "landlock"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Offer:
    bubblewrap: str | None  #: where it is, if it works here
    trouble: str  #: why it does not
    landlock: int  #: version of the kernel's interface; 0 = none


@cache
def probe() -> Offer:
    """Blocking: starts a process the first time."""
    trouble = _trouble()
    return Offer(None if trouble else shutil.which("bwrap"), trouble, policy.version())


def _trouble() -> str:
    if sys.platform != "linux":
        return f"there is no sandbox for {sys.platform} yet"
    program = shutil.which("bwrap")
    if program is None:
        return "bubblewrap is not installed"
    with tempfile.TemporaryDirectory() as folder:
        words = bubblewrap.sandboxed(program, SandboxPolicy(folder), ["true"], cwd="/", guards=())
        try:
            done = subprocess.run(words, capture_output=True, env={}, timeout=20, check=False)  # noqa: S603 - our own words
        except subprocess.TimeoutExpired:
            return "bubblewrap did not answer within 20 s"
    said = done.stderr.decode(errors="replace").strip()[-300:]
    return f"bubblewrap does not work here: {said or done.returncode}" if done.returncode else ""


def sandbox_kind(sandbox: Sandbox, *, for_shell: bool) -> SandboxKind:
    """What holds the box. Raises ToolFailed where nothing can and nobody said that nothing need."""
    if sandbox is Sandbox.OFF:
        return SandboxKind.NONE
    offer = probe()
    if offer.bubblewrap is not None:
        return SandboxKind.BUBBLEWRAP
    if offer.landlock >= LANDLOCK_NEEDED and not for_shell:
        return SandboxKind.LANDLOCK
    what = "shell" if for_shell else "file tools"
    raise ToolFailed(f"{what} refused: {offer.trouble}. {_remedy(offer)}")


def _remedy(offer: Offer) -> str:
    if sys.platform != "linux":
        return 'To run it without a sandbox, with all your rights, set sandbox: "off".'
    if "not installed" in offer.trouble:
        first = "Install it (apt install bubblewrap, dnf install bubblewrap)"
    else:
        first = (
            "It needs version 0.8 and user namespaces (Ubuntu: "
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0; containers: a seccomp profile that allows them)"
        )
    return f'{first}, or set sandbox: "off" to run without one.'


CHUNK_BYTES = 64 * 1024
DRAIN_S = 5.0


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
    box: SandboxPolicy,
    command: Sequence[str],
    *,
    walls: SandboxKind,
    cwd: str,
    guards: Sequence[bubblewrap.ProtectedMount] = (),
    first: FirstProcess | None = None,
    is_served: bool = False,
) -> Process:
    """`is_served`: it is spoken to through stdin, and what it prints beside its answers is thrown away."""
    program = probe().bubblewrap
    if walls is not SandboxKind.BUBBLEWRAP or program is None:
        words = bubblewrap.limited(box.limits, command, is_first=False)
        return await _spawn(words, box, is_served, cwd=cwd)
    filter_file = seccomp.as_file()
    kept = () if filter_file is None else (filter_file,)
    try:
        words = bubblewrap.sandboxed(
            program,
            box,
            command,
            cwd=cwd,
            guards=guards,
            seccomp_fd=filter_file,
            info_fd=None if first is None else first.told,
        )
        passed = kept if first is None else (*kept, first.told)
        words = cgroup.joined(box.limits, words)
        return await _spawn(words, box, is_served, cwd="/", kept=passed)
    finally:
        for file in kept:
            os.close(file)


async def _spawn(
    words: Sequence[str], box: SandboxPolicy, is_served: bool, *, cwd: str, kept: tuple[int, ...] = ()
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
