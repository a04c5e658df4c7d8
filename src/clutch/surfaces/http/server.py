"""uvicorn around the app, inside an event loop of another owner: no signals, no log files, no extras.

A connection that has not said what it wants within a few seconds is cut, and only so many of those are held
at once: strangers cost nothing before they have shown a token.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from clutch.api.feed import Feed
from clutch.api.health import InvariantReport
from clutch.api.overview import Overviews
from clutch.surfaces.discovery import named_state
from clutch.surfaces.http.app import make_app
from clutch.surfaces.http.auth import Tokens
from clutch.surfaces.http.routes import WIRE, AppState
from clutch.surfaces.listen import reach_of
from clutch.surfaces.mcp import Mount
from clutch.transactions import push

if TYPE_CHECKING:
    from clutch.api.gateway import Gateway

HEAD_BYTES_MAX = 16 * 1024
HEAD_WITHIN_S = 3.0
SILENT_MAX = 32  #: connections that have not sent a request yet
ROOM_S = 0.25  #: many may connect at once: what they have sent is read before a connection counts as silent
STOP_S = 2  #: what a request under way gets when the gateway stops
LET_IN_TURNS = 4  #: of the loop: a client that has connected is known after so many, and can be closed

logging.getLogger("uvicorn").addHandler(logging.NullHandler())  # its warnings are about mistakes of clients


class PromptProtocol(H11Protocol):
    """HTTP/1.1 with a limit for connections that send no request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app = _wired(self.app, transport)
        self.access_log = False  # here and not in the config, which would switch off the host program's own
        self.since = self.loop.time()
        self.loop.call_later(HEAD_WITHIN_S, self.cut_if_silent)
        self.loop.call_later(ROOM_S, self.make_room)

    def make_room(self) -> None:
        if not self.is_silent:
            return  # as nearly all: it has not made the others too many
        mine = (one for one in self.connections if isinstance(one, PromptProtocol))
        silent = sorted((one for one in mine if one.is_silent), key=PromptProtocol.waited_since)
        if len(silent) > SILENT_MAX:  # the one that has had the most time goes: a newcomer may have a token
            silent[0].cut_if_silent()

    @property
    def is_silent(self) -> bool:
        request: object = self.cycle  # None until the first one, whatever its type says
        return request is None

    def waited_since(self) -> float:
        return self.since

    def cut_if_silent(self) -> None:
        if self.is_silent:
            self.transport.abort()


def _wired(app: ASGIApp, transport: asyncio.Transport) -> ASGIApp:
    """Return the app with the connection in the scope of its requests."""

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        scope[WIRE] = transport
        await app(scope, receive, send)

    return answered


async def answer(gateway: Gateway, home: Path, names: frozenset[str], sockets: list[socket.socket]) -> None:
    """Answer requests until it is cancelled."""
    tokens = Tokens(home, gateway.services.policy.serving, sockets[0].getsockname()[1])
    feed = Feed(gateway)
    overviews = Overviews(gateway, feed)
    reach = reach_of(names, sockets)
    invariants = InvariantReport(gateway.services)
    shared = (gateway, feed, asyncio.Event(), tokens.browsers, overviews, invariants)
    app = AppState(*shared, reach, tokens.callers, named_state(home))
    mcp = Mount(app)
    served = make_app(app, tokens, mcp, names)

    async def forget(devices: Collection[str]) -> None:
        await app.write(push.forget, devices)

    server = Server(_config(served))
    server.config.load()
    server.config.loaded_app = (
        served  # where a host program logs everything, uvicorn would write down requests
    )
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup(sockets=sockets)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(feed.run())
            group.create_task(overviews.run())
            group.create_task(mcp.run())
            group.create_task(tokens.watch(forget))
    finally:
        app.closing.set()  # requests that wait and streams end now
        feed.wake()
        await invariants.close()
        await _stop(server, sockets)


def _config(app: ASGIApp) -> Config:
    return Config(
        app,
        loop="none",
        http=PromptProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        timeout_graceful_shutdown=STOP_S,
    )


async def _stop(server: Server, sockets: list[socket.socket]) -> None:
    """Stop the server; without connections, skip the pauses of uvicorn's own shutdown."""
    for one in server.servers:
        one.close()
    for _ in range(LET_IN_TURNS):
        await asyncio.sleep(0)
    if server.server_state.connections:
        await server.shutdown(sockets=sockets)
