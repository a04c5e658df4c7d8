"""MCP clients written for Node: errors in the TypeScript SDK v1 and the MCP Inspector, tasks in the SDK v2.

The first two check `structuredContent` against the tool's output schema, also where `isError` is set, and show their
own complaint instead of the error when it does not match. The SDK v2 gets its tasks from the package of the extension,
which needs a way past the SDK: a transport of the SDK, used directly.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.surfaces.node_packages import installed, program
from tests.surfaces.served import FAST, Served, served

SDK, INSPECTOR = "@modelcontextprotocol/sdk@1.32.2", "@modelcontextprotocol/inspector@2.12.0"
SDK_2, TASKS = "@modelcontextprotocol/client@2.4.0", "@modelcontextprotocol/ext-tasks@0.2.2"
CALL_S = 60.0
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


#: Reads {url, token, command, name}. Answers what a task asks; then cancels another one that it knows by its id alone.
TASK_SCRIPT = """
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import {
  createApplicationInputHandler, createTaskSessionFromClient, resultFromTaskOutcome,
} from "@modelcontextprotocol/ext-tasks/client";
const { url, token, command, name } = JSON.parse(process.env.CALLS);
const clientInfo = { name, version: "1" }, clientCapabilities = { elicitation: {} };
const requestInit = { headers: { Authorization: `Bearer ${token}` } };
const transport = () => command
  ? new StdioClientTransport({ command: command[0], args: command.slice(1), env: process.env })
  : new StreamableHTTPClientTransport(new URL(url), { requestInit });

const raw = transport(), waiting = new Map();
raw.onmessage = (message) => { waiting.get(message.id)?.(message); waiting.delete(message.id); };
await raw.start();
let last = 0;
const rawDispatch = (request) => new Promise((resolve, reject) => {
  const id = `raw-${++last}`;
  waiting.set(id, ({ error, result }) => resolve(error ? { kind: "error", error } : { kind: "result", result }));
  raw.send({ jsonrpc: "2.0", id, ...request }).catch(reject);
});

const client = new Client(clientInfo, { capabilities: clientCapabilities, versionNegotiation: { mode: "auto" } });
await client.connect(transport());
const shown = { era: client.getProtocolEra() };
const elicitation = async (request) => {
  shown.asked = request.params.message;
  return { action: "accept", content: { answer: "b" } };
};
const session = createTaskSessionFromClient(client, {
  endpointId: "clutch", rawDispatch,
  v2RequestFraming: { protocolVersion: "2026-07-28", clientInfo, clientCapabilities },
  onInputRequest: createApplicationInputHandler({ elicitation }),
});
const asking = await session.callTool("spawn", { task: "ask me" });
shown.kind = asking.kind;
shown.result = resultFromTaskOutcome((await asking.settle()).outcome).structuredContent;
const slow = await session.callTool("spawn", { task: "slow one" });
const { taskId } = slow.serializeReference();
await slow.detach();
const task = session.task(taskId);
shown.before = (await task.snapshot()).status;
await task.cancel();
shown.after = (await task.result()).status;
console.log(JSON.stringify(shown));
await session.close();
await client.close();
await raw.close();
"""


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("node") / "state", policy=FAST) as here:
        yield here


def shown_by(script: str, home: Path, asked: dict[str, Any]) -> Any:
    done = subprocess.run(
        [program("node"), "--input-type=module"],
        input=script,
        cwd=home,
        env={**os.environ, "CALLS": json.dumps(asked), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=CALL_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def shown_by_sdk(db: Served, *calls: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    asked = {"url": f"{db.clutch.url}/mcp", "token": db.token, "calls": calls}
    shown: list[dict[str, Any]] = shown_by(SCRIPT, installed(SDK), asked)
    return shown


@pytest.mark.parametrize("over", ["http", "stdio"])
def test_the_typescript_client_drives_tasks(db: Served, over: str) -> None:
    command = [sys.executable, "-m", "clutch", "mcp", "--state", str(db.home)]
    asked = {"url": f"{db.clutch.url}/mcp", "token": db.token, "name": f"node-{over}"}
    shown = shown_by(
        TASK_SCRIPT, installed(TASKS, SDK_2), asked | {"command": command if over == "stdio" else None}
    )
    assert (shown["era"], shown["kind"]) == ("modern", "task")
    assert "Which one?" in shown["asked"]
    assert shown["result"]["status"] == "done"
    assert (shown["before"], shown["after"]) == ("working", "cancelled")


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
