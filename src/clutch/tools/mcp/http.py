"""A server at an address: the library's streamable HTTP transport over a client that keeps trouble small.

In the library, one request that cannot be sent ends the connection of all others. Here such a failure is the
answer to that request. Bodies have a limit. Nothing is taken from the environment: no proxy, no .netrc.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR

from clutch.tools.mcp.settings import McpServer

BODY_BYTES_MAX = 8 * 1024 * 1024
NOTICE_TIMEOUT_S = 5.0  # the library sends nothing else while a notification is under way

Streams = tuple[ReadStream[SessionMessage | Exception], WriteStream[SessionMessage]]


@asynccontextmanager
async def http(server: McpServer) -> AsyncIterator[Streams]:
    timeout = httpx2.Timeout(server.call_timeout_s, connect=server.connect_timeout_s, read=None, pool=None)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=32)
    transport = _Contained(httpx2.AsyncHTTPTransport(trust_env=False, limits=limits))
    async with (
        httpx2.AsyncClient(
            headers=dict(server.headers), timeout=timeout, transport=transport, trust_env=False
        ) as client,
        streamable_http_client(
            str(server.url), http_client=client, max_sse_event_size=BODY_BYTES_MAX
        ) as streams,
    ):
        yield streams


class _Contained(httpx2.AsyncBaseTransport):
    def __init__(self, inner: httpx2.AsyncHTTPTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if _expects_no_answer(request):
            request.extensions["timeout"]["read"] = NOTICE_TIMEOUT_S
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            return _failure(503, f"cannot be reached at {request.url}: {str(error) or type(error).__name__}")
        if response.status_code == 404 and "mcp-session-id" in request.headers:
            await response.aclose()
            # Without a body, which is how the library sees that the session is over.
            return httpx2.Response(404)
        if response.status_code >= 400 and response.status_code != 404 and not _is_json(response):
            await response.aclose()
            return _failure(response.status_code, f"answered with HTTP status {response.status_code}")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Bounded(response.stream, response)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, response: httpx2.Response) -> None:
        self._inner = inner
        self._left = BODY_BYTES_MAX if _is_json(response) else None  # events are counted one by one elsewhere

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._inner:
                if self._left is not None:
                    self._left -= len(chunk)
                    if self._left < 0:
                        raise httpx2.StreamError(
                            f"the answer has more than {BODY_BYTES_MAX // 1024 // 1024} MiB"
                        )
                yield chunk
        except httpx2.TransportError as error:
            raise httpx2.StreamError(f"the connection broke: {str(error) or type(error).__name__}") from error

    async def aclose(self) -> None:
        await self._inner.aclose()


def _expects_no_answer(request: httpx2.Request) -> bool:
    return request.method == "DELETE" or (
        request.method == "POST" and "id" not in json.loads(request.content)
    )


def _is_json(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").lower().startswith("application/json")


def _failure(status: int, message: str) -> httpx2.Response:
    error = {"code": INTERNAL_ERROR, "message": message}
    return httpx2.Response(status, json={"jsonrpc": "2.0", "id": None, "error": error})
