"""What this machine offers to hold a box, found out by making one; and what to do where it offers nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from clutch.ports import ToolFailed
from clutch.tools.sandbox import command_line, landlock
from clutch.tools.sandbox.box import Box, Sandbox

LANDLOCK_NEEDED = 3  # before it, a file outside could be truncated


class Walls(StrEnum):
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
    return Offer(None if trouble else shutil.which("bwrap"), trouble, landlock.version())


def _trouble() -> str:
    if sys.platform != "linux":
        return f"there is no sandbox for {sys.platform} yet"
    program = shutil.which("bwrap")
    if program is None:
        return "bubblewrap is not installed"
    with tempfile.TemporaryDirectory() as folder:
        words = command_line.boxed(program, Box(folder), ["true"], cwd="/", guards=())
        try:
            done = subprocess.run(words, capture_output=True, env={}, timeout=20, check=False)  # noqa: S603 - our own words
        except subprocess.TimeoutExpired:
            return "bubblewrap did not answer within 20 s"
    said = done.stderr.decode(errors="replace").strip()[-300:]
    return f"bubblewrap does not work here: {said or done.returncode}" if done.returncode else ""


def walls(sandbox: Sandbox, *, for_shell: bool) -> Walls:
    """What holds the box. Raises ToolFailed where nothing can and nobody said that nothing need."""
    if sandbox is Sandbox.OFF:
        return Walls.NONE
    offer = probe()
    if offer.bubblewrap is not None:
        return Walls.BUBBLEWRAP
    if offer.landlock >= LANDLOCK_NEEDED and not for_shell:
        return Walls.LANDLOCK
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
