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
from clutch.errors import GatewayInUse
from clutch.surfaces import address
from clutch.surfaces.address import Address, Claim
from clutch.surfaces.listening import HERE, Listening, listeners

if TYPE_CHECKING:
    from clutch.gateway.local import Gateway

LOOPBACK_ONLY = Listening()


@asynccontextmanager
async def serving(gateway: Gateway, home: Path, where: Listening = LOOPBACK_ONLY) -> AsyncIterator[Address]:
    """Raises GatewayInUse, InvalidInput, UnsafeStateDirectory."""
    where.check_agreed(home)
    held = await asyncio.to_thread(address.claim, home)
    if held is None:
        remedy = typed("ps", state=address.named_state(home))
        raise GatewayInUse(f"{home} is served by another gateway already", remedy)
    try:
        address.ensure_token(home)
        with listeners(where) as sockets:
            async with asyncio.TaskGroup() as group:
                answering = group.create_task(_answer(gateway, home, where.names, sockets))
                yield _published(held, sockets[0])
                answering.cancel()
    finally:
        held.release()


def _published(held: Claim, listener: socket.socket) -> Address:
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    here = Address(f"http://{HERE}:{listener.getsockname()[1]}", os.getpid(), __version__, started_at)
    held.publish(here)
    return here


async def _answer(gateway: Gateway, home: Path, names: frozenset[str], sockets: list[socket.socket]) -> None:
    await _knock(sockets)
    answer = await asyncio.to_thread(_load)
    if gateway.leaving is not None:  # a process of our own; a program that embeds us decides for itself
        gc.freeze()  # code is never garbage, and whoever looks through all of it stops everybody else meanwhile
    await answer(gateway, home, names, sockets)


def _load() -> Callable[[Gateway, Path, frozenset[str], list[socket.socket]], Awaitable[None]]:
    from clutch.surfaces.http.server import answer

    return answer


async def _knock(sockets: list[socket.socket]) -> None:
    """The first connection waits in the backlog until the libraries are there."""
    loop, knocked = asyncio.get_running_loop(), asyncio.Event()
    for one in sockets:
        loop.add_reader(one, knocked.set)
    try:
        await knocked.wait()
    finally:
        for one in sockets:
            loop.remove_reader(one)
