"""What was approved: each tool's definition and hash, in one small private file.

All tools of a server that was never seen before are pinned as they are: a person has just named the server.
After that, a tool that changed and a tool that is new both wait for approval: a server that adds
`send_everything` next week is the same trick as one that rewrites `search`. The whole definition is kept,
so that a model is shown the approved words only, and a person what changed.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clutch.errors import InvalidInput
from clutch.tools.mcp.naming import Definition

SCHEMA = "clutch.mcp-pins/1"

_Pinned = dict[str, dict[str, Definition]]


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool that waits for a person: new, or no longer what was approved. `before` None = new."""

    server: str
    tool: str
    hash: str
    before: Definition | None
    after: Definition


class Pins:
    """Raises InvalidInput for a file that is not one of ours: guessing would approve everything anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pinned = _read(path)
        self._writing = asyncio.Lock()

    def knows(self, server: str) -> bool:
        return server in self._pinned

    def tools(self, server: str) -> Mapping[str, Definition]:
        return self._pinned.get(server, {})

    async def see(self, server: str, tools: Iterable[Definition]) -> None:
        """Pins everything a server has when it is seen for the first time."""
        async with self._writing:
            if server not in self._pinned:
                await self._write({**self._pinned, server: {tool.name: tool for tool in tools}})

    async def approve(self, server: str, tool: Definition) -> None:
        async with self._writing:
            await self._write({**self._pinned, server: {**self.tools(server), tool.name: tool}})

    async def forget(self, server: str) -> None:
        async with self._writing:
            await self._write({name: tools for name, tools in self._pinned.items() if name != server})

    async def _write(self, pinned: _Pinned) -> None:
        """On the disk first: what is used is never more than what is remembered."""
        writing = asyncio.ensure_future(asyncio.to_thread(_replace, self._path, _text(pinned)))
        try:
            await asyncio.shield(writing)
        finally:
            if not writing.done():  # cancelled; the thread cannot be, and the next writer must come after it
                await asyncio.wait([writing])
            if not writing.cancelled() and writing.exception() is None:
                self._pinned = pinned


def _text(pinned: _Pinned) -> str:
    servers = {
        server: {name: {"hash": tool.hash(), **tool.as_json()} for name, tool in tools.items()}
        for server, tools in pinned.items()
    }
    return json.dumps({"schema": SCHEMA, "servers": servers}, indent=1, sort_keys=True)


def _replace(path: Path, text: str) -> None:
    """One writer: the owner of the state directory. Readers see the old file or the new one, never half."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    draft.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _read(path: Path) -> _Pinned:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(data["schema"])
        return {server: dict(map(_tool, tools.values())) for server, tools in data["servers"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidInput(
            str(path),
            "cannot be read as the list of approved MCP tools; restore it from a backup, or delete it to have "
            "every tool approved as it is now",
        ) from error


def _tool(data: Mapping[str, Any]) -> tuple[str, Definition]:
    tool = Definition.from_json(data)
    if tool.hash() != data["hash"]:
        raise ValueError(f"the hash of {tool.name!r} is not that of its definition")
    return tool.name, tool
