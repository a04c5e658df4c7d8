"""A sandbox as the arguments of bubblewrap, which isolates with namespaces that Linux gives to plain users.

Inside there is `/usr` read-only, a few files of `/etc`, a fresh `/proc` and `/dev`, an empty `/tmp` of a bounded size
and the workspace. There is no network but a loopback of its own, no process from outside, no capability, no way to a
second user namespace. The user inside is always `agent` (1000); outside it is the caller. When the caller is root,
`drop_root` runs first and turns it into a user without rights.

Guards are the protected files of a workspace: a state directory is covered by an empty file system, other files are
mounted read-only, and every directory above them onto itself, because a mount point cannot be renamed while a directory
above it can. A repository is guarded as a whole, because its `config` lies wherever `commondir` says."""

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
# The layout of a git repository, read without git: git runs programs that a repository names, and this must not.
#
# An agent may have written every file that is read here. A path in it is a claim: the caller checks where it lies.

MODULES_MAX = 2000  # looked at in `modules`
INDEX_BYTES_MAX = 64 * MIB
_GITLINK = b"\0\0\xe0\0"  # the mode of a submodule in the index
_AFTER_MODE = struct.Struct("!12x20xH")  # user, group, size; the commit; flags
_EXTENDED = 0x4000  # two more bytes of flags


def trees_of(root: str) -> Iterator[str]:
    """Yield what git enters from the repository in `root`: `.git` of its submodules and worktrees, and the folders of
    submodules that do not exist yet. `.gitmodules` is not read: an agent may have emptied it."""
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
    """Yield the submodules of an index. They are found by their mode, because parsing a large index takes long; where
    the same bytes mean something else, what follows is no folder."""
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
    """Return the directory `.git/worktrees/NAME` in which a repository describes its worktree `root`."""
    # `.git` of a worktree is a file that names this directory, and an agent may have written that file. So the
    # directory must name the workspace in turn, which only git did.
    named = os.path.realpath(_line(f"{root}/.git").removeprefix("gitdir: "))
    common, folder = os.path.split(os.path.dirname(named))
    is_mutual = folder == "worktrees" and names_worktree(named, root)
    return named if is_mutual and not is_beneath(common, root) else None


def names_worktree(entry: str, root: str, around: int | None = None) -> bool:
    """`around`: the open directory that `entry` is relative to."""
    return os.path.realpath(_line(f"{entry}/gitdir", around)) == f"{root}/.git"


def _line(path: str, around: int | None = None) -> str:
    return _data(path, 4096, around).decode("utf-8", "replace").strip().replace("\0", "")


def _data(path: str, size: int, around: int | None = None) -> bytes:
    """Return the beginning of a file, empty where there is none."""
    # O_NONBLOCK: an agent may have put a pipe there, which must not block us.
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=around)
    except OSError:
        return b""
    try:
        return os.read(file, size)
    except OSError:
        return b""
    finally:
        os.close(file)


USER = "1000"
TASK = "/task"  # where a task's own files are inside the sandbox
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


def _system(policy: SandboxPolicy, staged: Staged) -> list[str]:
    scratch = str(policy.limits.scratch_bytes)
    words = ["--ro-bind", "/usr", "/usr"]
    for folder in SYSTEM_FOLDERS:
        if os.path.islink(folder):
            words += ["--symlink", os.readlink(folder), folder]
        else:
            words += ["--ro-bind-try", folder, folder]
    for name in (*SYSTEM_ETC, *(NETWORK_ETC if policy.network else ())):
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for name in ("passwd", "group"):
        words += ["--ro-bind", staged(str(ETC / name)), f"/etc/{name}"]
    # /proc is read-only, so that no process writes the memory of another or its own `oom_score_adj`.
    words += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"]
    words += ["--size", scratch, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108 - of the sandbox
    return [*words, "--size", scratch, "--tmpfs", "/tmp", "--dir", "/tmp/home"]  # noqa: S108 - of the sandbox


def _workspace(policy: SandboxPolicy, guards: Sequence[ProtectedMount], staged: Staged) -> list[str]:
    """Outer directories first: a mount hides what was mounted beneath it before."""
    mounts = dict.fromkeys(policy.read_only, "--ro-bind") | dict.fromkeys(policy.writable, "--bind")
    mounts[policy.root] = "--bind" if policy.is_writable else "--ro-bind"
    roots = dict(mounts)
    for guard in guards:
        root = mounted_above(guard.path, roots)
        for above in _between(root, guard.path):
            mounts.setdefault(above, roots[root])
        mounts[guard.path] = "--tmpfs" if guard.is_hidden else "--ro-bind"
    words = []
    for path, how in sorted(mounts.items()):
        words += ["--tmpfs", path, "--remount-ro", path] if how == "--tmpfs" else [how, staged(path), path]
    for path, is_writable in policy.task_sides().items():
        words += ["--bind" if is_writable else "--ro-bind", staged(path), f"{TASK}/{os.path.basename(path)}"]
    return [*words, "--remount-ro", "/"]


def sources(policy: SandboxPolicy, guards: Sequence[ProtectedMount]) -> list[str]:
    """Return the caller's directories and files that are mounted, for `drop_root` to stage."""
    between = [
        above for guard in guards for above in _between(mounted_above(guard.path, policy.shown), guard.path)
    ]
    shown = [guard.path for guard in guards if not guard.is_hidden]
    own = [str(ETC / name) for name in ("passwd", "group")]
    return list(dict.fromkeys([*policy.shown, *policy.task_sides(), *between, *shown, *own]))


def mounted_above(path: str, roots: Iterable[str]) -> str:
    return max((root for root in roots if is_beneath(path, root)), key=len)


def _between(root: str, path: str) -> Iterator[str]:
    parts = os.path.relpath(path, root).split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        yield "/".join([root, *parts[:depth]])


def python_places() -> tuple[str, ...]:
    """Return where the running Python and Clutch lie, as real paths."""
    places = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[3]))
    return tuple(dict.fromkeys(os.path.realpath(place) for place in places))


