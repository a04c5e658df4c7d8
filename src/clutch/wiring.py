"""The one place that chooses adapters and starts them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from clutch.core.policy import Policy
from clutch.engine.bus import Bus
from clutch.engine.dispatcher import Worker
from clutch.engine.ids import BlockIds
from clutch.engine.turn import Kit
from clutch.models.offline import OfflineModel
from clutch.ports import Clock, Lives, Models, Toolbox
from clutch.store.door import Door
from clutch.store.sqlite import SqliteStore
from clutch.store.state_directory import StateDirectory
from clutch.tools.box import standard_tools

DATABASE_FILE = "clutch.db"


class SystemClock:
    def now(self) -> float:
        return time.time()


@dataclass(frozen=True, slots=True)
class Engine:
    """A running worker and the door to its store."""

    door: Door
    kit: Kit
    worker: Worker
    clock: Clock


def default_state_directory() -> Path:
    """`$CLUTCH_HOME`, else `$XDG_STATE_HOME/clutch`, else `~/.local/state/clutch`."""
    if home := os.environ.get("CLUTCH_HOME"):
        return Path(home)
    state = os.environ.get("XDG_STATE_HOME")
    return Path(state) / "clutch" if state else Path.home() / ".local" / "state" / "clutch"


@asynccontextmanager
async def running_engine(
    *,
    state: Path | None = None,
    database: str | None = None,
    policy: Policy | None = None,
    models: Models | None = None,
    toolbox: Toolbox | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Engine]:
    """SQLite in the state directory, owned by this process alone; or a PostgreSQL shared by many."""
    clock = clock or SystemClock()
    policy = policy or Policy()
    async with AsyncExitStack() as stack:
        door, lives = await _open_store(stack, state, database, clock, policy)
        kit = Kit(
            door=door,
            models=models or OfflineModel(),
            toolbox=toolbox or standard_tools(policy.limits),
            policy=policy,
            ids=BlockIds(),
            bus=Bus(),
            lives=lives,
        )
        worker = Worker(kit, clock, has_leases=database is not None)
        async with asyncio.TaskGroup() as group:
            group.create_task(worker.run())
            await worker.ready.wait()
            try:
                yield Engine(door, kit, worker, clock)
            finally:
                await worker.stop()


async def _open_store(
    stack: AsyncExitStack, state: Path | None, database: str | None, clock: Clock, policy: Policy
) -> tuple[Door, Lives | None]:
    if database is not None:
        from clutch.store.postgres import PostgresStore  # an optional dependency
        from clutch.store.postgres_link import PostgresSettings

        # A worker frozen inside a transaction must have lost its row locks before others take over.
        settings = PostgresSettings(idle_in_transaction_s=0.8 * policy.work.lease_s)
        store = await stack.enter_async_context(PostgresStore(database, clock, settings=settings))
        return store, store.lives
    directory = stack.enter_context(StateDirectory(state or default_state_directory()))
    return await stack.enter_async_context(SqliteStore(directory.path / DATABASE_FILE, clock)), None
