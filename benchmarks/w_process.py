"""A process that is talked to in lines: started, told, heard, killed. It never outlives the benchmark."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import IO, Any, Final

_LINE_MAX: Final = 2**20
_ANSWERS_S: Final = 60.0
_ENDS_S: Final = 20.0


class Process:
    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self._name, self._process = name, process
        self.pid = process.pid

    async def line(self, patience_s: float = _ANSWERS_S) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(patience_s):
            text = (await self._process.stdout.readline()).decode().strip()
        if not text:
            raise RuntimeError(f"{self._name} ended with {await self._process.wait()} and said nothing")
        return text

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    async def order(self, line: str, patience_s: float = _ANSWERS_S) -> str:
        """Its answer; then it is done."""
        self.tell(line)
        return await self.line(patience_s)

    async def figures(self, order: str, patience_s: float = _ANSWERS_S) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.order(order, patience_s))
        return found

    async def kill(self) -> None:
        """At once, as the machine would: nothing is closed, nothing is said."""
        self._process.kill()
        await self._process.wait()

    async def end(self) -> None:
        """It ends by itself when nobody can tell it anything any more."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_ENDS_S):
                await self._process.wait()
        except TimeoutError:
            await self.kill()


@asynccontextmanager
async def started(
    module: str,
    *arguments: str,
    python: str = sys.executable,
    environ: Mapping[str, str] | None = None,
    errors: IO[bytes] | None = None,
) -> AsyncIterator[Process]:
    """`errors`: a file for its standard error; else it is ours."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        python, "-m", module, *arguments, stdin=pipe, stdout=pipe, stderr=errors, env=environ, limit=_LINE_MAX
    )
    one = Process(module, process)
    try:
        yield one
    except BaseException:
        if process.returncode is None:
            await one.kill()
        raise
    await one.end()
