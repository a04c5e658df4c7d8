"""What no wall counts: the memory of all processes of a box together, and the disk they fill.

The kernel holds each process alone (`command_line.limited`); a plain user has no way to make it hold them as a
group. So this looks every quarter of a second, and a box over its limit is ended whole.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

from clutch.tools.sandbox.box import MIB, Box

PERIOD_S = 0.25
DISK_SLACK_BYTES = 16 * MIB  # a disk that was full before is not this command's doing


async def broken_limit(pid: int, box: Box) -> str:
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
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in _text(children).split():
            yield from _family(int(child))


def _resident(pid: int) -> int:
    fields = _text(Path(f"/proc/{pid}/statm")).split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


def _proportional(pid: int) -> int:
    for line in _text(Path(f"/proc/{pid}/smaps_rollup")).splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:  # ended since it was named
        return ""
