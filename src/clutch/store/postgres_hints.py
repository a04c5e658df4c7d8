"""Hints between processes on PostgreSQL: NOTIFY after the commit, LISTEN, both on one connection of its own.

Inside the write transaction a NOTIFY costs throughput (its commit takes a lock of the whole database). A hint
may be lost with the process or the connection; whoever needs certainty looks at the tables. After a gap the
listeners are told to LOOK.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from clutch.errors import StoreError
from clutch.store.door import LOOK
from clutch.store.postgres_link import TROUBLE, Link

_CHANNEL: Final = "clutch_hints"

#: NOTIFY takes less than 8,000 bytes.
_PAYLOAD_BYTES_MAX: Final = 7900

#: How often a quiet connection is asked whether it still lives.
_PING_S: Final = 15.0


#: Between tries to reach the server, on top of the patience of each.
_PAUSE_S: Final = 1.0


class HintExchange:
    def __init__(
        self, connect: Callable[[], Awaitable[Link]], heard: Callable[[Sequence[Any]], None]
    ) -> None:
        self._connect = connect
        self._heard = heard
        self._outgoing: dict[Any, None] = {}
        self._changed = asyncio.Event()
        self._is_closing = False
        self._has_gap = False

    def tell(self, hints: Sequence[Any]) -> None:
        """Hints of batches that come faster than the connection carries them travel together."""
        self._outgoing.update(dict.fromkeys(hints))
        self._changed.set()

    def close(self) -> None:
        """`run` returns when everything is told."""
        self._is_closing = True
        self._changed.set()

    async def run(self, listening: asyncio.Event) -> None:
        """Until closed. Sets `listening` whenever others can be heard."""
        while not self._is_closing:
            try:
                link = await self._connect()
            except StoreError:
                await asyncio.sleep(_PAUSE_S)
                continue
            try:
                await self._exchange(link, listening)
            except TROUBLE:
                link.drop()
            finally:
                self._has_gap = True
                await link.close()

    async def _exchange(self, link: Link, listening: asyncio.Event) -> None:
        # Without it a broken connection would be noticed only by the next ping.
        link.raw.add_termination_listener(lambda _: self._changed.set())
        await link.raw.add_listener(_CHANNEL, self._receive)
        listening.set()
        if self._has_gap:
            self._heard([LOOK])
        while not link.raw.is_closed():
            while self._outgoing:
                await self._send(link)
            if self._is_closing:
                return
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), _PING_S)
            except TimeoutError:
                await link.raw.execute("SELECT 1")

    async def _send(self, link: Link) -> None:
        hints, self._outgoing = list(self._outgoing), {}
        await link.raw.execute("SELECT pg_notify($1, $2)", _CHANNEL, _payload(hints))

    def _receive(self, connection: Any, sender: int, channel: str, payload: str) -> None:
        del channel
        if sender != connection.get_server_pid():
            self._heard([_hint(item) for item in json.loads(payload)])


def _payload(hints: Sequence[Any]) -> str:
    payload = json.dumps(hints, separators=(",", ":"))
    return payload if len(payload) <= _PAYLOAD_BYTES_MAX else json.dumps([LOOK])


def _hint(item: Any) -> Any:
    """JSON has no tuples; hints are."""
    return tuple(item) if isinstance(item, list) else item
