"""What a boxed process may see and use: a description, checked once, that knows no mechanism."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum

MIB = 1024 * 1024

#: Nothing that tells who the user is or what they may do; everything else a program must be given by name.
ENVIRONMENT = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")
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
class BoxLimits:
    wall_s: float = 120.0
    #: of all processes together, looked at four times a second; each alone is also held by the kernel
    memory_bytes: int = 2048 * MIB
    processes: int = 256
    file_bytes: int = 1024 * MIB  #: one file
    scratch_bytes: int = 256 * MIB  #: /tmp and /dev/shm, which are memory
    disk_free_bytes: int = 512 * MIB  #: a command that would leave less free on the disk is ended
    output_bytes: int = 64 * 1024  #: kept for the model, half from the beginning and half from the end
    flood_bytes: int = 64 * MIB  #: printed; beyond it nobody will read it, and reading it costs everybody


@dataclass(frozen=True, slots=True)
class Box:
    """`root` is the workspace, at its own path. Of everything else only the system is there, read-only."""

    root: str
    is_writable: bool = True
    read_only: tuple[str, ...] = ()  #: further directories to be seen
    writable: tuple[str, ...] = ()  #: further directories to be seen and changed
    task: str | None = (
        None  #: the files of a task, seen as /task: `in` to read, `out` to write; of each, if it is there
    )
    hidden: tuple[str, ...] = ()  #: directories that stay unseen although they lie in the workspace
    network: bool = False  #: the whole network of this machine, its loopback included
    environment: tuple[str, ...] = ENVIRONMENT  #: names passed on
    limits: BoxLimits = BoxLimits()

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
        return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp/home", "TERM": "dumb", **passed}  # noqa: S108

    def task_sides(self) -> dict[str, bool]:
        """Those that are there, and whether they may be written."""
        sides = {} if self.task is None else {f"{self.task}/in": False, f"{self.task}/out": True}
        return {path: is_writable for path, is_writable in sides.items() if os.path.isdir(path)}


def is_beneath(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
