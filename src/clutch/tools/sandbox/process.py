"""Processes in a sandbox: what this machine offers for it, how a process is started, watched and ended.

`start` is for commands and workers of our own, `SandboxedPrograms` for programs that run as long as a connection to
them: MCP servers and ACP agents."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, partial
from pathlib import Path

from clutch.contain import in_thread
from clutch.ports import Launch, SandboxAccess, ToolFailed
from clutch.tools.sandbox import bubblewrap, cgroup, seatbelt, seccomp
from clutch.tools.sandbox.bubblewrap import ProtectedMount
from clutch.tools.sandbox.lifetime import DRAIN_S, FirstProcess, RunningSandbox, running_sandbox
from clutch.tools.sandbox.policy import (
    MIB,
    PATH,
    Sandbox,
    SandboxLimits,
    SandboxPolicy,
    is_beneath,
    landlock_version,
)
from clutch.tools.sandbox.protected_files import withhold

# --------------------------------------------------------------------------------------------------
# Limits that the kernel does not enforce: the memory of all processes of a sandbox together, and the disk they fill.
#
# The kernel limits each process alone (`bubblewrap.limited`); a plain user cannot make it limit them as a group. So the
# sums are checked every quarter of a second, and a sandbox over its limit is ended as a whole.

PERIOD_S = 0.25
DISK_SLACK_BYTES = 16 * MIB  # a disk that was full before is not the command's fault


async def broken_limit(pid: int, policy: SandboxPolicy) -> str:
    """Wait until the sandbox of the process `pid` has broken a limit, and return which one."""
    limits = policy.limits
    disks = [policy.root, *policy.task_sides()]
    before = [_free(disk) for disk in disks]
    while True:
        await asyncio.sleep(PERIOD_S)
        if await asyncio.to_thread(uses_more, pid, limits.memory_bytes):
            return f"it used more than {limits.memory_bytes // MIB} MiB of memory"
        if any(map(_fills, disks, before, [limits.disk_free_bytes] * len(disks))):
            return f"it left less than {limits.disk_free_bytes // MIB} MiB free on the disk of the workspace"


async def kill_over_limit(process: Process, policy: SandboxPolicy) -> str:
    """Kill a process when its sandbox breaks a limit, and return which one."""
    verdict = await broken_limit(process.pid, policy)
    kill(process)
    return verdict


def _fills(disk: str, before: int, least: int) -> bool:
    return (free := _free(disk)) < least and free < before - DISK_SLACK_BYTES


def _free(root: str) -> int:
    try:
        status = os.statvfs(root)
    except OSError:  # removed while the command runs
        return 0
    return status.f_bavail * status.f_frsize


def uses_more(pid: int, memory_bytes: int) -> bool:
    # Resident pages are cheap to read, but count shared ones once per process: only a sum over the limit is counted
    # exactly.
    family = list(_family(pid))
    if sum(_kilobytes(f"/proc/{one}/status", "VmRSS:", "VmSwap:") for one in family) <= memory_bytes:
        return False
    return sum(_kilobytes(f"/proc/{one}/smaps_rollup", "Pss:", "SwapPss:") for one in family) > memory_bytes


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # it has ended
        return
    for thread in threads:
        for child in _text(f"/proc/{pid}/task/{thread}/children").split():
            yield from _family(int(child))


def _kilobytes(table: str, *names: str) -> int:
    """Return the sum in bytes. Memory that was paged out counts, too."""
    lines = (line.split() for line in _text(table).splitlines())
    return sum(int(words[1]) * 1024 for words in lines if words and words[0] in names)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except OSError:  # it has ended
        return ""


# --------------------------------------------------------------------------------------------------
# What this machine offers to isolate a process, found out by starting one; and what to do where it offers nothing.

LANDLOCK_NEEDED = 3  # older versions do not restrict truncating a file


class SandboxKind(StrEnum):
    BUBBLEWRAP = "bubblewrap"
    LANDLOCK = "landlock"
    SEATBELT = "seatbelt"
    PATH_CHECKS = (
        "path checks"  #: file tools where the system has no sandbox: a process of their own, and `workspace`
    )
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Offer:
    bubblewrap: str | None  #: where it is, if it works here
    trouble: str  #: why it does not
    landlock: int  #: version of the kernel's interface; 0 = none
    system: str = sys.platform
    seatbelt: str | None = None  #: where `sandbox-exec` is, if it works here


@cache
def probe() -> Offer:
    """Return what works on this machine. Blocks: starts a process the first time."""
    return offered(sys.platform)


def offered(system: str) -> Offer:
    """Return what works on a machine with this operating system, named as in `sys.platform`. Blocks."""
    if system == seatbelt.SYSTEM:
        trouble = seatbelt.trouble()
        return Offer(None, trouble, 0, system, None if trouble else seatbelt.SANDBOX_EXEC)
    if system != "linux":
        return Offer(None, f"there is no sandbox for {system} yet", 0, system)
    trouble = _trouble()
    return Offer(None if trouble else shutil.which("bwrap"), trouble, landlock_version(), system)


def _trouble() -> str:
    program = shutil.which("bwrap")
    if program is None:
        return "bubblewrap is not installed"
    with tempfile.TemporaryDirectory() as folder:
        words = bubblewrap.sandboxed(program, SandboxPolicy(folder), ["true"], cwd="/", guards=())
        try:
            done = subprocess.run(words, capture_output=True, env={}, timeout=20, check=False)  # noqa: S603 - our own command line
        except subprocess.TimeoutExpired:
            return "bubblewrap did not answer within 20 s"
    said = done.stderr.decode(errors="replace").strip()[-300:]
    return f"bubblewrap does not work here: {said or done.returncode}" if done.returncode else ""


def sandbox_kind(sandbox: Sandbox, *, for_shell: bool) -> SandboxKind:
    """Return what isolates a process. Raises ToolFailed where nothing can."""
    # Without a sandbox a command is refused, never run unprotected: only the setting "off" allows that. File tools run
    # only our own code, which checks every path. On Linux, where a sandbox can be had, they are refused too.
    if sandbox is Sandbox.OFF:
        return SandboxKind.NONE
    offer = probe()
    if offer.bubblewrap is not None:
        return SandboxKind.BUBBLEWRAP
    if offer.seatbelt is not None:
        return SandboxKind.SEATBELT
    if offer.landlock >= LANDLOCK_NEEDED and not for_shell:
        return SandboxKind.LANDLOCK
    if offer.system != "linux" and not for_shell:
        return SandboxKind.PATH_CHECKS
    what = "shell" if for_shell else "file tools"
    raise ToolFailed(f"{what} refused: {offer.trouble}. {_remedy(offer)}")


def _remedy(offer: Offer) -> str:
    if offer.system != "linux":
        return (
            'To run commands without a sandbox, with all your rights, set sandbox: "off"; '
            "to approve each of them first, also set tools: {shell: {needsApproval: true}}."
        )
    return f'{_installation_step(offer)}, or set sandbox: "off" to run without one.'


def _installation_step(offer: Offer) -> str:
    """Return what makes bubblewrap work on a Linux without it."""
    if "not installed" in offer.trouble:
        return "Install it (apt install bubblewrap, dnf install bubblewrap)"
    return (
        "It needs version 0.8 and user namespaces (Ubuntu: "
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0; containers: a seccomp profile that allows them)"
    )


# Bubblewrap, and so everything that uses this, runs on Linux only.
if sys.platform == "linux":
    _memory_file = os.memfd_create
else:

    def _memory_file(name: str) -> int:
        raise NotImplementedError("there are no files in memory")


CHUNK_BYTES = 64 * 1024


async def start(
    policy: SandboxPolicy,
    command: Sequence[str],
    *,
    kind: SandboxKind,
    cwd: str,
    guards: Sequence[ProtectedMount] = (),
    first: FirstProcess | None = None,
    is_served: bool = False,
) -> Process:
    """`is_served`: the process reads requests from stdin, and its stderr is discarded."""
    if kind not in (SandboxKind.BUBBLEWRAP, SandboxKind.SEATBELT):
        words = bubblewrap.limited(policy.limits, command, is_first=False)
        return await _spawn(Launch(words, cwd, policy.variables()), is_served)
    offer = probe()
    program = offer.bubblewrap if kind is SandboxKind.BUBBLEWRAP else offer.seatbelt
    if program is None:
        raise ToolFailed(offer.trouble)
    if kind is SandboxKind.SEATBELT:
        made = partial(seatbelt.sandboxed, program, policy, command, cwd=cwd, guards=guards)
        async with in_thread(partial(made, has_scratch=not is_served)) as launch:
            return await _spawn(launch, is_served)
    info_fd = None if first is None else first.info_fd
    with _sandboxed(program, policy, command, cwd=cwd, guards=guards, info_fd=info_fd) as launch:
        return await _spawn(launch, is_served)


@contextmanager
def _sandboxed(
    program: str,
    policy: SandboxPolicy,
    command: Sequence[str],
    *,
    cwd: str,
    guards: Sequence[ProtectedMount],
    info_fd: int | None = None,
    secrets: int | None = None,
) -> Iterator[Launch]:
    """Yield how to start a command in bubblewrap. `secrets`: a further file that it inherits."""
    filter_file = seccomp.as_file()
    try:
        words = bubblewrap.sandboxed(
            program, policy, command, cwd=cwd, guards=guards, seccomp_fd=filter_file, info_fd=info_fd
        )
        kept = tuple(file for file in (filter_file, info_fd, secrets) if file is not None)
        # The environment is clean from the start: all processes of a sandbox can read that of the first one.
        yield Launch(cgroup.joined(policy.limits, words), "/", policy.variables(), kept)
    finally:
        if filter_file is not None:
            os.close(filter_file)


async def _spawn(launch: Launch, is_served: bool) -> Process:
    return await asyncio.create_subprocess_exec(
        *launch.argv,
        stdin=PIPE if is_served else DEVNULL,
        stdout=PIPE,
        stderr=DEVNULL if is_served else STDOUT,
        env=dict(launch.env),
        cwd=launch.cwd,
        pass_fds=launch.kept,
        start_new_session=True,
        limit=1 << 20,
    )


async def end(process: Process) -> None:
    """End a process at once with all it started: a PID namespace ends with its first process."""
    kill(process)
    try:
        async with asyncio.timeout(DRAIN_S):
            # A full pipe would keep asyncio from noticing the end; what is left is at most a few buffers.
            while process.stdout is not None and await process.stdout.read(CHUNK_BYTES):
                pass
            await process.wait()
    except TimeoutError:  # without a sandbox, a process that left the group may hold the pipe open
        process._transport.close()  # type: ignore[attr-defined]  # nothing public closes the pipes


def kill(process: Process) -> None:
    # Until bubblewrap has made its namespaces, all processes are one group; later they end with the first one.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


# --------------------------------------------------------------------------------------------------
# Where a program outside of `/usr` is installed (nvm, `~/.local`, a virtual environment): what a sandbox must show.
#
# A sandbox shows `/usr` and what is named. An operator who names a program also means its package and the interpreter
# in its first line. Nothing more is shown: of a folder that many programs share, such as `~/.local`, only the file and
# its package.

SHOWN = ("/usr", "/bin", "/sbin", "/lib", "/nix/store", "/gnu/store")
DEPTH_MAX = 4  # a script, its interpreter, the interpreter of that, and its folder


@dataclass(frozen=True, slots=True)
class Installed:
    command: str  #: as it is started
    places: tuple[str, ...]  #: shown read-only
    folders: tuple[str, ...]  #: for PATH, in front


def installed(command: str, path: str | None) -> Installed | None:
    """Return where a program is, looked up in the PATH `path`; None where there is no such program."""
    found = shutil.which(command, path=path)
    if found is None:
        return None
    found = os.path.abspath(found)
    chain = list(dict.fromkeys(_chain(found, path, DEPTH_MAX)))
    outside = [file for file in chain if not any(is_beneath(file, shown) for shown in SHOWN)]
    places = tuple(dict.fromkeys(_installation(file) for file in outside))
    # A link in a shared folder is not visible inside: then the program is started at its real path.
    is_seen = found not in outside or os.path.isdir(_installation(found))
    folders = dict.fromkeys(os.path.dirname(file) for file in outside if os.path.isdir(_installation(file)))
    return Installed(found if is_seen else os.path.realpath(found), places, tuple(folders))


def with_path(found: Installed) -> dict[str, str]:
    """Return the PATH of a sandbox in which the program finds its own interpreter."""
    return {"PATH": ":".join((*found.folders, PATH))}


def _chain(file: str, path: str | None, depth: int) -> Iterator[str]:
    """Yield the program, the target of its links, and the interpreter of its first line."""
    real = os.path.realpath(file)
    yield from (file, real)
    interpreter = _interpreter(real, path) if depth else None
    if interpreter is not None:
        yield from _chain(interpreter, path, depth - 1)


def _interpreter(file: str, path: str | None) -> str | None:
    try:
        with open(file, "rb") as opened:
            first = opened.read(512).split(b"\n")[0]
    except OSError:
        return None
    words = first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return shutil.which(words[0], path=path) if words else None


def _installation(file: str) -> str:
    """Return the folder that holds only this program's installation, or the file alone."""
    parts = file.split("/")
    if "node_modules" in parts:
        return "/".join(parts[: parts.index("node_modules") + 1])
    top = os.path.dirname(os.path.dirname(file))
    home = os.path.expanduser("~")
    is_shared = top in ("/", "/opt", home, f"{home}/.local")
    is_own = os.path.basename(os.path.dirname(file)) == "bin" and not is_shared and _is_prefix(top)
    return top if is_own else file


