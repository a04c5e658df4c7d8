"""What a sandboxed process may see and use: a description that is checked once and knows no mechanism.

Landlock, the only mechanism here, is for the file worker where bubblewrap is missing."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

MIB = 1024 * 1024

#: Variables that reveal neither the user nor a secret. The settings must name every other variable that a program gets.
ENVIRONMENT = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")
PATH = "/usr/local/bin:/usr/bin:/bin"
# fmt: off
#: A workspace that is one of these, or above one, is the machine and not a workspace.
SYSTEM: tuple[str, ...] = (
    "/usr", "/etc", "/proc", "/sys", "/dev", "/bin", "/sbin", "/lib", "/lib64", "/run", "/var",
    "/tmp",  # noqa: S108 - named, not used
)
# fmt: on
if sys.platform == "darwin":
    SYSTEM += (
        "/System",
        "/Library",
        "/Applications",
        "/Users",
        "/private/etc",
        "/private/var",
        "/private/tmp",
    )


class Sandbox(StrEnum):
    """The setting `sandbox`. There is no "try": running without a sandbox must be the operator's decision."""

    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    wall_s: float = 120.0
    #: of all processes together, checked four times a second; the kernel limits each process as well
    memory_bytes: int = 2048 * MIB
    #: whether the kernel also limits what a process reserves; some programs reserve much and use little
    holds_reserved: bool = True
    processes: int = 256
    file_bytes: int = 1024 * MIB  #: one file
    scratch_bytes: int = 256 * MIB  #: /tmp and /dev/shm, which are memory
    disk_free_bytes: int = 512 * MIB  #: a command that would leave less free on the disk is ended
    output_bytes: int = 64 * 1024  #: kept for the model, half from the beginning and half from the end
    flood_bytes: int = (
        64 * MIB
    )  #: a command that prints more is ended: reading its output costs all other tasks


@dataclass(frozen=True, slots=True)
class SandboxPolicy:
    """`root` is the workspace, at its own path. Beside it only the system is visible, read-only."""

    root: str
    is_writable: bool = True
    read_only: tuple[str, ...] = ()  #: further visible directories
    writable: tuple[str, ...] = ()  #: further visible directories that may be changed
    #: the files of a task, visible as /task: `in` to read and `out` to write, where they exist
    task: str | None = None
    hidden: tuple[str, ...] = ()  #: directories that stay invisible although they lie in the workspace
    #: directory that lists running commands (`protected_files.noted`); without it, what a killed one planted stays
    journal: str | None = None
    network: bool = False  #: the whole network of this machine, its loopback included
    #: whether Seatbelt keeps a process from making protected files; only git that Clutch itself runs may
    keeps_protected: bool = True
    environment: tuple[str, ...] = ENVIRONMENT  #: names passed on
    limits: SandboxLimits = SandboxLimits()

    def __post_init__(self) -> None:
        # Paths are resolved once: what is checked here is what is mounted later, and no link can be swapped between.
        for name in self.environment:
            if name.startswith("CLUTCH_") or name.endswith("_API_KEY"):
                raise ValueError(f"environment: {name} is a secret of Clutch and is never given to a tool")
        root = os.path.realpath(self.root)
        if any(is_beneath(place, root) for place in SYSTEM):
            raise ValueError(f"workspace: {root} is part of the system; choose a folder of its own")
        if root in map(os.path.realpath, self.hidden):
            raise ValueError(f"workspace: {root} is what no agent may see; choose a folder of its own")
        object.__setattr__(self, "root", root)
        object.__setattr__(self, "task", self.task and os.path.realpath(self.task))
        for name in ("read_only", "writable", "hidden"):
            object.__setattr__(self, name, tuple(map(os.path.realpath, getattr(self, name))))

    @property
    def shown(self) -> tuple[str, ...]:
        """All directories of the user that are visible in the sandbox."""
        return (self.root, *self.writable, *self.read_only)

    def variables(self) -> dict[str, str]:
        """Return the whole environment of a sandboxed process."""
        passed = {name: os.environ[name] for name in self.environment if name in os.environ}
        if self.task is not None:
            passed["TASK_DIR"] = self.task
        return {"PATH": PATH, "HOME": "/tmp/home", "TERM": "dumb", **passed}  # noqa: S108

    def task_sides(self) -> dict[str, bool]:
        """Return the directories of the task that exist, and whether each may be written."""
        sides = {} if self.task is None else {f"{self.task}/in": False, f"{self.task}/out": True}
        return {path: is_writable for path, is_writable in sides.items() if os.path.isdir(path)}


def is_beneath(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


# --------------------------------------------------------------------------------------------------
# Landlock: a process gives up access to files for good, without privileges and without another program.
#
# Only for the file worker, where bubblewrap is missing. Landlock restricts files and, lately, TCP, but not UDP, other
# processes or resources. The file worker runs only our own code, and `seccomp` takes away its network, so that is
# enough for it. A shell runs foreign code: it is refused without bubblewrap.

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same number on every machine
VERSION_FLAG = 1
PATH_BENEATH = 1
PR_SET_NO_NEW_PRIVS = 38

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
USE = EXECUTE | READ_FILE | READ_DIR
#: The file rights of each version of the interface. A right that is not named here would not be taken away.
RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
TCP = 3  # bind, connect; from version 4 on


if sys.platform == "linux":
    _O_PATH = os.O_PATH
else:  # there is no Landlock
    _O_PATH = os.O_RDONLY


def landlock_version() -> int:
    """Return the version of the kernel's interface, 0 where there is none."""
    return max(0, _call(CREATE_RULESET, None, 0, VERSION_FLAG)) if sys.platform == "linux" else 0


def confine(writable: Sequence[str], readable: Sequence[str]) -> None:
    """Restrict this process to these directories for good."""
    known = landlock_version()
    rights = RIGHTS[min(known, max(RIGHTS))]
    described = struct.pack("=QQ", rights, TCP) if known >= 4 else struct.pack("=Q", rights)
    rules = _checked(_call(CREATE_RULESET, described, len(described), 0))
    try:
        for path in writable:
            _allow(rules, path, rights & ~EXECUTE)
        for path in readable:
            _allow(rules, path, USE)
        _checked(ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _checked(_call(RESTRICT_SELF, rules, 0))
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    place = os.open(path, _O_PATH | os.O_CLOEXEC)
    if not os.path.isdir(path):
        rights &= ~READ_DIR  # the kernel takes no right that a file cannot have
    try:
        _checked(_call(ADD_RULE, rules, PATH_BENEATH, struct.pack("=Qi", rights, place), 0))
    finally:
        os.close(place)


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    plain = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return int(libc.syscall(ctypes.c_long(number), *plain))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"Landlock: {os.strerror(number)}")
    return result
