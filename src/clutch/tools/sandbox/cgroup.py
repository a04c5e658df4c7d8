"""A cgroup for each sandbox, where the system has delegated one to this process.

In it the kernel counts the processes and the memory of the whole sandbox, buffers of sockets and pipes included.
systemd delegates with `Delegate=yes`. Without that this changes nothing: all other limits hold without a cgroup."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from clutch.tools.sandbox.policy import SandboxLimits

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = frozenset({"memory", "pids"})
#: systemd marks what it delegates. Root can write everywhere, so for root only the mark counts.
MARKS = ("user.delegate", "trusted.delegate")
OUTSIDE = 8  # processes in the group that are not in the sandbox: bubblewrap, and what starts it
ENDED_S = 60.0  # a group so old that has no process: its command has ended

#: The shell joins the group and becomes the command. A group that was taken away meanwhile is no reason to fail.
_JOIN = 'echo $$ >"$0/cgroup.procs" 2>/dev/null; exec "$@"'


def joined(limits: SandboxLimits, words: Sequence[str], home: Path | None = None) -> list[str]:
    """Return the words that start a sandbox, in a group of its own below `home`, by default the delegated one."""
    home = home or delegated()
    group = None if home is None else _made(home, limits)
    return list(words) if group is None else ["/bin/sh", "-c", _JOIN, str(group), *words]


@cache
def delegated(root: Path = ROOT, table: Path = Path("/proc/self/cgroup")) -> Path | None:
    """Return the group of this process if it may make others below it, and hand its controllers down to them."""
    try:
        lines = table.read_text(encoding="utf-8").splitlines()
        own = root / next(line for line in lines if line.startswith("0::")).removeprefix("0::/")
        if not _is_ours(own) or not set((own / "cgroup.controllers").read_text().split()) >= CONTROLLERS:
            return None
        # Only a group without processes hands controllers down, so this process moves into one of its own. If another
        # process stays, the kernel refuses the last line.
        (own / "clutch-gateway").mkdir(exist_ok=True)
        (own / "clutch-gateway" / "cgroup.procs").write_text(str(os.getpid()))
        (own / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(CONTROLLERS)))
    except (OSError, StopIteration):
        return None
    return own


def _is_ours(group: Path) -> bool:
    if os.geteuid() != 0:
        return os.access(group, os.W_OK) and os.access(group / "cgroup.subtree_control", os.W_OK)
    if sys.platform == "linux":  # as cgroups are
        for mark in MARKS:
            with suppress(OSError):
                return os.getxattr(group, mark) == b"1"
    return False


def _made(home: Path, limits: SandboxLimits) -> Path | None:
    """`/tmp` and `/dev/shm` of a sandbox are memory, too, with limits of their own."""
    for old in home.glob("clutch-sandbox-*"):
        with suppress(OSError):  # the kernel keeps a group that has processes
            if time.time() - old.stat().st_mtime > ENDED_S:
                old.rmdir()
    group = home / f"clutch-sandbox-{secrets.token_hex(4)}"
    memory = limits.memory_bytes + 2 * limits.scratch_bytes
    try:
        group.mkdir()
        (group / "memory.max").write_text(str(memory))
        (group / "memory.oom.group").write_text("1")
        (group / "pids.max").write_text(str(limits.processes + OUTSIDE))
    except OSError:
        return None
    return group
