"""Tool errors as MCP clients written for Node show them: the TypeScript SDK v1 and the MCP Inspector.

Both check `structuredContent` against the tool's output schema, also where `isError` is set, and show their own
complaint instead of the error when it does not match. The packages are installed by npm, outside of the repository.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.surfaces.served import FAST, Served, served

SDK, INSPECTOR = "@modelcontextprotocol/sdk@1.32.2", "@modelcontextprotocol/inspector@2.12.0"
INSTALL_S, CALL_S = 400.0, 60.0
#: Reads {url, token, calls: [[name, arguments], …]} from the environment, prints one result or exception for each call.
SCRIPT = """
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
const { url, token, calls } = JSON.parse(process.env.CALLS);
const client = new Client({ name: "node", version: "1" });
const headers = { Authorization: `Bearer ${token}` };
await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
await client.listTools();  // from here on the SDK checks each answer against the output schema
const shown = [];
for (const [name, args] of calls) {
  try { shown.push(await client.callTool({ name, arguments: args })); }
  catch (error) { shown.push({ thrown: error.message }); }
}
console.log(JSON.stringify(shown));
await client.close();
"""


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node") / "state", policy=FAST) as here:
        yield here


def program(name: str) -> str:
    """Return where the program is, or skip the test."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name} on PATH, to install and run {SDK} and {INSPECTOR}")
    return found


def installed(package: str) -> Path:
    """Return a folder that has the package in `node_modules`, installed now or by an earlier run."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clutch-tests"
    cache.mkdir(parents=True, exist_ok=True)
    found = cache / package.rpartition("/")[2]
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test workers install one after the other
        if not found.exists():
            _install(package, found)
    return found


def _install(package: str, to: Path) -> None:
    """Install under another name first: a folder with the final name is complete."""
    partial = to.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(partial)]
    command = [program("npm"), "install", *options, package]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not install {package} within {INSTALL_S:g} s")
    if done.returncode:
        pytest.skip(f"npm could not install {package}: {done.stderr.strip()[-300:]}")
    partial.rename(to)


def shown_by_sdk(db: Served, *calls: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    asked = {"url": f"{db.clutch.url}/mcp", "token": db.token, "calls": calls}
    done = subprocess.run(
        [program("node"), "--input-type=module"],
        input=SCRIPT,
        cwd=installed(SDK),
        env={**os.environ, "CALLS": json.dumps(asked)},
        capture_output=True,
        text=True,
        timeout=CALL_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown: list[dict[str, Any]] = json.loads(done.stdout)
    return shown


def test_the_typescript_sdk_v1_shows_our_errors_and_accepts_our_answers(db: Served) -> None:
    blank, unknown, fine = shown_by_sdk(
        db,
        ("spawn", {"task": " "}),
        ("kill", {"target": "no-such-task"}),
        ("spawn", {"task": "say hello"}),
    )
    for shown, code in ((blank, "invalid_input"), (unknown, "not_found")):
        assert shown.get("isError") is True, shown
        assert "structuredContent" not in shown
        said = json.loads(shown["content"][0]["text"])["error"]
        assert said["code"] == code
        assert said["message"]
    assert fine["structuredContent"]["status"] == "accepted"


def test_the_inspector_shows_our_errors(db: Served) -> None:
    home = installed(INSPECTOR)
    done = subprocess.run(
        [
            program("node"), str(home / "node_modules/.bin/mcp-inspector"), "--cli", f"{db.clutch.url}/mcp",
            "--header", f"Authorization: Bearer {db.token}",
            "--method", "tools/call", "--tool-name", "kill", "--tool-arg", "target=no-such-task",
        ],
        capture_output=True, text=True, timeout=CALL_S, check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(db.home.parent)},
    )  # fmt: skip
    shown = done.stdout + done.stderr
    assert "not_found" in shown
    assert "no-such-task" in shown
    assert "does not match" not in shown, shown
