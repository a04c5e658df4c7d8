"""An MCP client that starts a background task with `clutch mcp` and reads its result later, from a new connection.

    python mcp_client.py

    spawned t_1000002
    (connection closed; the task keeps running in the gateway)
    done: 12 lines

`clutch mcp` starts the gateway of the state directory in the background if none runs; `clutch stop --state mcp-state`
ends it. A real model: start the gateway yourself with `clutch serve --state mcp-state --model provider:model`.
Claude Code gets the same tools with `claude mcp add clutch -- clutch mcp --session work`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from typing import Any

from mcp import Client, StdioServerParameters

# `--session` names the client: the same name sees the same tasks, also from another connection or on another day.
ARGS = ["-m", "clutch", "mcp", "--state", "mcp-state", "--session", "example"]
SERVER = StdioServerParameters(command=sys.executable, args=ARGS, env=dict(os.environ))


async def call(client: Client, tool: str, **arguments: Any) -> Mapping[str, Any]:
    """Call a tool and return its structured content. An error is a JSON object with a code and a message."""
    answer = await client.call_tool(tool, arguments)
    if answer.is_error:
        raise RuntimeError(str(answer.content))
    structured: Mapping[str, Any] = answer.structured_content
    return structured


async def main() -> None:
    async with Client(SERVER) as client:
        spawned = await call(client, "spawn", task="Survey the folder")
        print(f"spawned {spawned['taskId']}")
    print("(connection closed; the task keeps running in the gateway)")

    async with Client(SERVER) as client:
        # A wait lasts at most 50 seconds, because clients give up on a call after a minute: repeat it.
        waited: Mapping[str, Any] = {"status": "pending"}
        while waited["status"] == "pending":
            waited = await call(client, "wait", target=spawned["taskId"], timeoutSeconds=25)
        print(f"{waited['status']}: {len(waited['result']['text'].splitlines())} lines")


if __name__ == "__main__":
    asyncio.run(main())
