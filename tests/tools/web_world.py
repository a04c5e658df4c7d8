"""A small web on loopback: one server stands for every public address, one for every private one.

Names are answered by a table. A socket that is told to connect to a public address reaches the page server,
to any other the sink, which only counts: nothing leaves the machine, and no refusal is taken on trust.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from clutch.tools.addresses import is_public, reach_of
from clutch.tools.web_fetch import Fetcher

PUBLIC = "93.184.215.14"
OTHER_PUBLIC = "8.8.8.8"
Pages = dict[str, bytes]


def page(body: bytes | str, kind: str | None = "text/plain", *headers: str, status: int = 200) -> bytes:
    data = body.encode() if isinstance(body, str) else body
    kinds = [] if kind is None else [f"Content-Type: {kind}"]
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(data)}", *kinds, *headers, "", ""]
    return "\r\n".join(lines).encode() + data


def redirect(to: str, status: int = 302) -> bytes:
    return page("", "text/plain", f"Location: {to}", status=status)


@dataclass
class World:
    pages: Pages = field(default_factory=dict)
    names: dict[str, Sequence[str]] = field(default_factory=lambda: {"public.example": [PUBLIC]})
    asked: list[str] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)
    dialled: list[tuple[str, int]] = field(default_factory=list)
    sink_connections: int = 0
    page_port: int = 0
    sink_port: int = 0

    def fetcher(self, *allow_private: str, **how: Any) -> Fetcher:
        return Fetcher(
            reach_of(allow_private), **{"resolve": self.resolve, "make_socket": self.make_socket, **how}
        )

    async def fetch(self, url: str, *allow_private: str, max_chars: int = 20_000, **how: Any) -> str:
        return await self.fetcher(*allow_private, **how).fetch(url, max_chars)

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self.names:
            raise OSError(f"no such name: {host}")
        return self.names[host]

    def make_socket(self, family: int, kind: int, protocol: int) -> socket.socket:
        return _Socket(self._dial, family, kind, protocol)

    def _dial(self, address: tuple[Any, ...]) -> tuple[str, int]:
        self.dialled.append((address[0], address[1]))
        if address[:2] == ("127.0.0.1", self.page_port) or is_public(ip_address(address[0])):
            return ("127.0.0.1", self.page_port)
        return ("127.0.0.1", self.sink_port)

    async def serve_page(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(request)
        path = request.split(b" ")[1].decode()
        writer.write(self.pages.get(path, page("no such page", status=404)))
        if path.startswith("/endless"):
            await self._endless(writer)
        if path.startswith("/silent"):
            await reader.read()  # until the other side gives up
        writer.close()

    async def _endless(self, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        except ConnectionError:
            return

    async def serve_sink(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        self.sink_connections += 1
        writer.write(page("the secret"))
        writer.close()


class _Socket(socket.socket):
    def __init__(
        self, dial: Callable[[tuple[Any, ...]], tuple[str, int]], family: int, kind: int, protocol: int
    ) -> None:
        super().__init__(family, kind, protocol)
        self._dial = dial
        self._where: tuple[str, int] | None = None

    def connect(self, address: Any) -> None:
        self._where = self._where or self._dial(address)
        super().connect(self._where)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    small = World()
    pages = await asyncio.start_server(small.serve_page, "127.0.0.1", 0)
    sink = await asyncio.start_server(small.serve_sink, "127.0.0.1", 0)
    small.page_port = pages.sockets[0].getsockname()[1]
    small.sink_port = sink.sockets[0].getsockname()[1]
    async with pages, sink:
        yield small
