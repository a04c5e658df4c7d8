"""A program that is spoken to for as long as it runs, as the words that start it inside the sandbox.

Its variables reach it through an open file: on a command line everybody could read them."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from clutch.ports import Launch, SandboxAccess, ToolFailed
from clutch.tools.sandbox import bubblewrap, cgroup, seccomp
from clutch.tools.sandbox.bubblewrap import ProtectedMount
from clutch.tools.sandbox.policy import PATH, SandboxLimits, SandboxPolicy, is_beneath
from clutch.tools.sandbox.process import broken_limit, probe
from clutch.tools.sandbox.protected_files import guarding, guards_of, noted, withhold

# --------------------------------------------------------------------------------------------------
# Where a program outside of `/usr` is installed (nvm, `~/.local`, a virtual environment): what it needs to be seen.
#
# A sandbox shows `/usr` and what is named. The operator who names a program of their own means what it is installed
# with, too: its package, and the interpreter in its first line. Nothing more is shown: of a folder that many programs
# share, such as `~/.local`, only the file and its package.

SHOWN = ("/usr", "/bin", "/sbin", "/lib", "/nix/store", "/gnu/store")
DEPTH_MAX = 4  # a script, its interpreter, the interpreter of that, its own home


@dataclass(frozen=True, slots=True)
class Installed:
    command: str  #: as it is started
    places: tuple[str, ...]  #: to be shown, read-only
    folders: tuple[str, ...]  #: for PATH, in front


def installed(command: str, path: str | None) -> Installed | None:
    """`path`: the PATH it is looked for in. None where there is no such program."""
    found = shutil.which(command, path=path)
    if found is None:
        return None
    found = os.path.abspath(found)
    chain = list(dict.fromkeys(_chain(found, path, DEPTH_MAX)))
    outside = [file for file in chain if not any(is_beneath(file, shown) for shown in SHOWN)]
    places = tuple(dict.fromkeys(_root(file) for file in outside))
    # A link in a shared folder is not shown as a link: then the program is started where it really is.
    is_seen = found not in outside or os.path.isdir(_root(found))
    folders = dict.fromkeys(os.path.dirname(file) for file in outside if os.path.isdir(_root(file)))
    return Installed(found if is_seen else os.path.realpath(found), places, tuple(folders))


def with_path(found: Installed) -> dict[str, str]:
    """PATH of a sandbox, in which the program finds what it was installed with."""
    return {"PATH": ":".join((*found.folders, PATH))}


def _chain(file: str, path: str | None, depth: int) -> Iterator[str]:
    """The program, where its links lead, and what its first line names."""
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


def _root(file: str) -> str:
    """The folder a program was installed into as a whole, or the file alone."""
    parts = file.split("/")
    if "node_modules" in parts:
        return "/".join(parts[: parts.index("node_modules") + 1])
    top = os.path.dirname(os.path.dirname(file))
    home = os.path.expanduser("~")
    is_shared = top in ("/", "/opt", home, f"{home}/.local")
    return (
        top
        if os.path.basename(os.path.dirname(file)) == "bin" and not is_shared and _is_prefix(top)
        else file
    )


def _is_prefix(top: str) -> bool:
    """Of Node.js or Python: there a program needs the libraries beside it."""
    marks = ("pyvenv.cfg", "bin/node", "lib/node_modules", "bin/python3")
    return any(os.path.lexists(f"{top}/{mark}") for mark in marks)


def sandboxed_program(
    box: SandboxPolicy, argv: Sequence[str], variables: Mapping[str, str], *, cwd: str
) -> AbstractContextManager[Launch]:
    """Lasts as long as the process. Raises ToolFailed where there is no sandbox. Blocks: walks the workspace."""
    offer = probe()
    if offer.bubblewrap is None:
        raise ToolFailed(offer.trouble)
    return _launching(offer.bubblewrap, guarding(box, guards_of(box)), box, (argv, variables, cwd))


@contextmanager
def _launching(
    program: str,
    guarded: AbstractContextManager[tuple[ProtectedMount, ...]],
    box: SandboxPolicy,
    started: tuple[Sequence[str], Mapping[str, str], str],
) -> Iterator[Launch]:
    argv, variables, cwd = started
    with (
        guarded as guards,
        noted(box, guards),
        _withheld(box, guards),
        _open_files(variables) as (secrets, filter_file),
    ):
        inside = ("/bin/sh", "-c", f'. /proc/self/fd/{secrets} && exec "$@"', "program", *argv)
        words = bubblewrap.sandboxed(program, box, inside, cwd=cwd, guards=guards, seccomp_fd=filter_file)
        kept = (secrets,) if filter_file is None else (secrets, filter_file)
        yield Launch(cgroup.joined(box.limits, words), "/", box.variables(), kept)


@contextmanager
def _withheld(box: SandboxPolicy, guards: Sequence[ProtectedMount]) -> Iterator[None]:
    try:
        yield
    finally:
        withhold(box, guards)


@contextmanager
def _open_files(variables: Mapping[str, str]) -> Iterator[tuple[int, int | None]]:
    filter_file = seccomp.as_file()
    secrets = os.memfd_create("variables")
    try:
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
        os.write(secrets, "".join(lines).encode())
        yield secrets, filter_file
    finally:
        for file in filter(None, (secrets, filter_file)):
            os.close(file)


class SandboxedPrograms:
    """The `ports.Walls` of this machine. `hidden` is seen by no program, wherever it lies. `journal`: as in a Box."""

    def __init__(self, hidden: tuple[str, ...] = (), journal: str | None = None) -> None:
        self._hidden, self._journal = hidden, journal

    def launching(
        self, argv: Sequence[str], env: Mapping[str, str], room: SandboxAccess
    ) -> AbstractContextManager[Launch]:
        """A program outside of `/usr` is shown with what it is installed with."""
        found = installed(argv[0], env.get("PATH"))
        if found is not None:
            argv = (found.command, *argv[1:])
            env = {**env, "PATH": ":".join((*found.folders, env.get("PATH", PATH)))}
        box = self._box(room, () if found is None else found.places)
        return sandboxed_program(box, argv, env, cwd=room.cwd)

    async def broken_limit(self, pid: int, room: SandboxAccess) -> str:
        return await broken_limit(pid, self._box(room, ()))

    def _box(self, room: SandboxAccess, places: tuple[str, ...]) -> SandboxPolicy:
        try:
            return SandboxPolicy(
                root=room.root,
                read_only=tuple(filter(os.path.exists, (*places, *room.read_only))),
                writable=tuple(filter(os.path.exists, room.writable)),
                task=room.task,
                hidden=self._hidden,
                journal=self._journal,
                network=room.network,
                limits=SandboxLimits(memory_bytes=room.memory_bytes, holds_reserved=False),
            )
        except ValueError as error:
            raise ToolFailed(str(error)) from error
