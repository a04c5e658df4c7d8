"""A command in a box, as the words that start it: limits inside, bubblewrap around, `descent` in front for root."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

from clutch.tools.sandbox import bubblewrap, descent
from clutch.tools.sandbox.box import Box, BoxLimits


def boxed(
    program: str,
    box: Box,
    command: Sequence[str],
    *,
    cwd: str,
    guards: Sequence[bubblewrap.Guard],
    seccomp_fd: int | None = None,
    info_fd: int | None = None,
) -> list[str]:
    """`command` inside bubblewrap, which is found at `program`."""
    inside = limited(box.limits, command, counts_processes=True)
    staged = staging(bubblewrap.sources(box, guards)) if is_real_root() else {}
    said = bubblewrap.arguments(
        program,
        box,
        inside,
        cwd=cwd,
        guards=guards,
        seccomp_fd=seccomp_fd,
        info_fd=info_fd,
        staged=lambda path: staged.get(path, path),
    )
    if not staged:
        return said
    return [sys.executable, "-I", "-S", descent.__file__, str(len(staged)), *staged, *said]


def staging(sources: Sequence[str]) -> dict[str, str]:
    return {source: f"{descent.STAGE}/{number}" for number, source in enumerate(sources)}


def is_real_root() -> bool:
    """Root of the machine, and not of a container whose root is a plain user outside."""
    if os.geteuid() != 0:
        return False
    return Path("/proc/self/uid_map").read_text(encoding="ascii").split()[:2] == ["0", "0"]


def limited(limits: BoxLimits, command: Sequence[str], *, counts_processes: bool) -> list[str]:
    """`command` with the kernel's own limits, set by a shell inside the box.

    Inside, because a user namespace counts its processes by itself (Linux 5.14): set outside, the limit would
    count everything else the user runs. When memory is short, the kernel shall take these processes first.
    """
    wanted = [
        ("ulimit -c", resource.RLIMIT_CORE, 0, 1),
        ("ulimit -d", resource.RLIMIT_DATA, limits.memory_bytes, 1024),
        ("ulimit -f", resource.RLIMIT_FSIZE, limits.file_bytes, 512),
        ("ulimit -n", resource.RLIMIT_NOFILE, 4096, 1),
    ]
    said = [f"{word} {_at_most(kind, value) // unit}" for word, kind, value, unit in wanted]
    if counts_processes:
        count = _at_most(resource.RLIMIT_NPROC, limits.processes)
        said.append(f"{{ ulimit -u {count} 2>/dev/null || ulimit -p {count}; }}")  # bash, or dash
    said.append("echo 1000 >/proc/self/oom_score_adj")
    return ["/bin/sh", "-c", " && ".join([*said, 'exec "$@"']), "box", *command]


def _at_most(kind: int, value: int) -> int:
    """Nobody may raise a limit that is already lower."""
    hard = resource.getrlimit(kind)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)
