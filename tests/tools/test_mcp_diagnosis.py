"""A server that does not start: its cause and the remedy, and programs outside of `/usr` that do."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from clutch.tools.mcp import McpServer
from tests.tools.mcp_servers.running import CONTEXT, HERE
from tests.tools.test_mcp_trouble import failure, ready

pytestmark = pytest.mark.anyio


def program(place: Path, source: str) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(source)
    place.chmod(0o755)
    return place


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """On PATH, and nothing that a sandbox shows."""
    place = tmp_path / "tools" / "bin"
    place.mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")
    return place


@pytest.mark.parametrize("sandbox", [True, False])
async def test_missing_command_is_named(tmp_path: Path, sandbox: bool) -> None:
    server = McpServer(name="none", command="no-such-server", sandbox=sandbox)
    async with ready(tmp_path, server) as tools:
        text = await failure(tools, "none__say")
    assert text.startswith("MCP server \"none\" did not start: command 'no-such-server' is not found")
    assert "install it, or set mcp.servers.none.command to the full path of the program" in text


async def test_file_that_the_sandbox_does_not_show_is_named(tmp_path: Path) -> None:
    script = program(tmp_path / "elsewhere" / "server.py", "print('hello')")
    server = McpServer(name="web", command="/usr/bin/python3", args=(str(script),))
    async with ready(tmp_path / "state", server) as tools:
        text = await failure(tools, "web__say")
    assert f"did not start: the sandbox does not show {script}" in text
    assert f'add its folder to mcp.servers.web.visible, such as ["{script.parent}"]' in text


async def test_program_that_fetches_its_server_is_told_about_the_network(
    tmp_path: Path, folder: Path
) -> None:
    program(folder / "npx", "#!/bin/sh\necho 'npm error code EAI_AGAIN' >&2; exit 1\n")
    async with ready(tmp_path / "state", McpServer(name="web", command="npx", args=("-y", "x"))) as tools:
        text = await failure(tools, "web__say")
    assert (
        "did not start: npx fetches the server when it starts, and the network is off in its sandbox" in text
    )
    assert "npm error code EAI_AGAIN" in text
    assert "set mcp.servers.web.network to true, or install the server (`npm install -g PACKAGE`)" in text


async def test_other_program_without_the_network_is_told_so(tmp_path: Path, folder: Path) -> None:
    program(folder / "serve", "#!/bin/sh\necho 'Temporary failure in name resolution' >&2; exit 1\n")
    async with ready(tmp_path / "state", McpServer(name="web", command="serve")) as tools:
        text = await failure(tools, "web__say")
    assert "it wants the network, which is off in its sandbox" in text
    assert "set mcp.servers.web.network to true" in text


async def test_failure_is_logged_once_with_cause_and_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with ready(tmp_path, McpServer(name="none", command="no-such-server")) as tools:
            await failure(tools, "none__say")
    [record] = [one for one in caplog.records if one.name.startswith("clutch.tools.mcp")]
    assert record.getMessage().startswith(
        "MCP server \"none\" did not start: command 'no-such-server' is not found"
    )
    assert record.levelno == logging.WARNING


async def test_program_outside_of_usr_is_found_and_shown_with_its_interpreter(
    tmp_path: Path, folder: Path
) -> None:
    """As with nvm or a virtual environment: a link in a folder of PATH, a package, an interpreter elsewhere."""
    package = tmp_path / "lib" / "node_modules" / "rude" / "server"
    program(package, f"#!{sys.executable}\n{(HERE / 'rude.py').read_text()}")
    (folder / "rude").symlink_to(package)
    server = McpServer(
        name="far", command="rude", args=("serve",), env={"TOOLS": "null"}, connect_timeout_s=30.0
    )
    async with ready(tmp_path / "state", server) as tools:
        assert tools.problems() == []
        assert '"x": 1' in await tools.run("far__say", {"x": 1}, CONTEXT)
