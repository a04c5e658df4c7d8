"""Everything that runs in a chaos run: gateways, their links, a primary and its standby, the provider."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import asyncpg

from clutch.testing.postgres import PostgresServer
from tests.chaos.disk import Disk
from tests.chaos.link import Link
from tests.chaos.node import Node
from tests.chaos.plan import FaultKind
from tests.chaos.provider import ChaosProvider

DATABASE: Final = "clutch"
OUR_NAME: Final = "chaos"  #: of the connections of the run itself, which no fault ends
CONNECT_S: Final = 5.0
ANSWER_S: Final = 20.0
#: What a question to a database that is away raises; also TimeoutError.
TROUBLE: Final = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
#: So that the log of a busy server does not fill a small disk by itself. The standby gets the same settings.
SMALL_LOG: Final = (
    "ALTER SYSTEM SET max_wal_size = '64MB'",
    "ALTER SYSTEM SET min_wal_size = '32MB'",
    "ALTER SYSTEM SET wal_keep_size = '64MB'",
    "SELECT pg_reload_conf()",
)


@dataclass(slots=True)
class Disturbance:
    """A fault that was made. `node` None: it concerns all gateways. `until` None: it lasts."""

    kind: FaultKind
    node: str | None
    since: float
    until: float | None = None
    note: str = ""


class Fleet:
    def __init__(self, folder: Path, seed: int, nodes: int) -> None:
        self.folder = folder
        self.provider = ChaosProvider(seed)
        self.began_at = time.time()
        self.disturbances: list[Disturbance] = []
        self.counts: Counter[FaultKind] = Counter()
        self.disks: list[Disk] = []
        self.nodes: list[Node] = []
        self.interrupted: list[tuple[str, float]] = []  #: calls in flight at a kill, and when it was
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._asking = asyncio.Lock()
        self._size = nodes
        self._links: list[Link] = []
        self._timeline = folder / "timeline.txt"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            async with self.provider.server:
                await self._open()
                yield
                await asyncio.gather(*(node.leave() for node in self.nodes))
        finally:
            await self._close()

    async def _open(self) -> None:
        self.disks = [Disk(self.folder / name) for name in ("a", "b")]
        self.primary = PostgresServer(self.disks[0].directory, fsync=False)
        await asyncio.to_thread(self.primary.start)
        await asyncio.to_thread(self.primary.execute, *SMALL_LOG, f"CREATE DATABASE {DATABASE}")
        self.standby = await asyncio.to_thread(self.primary.standby, self.disks[1].directory)
        await asyncio.to_thread(self.standby.start)
        for number in range(self._size):
            links = [Link(server.directory) for server in (self.primary, self.standby)]
            for link in links:
                await link.open()
            self._links += links
            self.nodes.append(Node(number, self.folder, links, self.provider.server.openai_url))
        # The first migrates; of the others none has to wait for it.
        await self.nodes[0].start(DATABASE)
        await asyncio.gather(*(node.start(DATABASE) for node in self.nodes[1:]))

    async def _close(self) -> None:
        self._hang_up()
        for node in self.nodes:
            with contextlib.suppress(ProcessLookupError):
                await node.kill()
        for link in self._links:
            link.close()
        for name in ("standby", "primary"):
            if (server := getattr(self, name, None)) is not None:
                await asyncio.to_thread(server.stop)
        for disk in self.disks:
            disk.close()

    async def connect(self) -> asyncpg.Connection[asyncpg.Record]:
        """To the primary, past the links. Raises what the driver raises."""
        return await asyncpg.connect(
            self.primary.dsn(DATABASE), timeout=CONNECT_S, server_settings={"application_name": OUR_NAME}
        )

    async def rows(self, sql: str, *values: object) -> Sequence[Sequence[Any]]:
        """Ask the primary, on one connection that is made again after an error. Raises one of `TROUBLE`."""
        async with self._asking:
            if self._connection is None:
                self._connection = await self.connect()
            try:
                return [tuple(row) for row in await self._connection.fetch(sql, *values, timeout=ANSWER_S)]
            except TROUBLE:
                self._hang_up()
                raise

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    def interrupt(self, node: Node) -> None:
        """Note what the gateway asks now: its process is about to be killed."""
        now = time.time()
        self.interrupted += [(key, now) for key in self.provider.ledger.open_calls(node.name)]

    def disk_of(self, server: PostgresServer) -> Disk:
        return next(disk for disk in self.disks if disk.directory.resolve() == server.directory)

    def changed_primary(self) -> None:
        """The standby is the primary now. Gateways know the addresses of both."""
        self._hang_up()
        self.primary, self.standby = self.standby, self.primary

    @asynccontextmanager
    async def disturbed(self, kind: FaultKind, node: Node | None, note: str) -> AsyncIterator[Disturbance]:
        one = Disturbance(kind, None if node is None else node.name, time.time(), note=note)
        self.disturbances.append(one)
        self.counts[kind] += 1
        self.say(f"{kind} {one.node or ''} {note}".rstrip())
        try:
            yield one
        finally:
            one.until = time.time()
            self.say(f"{kind} {one.node or ''} is over".replace("  ", " "))

    def say(self, what: str) -> None:
        line = f"{time.time() - self.began_at:7.2f} {what}"
        print(line, file=sys.stderr, flush=True)
        with self._timeline.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
