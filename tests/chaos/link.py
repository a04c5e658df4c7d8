"""The network between one gateway and one database server: a proxy on loopback that can break and be slow.

A cut has two forms. A connection that is reset is noticed at once. Where nothing passes, both sides wait; when the
link works again, what was sent meanwhile arrives late, as it does after lost packets.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Final

_CHUNK_BYTES: Final = 65536
SOCKET: Final = ".s.PGSQL.5432"


class Link:
    """From a port of its own to the socket of a server."""

    def __init__(self, server: Path) -> None:
        self.port = 0
        self._socket = server / SOCKET
        self._delay_s = 0.0
        self._refuses = False
        self._passes = asyncio.Event()
        self._passes.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._listener: asyncio.Server | None = None

    async def open(self) -> None:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    def close(self) -> None:
        self.reset()
        if self._listener is not None:
            self._listener.close()

    def reset(self) -> None:
        """Break every connection, and refuse new ones until `heal`."""
        self._refuses = True
        for writer in self._writers:
            writer.transport.abort()

    def hold(self) -> None:
        """Let nothing pass until `heal`; no side is told."""
        self._passes.clear()

    def slow(self, delay_s: float) -> None:
        self._delay_s = delay_s

    def heal(self) -> None:
        self._refuses, self._delay_s = False, 0.0
        self._passes.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._passes.wait()
            if not self._refuses:
                await self._connect(reader, writer)
        except OSError:
            pass  # the server is away: the client sees its connection break, as it would without a proxy
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, asks = await asyncio.open_unix_connection(str(self._socket))
        self._writers.add(asks)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, asks, writer))
                group.create_task(self._pass_on(answers, writer, asks))
        finally:
            self._writers.discard(asks)
            asks.transport.abort()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, other: asyncio.StreamWriter
    ) -> None:
        """Until one side ends; then both have ended."""
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                await asyncio.sleep(self._delay_s)
                await self._passes.wait()
                writer.write(chunk)
                await writer.drain()
            writer.write_eof()
            return
        for one in (writer, other):
            one.transport.abort()
