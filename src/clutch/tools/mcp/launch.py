"""How the process of a stdio server is started: plainly, or inside the sandbox.

In the sandbox it sees the system, a folder of its own (or `cwd`) and what `visible` names; the network only
with `network`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clutch.ports import Launch, ToolFailed
from clutch.tools.mcp.settings import McpServer
from clutch.tools.mcp.wire import Refused
from clutch.tools.sandbox.box import Box
from clutch.tools.sandbox.programs import boxed_program


@contextmanager
def launching(server: McpServer, folder: Path) -> Iterator[Launch]:
    """Lasts as long as the process. Raises Refused where there is no sandbox. Blocking."""
    assert server.command is not None
    argv = (server.command, *server.args)
    if not server.sandbox:
        yield Launch(argv, server.cwd, server.environment())
        return
    box = _box(server, folder)
    try:
        program = boxed_program(box, argv, server.granted(), cwd=box.root)
    except ToolFailed as error:
        raise Refused(
            f"is to run in a sandbox, and {error}; install bubblewrap, or set "
            f"mcp.servers.{server.name}.sandbox to false"
        ) from error
    with program as launch:
        yield launch


def _box(server: McpServer, folder: Path) -> Box:
    if server.cwd is None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        return Box(root=server.cwd or str(folder), read_only=server.visible, network=server.network)
    except ValueError as error:
        raise Refused(f"cannot run in a sandbox: {error}") from error
