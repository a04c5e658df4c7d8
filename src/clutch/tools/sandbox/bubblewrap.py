"""A box as the arguments of bubblewrap: the walls for Linux, with namespaces the kernel gives to plain users.

Inside there is `/usr` read-only, a handful of files of `/etc`, a fresh `/proc` and `/dev`, an empty `/tmp` of a
bounded size and the workspace. There is no network but a loopback of its own, no process from outside, no
capability, no way to a second user namespace. The user inside is always `agent` (1000); outside it is the
caller. When the caller is root, `descent` stands in front and makes it somebody who may do nothing.

Guards. Some things in a workspace are run by people later, outside any box: what `.git` names, and the Python
that Clutch itself runs from when that lies in the workspace. They are mounted read-only, and every directory
above them onto itself, because a mount point cannot be renamed while what is above it can. Of `.git` it is the
whole, because its `config` lies wherever `commondir` says; and that of its submodules, which git enters from it.
Mounting at a path in reach of a boxed process is a race with that process. So guards are chosen while no
command runs in the workspace, and stay the same until none runs: what is guarded cannot be swapped by anybody,
and what is not guarded is not touched.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from clutch.tools.sandbox import repository
from clutch.tools.sandbox.box import Box, is_beneath

USER = "1000"
TASK = "/task"  # where a task's own files are, wherever they lie outside
TREES_MAX = 200  # a command line has an end, and only a repository made to exhaust it has more
ETC = Path(__file__).parent / "etc"

#: What programs need to start, to show times and to check certificates. None of it is a secret.
# fmt: off
SYSTEM_ETC = (
    "alternatives", "ca-certificates", "crypto-policies", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime",
    "mime.types", "pki/ca-trust", "pki/tls/certs", "protocols", "services", "ssl/certs", "ssl/openssl.cnf",
)
NETWORK_ETC = ("gai.conf", "host.conf", "hosts", "nsswitch.conf", "resolv.conf")
# fmt: on
SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")


@dataclass(frozen=True, slots=True)
class Guard:
    """A path in the workspace that a command must not change; hidden ones are not even seen."""

    path: str
    is_hidden: bool = False


Staged = Callable[[str], str]


def arguments(
    program: str,
    box: Box,
    command: Sequence[str],
    *,
    cwd: str,
    guards: Sequence[Guard],
    seccomp_fd: int | None,
    info_fd: int | None,
    staged: Staged = str,
) -> list[str]:
    """`staged` says where a directory of the caller is found when bubblewrap runs as somebody else."""
    said = [program, "--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"]
    said += ["--uid", USER, "--gid", USER, "--hostname", "box"]
    said += ["--die-with-parent", "--new-session", "--clearenv"]
    for name, value in box.variables().items():
        said += ["--setenv", name, TASK if name == "TASK_DIR" else value]
    if box.network:
        said += ["--share-net"]
    said += [*_system(box, staged), *_workspace(box, guards, staged), "--chdir", cwd]
    if seccomp_fd is not None:
        said += ["--seccomp", str(seccomp_fd)]
    if info_fd is not None:
        said += ["--info-fd", str(info_fd)]
    return [*said, "--", *command]


def _system(box: Box, staged: Staged) -> list[str]:
    scratch = str(box.limits.scratch_bytes)
    said = ["--ro-bind", "/usr", "/usr"]
    for folder in SYSTEM_FOLDERS:
        if os.path.islink(folder):
            said += ["--symlink", os.readlink(folder), folder]
        else:
            said += ["--ro-bind-try", folder, folder]
    for name in (*SYSTEM_ETC, *(NETWORK_ETC if box.network else ())):
        said += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for name in ("passwd", "group"):
        said += ["--ro-bind", staged(str(ETC / name)), f"/etc/{name}"]
    said += ["--proc", "/proc", "--dev", "/dev"]
    said += ["--size", scratch, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108 - the box's own
    return [*said, "--size", scratch, "--tmpfs", "/tmp", "--dir", "/tmp/home"]  # noqa: S108 - the box's own


def _workspace(box: Box, guards: Sequence[Guard], staged: Staged) -> list[str]:
    """Outer directories first: a mount hides what was mounted beneath it before."""
    mounts = dict.fromkeys(box.read_only, "--ro-bind") | dict.fromkeys(box.writable, "--bind")
    mounts[box.root] = "--bind" if box.is_writable else "--ro-bind"
    for guard in guards:
        for above in _between(box.root, guard.path):
            mounts.setdefault(above, mounts[box.root])
        mounts[guard.path] = "--tmpfs" if guard.is_hidden else "--ro-bind"
    said = []
    for path, how in sorted(mounts.items()):
        said += ["--tmpfs", path, "--remount-ro", path] if how == "--tmpfs" else [how, staged(path), path]
    for path, is_writable in box.task_sides().items():
        said += ["--bind" if is_writable else "--ro-bind", staged(path), f"{TASK}/{os.path.basename(path)}"]
    return [*said, "--remount-ro", "/"]


def sources(box: Box, guards: Sequence[Guard]) -> list[str]:
    """The caller's own directories and files that are mounted, for `descent` to stage."""
    between = [above for guard in guards for above in _between(box.root, guard.path)]
    shown = [guard.path for guard in guards if not guard.is_hidden]
    own = [str(ETC / name) for name in ("passwd", "group")]
    named = [box.root, *box.read_only, *box.writable, *box.task_sides(), *between, *shown, *own]
    return list(dict.fromkeys(named))


def _between(root: str, path: str) -> Iterator[str]:
    parts = os.path.relpath(path, root).split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        yield "/".join([root, *parts[:depth]])


def python_places() -> tuple[str, ...]:
    """Where the running Python and Clutch lie, as real paths."""
    places = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[3]))
    return tuple(dict.fromkeys(os.path.realpath(place) for place in places))


def hidden_in(box: Box) -> tuple[Guard, ...]:
    inside = [path for path in box.hidden if is_beneath(path, box.root)]
    return tuple(Guard(path, is_hidden=True) for path in inside if os.path.isdir(path))


def guards_of(box: Box) -> tuple[Guard, ...]:
    """What must be guarded in this workspace as it stands now. Links are not followed: they guard nothing."""
    root = box.root
    own = [Guard(path) for path in python_places() if is_beneath(path, root) and path != root]
    named = dict.fromkeys([f"{root}/.git", *islice(repository.trees_of(root), TREES_MAX)])
    inside = [path for path in named if is_beneath(path, root) and path != root]
    return (*own, *(Guard(path) for path in inside if _is_file_or_folder(path)))


def _is_file_or_folder(path: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except (OSError, ValueError):
        return False
    return os.path.realpath(path) == path and (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def unhidden(guards: Sequence[Guard], hidden: Sequence[Guard]) -> Iterator[Guard]:
    """An agent's repository may name anything; what is hidden stays so."""
    return (guard for guard in guards if not any(is_beneath(guard.path, other.path) for other in hidden))


def history_of(root: str) -> tuple[str, ...]:
    """The repository a git worktree belongs to, to be shown read-only; nothing for any other workspace."""
    entry = repository.worktree_entry(root)
    return () if entry is None else (os.path.dirname(os.path.dirname(entry)),)
