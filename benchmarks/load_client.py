"""Requests as cheap as they can be made: what is timed with it is the gateway, not its client.

Connections are kept for a short while; the one used last is used next, so that few are open.
"""

from __future__ import annotations

import asyncio
import json
import time
from asyncio import StreamReader, StreamWriter
from typing import Any, Final
from urllib.parse import urlsplit

IDLE_S: Final = 2.0  #: a server lets idle ones go after 5 s


class Client:
    def __init__(self, url: str, token: str) -> None:
        at, self.url = urlsplit(url), url
        self._host, self._port, self._token = at.hostname, at.port, token
        self._idle: list[tuple[float, StreamReader, StreamWriter]] = []

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        """Raises ConnectionError for anything but a success."""
        return json.loads(await self.read(method, path, body))

    async def read(self, method: str, path: str, body: object = None) -> bytes:
        content = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nAuthorization: Bearer {self._token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        reader, writer = await self._connection()
        try:
            writer.write(head.encode() + content)
            said = await reader.readuntil(b"\r\n\r\n")
            answer = await reader.readexactly(_length(said))
        except BaseException:
            writer.close()
            raise
        self._idle.append((time.monotonic(), reader, writer))
        if not said.startswith(b"HTTP/1.1 2"):
            raise ConnectionError(f"{method} {path}: {said.splitlines()[0]!r} {answer[:300]!r}")
        return answer

    async def _connection(self) -> tuple[StreamReader, StreamWriter]:
        while self._idle:
            since, reader, writer = self._idle.pop()
            if time.monotonic() - since < IDLE_S:
                return reader, writer
            writer.close()
        return await asyncio.open_connection(self._host, self._port)

    def close(self) -> None:
        for _, _, writer in self._idle:
            writer.close()


def _length(head: bytes) -> int:
    for line in head.lower().splitlines():
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    raise ConnectionError("an answer without a length")
