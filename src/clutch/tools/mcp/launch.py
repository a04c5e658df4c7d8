"""How the process of a stdio server is started: plainly, or inside the sandbox.

In the sandbox it sees the system, a folder of its own (or `cwd`) and what `visible` names; the network only
with `network`. Its secrets reach it through an open file: on a command line everybody could read them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from clutch.tools.mcp.settings import McpServer
from clutch.tools.mcp.wire import Refused
from clutch.tools.sandbox import command_line, seccomp
from clutch.tools.sandbox.box import Box
from clutch.tools.sandbox.probe import probe
from clutch.tools.sandbox.start import guarding


@dataclass(frozen=True, slots=True)
class Launch:
    argv: Sequence[str]
    cwd: str | None
    env: Mapping[str, str]
    kept: tuple[int, ...] = ()  #: open files it takes along


@contextmanager
def launching(server: McpServer, folder: Path) -> Iterator[Launch]:
    """Lasts as long as the process. Raises Refused where there is no sandbox. Blocking."""
    assert server.command is not None
    argv = (server.command, *server.args)
    if not server.sandbox:
        yield Launch(argv, server.cwd, server.environment())
        return
    offer = probe()
    if offer.bubblewrap is None:
        raise Refused(
            f"is to run in a sandbox, and {offer.trouble}; install bubblewrap, or set "
            f"mcp.servers.{server.name}.sandbox to false"
        )
    box = _box(server, folder)
    with guarding(box) as guards, _open_files(server.granted()) as (secrets, filter_file):
        inside = ("/bin/sh", "-c", f'. /proc/self/fd/{secrets} && exec "$@"', "mcp", *argv)
        words = command_line.boxed(
            offer.bubblewrap, box, inside, cwd=box.root, guards=guards, seccomp_fd=filter_file
        )
        kept = (secrets,) if filter_file is None else (secrets, filter_file)
        yield Launch(words, "/", box.variables(), kept)


def _box(server: McpServer, folder: Path) -> Box:
    if server.cwd is None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        return Box(root=server.cwd or str(folder), read_only=server.visible, network=server.network)
    except ValueError as error:
        raise Refused(f"cannot run in a sandbox: {error}") from error


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
