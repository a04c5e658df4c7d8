"""A sandbox as a profile of Seatbelt, which `sandbox-exec` of macOS applies to a process and all that it starts.

**Untested on real hardware.** The text is tested, and `trouble` starts a process in it before the first use: where the
profile does not hold what it says, there is no sandbox.

The profile denies by default, and the last rule that matches decides: rules of an outer directory stand before those of
a directory in it. Rules are patterns over real paths, so they hold for files that do not exist yet. Paths reach the
profile as parameters (`-D`), not as its text, and a pattern contains only their letters and digits (`_pattern`).

What Seatbelt does not do: there is no `/tmp` of its own (a scratch directory stands for it), no end of processes that
left the group, no limit on the memory or the number of processes."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace

from clutch.core import attachments
from clutch.ports import Launch, ToolFailed
from clutch.tools.directories import DIRECTORY, alone, opened, remove
from clutch.tools.sandbox.bubblewrap import ProtectedMount, limited, python_places
from clutch.tools.sandbox.policy import SandboxPolicy, is_beneath
from clutch.tools.sandbox.protected_files import DEPENDENCIES

SANDBOX_EXEC = "/usr/bin/sandbox-exec"
SYSTEM = "darwin"
CHECK_S = 20
#: Of a state directory that is made while a command runs, only this file has a name that no other program uses.
DATABASE = "clutch.db"

# fmt: off
#: Programs, libraries and tables that they need to start. None of it is a secret.
READABLE = (
    "/usr", "/bin", "/sbin", "/System/Library", "/System/Cryptexes", "/System/Volumes/Preboot", "/Library/Apple",
    "/Library/Frameworks", "/Library/Developer/CommandLineTools", "/Applications/Xcode.app", "/opt/homebrew",
    "/opt/local", "/nix/store", "/private/var/db/dyld", "/private/var/db/timezone", "/private/etc/ssl",
)
READABLE_FILES = (
    "/", "/private/var/select/sh", "/private/var/db/xcode_select_link", "/private/etc/localtime",
    "/private/etc/protocols", "/private/etc/services", "/dev/autofs_nowait", "/dev/random", "/dev/urandom",
)
NETWORK_FILES = ("/private/etc/hosts", "/private/etc/resolv.conf", "/private/var/run/resolv.conf")
DEVICES = ("/dev/null", "/dev/zero", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/dtracehelper")
#: Links and directories on the way to the above, which programs look at.
ON_THE_WAY = ("/tmp", "/var", "/etc", "/dev", "/private")  # noqa: S108 - named, not used
SERVICES = ("com.apple.system.notification_center", "com.apple.system.opendirectoryd.libinfo", "com.apple.logd")
NETWORK_SERVICES = (
    "com.apple.SystemConfiguration.configd", "com.apple.SystemConfiguration.DNSConfiguration",
    "com.apple.dnssd.service", "com.apple.trustd.agent",
)
# fmt: on

_READ = "file-read* file-map-executable process-exec*"
_ALL = "file* process-exec*"


@dataclass(slots=True)
class SeatbeltProfile:
    """The text, and the paths that it names as parameters."""

    lines: list[str] = field(default_factory=list)
    parameters: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def add(self, rule: str) -> None:
        if rule not in self.lines:
            self.lines.append(rule)

    def named(self, path: str) -> str:
        """Return the parameter that stands for a path."""
        names = {known: name for name, known in self.parameters.items()}
        name = names.get(path, f"P{len(self.parameters)}")
        self.parameters[name] = path
        return f'(param "{name}")'


def profile(policy: SandboxPolicy, guards: Sequence[ProtectedMount], scratch: str | None) -> SeatbeltProfile:
    made = SeatbeltProfile(list(_system(policy)))
    places = _places(policy, guards, scratch)
    ancestors = {above for path, access in places if access in _SHOWN for above in _above(path)}
    for path, access in places:
        for rule in _RULES[access]:
            made.add(rule.format(made.named(path)))
    # Programs look at each directory on the way to their own, also where the way leads through a hidden one.
    for path in sorted(ancestors):
        made.add(f"(allow file-read-metadata (literal {made.named(path)}))")
    roots = [path for path, access in places if access == "changed"]
    own = scratch and _on_disk(scratch)
    if policy.keeps_protected:
        for root in (root for root in roots if root != own):
            for rule in _by_name(root, made.named(root)):
                made.add(rule)
    # A directory above a protected file must keep its name: in a renamed one, the rules of its path would not hold.
    # The same for the directories that may be changed: a link in their place would lead the next command elsewhere.
    denied = [path for path, access in places if access in ("kept", "hidden")]
    kept = {
        above for path in denied for root in roots if is_beneath(path, root) for above in _above(path, root)
    }
    for path in sorted({*kept, *roots}):
        made.add(f"(deny file-write-unlink (literal {made.named(path)}))")
    return made


def _system(policy: SandboxPolicy) -> Iterator[str]:
    services = (*SERVICES, *(NETWORK_SERVICES if policy.network else ()))
    files = (*READABLE_FILES, *(NETWORK_FILES if policy.network else ()))
    yield "(version 1)"
    yield "(deny default)"
    yield "(allow process-fork sysctl-read ipc-posix-sem)"
    yield "(allow process-info* signal (target same-sandbox))"
    yield '(allow ipc-posix-shm-read* (ipc-posix-name "apple.shm.notification_center"))'
    yield f"(allow mach-lookup {_filters('global-name', services)})"
    yield f"(allow {_READ} {_filters('subpath', READABLE)})"
    yield f"(allow file-read* {_filters('literal', files)})"
    yield f"(allow file-read-metadata {_filters('literal', ON_THE_WAY)})"
    yield f'(allow file-read* file-write-data file-ioctl {_filters("literal", DEVICES)} (subpath "/dev/fd"))'
    if policy.network:
        # Addresses only: a socket that is a file may belong to a program with all rights, such as Docker.
        yield "(allow system-socket)"
        yield "(allow network-outbound (remote ip))"
        yield "(allow network-bind network-inbound (local ip))"
        yield '(allow network-outbound (literal "/private/var/run/mDNSResponder"))'


def _filters(kind: str, names: Sequence[str]) -> str:
    return " ".join(f'({kind} "{name}")' for name in names)


#: What is done with a place: its rules in their order. "kept": a protected file, which is as visible as its directory.
_RULES = {
    "changed": (f"(allow {_READ} file-write* (subpath {{}}))",),
    "shown": (f"(allow {_READ} (subpath {{}}))", "(deny file-write* (subpath {}))"),
    "kept": ("(deny file-write* (subpath {}))",),
    "hidden": (f"(deny {_ALL} (subpath {{}}))",),
}
_SHOWN = ("changed", "shown")


def _places(
    policy: SandboxPolicy, guards: Sequence[ProtectedMount], scratch: str | None
) -> list[tuple[str, str]]:
    """Return paths and what is done with them, outer ones first; of two for one path the stricter one last."""
    places = [(path, "shown") for path in policy.read_only]
    places += [(path, "changed") for path in policy.writable]
    places.append((policy.root, "changed" if policy.is_writable else "shown"))
    places += [(path, "changed" if can else "shown") for path, can in policy.task_sides().items()]
    places += [] if scratch is None else [(scratch, "changed")]
    places += [(guard.path, "hidden" if guard.is_hidden else "kept") for guard in guards]
    places += [(path, "hidden") for path in policy.hidden]
    order = list(_RULES)
    spelled = dict.fromkeys((_on_disk(path), access) for path, access in places)
    return sorted(spelled, key=lambda place: (place[0].split("/"), order.index(place[1])))


def _on_disk(path: str) -> str:
    """Return a path as it is spelled on the disk: rules compare that, while macOS opens a file by any spelling."""
    if sys.platform == "darwin":
        with suppress(OSError):
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                return os.fsdecode(fcntl.fcntl(file, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
            finally:
                os.close(file)
    return path


def _above(path: str, root: str = "/") -> Iterator[str]:
    """Yield the directories above `path` that lie beneath `root`, the nearest first."""
    while (path := os.path.dirname(path)) != root and is_beneath(path, root):
        yield path


# --------------------------------------------------------------------------------------------------
# Protected files by their names, wherever a command would make them. Case does not matter: macOS ignores it by default.
#
# New repositories cannot be made in the workspace at all, while on Linux they are looked at when the command has ended.
# What is recognised by its content alone (a skill's folder, a bare repository, a state directory under another name) is
# guarded by its path from the next command on, as on Linux.


def _by_name(root: str, parameter: str) -> Iterator[str]:
    anywhere = f"^{_pattern(root)}/(.*/)?"
    repositories = _any_of(attachments.REPOSITORIES)
    names = _any_of(attachments.READ_ONLY_FILES)
    definitions = _any_of("/".join(tail) for tail in attachments.DEFINITIONS)
    within = f"(subpath {parameter})"
    apart = f'(require-not (regex #"{anywhere}{_any_of(DEPENDENCIES)}/"))'
    yield f'(deny file-write* (require-all {within} (regex #"{anywhere}{repositories}(/|$)")))'
    for made in (f"{names}$", f"{definitions}(/|$)"):
        yield f'(deny file-write* (require-all {within} (regex #"{anywhere}{made}") {apart}))'
    # A folder that is made elsewhere must not become `.claude` with its agents in it.
    for folder in sorted({tail[0] for tail in attachments.DEFINITIONS if len(tail) > 1}):
        moved = f'(require-all {within} (regex #"{anywhere}{_folded(folder)}$") {apart})'
        yield f"(deny file-write-create file-write-unlink {moved})"
    yield f'(deny {_ALL} (require-all {within} (regex #"{anywhere}{_folded(DATABASE)}(-[a-z]+)?$")))'


def _any_of(names: Iterable[str]) -> str:
    return f"({'|'.join(_folded(name) for name in sorted(names))})"


def _folded(name: str) -> str:
    """Return the expression for a name of ours without regard to case."""
    return "".join(
        f"[{char.lower()}{char.upper()}]" if char.isalpha() else "[.]" if char == "." else char
        for char in name
    )


def _pattern(path: str) -> str:
    """Return an expression that matches a path and perhaps others, with its plain characters only.

    A deny rule that matches more is safe, and `subpath` beside it says exactly which directory is meant. So no quote,
    bracket or line break of a file name is ever part of a profile."""
    return re.sub(r"[^A-Za-z0-9/_-]+", ".+", path)


# --------------------------------------------------------------------------------------------------
# Directories for temporary files, one for each command.
#
# The processes of a command hold the lock of their directory, as an open file that they inherit: a directory that can
# be locked is used by none of them, also after a crash. It is removed when the next one is made.


@contextmanager
def scratch_directory() -> Iterator[tuple[str, int]]:
    """Yield a new directory and the open file that locks it. Blocks. Raises ToolFailed."""
    home = f"{os.path.realpath(tempfile.gettempdir())}/clutch-{os.geteuid()}"
    with suppress(FileExistsError):
        os.mkdir(home, 0o700)
    with opened(home) as around:
        if os.fstat(around).st_uid != os.geteuid():
            raise ToolFailed(f"{home} belongs to another user; set TMPDIR to a directory of your own")
        with alone(around):
            for name in os.listdir(around):
                _remove_unused(around, name)
            name = secrets.token_hex(8)
            os.mkdir(name, 0o700, dir_fd=around)
            lock = os.open(name, DIRECTORY, dir_fd=around)
            fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield f"{home}/{name}", lock
    finally:
        os.close(lock)


def _remove_unused(around: int, name: str) -> None:
    # A command may have taken all rights from its directory, or still use it; then the next call tries again.
    with suppress(OSError), opened(name, around) as folder:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(around, name)


# --------------------------------------------------------------------------------------------------
# The command line, and whether it works on this machine.


@contextmanager
def sandboxed(
    program: str,
    policy: SandboxPolicy,
    command: Sequence[str],
    *,
    cwd: str,
    guards: Sequence[ProtectedMount],
    has_scratch: bool = True,
) -> Iterator[Launch]:
    """Yield how to start a command in `sandbox-exec`, which is found at `program`. Blocks. Raises ToolFailed."""
    with ExitStack() as stack:
        scratch, lock = stack.enter_context(scratch_directory()) if has_scratch else (None, None)
        started = launch(policy, command, cwd=cwd, guards=guards, scratch=scratch, program=program)
        yield replace(started, kept=() if lock is None else (lock,))


def launch(
    policy: SandboxPolicy,
    command: Sequence[str],
    *,
    cwd: str,
    guards: Sequence[ProtectedMount],
    scratch: str | None = None,
    program: str = SANDBOX_EXEC,
) -> Launch:
    """Return how to start a command. `scratch`: a directory that stands for `/tmp` and the home directory."""
    made = profile(policy, guards, scratch)
    words = [program, "-p", made.text]
    for name, path in made.parameters.items():
        words += ["-D", f"{name}={path}"]
    words += limited(policy.limits, command, is_first=False, system=SYSTEM)
    variables = policy.variables()
    variables["PATH"] = f"/opt/homebrew/bin:{variables['PATH']}:/usr/sbin:/sbin"
    if scratch is not None:
        variables |= {"HOME": scratch, "TMPDIR": scratch}
    return Launch(words, cwd, variables)


#: Tries in a sandbox what it must allow and what it must deny, and prints what was wrong.
CHECK = """
import os, socket, sys
root, outside = sys.argv[1:]
def write(path):
    with open(path, "w") as file: file.write("x")