def _is_prefix(top: str) -> bool:
    """Whether this is a prefix of Node.js or Python, where a program needs the libraries beside it."""
    marks = ("pyvenv.cfg", "bin/node", "lib/node_modules", "bin/python3")
    return any(os.path.lexists(f"{top}/{mark}") for mark in marks)


@contextmanager
def sandboxed_program(
    policy: SandboxPolicy, argv: Sequence[str], variables: Mapping[str, str], *, cwd: str
) -> Iterator[Launch]:
    """Lasts as long as the process. Raises ToolFailed where there is no sandbox. Blocks: walks the workspace."""
    offer = probe()
    if offer.seatbelt is None and offer.bubblewrap is None:
        step = f". {_installation_step(offer)}" if offer.system == "linux" else ""
        raise ToolFailed(f"{offer.trouble}{step}")
    with running_sandbox(policy) as sandbox:
        try:
            with _with_variables(offer, policy, sandbox, (argv, variables, cwd)) as launch:
                yield replace(launch, exposed=sandbox.exposed)
        finally:
            sandbox.first.wait()
            withhold(policy, sandbox.guards)


@contextmanager
def _with_variables(
    offer: Offer,
    policy: SandboxPolicy,
    sandbox: RunningSandbox,
    started: tuple[Sequence[str], Mapping[str, str], str],
) -> Iterator[Launch]:
    (argv, variables, cwd), guards = started, sandbox.guards
    if offer.seatbelt is not None:
        with seatbelt.sandboxed(offer.seatbelt, policy, argv, cwd=cwd, guards=guards) as launch:
            yield replace(launch, env={**launch.env, **variables})
    elif offer.bubblewrap is not None:
        # The variables reach the program through an open file: every user can read a command line.
        secrets = _memory_file("variables")
        try:
            lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
            os.write(secrets, "".join(lines).encode())
            inside = ("/bin/sh", "-c", f'. /proc/self/fd/{secrets} && exec "$@"', "program", *argv)
            info = sandbox.first.info_fd
            with _sandboxed(
                offer.bubblewrap, policy, inside, cwd=cwd, guards=guards, info_fd=info, secrets=secrets
            ) as launch:
                yield launch
        finally:
            os.close(secrets)


