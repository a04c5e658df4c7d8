"""Where things are kept: SQLite in the state directory, owned by this process alone; or a PostgreSQL shared by many."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from clutch.core.policy import Policy
from clutch.core.shown import typed
from clutch.errors import StateDirectoryInUse
from clutch.looking import DATABASE_FILE
from clutch.ports import Clock, Lives
from clutch.store.door import Door
from clutch.store.sqlite import SqliteStore
from clutch.store.state_directory import StateDirectory, private
from clutch.surfaces import address
from clutch.surfaces.address import default_state_directory


class SystemClock:
    def now(self) -> float:
        return time.time()


def home_of(state: Path | str | None) -> Path:
    return default_state_directory() if state is None else Path(state)


async def open_store(
    stack: AsyncExitStack, home: Path, database: str | None, clock: Clock, policy: Policy
) -> tuple[Door, Lives | None]:
    if database is not None:
        from clutch.store.postgres import PostgresStore  # an optional dependency
        from clutch.store.postgres_link import PostgresSettings

        # A worker frozen inside a transaction must have lost its row locks before others take over.
        within_lease = 0.8 * policy.work.lease_s
        settings = PostgresSettings(idle_in_transaction_s=within_lease, transaction_s=within_lease)
        store = await stack.enter_async_context(PostgresStore(database, clock, settings=settings))
        return store, store.lives
    try:
        directory = stack.enter_context(StateDirectory(home))
    except StateDirectoryInUse as error:
        raise _owned_by(home, error) from error
    return await stack.enter_async_context(SqliteStore(directory.path / DATABASE_FILE, clock)), None


def _owned_by(home: Path, error: StateDirectoryInUse) -> StateDirectoryInUse:
    """Whoever owns it can be asked to do what this process wanted."""
    found = address.find(home)
    if found is None:
        return error
    remedy = typed("ps", state=address.named_state(home))
    return StateDirectoryInUse(
        f"{home} is owned by the gateway at {found.url} (pid {found.pid}); talk to it with "
        f"`{remedy}`, stop it, or use another state directory",
        remedy,
    )


@asynccontextmanager
async def opened_store(state: Path | str | None = None, database: str | None = None) -> AsyncIterator[Door]:
    """The store alone, with nobody at work. On SQLite this process owns it for as long."""
    async with AsyncExitStack() as stack:
        yield (await open_store(stack, home_of(state), database, SystemClock(), Policy()))[0]


def place_of(home: Path, what: str, database: str | None) -> Path:
    """Numbers of tasks are a database's own; what two databases call 17 must not be one directory."""
    if database is None:
        return home / what
    parts = urlsplit(database)
    place = f"{parts.hostname}:{parts.port}{parts.path}?{parts.query}"
    return home / what / hashlib.sha256(place.encode()).hexdigest()[:16]


def make_private(state: Path) -> None:
    """For whoever mends it. Raises UnsafeStateDirectory: a folder that is not ours is not ours to change."""
    with private(state):
        pass
