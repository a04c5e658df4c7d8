"""A person at a terminal: replies are printed, each once as long as this process lives.

A thread is a name in front of the words; the person writes in it by naming it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TextIO

REMEMBERED_MAX = 1000  # keys; a repeated send comes right after a restart or a lost answer, never much later


class Terminal:
    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._shown: dict[str, None] = {}

    async def send(self, target: str, body: str, key: str) -> str | None:
        if key in self._shown:
            return key
        try:
            # A terminal can be held with Ctrl-S, and then a write waits.
            await asyncio.to_thread(self._print, _in_thread(target, body))
        except (OSError, ValueError) as error:
            raise ConnectionError(f"the terminal is gone: {error}") from error
        self._shown[key] = None
        if len(self._shown) > REMEMBERED_MAX:
            del self._shown[next(iter(self._shown))]
        return key

    async def open_thread(self, target: str, title: str, key: str) -> str:
        """Nothing is to be made: the name says it all, and the same key gives the same one."""
        del target, title
        return key.rpartition(":")[2]

    def _print(self, body: str) -> None:
        visible = "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in body)
        encoding = self._stream.encoding or "utf-8"
        self._stream.write(visible.encode(encoding, "replace").decode(encoding) + "\n")
        self._stream.flush()


def _in_thread(target: str, body: str) -> str:
    thread = json.loads(target).get("thread") if target.startswith("{") else None
    return body if thread is None else f"[{thread}] {body}"
