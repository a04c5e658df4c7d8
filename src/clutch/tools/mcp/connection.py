"""One open connection to a server: transport, handshake, list of tools, calls. Loads the MCP library.

Answers are not checked against the server's own output schema: a pattern in it can block the event loop for hours.
Sampling, elicitation and roots are not offered to servers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Literal, cast

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import ClientSession, MCPError
from mcp.client.extension import ResultClaim
from mcp.client.session import IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    UNSUPPORTED_PROTOCOL_VERSION,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    CancelTaskRequestParams,
    ErrorData,
    GetTaskRequestParams,
    Implementation,
    JSONRPCError,
    PaginatedRequestParams,
    Request,
    RequestParamsMeta,
    Result,
    Tool,
    ToolListChangedNotification,
    jsonrpc_message_adapter,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from opentelemetry.context import attach, detach  # a dependency of the MCP library
from opentelemetry.propagate import extract
from pydantic import ConfigDict, ValidationError

from clutch.contain import BackgroundTasks
from clutch.ports import Launch
from clutch.tools.mcp.definitions import Definition, Gone, McpServer, McpServerError, RemoteTaskState, Wire

Streams = tuple[ReadStream[SessionMessage | Exception], WriteStream[SessionMessage]]

# --------------------------------------------------------------------------------------------------
# A server as a process of ours: messages as lines over its stdin and stdout.
#
# The library's own transport reads lines of any length and leaves the process group alone when the first process ends
# by itself. Here a line has a limit, a too long answer fails only its own call, noise is counted and dropped, the end
# of stderr is kept, and no process of the group outlives the connection. A process that leaves its group (a daemon) is
# not ended: that needs the sandbox.

LINE_BYTES_MAX = 8 * 1024 * 1024
MESSAGES_WAITING_MAX = 256  # a server that stops reading must not hold up a cancellation
STOP_GRACE_S = 1.0
_CHUNK = 64 * 1024
_FINAL_OUTPUT_S = 0.3

_ID_FIRST = re.compile(rb'^\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d+)')
_ID_LAST = re.compile(rb'"id"\s*:\s*(\d+)\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')

Incoming = MemoryObjectSendStream[SessionMessage | Exception]
Outgoing = MemoryObjectReceiveStream[SessionMessage]


class _Protocol(SubprocessStreamProtocol):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=_CHUNK, loop=loop)
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


class _Process(Process):
    """`wait` also waits for the pipes, which a grandchild may hold open; `exited` does not."""

    def __init__(
        self, transport: asyncio.SubprocessTransport, protocol: _Protocol, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(transport, protocol, loop)
        self.exited = protocol.exited


@asynccontextmanager
async def stdio(launch: Launch, wire: Wire) -> AsyncIterator[Streams]:
    """Raises OSError when the program cannot be started."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.subprocess_exec(
        lambda: _Protocol(loop),
        *launch.argv,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        cwd=launch.cwd,
        env=dict(launch.env),
        pass_fds=launch.kept,
        start_new_session=True,
    )
    process = _Process(transport, protocol, loop)
    incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, outgoing = anyio.create_memory_object_stream[SessionMessage](MESSAGES_WAITING_MAX)
    async with BackgroundTasks() as tasks:
        listening = tasks.call(_listen(process, wire), "clutch-mcp-stderr")
        tasks.start(_read(process, incoming, wire, listening), "clutch-mcp-stdout")
        tasks.start(_write(process, outgoing), "clutch-mcp-stdin")
        try:
            yield read, write
        finally:
            try:
                await _stop(process, wire)
            finally:
                _signal_group(process.pid, signal.SIGKILL)
                transport.close()
                for stream in (incoming, read, write, outgoing):
                    stream.close()
                wire.ended.set()


async def _read(process: _Process, incoming: Incoming, wire: Wire, listening: asyncio.Task[None]) -> None:
    assert process.stdout is not None
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the session is over
        async for line in _lines(process.stdout):
            message = _parsed(line, wire)
            if message is not None:
                await incoming.send(message)
    # A crash closes stdout a moment before the exit code and the end of stderr are available.
    await asyncio.wait([listening], timeout=_FINAL_OUTPUT_S)
    await _exited(process, _FINAL_OUTPUT_S)
    wire.exit_code = process.returncode
    wire.ended.set()
    incoming.close()


