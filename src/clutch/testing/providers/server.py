"""The HTTP side: reads a request, asks its script what to do, and does it, byte by byte if need be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Never, Protocol, Self, TypeAlias, assert_never

from aiohttp import web

from clutch.testing.providers import chat, messages, responses
from clutch.testing.providers.log import CallLog, CallSeen, How
from clutch.testing.providers.script import (
    Behaviour,
    Control,
    Cut,
    Failure,
    Format,
    Gate,
    Pause,
    Reply,
    Silence,
    WireRequest,
)
from clutch.testing.providers.wire import encode

_FORMATS = {
    "/v1/chat/completions": Format.CHAT,
    "/v1/responses": Format.RESPONSES,
    "/v1/messages": Format.MESSAGES,
}


class Wire(Protocol):
    """How one format says things."""

    def frames(self, reply: Reply, request: WireRequest) -> Iterator[bytes | Control]: ...

    def whole(self, reply: Reply, request: WireRequest) -> Mapping[str, Any]: ...

    def error(self, failure: Failure) -> Mapping[str, Any]: ...


WIRES: Mapping[Format, Wire] = {Format.CHAT: chat, Format.RESPONSES: responses, Format.MESSAGES: messages}
_STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
_BACKLOG = 4096  # a thousand callers connect in the same moment

Behave: TypeAlias = Callable[[WireRequest], Behaviour]


class Providers:
    """One server for all formats. `behave` may be exchanged at any time."""

    def __init__(self, behave: Behave, *, port: int = 0, keep_log: bool = True) -> None:
        self.behave = behave
        self.log = CallLog(keep=keep_log)
        self.connections = 0  #: opened so far
        self._port = port
        self._server: asyncio.Server | None = None
        self._web: web.Server | None = None

    async def __aenter__(self) -> Self:
        self._web = web.Server(self._handle, handler_cancellation=True, access_log=None)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, "127.0.0.1", self._port, backlog=_BACKLOG)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    def _accept(self) -> asyncio.BaseProtocol:
        assert self._web is not None
        self.connections += 1
        return self._web()

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        assert self._web is not None
        self._server.close()
        await self._web.shutdown(timeout=0)
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        return self.url

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        form = _FORMATS.get(request.path)
        if form is None:
            return self._elsewhere(request)
        seen = await self._read(request, form)
        call = self.log.begin(seen)
        try:
            return await self._act(request, call, self.behave(seen))
        except (asyncio.CancelledError, ConnectionError):
            self.log.end(call, How.LEFT)
            raise

    def _elsewhere(self, request: web.BaseRequest) -> web.Response:
        if request.path == "/log":
            return web.json_response(self.log.summary())
        return web.json_response({"error": {"message": f"no such path: {request.path}"}}, status=404)

    async def _read(self, request: web.BaseRequest, form: Format) -> WireRequest:
        raw = await request.content.read()
        body: Mapping[str, Any] = json.loads(raw)
        headers = request.headers
        return WireRequest(
            form,
            body["model"],
            body,
            headers,
            len(raw),
            self.log.count + 1,
            headers.get("Idempotency-Key") or headers.get("X-Clutch-Call") or "",
            headers.get("x-api-key") or headers.get("Authorization", "").removeprefix("Bearer "),
        )

    async def _act(
        self, request: web.BaseRequest, call: CallSeen, behaviour: Behaviour
    ) -> web.StreamResponse:
        match behaviour:
            case Failure():
                call.status = behaviour.code
                self.log.end(call, How.FAILED)
                body = encode(WIRES[call.request.format].error(behaviour))
                return web.Response(
                    text=body,
                    status=behaviour.code,
                    headers=behaviour.headers,
                    content_type="application/json",
                )
            case Silence():
                await _for_ever()
            case Reply() if call.request.body.get("stream"):
                return await self._stream(request, call, behaviour)
            case Reply():
                await asyncio.sleep(behaviour.latency_s)
                self.log.end(call, How.DONE, behaviour.usage)
                return web.json_response(
                    WIRES[call.request.format].whole(behaviour, call.request), dumps=encode
                )
            case _:
                assert_never(behaviour)

    async def _stream(self, request: web.BaseRequest, call: CallSeen, reply: Reply) -> web.StreamResponse:
        if reply.latency_s:
            await asyncio.sleep(reply.latency_s)
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        await response.prepare(request)
        for chunk in _paced(WIRES[call.request.format].frames(reply, call.request), reply):
            if isinstance(chunk, bytes):
                await response.write(chunk)
            elif await self._controlled(request, call, chunk):
                return response
        self.log.end(call, How.DONE, reply.usage)
        await response.write_eof()
        return response

    async def _controlled(self, request: web.BaseRequest, call: CallSeen, control: Control) -> bool:
        """True when the answer ends here."""
        match control:
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case Gate(opens):
                await opens.wait()
            case Silence():
                await _for_ever()
            case Cut(is_clean):
                self.log.end(call, How.CUT)
                if not is_clean and request.transport is not None:
                    request.transport.close()
                    await _for_ever()
                return True
            case _:
                assert_never(control)
        return False


async def _for_ever() -> Never:
    """Until the connection is gone: the handler is cancelled with it."""
    while True:
        await asyncio.Event().wait()


def _paced(frames: Iterator[bytes | Control], reply: Reply) -> Iterator[bytes | Control]:
    """Dripped or sliced as its script says; otherwise everything up to the next control in one write."""
    if reply.drip_s:
        yield from _dripped(frames, reply.drip_s)
        return
    waiting: list[bytes] = []
    for frame in frames:
        if isinstance(frame, bytes):
            waiting.append(frame)
            continue
        yield from _sliced(b"".join(waiting), reply.split_bytes)
        waiting.clear()
        yield frame
    yield from _sliced(b"".join(waiting), reply.split_bytes)


def _dripped(frames: Iterator[bytes | Control], seconds: float) -> Iterator[bytes | Control]:
    pause = Pause(seconds)
    for place, frame in enumerate(frames):
        if place and isinstance(frame, bytes):
            yield pause
        yield frame


def _sliced(data: bytes, size: int) -> Iterator[bytes | Control]:
    if not size:
        if data:
            yield data
        return
    turn = Pause(0)  # so that the slices are read one by one
    for start in range(0, len(data), size):
        yield data[start : start + size]
        yield turn
