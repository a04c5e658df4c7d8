"""MCP itself: lists the tools, calls them at a door, says what went wrong as every surface does.

A door is bound to one caller and its session. What a tool does is not known here; only `wait` is more than a call: it
asks in slices, so that the client hears of progress and can be told what to do next.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as Offered

from clutch import __version__
from clutch.core import keys
from clutch.errors import ClutchError, InvalidInput
from clutch.surfaces.client import Declined
from clutch.surfaces.mcp.tools import TOOLS, WAIT_S, WAIT_S_MAX, Tool
from clutch.surfaces.problems import problem_of

SLICE_S = 2.0  #: of a wait: how old a progress may be
NAME_CHARS_MAX = 40
INSTRUCTIONS = (
    "Background agents that survive this client. `spawn` answers at once; then `wait` for its result, again while it"
    " says pending, or do something else meanwhile. `inbox` has what needs a decision."
)
AFTER_SPAWN = "It works in the background. Call `wait` with target {taskId} for its result; `kill` stops it."
NEXT = {
    "pending": "Call `wait` with target {taskId} again, or do something else: the task goes on by itself.",
    "needs_you": "Call `inbox`, then `approve`, `reject` or `answer`; then `wait` with target {taskId} again.",
    "done": None,
}

Context: TypeAlias = ServerRequestContext[Any, Any]


class Door(Protocol):
    async def call(self, tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The body of the answer. Raises ClutchError."""
        ...


def make_server(door_of: Callable[[Context], Door]) -> Server[Any]:
    """`door_of`: whom this message comes from."""
    offered = [_offered(tool) for tool in TOOLS.values()]

    async def listed(context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        del context, params
        return ListToolsResult(tools=offered)

    async def called(context: Context, params: CallToolRequestParams) -> CallToolResult:
        try:
            return _answered(await _call(door_of(context), params.name, params.arguments or {}, context))
        except ClutchError as error:
            return _answered({"error": dict(_error(error))}, is_error=True)

    return Server(
        "clutch",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=listed,
        on_call_tool=called,
        get_tool_input_schema={tool.name: tool.input_schema for tool in offered}.get,
    )


def client_name(context: Context) -> str:
    """As it calls itself, in the letters of a session's name."""
    known = context.session.client_params
    said = "" if known is None else known.client_info.name.lower()
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in said)
    return plain[:NAME_CHARS_MAX].strip("-") or "client"


def session_key(agent_id: str, name: str) -> str:
    """Raises InvalidInput."""
    key = f"agent:{agent_id}:chat:mcp-{name}"
    parsed = keys.parse_session_key(key)
    if isinstance(parsed, keys.BadKey):
        raise InvalidInput("session", parsed.message)
    return key


async def _call(door: Door, name: str, arguments: Mapping[str, Any], context: Context) -> dict[str, Any]:
    tool = TOOLS.get(name)
    if tool is None:
        raise InvalidInput("name", f"must be one of: {', '.join(TOOLS)}")
    if name == "wait":
        return await _wait(door, tool, arguments, context.session.report_progress)
    body = await door.call(tool, arguments)
    if name == "spawn" and body.get("taskId"):  # nobody pushes anything to a client
        body = {**body, "note": AFTER_SPAWN.format_map(body)}
    return body


async def _wait(
    door: Door, tool: Tool, arguments: Mapping[str, Any], report: Callable[..., Awaitable[None]]
) -> dict[str, Any]:
    left = arguments.get("timeoutSeconds", WAIT_S)
    if isinstance(left, bool) or not isinstance(left, int | float) or not 0 <= left <= WAIT_S_MAX:
        raise InvalidInput("timeoutSeconds", f"must be a number from 0 to {WAIT_S_MAX:g}")
    shown = -1
    while True:
        body = await door.call(tool, {**arguments, "timeoutSeconds": min(left, SLICE_S)})
        left -= SLICE_S
        if (step := body["task"]["step"]) > shown:
            shown = step
            await report(step, message=_progress(body["task"]))
        if body["status"] != "pending" or left <= 0:
            following = NEXT[body["status"]]
            return body if following is None else {**body, "next": following.format_map(body["task"])}


def _progress(task: Mapping[str, Any]) -> str:
    """`running · search · 12k tok`"""
    used = task["usage"]["subtree"]
    tokens = used["input"] + used["output"]
    said = [task["phase"], f"{tokens / 1000:.0f}k tok" if tokens >= 1000 else f"{tokens} tok"]
    if task["currentTool"] is not None:
        said.insert(1, task["currentTool"]["name"])
    return " · ".join(said)


def _offered(tool: Tool) -> Offered:
    hints = ToolAnnotations(
        read_only_hint=tool.is_read_only, destructive_hint=tool.is_destructive, open_world_hint=False
    )
    return Offered(
        name=tool.name,
        description=tool.about,
        input_schema=tool.input_schema(),
        output_schema=tool.output_schema(),
        annotations=hints,
    )


def _answered(body: dict[str, Any], *, is_error: bool = False) -> CallToolResult:
    """Twice: older clients show their model the text only."""
    text = TextContent(text=json.dumps(body, ensure_ascii=False))
    return CallToolResult(content=[text], structured_content=body, is_error=is_error)


def _error(error: ClutchError) -> Mapping[str, Any]:
    match error:
        case Declined():
            return error.said
        case _:
            said: Mapping[str, Any] = problem_of(error).to_json()["error"]
            return said
