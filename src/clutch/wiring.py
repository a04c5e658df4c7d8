"""The one place that chooses adapters and starts them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from clutch.core.policy import Policy
from clutch.engine.bus import Bus
from clutch.engine.courier import Courier
from clutch.engine.dispatcher import Worker
from clutch.engine.ids import BlockIds
from clutch.engine.kit import Kit
from clutch.gateway.api import Gateway
from clutch.models.evidence import findings_of as findings_of
from clutch.models.offline import OfflineModel, watchable_latency
from clutch.ports import Channel, Clock, Lives, ModelRequest, Models, Toolbox
from clutch.store.door import Door, Tx
from clutch.store.sqlite import SqliteStore
from clutch.store.sqlite_connection import SqliteConnection
from clutch.store.state_directory import StateDirectory
from clutch.tools.box import standard_tools

DATABASE_FILE = "clutch.db"
NO_CHANNELS: Mapping[str, Channel] = MappingProxyType({})


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
    state: Path | str | None = None,
    database: str | None = None,
    policy: Policy | None = None,
    models: Models | None = None,
    toolbox: Toolbox | None = None,
    channels: Mapping[str, Channel] = NO_CHANNELS,
    clock: Clock | None = None,
) -> AsyncIterator[Engine]:
    """SQLite in the state directory, owned by this process alone; or a PostgreSQL shared by many.

    `channels` by the name that routes begin with; what is meant for another one waits in the outbox."""
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
            couriers = [Courier(worker, name, channel) for name, channel in channels.items()]
            for courier in couriers:
                courier.start(group)
            try:
                yield Engine(door, kit, worker, clock)
            finally:
                for courier in couriers:
                    await courier.stop()
                await worker.stop()


async def _open_store(
    stack: AsyncExitStack, state: Path | str | None, database: str | None, clock: Clock, policy: Policy
) -> tuple[Door, Lives | None]:
    if database is not None:
        from clutch.store.postgres import PostgresStore  # an optional dependency
        from clutch.store.postgres_link import PostgresSettings

        # A worker frozen inside a transaction must have lost its row locks before others take over.
        within_lease = 0.8 * policy.work.lease_s
        settings = PostgresSettings(idle_in_transaction_s=within_lease, transaction_s=within_lease)
        store = await stack.enter_async_context(PostgresStore(database, clock, settings=settings))
        return store, store.lives
    directory = stack.enter_context(StateDirectory(default_state_directory() if state is None else state))
    return await stack.enter_async_context(SqliteStore(directory.path / DATABASE_FILE, clock)), None


class Clutch(Gateway):
    """Clutch inside your own program; the work goes on where it was when the program starts again.

    Without `state` the directory of `default_state_directory`; `database` names a PostgreSQL instead.
    `workspace` is where the file tools of new sessions work. Without `models`, the scripted offline one."""

    def __init__(
        self,
        *,
        state: Path | str | None = None,
        database: str | None = None,
        policy: Policy | None = None,
        models: Models | None = None,
        tools: Toolbox | None = None,
        channels: Mapping[str, Channel] = NO_CHANNELS,
        workspace: Path | str = ".",
    ) -> None:
        opening = running_engine(
            state=state,
            database=database,
            policy=policy,
            models=models,
            toolbox=tools,
            channels=channels,
        )
        super().__init__(opening, workspace)


def offline_model(latency: Callable[[ModelRequest], float] = watchable_latency) -> Models:
    """A script, not an LLM. `latency`: seconds each call takes."""
    return OfflineModel(latency)


def standard_toolbox(policy: Policy) -> Toolbox:
    return standard_tools(policy.limits)


@contextmanager
def looking_at(state: Path) -> Iterator[Callable[..., Any]]:
    """Read beside whoever owns the state directory: `look(fn, *args)` runs a transaction that only reads."""
    connection = SqliteConnection(str(state / DATABASE_FILE), read_only=True)

    def look(fn: Callable[..., Tx[Any]], *args: Any) -> Any:
        outcome = connection.look(lambda now: fn(now, *args), time.time())
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    try:
        yield look
    finally:
        connection.close()
