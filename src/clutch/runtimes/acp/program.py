"""The process of an external agent: messages as lines over its stdin and stdout, everything else kept small.

A line has a limit, noise is counted and dropped, the end of stderr is kept. Nothing it has started outlives it, and
it does not outlive us: see `leash`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from clutch.ports import Launch
from clutch.runtimes.acp import leash

LINE_BYTES_MAX = 8 * 1024 * 1024
NOISE_LINES_MAX = 1000  # in a row: whoever prints so much does not speak our language
CHUNK = 64 * 1024
NOISE_KEPT = 200
STDERR_KEPT = 64 * 1024
LEASH_S = 2.0  # until the leash has ended all; then the group is killed from here
LAST_WORDS_S = 0.3  # a crash closes stdout a moment before its exit code and its last words are there


class Program:
    """A transport of the ACP library. `last_words`: the end of what it printed for people."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._errors = bytearray()
        self.noise = ""
        self._listening = asyncio.create_task(self._listen())

    @property
    def last_words(self) -> str:
        return self._errors.decode("utf-8", "replace").strip()

    async def exit_code(self) -> int | None:
        """Of one that has closed its stdout; None if it still runs."""
        await asyncio.wait([self._listening], timeout=LAST_WORDS_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._process.wait()
        return self._process.returncode

    # ---- the transport -------------------------------------------------------------------------------

    async def send(self, message: dict[str, Any]) -> None:
        try:
            self._stdin.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
            await self._stdin.drain()
        except OSError as error:
            raise ConnectionError("it does not read any more") from error

    async def receive(self) -> dict[str, Any] | None:
        for _ in range(NOISE_LINES_MAX):
            line = b"(a line that is too long)"
            with suppress(ValueError):
                line = await self._stdout.readline()
                if not line:
                    return None
                message = json.loads(line)
                if isinstance(message, dict):
                    return message
            self.noise = self.noise or line[:NOISE_KEPT].decode("utf-8", "replace").strip()
        return None

    async def close(self) -> None:
        self._stdin.close()

    async def _listen(self) -> None:
        while data := await self._stderr.read(CHUNK):
            self._errors += data
            del self._errors[:-STDERR_KEPT]

    async def end(self) -> None:
        """After the leash was let go."""
        self._stdin.close()
        if not await self._ended():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._ended()
        self._listening.cancel()

    async def _ended(self) -> bool:
        """Read to the end, because a full pipe would keep asyncio from noticing the end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LEASH_S):
                while await self._stdout.read(CHUNK):
                    pass
                await self._process.wait()
        return self._process.returncode is not None


@asynccontextmanager
async def running(launch: Launch) -> AsyncIterator[Program]:
    """Raises OSError when it cannot be started."""
    line, held = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", leash.__file__, str(line), *launch.argv),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=launch.cwd,
            env=dict(launch.env),
            pass_fds=(line, *launch.kept),
            start_new_session=True,
            limit=LINE_BYTES_MAX,
        )
        try:
            program = Program(process)
            yield program
        finally:
            os.close(held)
            held = -1
            await asyncio.shield(program.end())
    finally:
        os.close(line)
        if held >= 0:
            os.close(held)
