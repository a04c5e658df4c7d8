"""A server of the official library that answers its only tool with a task, kept in files. Argument: `stdio` or `http`.

`brew` does not end before the file `done` is in the folder MARKS, where each task leaves ID.began, ID.asked (its state
was asked for) and ID.cancelled.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import uvicorn
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    CancelTaskRequestParams,
    ClientCapabilities,
    GetTaskRequestParams,
    TextContent,
)

MARKS = Path(os.environ["MARKS"])
EXTENSION = "io.modelcontextprotocol/tasks"
BEGAN_AT = "2026-07-28T00:00:00Z"


class Tasks(Extension):
    identifier = EXTENSION

    def methods(self) -> Sequence[MethodBinding]:
        return [
            MethodBinding("tasks/get", GetTaskRequestParams, self._get),
            MethodBinding("tasks/cancel", CancelTaskRequestParams, self._cancel),
        ]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        del params
        if not ctx.session.check_client_capability(ClientCapabilities(extensions={EXTENSION: {}})):
            return await call_next(ctx)
        task = uuid4().hex
        (MARKS / f"{task}.began").touch()
        return {"resultType": "task", **self._state(task)}

    async def _get(self, ctx: Any, params: GetTaskRequestParams) -> HandlerResult:
        del ctx
        if not (MARKS / f"{params.task_id}.began").exists():
            raise MCPError(INVALID_PARAMS, "there is no such task")
        state = self._state(params.task_id)
        (MARKS / f"{params.task_id}.asked").touch()
        if state["status"] != "completed":
            return state
        result = CallToolResult(content=[TextContent(text=f"brewed as {params.task_id}")])
        return {**state, "result": result.model_dump(by_alias=True, mode="json", exclude_none=True)}

    async def _cancel(self, ctx: Any, params: CancelTaskRequestParams) -> HandlerResult:
        del ctx
        (MARKS / f"{params.task_id}.cancelled").touch()
        return {}

    def _state(self, task: str) -> dict[str, Any]:
        is_done, is_over = (MARKS / "done").exists(), (MARKS / f"{task}.cancelled").exists()
        return {
            "taskId": task,
            "status": "cancelled" if is_over else "completed" if is_done else "working",
            "createdAt": BEGAN_AT,
            "lastUpdatedAt": BEGAN_AT,
            "ttlMs": None,
            "pollIntervalMs": 20,
        }


server = MCPServer("tasked", extensions=[Tasks()])


@server.tool()
async def brew() -> str:
    """Takes long."""
    return "brewed at once"


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        listener = socket.create_server(("127.0.0.1", 0))
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(
            server.streamable_http_app(), log_level="warning", timeout_graceful_shutdown=1
        )
        uvicorn.Server(config).run(sockets=[listener])