def python_inside(root: str) -> tuple[str, ...]:
    """Return those of them that lie in the workspace `root`, a real path. Agents may not change them."""
    return tuple(place for place in python_places() if is_beneath(place, root) and place != root)


def history_of(root: str) -> tuple[str, ...]:
    """Return the repository of a git worktree, which is shown read-only; nothing for any other workspace."""
    entry = worktree_entry(root)
    return () if entry is None else (os.path.dirname(os.path.dirname(entry)),)


# --------------------------------------------------------------------------------------------------
# The command line of a sandbox: limits inside, bubblewrap around them, `drop_root` in front for root.
#
# The first process in the sandbox is a shell that sets the limits and waits for the command. Bubblewrap's own first
# process would have no limits, and another process of the sandbox could trace it and work without them.

#: When memory is short, the kernel kills these processes first. Inside the sandbox the value cannot be changed.
KILLED_FIRST = "echo 1000 >/proc/self/oom_score_adj"


def sandboxed(
    program: str,
    policy: SandboxPolicy,
    command: Sequence[str],
    *,
    cwd: str,
    guards: Sequence[ProtectedMount],
    seccomp_fd: int | None = None,
    info_fd: int | None = None,
) -> list[str]:
    """Return the words that run `command` inside bubblewrap, which is found at `program`."""
    staged = staging(sources(policy, guards)) if is_real_root() else {}

    def place(path: str) -> str:
        return staged.get(path, path)

    words = [program, "--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"]
    words += ["--uid", USER, "--gid", USER, "--hostname", "box"]
    words += ["--as-pid-1", "--die-with-parent", "--new-session", "--clearenv"]
    for name, value in policy.variables().items():
        words += ["--setenv", name, TASK if name == "TASK_DIR" else value]
    if policy.network:
        words += ["--share-net"]
    words += [*_system(policy, place), *_workspace(policy, guards, place), "--chdir", cwd]
    for option, file in (("--seccomp", seccomp_fd), ("--info-fd", info_fd)):
        words += [] if file is None else [option, str(file)]
    words += ["--", *limited(policy.limits, checked(guards, command), is_first=True)]
    if not staged:
        return ["/bin/sh", "-c", f'{KILLED_FIRST}; exec "$@"', "box", *words]
    return [sys.executable, "-I", "-S", drop_root.__file__, str(len(staged)), *staged, *words]


#: Takes pairs of a path and its identity, `--`, and the command. A path that another sandboxed process replaced by a
#: link while bubblewrap mounted it has another identity: then the command does not start.
_CHECKED = """
while [ "$1" != -- ]; do
  [ "$(stat -c %d:%i -- "$1")" = "$2" ] || { echo "$1 was replaced while the sandbox was made; try again"; exit 125; }
  shift 2
done
shift
exec "$@"
"""


def checked(guards: Sequence[ProtectedMount], command: Sequence[str]) -> Sequence[str]:
    """Return `command` behind a check of each guard that has an identity."""
    pairs = [word for guard in guards if guard.identity for word in (guard.path, guard.identity)]
    return ["/bin/sh", "-c", _CHECKED, "guards", *pairs, "--", *command] if pairs else command


def staging(sources: Sequence[str]) -> dict[str, str]:
    return {source: f"{drop_root.STAGE}/{number}" for number, source in enumerate(sources)}


def is_real_root() -> bool:
    """Whether this is root of the machine, and not of a container whose root is a plain user outside."""
    if os.geteuid() != 0:
        return False
    return Path("/proc/self/uid_map").read_text(encoding="ascii").split()[:2] == ["0", "0"]


def limited(
    limits: SandboxLimits, command: Sequence[str], *, is_first: bool, system: str = sys.platform
) -> list[str]:
    """Return `command` with the kernel's own limits, set by a shell inside the sandbox, which stays its first process.

    Without a sandbox (`is_first` false) the shell becomes the command, and processes are not limited.
    """
    # The limits are set inside, because a user namespace counts its own processes (Linux 5.14): set outside, the limit
    # would count every other process of the user.
    wanted = [
        ("ulimit -c", resource.RLIMIT_CORE, 0, 1),
        *([("ulimit -d", resource.RLIMIT_DATA, limits.memory_bytes, 1024)] if limits.holds_reserved else []),
        ("ulimit -f", resource.RLIMIT_FSIZE, limits.file_bytes, 512),
        ("ulimit -n", resource.RLIMIT_NOFILE, 4096, 1),
    ]
    words = [f"{word} {_at_most(kind, value) // unit}" for word, kind, value, unit in wanted]
    if not is_first:
        ranked = [KILLED_FIRST] if system == "linux" else []
        return ["/bin/sh", "-c", " && ".join([*words, *ranked, 'exec "$@"']), "box", *command]
    count = _at_most(resource.RLIMIT_NPROC, limits.processes)
    words.append(f"{{ ulimit -u {count} 2>/dev/null || ulimit -p {count}; }}")  # bash, or dash
    # Two statements: a shell would become the last one, which as first process would ignore signals.
    return ["/bin/sh", "-c", f'{" && ".join(words)} || exit 125; "$@"; exit $?', "box", *command]


def _at_most(kind: int, value: int) -> int:
    """A limit that is already lower cannot be raised."""
    hard = resource.getrlimit(kind)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)
