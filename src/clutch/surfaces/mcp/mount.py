"""`/mcp`: the same tools over streamable HTTP, behind the same guard as every other path.

The library is loaded, off the event loop, when the first client comes. Whose message it is, is decided for each one
from its own token; a client that keeps a session of its own says `Clutch-Session`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from clutch.core.agents import MAIN
from clutch.core.authority import OperatorCaller
from clutch.surfaces.client import Declined, refusal_of
from clutch.surfaces.http.acting import SPAWN_BYTES_MAX
from clutch.surfaces.http.bodies import checked_body, checked_query
from clutch.surfaces.http.guard import CALLER
from clutch.surfaces.http.routes import PRIVATE, Ask, House, Reply
from clutch.surfaces.http.speaking import HEADER, admitted
from clutch.surfaces.mcp.tools import Tool

SESSIONS_MAX = 100  #: clients at once, each with buffers of its own


class Manager(Protocol):
    def run(self) -> AbstractAsyncContextManager[None]: ...

    async def handle_request(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class Mount:
    """`run` beside the server; requests before that wait."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._wanted, self._ready = asyncio.Event(), asyncio.Event()
        self._manager: Manager | None = None

    async def run(self) -> None:
        await self._wanted.wait()
        self._manager = await asyncio.to_thread(_load, self._house)
        async with self._manager.run():
            self._ready.set()
            await self._house.closing.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._wanted.set()
        await self._ready.wait()
        assert self._manager is not None, "ready means there"

        async def privately(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(PRIVATE)
            await send(message)

        await self._manager.handle_request(scope, receive, privately)


@dataclass(frozen=True, slots=True)
class Local:
    """The handlers of this process."""

    house: House
    caller: OperatorCaller
    session: str

    async def call(self, tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
        entry = tool.entry
        caller = await admitted(self.house, entry, self.caller, self.session)
        path, rest = tool.place(arguments)
        ask = Ask(
            house=self.house,
            caller=caller,
            path=path,
            query=checked_query({} if entry.is_write else rest, entry.query),
            body=checked_body(json.dumps(rest if entry.is_write else {}).encode(), entry.body),
            headers={},
            key=None,
            session=self.session,
        )
        reply = await entry.handler(ask)
        assert isinstance(reply, Reply), "a stream is no tool"
        if reply.status >= 300:
            raise Declined(reply.status, refusal_of(reply.body))
        return dict(reply.body)


def _load(house: House) -> Manager:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from clutch.surfaces.mcp.server import Context, client_name, make_server, session_key

    def door_of(context: Context) -> Local:
        request = context.request
        assert isinstance(request, Request), "over HTTP every message has its request"
        session = request.headers.get(HEADER) or session_key(MAIN, client_name(context))
        return Local(house, request.scope[CALLER], session)

    return StreamableHTTPSessionManager(
        make_server(door_of), max_request_body_size=SPAWN_BYTES_MAX, max_sessions=SESSIONS_MAX
    )
