"""A box as the arguments of bubblewrap: the walls for Linux, with namespaces the kernel gives to plain users.

Inside there is `/usr` read-only, a handful of files of `/etc`, a fresh `/proc` and `/dev`, an empty `/tmp` of a
bounded size and the workspace. There is no network but a loopback of its own, no process from outside, no
capability, no way to a second user namespace. The user inside is always `agent` (1000); outside it is the
caller. When the caller is root, `drop_root` stands in front and makes it somebody who may do nothing.

Guards are the protected files of a workspace (`guards`): a state directory is covered by an empty file system, other
files are mounted read-only, and every directory above them onto itself, because a mount point cannot be renamed while
what is above it can. A repository is guarded as a whole, because its `config` lies wherever `commondir` says."""

from __future__ import annotations

import glob
import os
import re
import resource
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from clutch.tools.sandbox import drop_root
from clutch.tools.sandbox.policy import MIB, SandboxLimits, SandboxPolicy, is_beneath

# --------------------------------------------------------------------------------------------------
# What a git repository says of itself, read without git: git runs what a repository names, and this must not.
#
# Every file looked at may be a stranger's work. What it names is a claim, and whoever uses it checks where it lies.

MODULES_MAX = 2000  # looked at in `modules`
INDEX_BYTES_MAX = 64 * MIB
_GITLINK = b"\0\0\xe0\0"  # the mode of a submodule in the index
_AFTER_MODE = struct.Struct("!12x20xH")  # user, group, size; the commit; flags
_EXTENDED = 0x4000  # two more bytes of flags


def trees_of(root: str) -> Iterator[str]:
    """What git enters from the repository in `root`: `.git` of its submodules and worktrees, and the folders of
    submodules that are not there yet. `.gitmodules` is not asked: it is a file that an agent may have emptied."""
    for folder in _gitlinks(f"{root}/.git/index"):
        place = f"{root}/{folder}"
        yield f"{place}/.git" if os.path.lexists(f"{place}/.git") else place
    for folder, folders, files in islice(os.walk(f"{root}/.git/modules"), MODULES_MAX):
        if "HEAD" in files:
            folders[:] = [name for name in folders if name == "modules"]
            if worktree := re.search(r"(?m)^\s*worktree\s*=\s*(.+?)\s*$", _line(f"{folder}/config")):
                yield os.path.normpath(f"{folder}/{worktree[1]}/.git")
    for entry in glob.iglob(f"{glob.escape(root)}/.git/worktrees/*/gitdir"):
        yield _line(entry)


def _gitlinks(index: str) -> Iterator[str]:
    """Found by their mode, because reading a large index entry by entry takes long. Where the same bytes stand for
    something else, what follows is no folder."""
    data = _data(index, INDEX_BYTES_MAX)
    at = data.find(_GITLINK)
    while 0 <= at < len(data) - len(_GITLINK) - _AFTER_MODE.size:
        begin = at + len(_GITLINK)
        (flags,) = _AFTER_MODE.unpack_from(data, begin)
        begin += _AFTER_MODE.size + (2 if flags & _EXTENDED else 0)
        if name := data[begin : data.find(b"\0", begin)]:
            yield os.fsdecode(name)
        at = data.find(_GITLINK, at + 1)


def worktree_entry(root: str) -> str | None:
    """What a repository keeps about its worktree `root`: the directory `.git/worktrees/NAME`.

    `.git` of a worktree is a file that names it, and an agent may have written that file. So the place named
    must name this workspace in turn, which only git did."""
    named = os.path.realpath(_line(f"{root}/.git").removeprefix("gitdir: "))
    common, folder = os.path.split(os.path.dirname(named))
    is_mutual = folder == "worktrees" and names_worktree(named, root)
    return named if is_mutual and not is_beneath(common, root) else None


def names_worktree(entry: str, root: str) -> bool:
    return os.path.realpath(_line(f"{entry}/gitdir")) == f"{root}/.git"


def _line(path: str) -> str:
    return _data(path, 4096).decode("utf-8", "replace").strip().replace("\0", "")


