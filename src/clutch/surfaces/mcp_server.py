"""Clutch as an MCP server: lists the tools, calls them through a backend, reports errors as every surface does.

A backend is bound to one caller and its session. What a tool does is not known here. Only `wait` is more than a call:
it asks in slices, so that the client is notified of progress and of what to do next.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from mcp.server.context import HandlerResult
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import (
    CallToolRequestParams,
    CancelTaskRequestParams,
    GetTaskRequestParams,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    ToolAnnotations,
)
from mcp_types import Tool as Offered

from clutch import __version__
from clutch.api.actions import Until
from clutch.core import ids
from clutch.errors import ClutchError, InvalidInput
from clutch.logs import logger
from clutch.surfaces import mcp_resources, mcp_tasks
from clutch.surfaces.http_client import GatewayClient
from clutch.surfaces.mcp import TOOLS, WAIT_S, WAIT_S_MAX, GatewayTool, McpBackend
from clutch.surfaces.mcp_results import Context, answered, failed, progress_text, refuse

log = logger(__name__)

SLICE_S = 2.0  #: of a wait: how old a progress may be
NAME_CHARS_MAX, DIGEST_CHARS = 40, 12
UNNAMED = (
    "must be given: it names the client's session; set it in the client, or send the header Clutch-Session"
)
INSTRUCTIONS = (
    "Background agents that survive this client. `spawn` answers at once; then `wait` for its result, again while it"
    " says pending, or do something else meanwhile. `inbox` has what needs a decision."
)
AFTER_SPAWN = "It works in the background. Call `wait` with target {taskId} for its result; `kill` stops it."
NEXT = {
    "pending": "Call `wait` with target {taskId} again, or do something else: the task continues by itself.",
    "needs_you": "Call `inbox`, then `approve`, `reject` or `answer`; then `wait` with target {taskId} again.",
    "done": None,
}


def make_server(backend_of: Callable[[Context], McpBackend]) -> Server[Any]:
    """Return an MCP server. `backend_of`: the backend of the caller of a message."""
    offered = [_offered(tool, tool.output_schema()) for tool in TOOLS.values()]
    with_tasks = [_with_task(tool) if tool.name == "spawn" else tool for tool in offered]

    async def listed(context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        del params
        return ListToolsResult(tools=with_tasks if mcp_tasks.is_declared(context) else offered)

    async def called(context: Context, params: CallToolRequestParams) -> HandlerResult:
        try:
            return await _call(backend_of(context), params.name, params.arguments or {}, context)
        except ClutchError as error:
            return failed(error)

    async def resources(context: Context, params: PaginatedRequestParams | None) -> ListResourcesResult:
        return await mcp_resources.listed(_backend(backend_of, context), params.cursor if params else None)

    async def templates(
        context: Context, params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        del context, params
        return mcp_resources.templates()

    async def resource(context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        return await mcp_resources.read(_backend(backend_of, context), params)

    server: Server[Any] = Server(
        "clutch",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=listed,
        on_list_resources=resources,
        on_list_resource_templates=templates,
        on_read_resource=resource,
        get_tool_input_schema={tool.name: tool.input_schema for tool in offered}.get,
    )
    # The library checks the answer of `on_call_tool` by its type, which is never a task.
    server.add_request_handler("tools/call", CallToolRequestParams, called)
    _add_tasks(server, backend_of)
    return server


def _add_tasks(server: Server[Any], backend_of: Callable[[Context], McpBackend]) -> None:
    async def got(context: Context, params: GetTaskRequestParams) -> HandlerResult:
        mcp_tasks.check_request(context, params.task_id)
        return await mcp_tasks.get(_backend(backend_of, context), context, params)

    async def updated(context: Context, params: mcp_tasks.UpdateTaskParams) -> HandlerResult:
        mcp_tasks.check_request(context, params.task_id)
        return await mcp_tasks.update(_backend(backend_of, context), context, params)

    async def cancelled(context: Context, params: CancelTaskRequestParams) -> HandlerResult:
        mcp_tasks.check_request(context, params.task_id)
        return await mcp_tasks.cancel(_backend(backend_of, context), params)

    server.extensions[mcp_tasks.EXTENSION] = {}
    server.add_request_handler("tasks/get", GetTaskRequestParams, got)
    server.add_request_handler("tasks/update", mcp_tasks.UpdateTaskParams, updated)
    server.add_request_handler("tasks/cancel", CancelTaskRequestParams, cancelled)


def _backend(backend_of: Callable[[Context], McpBackend], context: Context) -> McpBackend:
    """Raises MCPError."""
    try:
        return backend_of(context)
    except ClutchError as error:
        refuse(error)


def client_name(context: Context, connection: str | None) -> str:
    """Return the name the client gave itself, in the letters of a session key.

    A client without a name must not share a session with another one, so its name is made from `connection`, which
    is unique to it. A name without a usable letter is replaced by its digest, which is the same when it comes back.
    Raises InvalidInput where there is neither a name nor a connection."""
    known = context.session.client_params
    name = "" if known is None else known.client_info.name.strip().lower()
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)
    if usable := plain[:NAME_CHARS_MAX].strip("-"):
        return usable
    if not (name or connection):
        raise InvalidInput("clientInfo.name", UNNAMED)
    return f"client-{hashlib.sha256((name or connection or '').encode()).hexdigest()[:DIGEST_CHARS]}"


def session_key(agent_id: str, name: str) -> str:
    """Raises InvalidInput."""
    key = f"agent:{agent_id}:chat:mcp-{name}"
    parsed = ids.parse_session_key(key)
    if isinstance(parsed, ids.BadKey):
        raise InvalidInput("session", parsed.message)
    return key


async def _call(db: McpBackend, name: str, arguments: Mapping[str, Any], context: Context) -> HandlerResult:
    tool = TOOLS.get(name)
    if tool is None:
        raise InvalidInput("name", f"must be one of: {', '.join(TOOLS)}")
    has_tasks = mcp_tasks.is_declared(context)
    if name == "wait" and has_tasks and arguments.get("until", Until.ENDED) == Until.ENDED:
        body = await db.call(tool, {**arguments, "timeoutSeconds": 0})
        return mcp_tasks.ended(body) if body["status"] == "done" else mcp_tasks.handle(body)
    if name == "wait":
        return answered(await _wait(db, tool, arguments, context.session.report_progress))
    body = await db.call(tool, arguments)
    if name == "spawn" and body.get("taskId"):  # nothing is pushed to an MCP client
        with suppress(
            ClutchError
        ):  # it works in any case: a caller that may not read gets the answer of others
            if has_tasks:
                return await mcp_tasks.created(db, body["taskId"])
        body = {**body, "note": AFTER_SPAWN.format_map(body)}
    return answered(body)


async def _wait(
    db: McpBackend, tool: GatewayTool, arguments: Mapping[str, Any], report: Callable[..., Awaitable[None]]
) -> dict[str, Any]:
    left = arguments.get("timeoutSeconds", WAIT_S)
    if isinstance(left, bool) or not isinstance(left, int | float) or not 0 <= left <= WAIT_S_MAX:
        raise InvalidInput("timeoutSeconds", f"must be a number from 0 to {WAIT_S_MAX:g}")
    shown = -1
    while True:
        body = await db.call(tool, {**arguments, "timeoutSeconds": min(left, SLICE_S)})
        left -= SLICE_S
        if (step := body["task"]["step"]) > shown:
            shown = step
            await report(step, message=progress_text(body["task"]))
        if body["status"] != "pending" or left <= 0:
            following = NEXT[body["status"]]
            return body if following is None else {**body, "next": following.format_map(body["task"])}


def _offered(tool: GatewayTool, output_schema: dict[str, Any]) -> Offered:
    hints = ToolAnnotations(
        read_only_hint=tool.is_read_only, destructive_hint=tool.is_destructive, open_world_hint=False
    )
    return Offered(
        name=tool.name,
        description=tool.about,
        input_schema=tool.input_schema(),
        output_schema=output_schema,
        annotations=hints,
    )


def _with_task(spawn: Offered) -> Offered:
    """Return `spawn` as a client with tasks reads it: the result of its task is that of `wait`."""
    schemas = [dict(TOOLS[name].output_schema()) for name in ("spawn", "wait")]
    defined = {name: one for schema in schemas for name, one in schema.pop("$defs", {}).items()}
    either = {"type": "object", "anyOf": schemas, "$defs": defined}
    return spawn.model_copy(update={"output_schema": either})


# --------------------------------------------------------------------------------------------------
# `clutch mcp`: a client of the gateway on one side, an MCP server on stdin and stdout on the other.
#
# It owns nothing: the work is done by the gateway of the state directory, which continues when this process ends. Where
# the gateway is, is looked up for each call, so that one that was started again is found.


@dataclass(frozen=True, slots=True)
class RemoteMcpBackend:
    """The gateway in another process, in the name of a session."""

    connect: Callable[[], GatewayClient]
    session: str

    async def call(self, tool: GatewayTool, arguments: Mapping[str, Any]) -> dict[str, Any]:
        body: dict[str, Any] = await asyncio.to_thread(self._ask, tool, arguments)
        return body

    def _ask(self, tool: GatewayTool, arguments: Mapping[str, Any]) -> Any:
        named, rest = tool.place(arguments)
        path = tool.entry.path.format_map({name: quote(value, safe="") for name, value in named.items()})
        client = replace(self.connect(), session=self.session)
        return client.post(path, rest) if tool.entry.is_write else client.get(path, **rest)


async def serve(connect: Callable[[], GatewayClient], agent_id: str, name: str | None) -> None:
    """Serve until stdin ends. `name`: of the session; without one, the name the client gave itself."""
    connection = uuid4().hex  # one process has one client

    def backend_of(context: Context) -> RemoteMcpBackend:
        return RemoteMcpBackend(connect, session_key(agent_id, name or client_name(context, connection)))

    server = make_server(backend_of)
    try:
        async with stdio_server() as (heard, said):
            await server.run(heard, said, server.create_initialization_options())
    except* BrokenPipeError:
        log.info("the client ended without reading its answer")
