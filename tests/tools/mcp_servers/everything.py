"""A well-behaved server with tools of every kind. Arguments: `stdio`, or `http PORT [json] [old]`.

MARKS names a directory in which tools leave files, so that a test can see what really happened here.
WORDS is what `echo` says about itself.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ImageContent, TextContent, ToolAnnotations
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

MARKS = Path(os.environ.get("MARKS", "."))
server = MCPServer("everything")


class Weather(BaseModel):
    city: str
    degrees: int


@server.tool(description=os.environ.get("WORDS"), annotations=ToolAnnotations(read_only_hint=True))
async def echo(text: str) -> str:
    """Says the same."""
    return text


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
async def fail(why: str) -> str:
    """Fails."""
    raise ValueError(why)


@server.tool()
async def slow(mark: str, seconds: float = 30.0) -> str:
    """Takes its time."""
    (MARKS / f"{mark}.began").touch()
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        (MARKS / f"{mark}.cancelled").touch()
        raise
    return "done"


@server.tool()
async def crash(mark: str) -> str:
    """Takes the whole process down."""
    (MARKS / f"{mark}.began").touch()
    print("the roof is on fire", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
async def huge(characters: int) -> str:
    """Says a lot."""
    return "x" * characters


@server.tool()
async def weather(city: str) -> Weather:
    """Structured."""
    return Weather(city=city, degrees=20)


@server.tool(structured_output=False)
async def picture() -> list[TextContent | ImageContent]:
    """A picture with a caption."""
    return [TextContent(text="a dot"), ImageContent(data="AAAA", mime_type="image/png")]


@server.tool()
async def environment() -> list[str]:
    """The names of all variables, and the process."""
    return [*sorted(os.environ), str(os.getpid())]


@server.tool()
async def key(ctx: Context) -> str:
    """What the caller named this call."""
    meta = ctx.request_context.meta or {}
    return str(meta.get("clutch-agents/idempotencyKey"))


@server.tool()
async def trace(ctx: Context) -> str:
    """The trace that the call belongs to."""
    meta = ctx.request_context.meta or {}
    return str(meta.get("traceparent"))


@server.tool()
async def reword(words: str, ctx: Context) -> str:
    """Changes what `echo` says about itself, and tells so."""
    server.remove_tool("echo")
    server.add_tool(echo, description=words, annotations=ToolAnnotations(read_only_hint=True))
    await ctx.notify_tools_changed()
    return "reworded"


@server.tool()
async def grow(ctx: Context) -> str:
    """Adds a tool, and tells so."""

    async def extra() -> str:
        return "extra"

    server.add_tool(extra, description="A tool that was not there before.")
    await ctx.notify_tools_changed()
    return "grown"


class Witness:
    """Notes the headers of each request and shows them at /headers. An old one does not know the new handshake."""

    def __init__(self, app: ASGIApp, *, is_old: bool) -> None:
        self._app = app
        self._is_old = is_old
        self._seen: list[dict[str, str]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp = self._app
        if scope["type"] == "http" and scope["path"] == "/headers":
            answer = JSONResponse(self._seen)
        elif scope["type"] == "http" and scope["method"] == "POST":
            self._seen.append({name.decode(): value.decode() for name, value in scope["headers"]})
            if self._is_old and self._seen[-1].get("mcp-method") == "server/discover":
                answer = Response("no such thing", status_code=400)
        await answer(scope, receive, send)


def serve_http(port: int, manners: list[str]) -> None:
    """Prints its port when it can be reached."""
    listener = socket.create_server(("127.0.0.1", port), reuse_port=False)
    app = Witness(server.streamable_http_app(json_response="json" in manners), is_old="old" in manners)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        serve_http(int(sys.argv[2]), sys.argv[3:])