def _data(path: str, size: int) -> bytes:
    """Nothing, where there is no such file. A pipe there must not keep us waiting."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, size)
    except OSError:
        return b""
    finally:
        os.close(file)


USER = "1000"
TASK = "/task"  # where a task's own files are, wherever they lie outside
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
class ProtectedMount:
    """A path that a command must not change; hidden ones are not even seen.

    `identity`: device and inode that must be found there inside the sandbox, else the command does not start."""

    path: str
    is_hidden: bool = False
    identity: str = ""


Staged = Callable[[str], str]


def arguments(
    program: str,
    box: SandboxPolicy,
    command: Sequence[str],
    *,
    cwd: str,
    guards: Sequence[ProtectedMount],
    seccomp_fd: int | None,
    info_fd: int | None,
    staged: Staged = str,
) -> list[str]:
    """`staged` says where a directory of the caller is found when bubblewrap runs as somebody else."""
    said = [program, "--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"]
    said += ["--uid", USER, "--gid", USER, "--hostname", "box"]
    said += ["--as-pid-1", "--die-with-parent", "--new-session", "--clearenv"]
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


def _system(box: SandboxPolicy, staged: Staged) -> list[str]:
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
    # Read-only, so that no process rewrites the memory of another or its place among those killed first.
    said += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"]
    said += ["--size", scratch, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108 - the box's own
    return [*said, "--size", scratch, "--tmpfs", "/tmp", "--dir", "/tmp/home"]  # noqa: S108 - the box's own


def _workspace(box: SandboxPolicy, guards: Sequence[ProtectedMount], staged: Staged) -> list[str]:
    """Outer directories first: a mount hides what was mounted beneath it before."""
    mounts = dict.fromkeys(box.read_only, "--ro-bind") | dict.fromkeys(box.writable, "--bind")
    mounts[box.root] = "--bind" if box.is_writable else "--ro-bind"
    roots = dict(mounts)
    for guard in guards:
        root = mounted_above(guard.path, roots)
        for above in _between(root, guard.path):
            mounts.setdefault(above, roots[root])
        mounts[guard.path] = "--tmpfs" if guard.is_hidden else "--ro-bind"
    said = []
    for path, how in sorted(mounts.items()):
        said += ["--tmpfs", path, "--remount-ro", path] if how == "--tmpfs" else [how, staged(path), path]
    for path, is_writable in box.task_sides().items():
        said += ["--bind" if is_writable else "--ro-bind", staged(path), f"{TASK}/{os.path.basename(path)}"]
    return [*said, "--remount-ro", "/"]


def sources(box: SandboxPolicy, guards: Sequence[ProtectedMount]) -> list[str]:
    """The caller's own directories and files that are mounted, for `drop_root` to stage."""
    roots = (box.root, *box.read_only, *box.writable)
    between = [above for guard in guards for above in _between(mounted_above(guard.path, roots), guard.path)]
    shown = [guard.path for guard in guards if not guard.is_hidden]
    own = [str(ETC / name) for name in ("passwd", "group")]
    named = [box.root, *box.read_only, *box.writable, *box.task_sides(), *between, *shown, *own]
    return list(dict.fromkeys(named))


def mounted_above(path: str, roots: Iterable[str]) -> str:
    return max((root for root in roots if is_beneath(path, root)), key=len)


def _between(root: str, path: str) -> Iterator[str]:
    parts = os.path.relpath(path, root).split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        yield "/".join([root, *parts[:depth]])


def python_places() -> tuple[str, ...]:
    """Where the running Python and Clutch lie, as real paths."""
    places = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[3]))
    return tuple(dict.fromkeys(os.path.realpath(place) for place in places))


def python_inside(root: str) -> tuple[str, ...]:
    """Those of them that lie in the workspace `root`, a real path. Agents may not change them."""
    return tuple(place for place in python_places() if is_beneath(place, root) and place != root)


def history_of(root: str) -> tuple[str, ...]:
    """The repository a git worktree belongs to, to be shown read-only; nothing for any other workspace."""
    entry = worktree_entry(root)
    return () if entry is None else (os.path.dirname(os.path.dirname(entry)),)


