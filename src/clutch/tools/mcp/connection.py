"""One open connection to a server: the handshake, its list of tools, calls. Loads the MCP library.

Answers are not checked against the server's own output schema: a pattern written by a stranger can keep the
event loop busy for hours. Sampling, elicitation and roots are not offered to servers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, cast

from mcp import ClientSession, MCPError
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    UNSUPPORTED_PROTOCOL_VERSION,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    InputRequiredResult,
    PaginatedRequestParams,
    RequestParamsMeta,
    Tool,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from clutch.ports import Launch
from clutch.tools.mcp.http import http
from clutch.tools.mcp.naming import Definition
from clutch.tools.mcp.settings import McpServer
from clutch.tools.mcp.stdio import stdio
from clutch.tools.mcp.wire import Gone, Refused, Wire

TOOLS_MAX = 256
PAGES_MAX = 32

_RESULT: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)


class Connection:
    def __init__(self, session: ClientSession, wire: Wire) -> None:
        self._session = session
        self._wire = wire

    async def tools(self) -> list[Definition]:
        """Raises Gone, Refused."""
        found: list[Definition] = []
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            try:
                page = await self._session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            except (MCPError, ValidationError) as error:
                raise self._trouble(error) from error
            found += map(_definition, page.tools)
            cursor = page.next_cursor
            if cursor is None and len(found) <= TOOLS_MAX:
                return found
        raise Refused(f"lists more than {TOOLS_MAX} tools or does not stop listing")

    async def call(self, tool: str, args: Mapping[str, Any], key: str) -> CallToolResult:
        """Raises Gone, Refused. A cancelled call is cancelled at the server too."""
        meta = cast("RequestParamsMeta", {"clutch-agents/idempotencyKey": key})
        params = CallToolRequestParams(name=tool, arguments=dict(args), _meta=meta)
        try:
            result = await self._session.send_request(CallToolRequest(params=params), _RESULT)
        except (MCPError, ValidationError) as error:
            raise self._trouble(error) from error
        if isinstance(result, InputRequiredResult):
            raise Refused("asks for input from a person during the call, which is not supported")
        return result

    def _trouble(self, error: MCPError | ValidationError) -> Gone | Refused:
        if isinstance(error, ValidationError):
            problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(str(part) for part in problem["loc"])
            return Refused(f"sent what the protocol does not allow ({where}: {problem['msg']})")
        is_closed = error.code == CONNECTION_CLOSED and self._wire.ended.is_set()
        if is_closed or (error.code == INVALID_REQUEST and error.message == "Session terminated"):
            return Gone("ended the connection")
        return Refused(error.message)


@asynccontextmanager
async def connected(
    server: McpServer, launch: Launch | None, wire: Wire, on_change: Callable[[], None]
) -> AsyncIterator[Connection]:
    """`launch`: how to start it, if it is a process."""

    async def heed(message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            on_change()

    async with AsyncExitStack() as stack:
        stack.callback(wire.ended.set)
        transport = http(server) if launch is None else stdio(launch, wire)
        read, write = await stack.enter_async_context(transport)
        identity = Implementation(name="clutch", version="1")
        session = ClientSession(read, write, message_handler=heed, client_info=identity)
        await stack.enter_async_context(session)
        connection = Connection(session, wire)
        try:
            await _shake_hands(session, server.connect_timeout_s / 2)
        except (MCPError, ValidationError) as error:
            raise connection._trouble(error) from error
        await stack.enter_async_context(_subscribed(session))
        wire.is_up = True
        yield connection


async def _shake_hands(session: ClientSession, patience_s: float) -> None:
    """The newer handshake, then the older one: some old servers do not answer what they do not know."""
    try:
        async with asyncio.timeout(patience_s):
            await session.discover()
    except (MCPError, ValidationError, RuntimeError, TimeoutError):
        try:
            await session.initialize()
        except MCPError as error:
            if error.code != UNSUPPORTED_PROTOCOL_VERSION:
                raise
            await session.discover()  # it was only slow, and has taken the first question after all


@asynccontextmanager
async def _subscribed(session: ClientSession) -> AsyncIterator[None]:
    """Newer servers tell of changes only to those who ask; what they tell arrives at the message handler."""
    capabilities = session.server_capabilities
    has_news = capabilities is not None and capabilities.tools is not None and capabilities.tools.list_changed
    if not has_news or session.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        yield
        return
    async with AsyncExitStack() as stack:
        # Where one promises and then does not: the pinned words are what a model sees in any case.
        with suppress(MCPError, SubscriptionLost):
            await stack.enter_async_context(listen(session, tools_list_changed=True))
        yield


def _definition(tool: Tool) -> Definition:
    annotations = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else None
    return Definition(tool.name, tool.description or "", tool.input_schema, tool.output_schema, annotations)
