"""The machine a figure was measured on: its cores and what a synced write costs there."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

_PROBES: Final = 50
_PROBE_BYTES: Final = b"x" * 4096  # one page of a log


def describe(directory: Path) -> dict[str, Any]:
    return {"cores": usable_cores(), "fsync_p50_ms": round(fsync_p50_ms(directory), 3)}


def usable_cores() -> int:
    """Those this process may run on; a container often has fewer than the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def fsync_p50_ms(directory: Path) -> float:
    with tempfile.TemporaryFile(dir=directory) as file:
        return median(synced_write_ms(file.fileno()) for _ in range(_PROBES))


def synced_write_ms(file: int) -> float:
    started = time.perf_counter()
    os.write(file, _PROBE_BYTES)
    os.fsync(file)
    return (time.perf_counter() - started) * 1000


def resident_kb(pid: int) -> int:
    """Memory of a process that is really there. Raises OSError where nobody can tell."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise OSError(f"process {pid} says nothing about its memory")


def cpu_s(pid: int) -> float:
    """What a process has used so far. Raises OSError where nobody can tell."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def waited_s(pid: int) -> float:
    """How long its main thread was kept from running by others. Raises OSError where nobody can tell."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
