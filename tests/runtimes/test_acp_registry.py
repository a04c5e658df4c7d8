"""The list of external agents: what is installed, and what a registry offers."""

from __future__ import annotations

import json
import platform
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from clutch import AcpAgent, InvalidInput
from clutch.cli.app import app
from clutch.runtimes.acp_registry import known_listings, program_of, registry_listings

HERE = f"{platform.system().lower()}-{platform.machine().lower()}"
CLAUDE = "@agentclientprotocol/claude-agent-acp"


def entry(name: str, **distribution: Any) -> dict[str, Any]:
    said = {
        "id": name,
        "name": name,
        "version": "1.2.0",
        "description": f"The agent {name}",
        "license": "MIT",
    }
    return {**said, "distribution": distribution}


INDEX = {
    "version": "1.0.0",
    "agents": [
        entry("claude-acp", npx={"package": f"{CLAUDE}@0.100.0"}),
        entry("snake", uvx={"package": "snake-agent==2.1", "args": ["serve"]}),
        entry(
            "quick", binary={HERE: {"archive": "https://x.test/q.tgz", "cmd": "./bin/quick", "args": ["acp"]}}
        ),
        entry("elsewhere", binary={"amiga-68k": {"archive": "https://x.test/e.lha", "cmd": "./e"}}),
    ],
    "extensions": [],
}
DOCUMENT = json.dumps(INDEX).encode()


def program(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return str(folder / name)


def test_known_agents_say_whether_they_are_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codex = program(tmp_path, "codex-acp", monkeypatch)
    listed = {
        one.name: one
        for one in known_listings([AcpAgent(name="mine", command="mine"), AcpAgent(name="codex")])
    }
    assert list(listed) == ["mine", "codex", "claude", "gemini", "opencode"]
    assert (listed["codex"].program, listed["codex"].is_configured) == (codex, True)
    assert (listed["claude"].program, listed["claude"].install) == (None, f"npm install -g {CLAUDE}")


def test_a_registry_says_how_its_agents_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = program(tmp_path, "claude-agent-acp", monkeypatch)
    claude, snake, quick = registry_listings(DOCUMENT)
    assert (claude.command, claude.program) == (("npx", f"{CLAUDE}@0.100.0"), adapter)
    assert (snake.command, snake.install) == (
        ("uvx", "snake-agent==2.1", "serve"),
        "uv tool install snake-agent==2.1",
    )
    assert (quick.command, quick.install, quick.program) == (
        ("quick", "acp"),
        "unpack https://x.test/q.tgz",
        None,
    )


@pytest.mark.parametrize(
    ("package", "name"),
    [("@a/tool@1.0", "tool"), ("tool", "tool"), ("tool==2", "tool"), ("opencode-ai", "opencode")],
)
def test_the_program_of_a_package(package: str, name: str) -> None:
    assert program_of(package) == name


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (b"{", "registry"),
        (b'{"agents": {}}', "registry"),
        (b'{"agents": [{"id": "x"}]}', "registry.agents.0.distribution"),
        (
            b'{"agents": [{"version": "1", "distribution": {"npx": {"package": "x"}}}]}',
            "registry.agents.0.id",
        ),
        (
            b'{"agents": [{"id": "x", "version": "1", "distribution": {"npx": {"package": "x", "args": "y"}}}]}',
            "registry.agents.0.distribution.npx.args",
        ),
    ],
)
def test_what_is_no_registry_is_named(document: bytes, field: str) -> None:
    with pytest.raises(InvalidInput) as wrong:
        registry_listings(document)
    assert wrong.value.field == field


class Index(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(DOCUMENT)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def test_the_command_reads_a_file_or_an_address(tmp_path: Path) -> None:
    (tmp_path / "registry.json").write_bytes(DOCUMENT)
    server = HTTPServer(("127.0.0.1", 0), Index)
    serving = Thread(target=server.serve_forever)
    serving.start()
    try:
        for place in (
            str(tmp_path / "registry.json"),
            f"http://127.0.0.1:{server.server_port}/registry.json",
        ):
            words = ["acp", "list", "--registry", place, "--state", str(tmp_path / "s"), "--json"]
            said = json.loads(CliRunner().invoke(app, words).stdout)
            assert [one["name"] for one in said["agents"]] == ["claude", "codex", "gemini", "opencode"]
            assert [one["name"] for one in said["registry"]] == ["claude-acp", "snake", "quick"]
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
    words = ["acp", "list", "--registry", "ftp://example.org/x", "--state", str(tmp_path / "s")]
    refused = CliRunner().invoke(app, words)
    assert "must be a file or an https:// address" in refused.stderr
