"""Settings for the test servers, and a place to start the one that speaks HTTP."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from clutch.ports import ToolContext
from clutch.tools.mcp import McpServer

HERE = Path(__file__).parent
CONTEXT = ToolContext("/nowhere", "agent:main:main", "agent:main:main/1/2")


def everything(name: str, marks: Path, **more: Any) -> McpServer:
    env = {"MARKS": str(marks), **more.pop("env", {})}
    return _process(name, "everything.py", "stdio", env=env, connect_timeout_s=60.0, **more)


def rude(name: str, mode: str, *, tools: list[dict[str, Any]] | None = None, **more: Any) -> McpServer:
    env = {"TOOLS": json.dumps(tools), **more.pop("env", {})}
    return _process(name, "rude.py", mode, env=env, **more)


def _process(name: str, file: str, mode: str, **more: Any) -> McpServer:
    args = (str(HERE / file), mode)
    return McpServer(name=name, command=sys.executable, args=args, sandbox=False, **more)


async def eventually(is_so: Callable[[], object]) -> None:
    """Another process cannot wake us, so it is asked again and again."""
    for _ in range(2000):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to pass")


@contextmanager
def http_server(marks: Path, *more: str, port: int = 0) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of a running server and its process."""
    command = [sys.executable, str(HERE / "everything.py"), "http", str(port), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"MARKS": str(marks)}) as process:
        assert process.stdout is not None
        try:
            bound = process.stdout.readline().strip()
            yield f"http://127.0.0.1:{bound}/mcp", process
        finally:
            process.kill()


async def cancel_one_of_two(said: Callable[..., Coroutine[Any, Any, str]], marks: Path) -> None:
    """Whichever way the server is reached: it hears of it, and whatever else runs there goes on."""
    other = asyncio.create_task(said("slow", mark="other", seconds=1.0))
    call = asyncio.create_task(said("slow", mark="cut"))
    await eventually((marks / "cut.began").exists)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await eventually((marks / "cut.cancelled").exists)
    assert await other == "done"
    assert await said("echo", text="still here") == "still here"