# --------------------------------------------------------------------------------------------------
# A command in a box, as the words that start it: limits inside, bubblewrap around, `drop_root` in front for root.
#
# The first process in the box is a shell that sets the limits and waits for the command. Bubblewrap's own first
# process would have none, and another process of the box could trace it and make it work without them.

#: When memory is short, the kernel shall take these processes first. In the box this cannot be written.
KILLED_FIRST = "echo 1000 >/proc/self/oom_score_adj"


def sandboxed(
    program: str,
    box: SandboxPolicy,
    command: Sequence[str],
    *,
    cwd: str,
    guards: Sequence[ProtectedMount],
    seccomp_fd: int | None = None,
    info_fd: int | None = None,
) -> list[str]:
    """`command` inside bubblewrap, which is found at `program`."""
    inside = limited(box.limits, checked(guards, command), is_first=True)
    staged = staging(sources(box, guards)) if is_real_root() else {}
    said = arguments(
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
        return ["/bin/sh", "-c", f'{KILLED_FIRST}; exec "$@"', "box", *said]
    return [sys.executable, "-I", "-S", drop_root.__file__, str(len(staged)), *staged, *said]


#: Pairs of a path and its identity, `--`, and the command that starts when all of them are as they should be.
_CHECKED = """
while [ "$1" != -- ]; do
  [ "$(stat -c %d:%i -- "$1")" = "$2" ] || { echo "$1 was replaced while the sandbox was made; try again"; exit 125; }
  shift 2
done
shift
exec "$@"
"""


def checked(guards: Sequence[ProtectedMount], command: Sequence[str]) -> Sequence[str]:
    """`command`, started only where each guard with an identity is what was found."""
    pairs = [word for guard in guards if guard.identity for word in (guard.path, guard.identity)]
    return ["/bin/sh", "-c", _CHECKED, "guards", *pairs, "--", *command] if pairs else command


def staging(sources: Sequence[str]) -> dict[str, str]:
    return {source: f"{drop_root.STAGE}/{number}" for number, source in enumerate(sources)}


def is_real_root() -> bool:
    """Root of the machine, and not of a container whose root is a plain user outside."""
    if os.geteuid() != 0:
        return False
    return Path("/proc/self/uid_map").read_text(encoding="ascii").split()[:2] == ["0", "0"]


def limited(limits: SandboxLimits, command: Sequence[str], *, is_first: bool) -> list[str]:
    """`command` with the kernel's own limits, set by a shell inside the box, which stays as its first process.

    Inside, because a user namespace counts its processes by itself (Linux 5.14): set outside, the limit would
    count everything else the user runs. Without a box (`is_first` false) the shell becomes the command, and no
    processes are counted.
    """
    wanted = [
        ("ulimit -c", resource.RLIMIT_CORE, 0, 1),
        *([("ulimit -d", resource.RLIMIT_DATA, limits.memory_bytes, 1024)] if limits.holds_reserved else []),
        ("ulimit -f", resource.RLIMIT_FSIZE, limits.file_bytes, 512),
        ("ulimit -n", resource.RLIMIT_NOFILE, 4096, 1),
    ]
    said = [f"{word} {_at_most(kind, value) // unit}" for word, kind, value, unit in wanted]
    if not is_first:
        return ["/bin/sh", "-c", " && ".join([*said, KILLED_FIRST, 'exec "$@"']), "box", *command]
    count = _at_most(resource.RLIMIT_NPROC, limits.processes)
    said.append(f"{{ ulimit -u {count} 2>/dev/null || ulimit -p {count}; }}")  # bash, or dash
    # Two statements: a shell would become the last one, which then were the first process and deaf to signals.
    return ["/bin/sh", "-c", f'{" && ".join(said)} || exit 125; "$@"; exit $?', "box", *command]


def _at_most(kind: int, value: int) -> int:
    """Nobody may raise a limit that is already lower."""
    hard = resource.getrlimit(kind)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)
