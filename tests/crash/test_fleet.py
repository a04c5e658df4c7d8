"""Several gateways on one PostgreSQL, as real processes: restarts of the server, wrong clocks, another version."""

from __future__ import annotations

import asyncio
import contextlib
import io
import subprocess
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from clutch.surfaces.http_client import GatewayClient, connect
from clutch.testing.postgres import PostgresServer, temporary_server
from tests.chaos import story
from tests.chaos.node import ROOT, Node
from tests.chaos.provider import ChaosProvider
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

LOOK_S = 0.1
MINUTES_5 = 300.0

#: A version of Clutch with an older schema. When it starts, it refuses every newer one.
OLDER_COMMIT = "94cfdba"


class DirectNode(Node):
    """A gateway without a link in between."""

    dsn = ""

    def database(self, name: str) -> str:
        del name
        return self.dsn

    async def starts(self) -> bool:
        """Start once, and say whether it is up."""
        return await self._try_start(self.dsn)


class Fleet:
    def __init__(self, folder: Path, server: PostgresServer, dsn: str) -> None:
        self.folder, self.server, self.dsn = folder, server, dsn
        self.provider = ChaosProvider(1)
        self.nodes: list[DirectNode] = []

    async def join(self, shift_s: float = 0.0, source: Path = Node.source) -> DirectNode:
        node = DirectNode(len(self.nodes), self.folder, (), self.provider.server.openai_url)
        node.dsn, node.source = self.dsn, source
        node.set_clock(shift_s)
        self.nodes.append(node)
        await node.start("")
        return node

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(self.dsn)
        try:
            return [tuple(row) for row in await connection.fetch(sql)]
        finally:
            await connection.close()

    async def schema_version(self) -> int:
        ((version,),) = await self.rows("SELECT value FROM meta WHERE name = 'schema_version'")
        return int(version)

    async def spawn(self, client: GatewayClient, numbers: Sequence[int]) -> None:
        for number in numbers:
            body = {"task": story.tree(number), "requester": story.chat_of(number), "notifyParent": True}
            await asyncio.to_thread(client.post, "/v1/tasks", body, key=f"tree {number}")

    async def spawn_until_busy(self, node: DirectNode, number: int) -> int:
        """Give work to this gateway until it calls a model, as others claim work, too. Return the next number."""
        while not self.provider.ledger.open_calls(node.name):
            await self.spawn(connect(node.home), [number])
            number += 1
            await asyncio.sleep(LOOK_S)
        return number

    async def until(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(2 * PATIENCE_S):
            while not await is_so():  # noqa: ASYNC110 - processes of others change it
                await asyncio.sleep(LOOK_S)

    async def until_heartbeat(self, worker: int) -> None:
        """Return when this worker has renewed its lease once more."""
        before = await self.leases()

        async def is_renewed() -> bool:
            return (await self.leases())[worker] > before[worker]

        await self.until(is_renewed)

    async def leases(self) -> dict[int, float]:
        return dict(await self.rows("SELECT id, lease_until FROM workers"))

    async def until_delivered(self) -> None:
        async def is_over() -> bool:
            return not await self.rows(
                "SELECT 1 FROM tasks WHERE phase NOT IN ('completed', 'completed_giveup') UNION ALL"
                " SELECT 1 FROM sessions WHERE owner IS NOT NULL OR (due IS NOT NULL AND closed = 0)"
            )

        await self.until(is_over)

    def answered_twice(self) -> list[str]:
        ledger = self.provider.ledger.by_key
        return [key for key, asked in ledger.items() if sum(one.answered_at is not None for one in asked) > 1]

    async def check_results(self, trees: int) -> None:
        """Every task ended well, and its result was shown to its parent's model once."""
        assert {row[0] for row in await self.rows("SELECT outcome FROM tasks")} == {"ok"}
        told = await self.rows("SELECT delivery FROM tasks WHERE depth = 1")
        assert [row[0] for row in told] == ["delivered"] * trees
        assert self.provider.shown_twice == set()
        marks = (self.folder / "marks").read_text().splitlines()
        labels = [line.split()[0] for line in marks]
        assert len(labels) == len(set(labels)), "a tool that must not run twice ran twice"


@asynccontextmanager
async def fleet_on(folder: Path) -> AsyncIterator[Fleet]:
    server = temporary_server(fsync=False)
    await asyncio.to_thread(server.start)
    fleet = Fleet(folder, server, server.dsn("postgres"))
    try:
        async with fleet.provider.server:
            yield fleet
            await asyncio.gather(*(node.leave() for node in fleet.nodes))
    finally:
        for node in fleet.nodes:
            with contextlib.suppress(ProcessLookupError):
                await node.kill()
        await asyncio.to_thread(server.stop)


def older_source(folder: Path) -> Path:
    """Return the source of Clutch at `OLDER_COMMIT`, from the history of this checkout."""
    git = ("git", "-C", str(ROOT))
    if subprocess.run([*git, "cat-file", "-e", f"{OLDER_COMMIT}^{{commit}}"], check=False).returncode != 0:
        pytest.skip(f"commit {OLDER_COMMIT} is not in this checkout: clone the repository with its history")
    packed = subprocess.run([*git, "archive", OLDER_COMMIT, "src"], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


async def test_no_living_gateway_is_buried_when_the_server_restarts_and_another_one_joins(
    tmp_path: Path,
) -> None:
    """The machines of two of them are five minutes wrong."""
    async with fleet_on(tmp_path) as fleet:
        await fleet.join()
        await asyncio.gather(fleet.join(MINUTES_5), fleet.join(-MINUTES_5))
        before = await fleet.rows("SELECT id FROM workers ORDER BY id")
        await fleet.spawn(connect(fleet.nodes[0].home), range(6))
        for node in fleet.nodes:
            await fleet.provider.ledger.busy(node.name)
        await asyncio.to_thread(fleet.server.restart)
        await fleet.join(MINUTES_5)
        await fleet.until_delivered()
        after = await fleet.rows("SELECT id, ROUND(clock_offset / 300) FROM workers ORDER BY id")
        assert [row[0] for row in after[:3]] == [row[0] for row in before], "all three kept their number"
        assert sorted(row[1] for row in after) == [-1.0, 0.0, 1.0, 1.0]
        await fleet.check_results(6)
        assert fleet.answered_twice() == []


async def test_a_rolling_upgrade_delivers_all_work_once_and_refuses_the_old_version_afterwards(
    tmp_path: Path,
) -> None:
    source = older_source(tmp_path / "older")
    async with fleet_on(tmp_path) as fleet:
        old = await fleet.join(source=source)
        before = await fleet.schema_version()
        assert before == len(list((source / "clutch/store/schema").glob("*.sql")))
        (worker,) = await fleet.leases()
        trees = await fleet.spawn_until_busy(old, 0)
        new = await fleet.join()
        assert await fleet.schema_version() > before, "it migrates while the old one works"
        await fleet.until_heartbeat(worker)
        await fleet.spawn(connect(old.home), [trees])
        trees = await fleet.spawn_until_busy(new, trees + 1)
        trees = await fleet.spawn_until_busy(old, trees)
        await old.leave()
        assert old.exit_code == 0
        await fleet.until_delivered()
        await fleet.check_results(trees)
        assert [node.name for node in fleet.nodes if " ERROR " in node.log.read_text()] == []
        assert not await old.starts()
        assert (
            f"SchemaTooNew: the database has schema version {await fleet.schema_version()}"
            in old.log.read_text()
        )


async def test_a_gateway_stops_while_the_server_is_away(tmp_path: Path) -> None:
    """It has work that it cannot hand over."""
    async with fleet_on(tmp_path) as fleet:
        node = await fleet.join()
        await fleet.spawn(connect(node.home), range(6))
        await fleet.provider.ledger.busy(node.name)
        await asyncio.to_thread(fleet.server.crash)
        await node.leave()
        assert node.exit_code == 0