def connect():
    with socket.socket() as one:
        try: one.connect(("127.0.0.1", 9))
        except ConnectionRefusedError: pass
def run():
    assert os.waitpid(os.posix_spawn("/bin/sh", ["sh", "-c", "exit 0"], {}), 0)[1] == 0
allowed = {"write in the workspace": lambda: write(root + "/file"), "start a program": run}
denied = {
    "read a hidden file": lambda: open(root + "/hidden/file").close(),
    "list a hidden folder": lambda: os.listdir(root + "/hidden"),
    "move a hidden folder": lambda: os.rename(root + "/hidden", root + "/seen"),
    "make a repository": lambda: os.mkdir(root + "/.git"),
    "write a config": lambda: write(root + "/clutch.json"),
    "link a protected file": lambda: os.link(root + "/kept", root + "/link"),
    "write a protected file": lambda: write(root + "/kept"),
    "read a file outside": lambda: open(outside + "/file").close(),
    "write a file outside": lambda: write(outside + "/new"),
    "connect": connect,
}
for rules, is_allowed in ((allowed, True), (denied, False)):
    for what, action in rules.items():
        try: action()
        except PermissionError: worked = False
        else: worked = True
        if worked != is_allowed: print(("cannot " if is_allowed else "can ") + what)
"""


def trouble(program: str = SANDBOX_EXEC) -> str:
    """Return why there is no sandbox on this macOS, "" where it holds. Blocks: starts a process."""
    if not os.path.exists(program):
        return f"this system has no {program}"
    with tempfile.TemporaryDirectory() as folder:
        root, outside = (os.path.realpath(folder) + name for name in ("/root", "/outside"))
        for path in (f"{root}/hidden/file", f"{root}/kept", f"{outside}/file"):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write("secret")
        policy = SandboxPolicy(root, read_only=python_places(), hidden=(f"{root}/hidden",))
        command = [sys.executable, "-I", "-S", "-c", CHECK, root, outside]
        guards = (ProtectedMount(f"{root}/kept"),)
        started = launch(policy, command, cwd=root, guards=guards, program=program)
        return _said(started)


def _said(started: Launch) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - our own command line
            started.argv,
            capture_output=True,
            env=dict(started.env),
            cwd=started.cwd,
            timeout=CHECK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"Seatbelt did not answer within {CHECK_S} s"
    except OSError as error:
        return f"Seatbelt cannot be started: {error.strerror}"
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-300:]
        return f"Seatbelt does not work here: {said or done.returncode}"
    wrong = done.stdout.decode(errors="replace").split("\n")
    return "".join(f"Seatbelt does not hold here: a command {one}" for one in wrong[:1] if one)
