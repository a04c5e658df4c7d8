"""The MCP tools of a gateway, and `/mcp`, which serves them over streamable HTTP."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from clutch.api.problems import Problem, problem_of
from clutch.core.agents import MAIN
from clutch.core.authority import OperatorCaller
from clutch.errors import InvalidInput, MissingExtra, extra
from clutch.surfaces.http.app import ENTRIES
from clutch.surfaces.http.auth import CALLER
from clutch.surfaces.http.browser import PRIVATE
from clutch.surfaces.http.handlers import SPAWN_BYTES_MAX
from clutch.surfaces.http.routes import (
    HEADER,
    AppState,
    Ask,
    HttpRoute,
    Reply,
    admitted,
    checked_body,
    checked_query,
)
from clutch.surfaces.http_client import Declined, refusal_of

# --------------------------------------------------------------------------------------------------
# The tools of a client: every HTTP path that is marked as one, with the same parameters, checks and answer.

WAIT_S, WAIT_S_MAX = 25.0, 50.0  #: clients give up on a call after a minute
_NAMED = re.compile(r"{(\w+)}")
_ABOUT = {
    "target": "The task: its id or label, a unique beginning of either, its session key, or `last`.",
    "id": "The item: its id as `inbox` shows it, or the task that asks (id, label or `last`).",
}
#: A client spawns for itself, and its user cannot refer to a list by number.
_NOT_SAID = frozenset({"requester", "numbered", "numberedAfter"})


@dataclass(frozen=True, slots=True)
class GatewayTool:
    name: str
    entry: HttpRoute

    @property
    def is_read_only(self) -> bool:
        return not self.entry.is_write

    @property
    def is_destructive(self) -> bool:
        return self.name == "kill"

    @property
    def about(self) -> str:
        return self.entry.about

    @property
    def in_path(self) -> list[str]:
        return _NAMED.findall(self.entry.path)

    def input_schema(self) -> dict[str, Any]:
        schema = _schema(self.entry.body if self.entry.is_write else self.entry.query)
        named = {name: {"type": "string", "description": _ABOUT[name]} for name in self.in_path}
        said = {name: one for name, one in schema.get("properties", {}).items() if name not in _NOT_SAID}
        schema["properties"] = {**named, **said}
        schema["required"] = [*named, *schema.get("required", ())]
        schema.pop("description", None)
        if self.name == "wait":
            said["timeoutSeconds"] |= {"default": WAIT_S, "maximum": WAIT_S_MAX}
        return schema

    def output_schema(self) -> dict[str, Any]:
        assert self.entry.answer is not None, "a tool says what it answers"
        return _schema(self.entry.answer)

    def place(self, arguments: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
        """Return the arguments of the path, and the rest. Raises InvalidInput."""
        path = {name: str(arguments.get(name, "")) for name in self.in_path}
        for name, text in path.items():
            if not text.strip():
                raise InvalidInput(name, "must be given")
        return path, {name: value for name, value in arguments.items() if name not in path}


TOOLS: Mapping[str, GatewayTool] = {
    entry.tool: GatewayTool(entry.tool, entry) for entry in ENTRIES if entry.tool
}
#: What is read of a task, called as a tool is.
RESOURCES: Mapping[str, GatewayTool] = {
    entry.resource: GatewayTool(entry.resource, entry) for entry in ENTRIES if entry.resource
}


class McpBackend(Protocol):
    async def call(self, tool: GatewayTool, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The body of the answer. Raises ClutchError."""
        ...


def _schema(model: Any) -> dict[str, Any]:
    from clutch.surfaces.http.routes import schema_of

    schema: dict[str, Any] = _bare(schema_of(model, "serialization"))
    return schema


def _bare(schema: Any) -> Any:
    """Return the schema without titles and null defaults: a model reads, and pays for, every word."""
    if isinstance(schema, list):
        return [_bare(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: one for name, one in schema.items() if not (name == "title" and isinstance(one, str))}
    return {name: _bare(one) for name, one in kept.items() if (name, one) != ("default", None)}


# --------------------------------------------------------------------------------------------------
# `/mcp`: the same tools over streamable HTTP, behind the same guard as every other path.
#
# The library is loaded, off the event loop, when the first client comes. Whose message it is, is decided for each one
# from its own token; a client that keeps a session of its own says `Clutch-Session`.

CONNECTION = (
    "mcp-session-id"  #: one for each `initialize`; newer clients, which send none, have to give a name
)
SESSIONS_MAX = 100  #: clients at once, each with buffers of its own


class Manager(Protocol):
    def run(self) -> AbstractAsyncContextManager[None]: ...

    async def handle_request(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class Mount:
    """`run` beside the server; requests before that wait."""

    def __init__(self, app: AppState) -> None:
        self._app = app
        self._wanted, self._ready = asyncio.Event(), asyncio.Event()
        self._manager: Manager | None = None
        self._missing: Problem | None = None  #: why there is no manager

    async def run(self) -> None:
        await self._wanted.wait()
        try:
            with extra("mcp", "/mcp"):
                self._manager = await asyncio.to_thread(_load, self._app)
        except MissingExtra as error:
            self._missing = problem_of(error)
            self._ready.set()
            return
        async with self._manager.run():
            self._ready.set()
            await self._app.closing.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._wanted.set()
        await self._ready.wait()
        if self._manager is None:
            assert self._missing is not None, "ready means there, or why not"
            await JSONResponse(self._missing.to_json(), self._missing.status, PRIVATE)(scope, receive, send)
            return

        async def privately(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(PRIVATE)
            await send(message)

        await self._manager.handle_request(scope, receive, privately)


@dataclass(frozen=True, slots=True)
class LocalMcpBackend:
    """The handlers of this process."""

    app: AppState
    caller: OperatorCaller
    session: str

    async def call(self, tool: GatewayTool, arguments: Mapping[str, Any]) -> dict[str, Any]:
        entry = tool.entry
        caller = await admitted(self.app, entry, self.caller, self.session)
        path, rest = tool.place(arguments)
        ask = Ask(
            app=self.app,
            caller=caller,
            path=path,
            query=checked_query({} if entry.is_write else rest, entry.query),
            body=checked_body(json.dumps(rest if entry.is_write else {}).encode(), entry.body),
            headers={},
            key=None,
            session=self.session,
        )
        reply = await entry.answered(ask)
        assert isinstance(reply, Reply), "a stream is no tool"
        if reply.status >= 300:
            raise Declined(reply.status, refusal_of(reply.body))
        return dict(reply.body)


def _load(app: AppState) -> Manager:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from clutch.surfaces.mcp_results import Context
    from clutch.surfaces.mcp_server import client_name, make_server, session_key

    def backend_of(context: Context) -> LocalMcpBackend:
        request = context.request
        assert isinstance(request, Request), "over HTTP every message has its request"
        connection = request.headers.get(CONNECTION)
        session = request.headers.get(HEADER) or session_key(MAIN, client_name(context, connection))
        return LocalMcpBackend(app, request.scope[CALLER], session)

    return StreamableHTTPSessionManager(
        make_server(backend_of), max_request_body_size=SPAWN_BYTES_MAX, max_sessions=SESSIONS_MAX
    )