async def _lines(stdout: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield lines up to the limit; of a longer one its two ends, which contain the id."""
    pieces: list[bytes] = []
    size = 0
    while chunk := await stdout.read(_CHUNK):
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            yield b"".join((*pieces, piece))
            pieces, size = [], 0
        pieces += [rest] if rest else []
        size += len(rest)
        if size > LINE_BYTES_MAX:
            pieces[1:-2] = [b"\0"]  # NUL marks the line as cut: it is no valid JSON


def _parsed(line: bytes, wire: Wire) -> SessionMessage | None:
    if not line.strip():
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        found = (_ID_FIRST.search(line) or _ID_LAST.search(line[-200:])) if b"\0" in line else None
        if found is None:
            wire.add_noise(line)
            return None
    limit = f"the answer has more than {LINE_BYTES_MAX // 1024 // 1024} MiB; ask for less"
    return SessionMessage(
        JSONRPCError(jsonrpc="2.0", id=int(found[1]), error=ErrorData(code=INTERNAL_ERROR, message=limit))
    )


async def _write(process: _Process, outgoing: Outgoing) -> None:
    assert process.stdin is not None
    async for message in outgoing:
        text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            process.stdin.write(text.encode() + b"\n")
            await process.stdin.drain()
        except OSError:
            return  # the process has ended; the reader reports it


async def _listen(process: _Process, wire: Wire) -> None:
    assert process.stderr is not None
    while data := await process.stderr.read(_CHUNK):
        wire.add_stderr(data)


async def _stop(process: _Process, wire: Wire) -> None:
    """Close stdin, then signal. A server that never answered a handshake gets no time to stop."""
    assert process.stdin is not None
    process.stdin.close()
    if wire.is_up and not await _exited(process, STOP_GRACE_S):
        _signal_group(process.pid, signal.SIGTERM)
        await _exited(process, STOP_GRACE_S)
    _signal_group(process.pid, signal.SIGKILL)
    await _exited(process, STOP_GRACE_S)


async def _exited(process: _Process, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await process.exited.wait()
    return process.exited.is_set()


def _signal_group(leader: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


# --------------------------------------------------------------------------------------------------
# A server at an address: the library's streamable HTTP transport over a client of ours.
#
# In the library, one request that cannot be sent ends the connection of all others. Here such a failure is the answer
# to that request. Bodies have a limit. Nothing is taken from the environment: no proxy, no .netrc.

BODY_BYTES_MAX = 8 * 1024 * 1024
NOTICE_TIMEOUT_S = 5.0  # the library sends nothing else while a notification is under way


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
            # Without a body: this is how the library recognises the end of the session.
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
        self._left = (
            BODY_BYTES_MAX if _is_json(response) else None
        )  # the library limits each event of a stream

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


ASKS = "asks for input from a person during the call, which is not supported"
TOOLS_MAX = 256
PAGES_MAX = 32

# A server may answer a call with a task, by the Tasks extension; the library has the extension point, not the messages.
TASKS = "io.modelcontextprotocol/tasks"
TASK_ID_CHARS_MAX = 500
POLL_S, POLL_S_MIN, POLL_S_MAX = 1.0, 0.05, 30.0  #: without a wish of the server; what is granted of one


class RawResult(Result):
    """Any answer: a call has one of three forms, and a task fields that the library does not know."""

    model_config = ConfigDict(extra="allow")


class CreatedTask(Result):
    """The answer to a call, as the library knows it: the fields are read from the message itself."""

    result_type: Literal["task"]


class GetTask(Request[GetTaskRequestParams, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    params: GetTaskRequestParams
    name_param = "taskId"


class CancelTask(Request[CancelTaskRequestParams, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: CancelTaskRequestParams
    name_param = "taskId"


async def _never(*given: object) -> CallToolResult:
    """The library resolves tasks in calls that are not made here."""
    del given
    raise AssertionError("calls are sent as requests")


CLAIMS = {TASKS: (ResultClaim(result_type="task", model=CreatedTask, resolve=_never),)}


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
                raise self._error_of(error) from error
            found += map(_definition, page.tools)
            cursor = page.next_cursor
            if cursor is None and len(found) <= TOOLS_MAX:
                return found
        raise McpServerError(f"lists more than {TOOLS_MAX} tools or does not stop listing")

    async def call(
        self, tool: str, args: Mapping[str, Any], key: str, traceparent: str | None = None
    ) -> CallToolResult | RemoteTaskState:
        """Raises Gone, Refused. A cancelled call is cancelled at the server too; a task is not."""
        meta = cast("RequestParamsMeta", {"clutch-agents/idempotencyKey": key})
        params = CallToolRequestParams(name=tool, arguments=dict(args), _meta=meta)
        # The library puts the current trace context into `_meta`, in place of any that is there.
        token = attach(extract({} if traceparent is None else {"traceparent": traceparent}))
        try:
            said = await self._ask(CallToolRequest(params=params))
            match said.get("resultType"):
                case "task":
                    return _state(said)
                case "input_required":
                    raise McpServerError(ASKS)
                case _:
                    return CallToolResult.model_validate(said, by_name=False)
        except (MCPError, ValidationError) as error:
            raise self._error_of(error) from error
        finally:
            detach(token)

    async def task(self, task_id: str) -> RemoteTaskState:
        """Return the task as it is now. Raises Gone, Refused, also of a task that was cancelled or broke."""
        asked = GetTask(params=GetTaskRequestParams(task_id=task_id))
        try:
            said = await self._ask(asked)
            match said.get("status"):
                case "working":
                    return _state(said)
                case "completed":
                    result = CallToolResult.model_validate(said.get("result"), by_name=False)
                    return replace(_state(said), result=result)
                case "input_required":
                    raise McpServerError(ASKS)
                case "failed":
                    error = said.get("error")
                    raise McpServerError(str(error.get("message") if isinstance(error, dict) else error))
                case status:
                    raise McpServerError(f"ended the task of the call: {str(status)[:40]}")
        except (MCPError, ValidationError) as error:
            raise self._error_of(error) from error

    async def cancel(self, task_id: str) -> None:
        """Ask the server to stop a task; whether it does is its decision."""
        asked = CancelTask(params=CancelTaskRequestParams(task_id=task_id))
        with suppress(MCPError, ValidationError):
            await self._ask(asked)

    async def _ask(self, request: Request[Any, Any]) -> Mapping[str, Any]:
        return (await self._session.send_request(request, RawResult)).model_extra or {}

    def _error_of(self, error: MCPError | ValidationError) -> Gone | McpServerError:
        if isinstance(error, ValidationError):
            problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(str(part) for part in problem["loc"])
            return McpServerError(f"sent what the protocol does not allow ({where}: {problem['msg']})")
        is_closed = error.code == CONNECTION_CLOSED and self._wire.ended.is_set()
        if is_closed or (error.code == INVALID_REQUEST and error.message == "Session terminated"):
            return Gone("ended the connection")
        return McpServerError(error.message)


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
        session = ClientSession(
            read,
            write,
            message_handler=heed,
            client_info=identity,
            extensions={TASKS: {}},
            result_claims=CLAIMS,
        )
        await stack.enter_async_context(session)
        connection = Connection(session, wire)
        try:
            await _handshake(session, server.connect_timeout_s / 2)
        except (MCPError, ValidationError) as error:
            raise connection._error_of(error) from error
        await stack.enter_async_context(_subscribed(session))
        wire.is_up = True
        yield connection


async def _handshake(session: ClientSession, patience_s: float) -> None:
    """Try the newer handshake, then the older one: some old servers do not answer unknown requests."""
    try:
        async with asyncio.timeout(patience_s):
            await session.discover()
    except (MCPError, ValidationError, RuntimeError, TimeoutError):
        try:
            await session.initialize()
        except MCPError as error:
            if error.code != UNSUPPORTED_PROTOCOL_VERSION:
                raise
            await session.discover()  # the server was only slow, and speaks the newer protocol


@asynccontextmanager
async def _subscribed(session: ClientSession) -> AsyncIterator[None]:
    """Subscribe to changes of the tools, which newer servers require; they arrive at the message handler."""
    capabilities = session.server_capabilities
    has_news = capabilities is not None and capabilities.tools is not None and capabilities.tools.list_changed
    if not has_news or session.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        yield
        return
    async with AsyncExitStack() as stack:
        # A server that refuses what it offered is accepted: a model sees only approved definitions in any case.
        with suppress(MCPError, SubscriptionLost):
            await stack.enter_async_context(listen(session, tools_list_changed=True))
        yield


def _state(said: Mapping[str, Any]) -> RemoteTaskState:
    """Raises McpServerError for an id that cannot be stored."""
    task_id, wish = said.get("taskId"), said.get("pollIntervalMs")
    if not isinstance(task_id, str) or not 0 < len(task_id) <= TASK_ID_CHARS_MAX or not task_id.isprintable():
        raise McpServerError(f"sent a task without an id of 1 to {TASK_ID_CHARS_MAX} printable characters")
    is_wish = isinstance(wish, int | float) and not isinstance(wish, bool)
    # Bounded before the division, which fails for a huge number; in this order NaN is the longest pause.
    poll_ms = (
        max(1000 * POLL_S_MIN, min(1000 * POLL_S_MAX, wish))
        if is_wish and wish is not None
        else 1000 * POLL_S
    )
    return RemoteTaskState(task_id, poll_ms / 1000)


def _definition(tool: Tool) -> Definition:
    annotations = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else None
    return Definition(tool.name, tool.description or "", tool.input_schema, tool.output_schema, annotations)