class SandboxedPrograms:
    """The sandboxes for programs on this machine. No program sees `hidden`. `journal`: see `SandboxPolicy`."""

    def __init__(self, hidden: tuple[str, ...] = (), journal: str | None = None) -> None:
        self._hidden, self._journal = hidden, journal

    def launching(
        self, argv: Sequence[str], env: Mapping[str, str], access: SandboxAccess
    ) -> AbstractContextManager[Launch]:
        """A program outside of `/usr` is shown with its package and interpreter."""
        found = installed(argv[0], env.get("PATH"))
        if found is not None:
            argv = (found.command, *argv[1:])
            env = {**env, "PATH": ":".join((*found.folders, env.get("PATH", PATH)))}
        policy = self._policy(access, () if found is None else found.places)
        return sandboxed_program(policy, argv, env, cwd=access.cwd)

    async def broken_limit(self, pid: int, access: SandboxAccess) -> str:
        return await broken_limit(pid, self._policy(access, ()))

    def _policy(self, access: SandboxAccess, places: tuple[str, ...]) -> SandboxPolicy:
        try:
            return SandboxPolicy(
                root=access.root,
                read_only=tuple(filter(os.path.exists, (*places, *access.read_only))),
                writable=tuple(filter(os.path.exists, access.writable)),
                task=access.task,
                hidden=self._hidden,
                journal=self._journal,
                network=access.network,
                limits=SandboxLimits(memory_bytes=access.memory_bytes, holds_reserved=False),
            )
        except ValueError as error:
            raise ToolFailed(str(error)) from error
