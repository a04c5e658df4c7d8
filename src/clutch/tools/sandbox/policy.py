"""What a boxed process may see and use: a description, checked once, that knows no mechanism."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

MIB = 1024 * 1024

#: Nothing that tells who the user is or what they may do; everything else a program must be given by name.
ENVIRONMENT = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")
PATH = "/usr/local/bin:/usr/bin:/bin"
# fmt: off
#: A workspace that is one of these, or above one, is the machine and not a workspace.
SYSTEM = (
    "/usr", "/etc", "/proc", "/sys", "/dev", "/bin", "/sbin", "/lib", "/lib64", "/run", "/var",
    "/tmp",  # noqa: S108 - named, not used
)
# fmt: on


class Sandbox(StrEnum):
    """The setting `sandbox`. There is no "try": a machine without walls must be a person's decision."""

    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    wall_s: float = 120.0
    #: of all processes together, looked at four times a second; each alone is also held by the kernel
    memory_bytes: int = 2048 * MIB
    #: whether the kernel refuses a process that reserves more than that; some reserve and never use it
    holds_reserved: bool = True
    processes: int = 256
    file_bytes: int = 1024 * MIB  #: one file
    scratch_bytes: int = 256 * MIB  #: /tmp and /dev/shm, which are memory
    disk_free_bytes: int = 512 * MIB  #: a command that would leave less free on the disk is ended
    output_bytes: int = 64 * 1024  #: kept for the model, half from the beginning and half from the end
    flood_bytes: int = 64 * MIB  #: printed; beyond it nobody will read it, and reading it costs everybody


@dataclass(frozen=True, slots=True)
class SandboxPolicy:
    """`root` is the workspace, at its own path. Of everything else only the system is there, read-only."""

    root: str
    is_writable: bool = True
    read_only: tuple[str, ...] = ()  #: further directories to be seen
    writable: tuple[str, ...] = ()  #: further directories to be seen and changed
    task: str | None = (
        None  #: the files of a task, seen as /task: `in` to read, `out` to write; of each, if it is there
    )
    hidden: tuple[str, ...] = ()  #: directories that stay unseen although they lie in the workspace
    #: A directory that lists what runs (`protected_files.noted`); without one, what a killed process planted stays.
    journal: str | None = None
    network: bool = False  #: the whole network of this machine, its loopback included
    environment: tuple[str, ...] = ENVIRONMENT  #: names passed on
    limits: SandboxLimits = SandboxLimits()

    def __post_init__(self) -> None:
        """Paths are real ones, so that what is checked here is what is mounted later."""
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
        object.__setattr__(self, "read_only", tuple(map(os.path.realpath, self.read_only)))
        object.__setattr__(self, "writable", tuple(map(os.path.realpath, self.writable)))
        object.__setattr__(self, "hidden", tuple(map(os.path.realpath, self.hidden)))

    def variables(self) -> dict[str, str]:
        """The whole environment of a boxed process."""
        passed = {name: os.environ[name] for name in self.environment if name in os.environ}
        if self.task is not None:
            passed["TASK_DIR"] = self.task
        return {"PATH": PATH, "HOME": "/tmp/home", "TERM": "dumb", **passed}  # noqa: S108

    def task_sides(self) -> dict[str, bool]:
        """Those that are there, and whether they may be written."""
        sides = {} if self.task is None else {f"{self.task}/in": False, f"{self.task}/out": True}
        return {path: is_writable for path, is_writable in sides.items() if os.path.isdir(path)}


def is_beneath(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


# --------------------------------------------------------------------------------------------------
# Landlock: a process gives up files for good, without any privilege and without another program.
#
# Only for the file tools, when bubblewrap is not there. Landlock knows files and, lately, TCP; it leaves UDP, other
# processes and every limit open. The file worker runs nothing but our own code, so that is enough for it, with
# `seccomp` taking the network away; a shell is a stranger's code and gets no box from this.

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same number on every machine
VERSION_FLAG = 1
PATH_BENEATH = 1
PR_SET_NO_NEW_PRIVS = 38

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
USE = EXECUTE | READ_FILE | READ_DIR
#: the file rights each version of the interface knows; a right not named is a right not taken away
RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
TCP = 3  # bind, connect; from version 4 on


def version() -> int:
    """Of the kernel's interface; 0 where there is none. The file tools need 3: before it, truncating is free."""
    if sys.platform != "linux":
        return 0
    return max(0, _call(CREATE_RULESET, None, 0, VERSION_FLAG))


def confine(writable: Sequence[str], readable: Sequence[str]) -> None:
    """From here on this process reaches these directories and no others."""
    known = version()
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
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
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
