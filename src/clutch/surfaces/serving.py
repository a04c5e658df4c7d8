"""The listening socket of a gateway, from the moment its engine works until it stops.

Binding is a matter of microseconds and happens at once; the HTTP libraries are loaded when the first
caller knocks, off the event loop. A program that nobody asks anything pays for nothing.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from clutch import __version__
from clutch.core.shown import typed
from clutch.errors import GatewayInUse, InvalidInput
from clutch.surfaces import address
from clutch.surfaces.address import Address, Claim

if TYPE_CHECKING:
    from clutch.gateway.local import Gateway

HOST = "127.0.0.1"
BACKLOG = 128
PORT_MAX = 65535


@asynccontextmanager
async def serving(gateway: Gateway, home: Path, port: int = 0) -> AsyncIterator[Address]:
    """On loopback only; port 0 = any free one. Raises GatewayInUse, InvalidInput, UnsafeStateDirectory."""
    held = await asyncio.to_thread(address.claim, home)
    if held is None:
        remedy = typed("ps", state=address.named_state(home))
        raise GatewayInUse(f"{home} is served by another gateway already", remedy)
    try:
        address.ensure_token(home)
        with _listening(port) as listener:
            async with asyncio.TaskGroup() as group:
                answering = group.create_task(_answer(gateway, home, listener))
                yield _published(held, listener)
                answering.cancel()
    finally:
        held.release()


def _published(held: Claim, listener: socket.socket) -> Address:
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    here = Address(f"http://{HOST}:{listener.getsockname()[1]}", os.getpid(), __version__, started_at)
    held.publish(here)
    return here


def _listening(port: int) -> socket.socket:
    if not 0 <= port <= PORT_MAX:
        raise InvalidInput("port", f"must be between 0 and {PORT_MAX}")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind((HOST, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise InvalidInput("port", f"{port} cannot be listened on: {error.strerror}") from error
    return listener


async def _answer(gateway: Gateway, home: Path, listener: socket.socket) -> None:
    await _knock(listener)
    answer = await asyncio.to_thread(_load)
    if gateway.leaving is not None:  # a process of our own; a program that embeds us decides for itself
        gc.freeze()  # code is never garbage, and whoever looks through all of it stops everybody else meanwhile
    await answer(gateway, home, listener)


def _load() -> Callable[[Gateway, Path, socket.socket], Awaitable[None]]:
    from clutch.surfaces.http.server import answer

    return answer


async def _knock(listener: socket.socket) -> None:
    """The first connection waits in the backlog until the libraries are there."""
    loop, knocked = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(listener, knocked.set)
    try:
        await knocked.wait()
    finally:
        loop.remove_reader(listener)
