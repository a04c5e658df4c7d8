"""A server as a process of ours: messages as lines over its stdin and stdout.

The library's own transport reads lines of any length and leaves the process group alone when the first
process ends by itself. Here a line has a limit, a too long answer fails its own call only, noise is counted
and dropped, the end of stderr is kept, and nothing of the group outlives the connection.

Not caught: a process that leaves its group (a daemon). That needs the sandbox."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from clutch.contain import BackgroundTasks
from clutch.ports import Launch
from clutch.tools.mcp.definitions import Wire

LINE_BYTES_MAX = 8 * 1024 * 1024
MESSAGES_WAITING_MAX = 256  # a server that stops reading must not hold up a cancellation
STOP_GRACE_S = 1.0
_CHUNK = 64 * 1024
_LAST_WORDS_S = 0.3

_ID_FIRST = re.compile(rb'^\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d+)')
_ID_LAST = re.compile(rb'"id"\s*:\s*(\d+)\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')

Incoming = MemoryObjectSendStream[SessionMessage | Exception]
Outgoing = MemoryObjectReceiveStream[SessionMessage]
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


class _Protocol(SubprocessStreamProtocol):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=_CHUNK, loop=loop)
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


class _Process(Process):
    """`wait` would also wait for the pipes, which a grandchild may hold open; `exited` does not."""

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
    # A crash closes stdout a moment before its exit code and its last words are there.
    await asyncio.wait([listening], timeout=_LAST_WORDS_S)
    await _exited(process, _LAST_WORDS_S)
    wire.exit_code = process.returncode
    wire.ended.set()
    incoming.close()


async def _lines(stdout: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Lines up to the limit; of a longer one its two ends, which is where the id stands."""
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
            pieces[1:-2] = [b"\0"]  # not JSON any more, whatever was cut out


def _parsed(line: bytes, wire: Wire) -> SessionMessage | None:
    if not line.strip():
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        found = (_ID_FIRST.search(line) or _ID_LAST.search(line[-200:])) if b"\0" in line else None
        if found is None:
            wire.heard_noise(line)
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
            return  # it is dead or dying; the reader sees the end


async def _listen(process: _Process, wire: Wire) -> None:
    assert process.stderr is not None
    while data := await process.stderr.read(_CHUNK):
        wire.heard(data)


async def _stop(process: _Process, wire: Wire) -> None:
    """Asked first (end of stdin), then told; one that never answered a handshake is not asked."""
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
