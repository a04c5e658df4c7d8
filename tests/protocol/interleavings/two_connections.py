"""Two transactions on two connections of a real PostgreSQL, one statement at a time, in every order.

    a   BEGIN  s1 ─────────── s2 ── (blocked by b) ······ s3  COMMIT
    b   BEGIN        s1  s2 ──────── s3  COMMIT

A `Player` runs one transaction and stops before each statement until it gets a permit; the `Stage` gives the
permits. Whoever waits for a row lock loses its turns until the other has let go; a deadlock is resolved by
the server and the loser starts again, as the store does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import asyncpg

from clutch.core.policy import Policy
from clutch.store.dialect import Dialect, numbered, statement_text
from clutch.store.door import DoorStats, Keys, Listener, Many, Row, Tx
from clutch.store.jobs import Outcome, Spoiled
from clutch.store.postgres_link import BEGIN, BEGIN_READING, Link, PostgresSettings, connect
from clutch.testing.clock import FakeClock
from tests.protocol import invariants
from tests.protocol.emptying import empty
from tests.protocol.world import World

Start: TypeAlias = Callable[[float], Tx[Any]]
Part: TypeAlias = Start | Sequence[Start]
Check: TypeAlias = Callable[["Ended", "Ended"], Awaitable[None]]

_QUICK_DEADLOCKS = "SET deadlock_timeout = '5ms'"


class LinkDoor:
    """The plainest door: one connection, one transaction at a time."""

    def __init__(self, link: Link, clock: FakeClock) -> None:
        self.stats = DoorStats()
        self._link, self._clock = link, clock

    async def tx(self, keys: Keys, fn: Callable[..., Tx[Any]], /, *args: Any, **kwargs: Any) -> Any:
        return await self._run(BEGIN, lambda now: fn(now, *args, **kwargs))

    async def alone(self, fn: Callable[..., Tx[Any]], /, *args: Any, **kwargs: Any) -> Any:
        return await self._run(BEGIN, lambda now: fn(now, *args, **kwargs))

    async def read(self, fn: Callable[..., Tx[Any]], /, *args: Any, **kwargs: Any) -> Any:
        return await self._run(BEGIN_READING, lambda now: fn(now, *args, **kwargs))

    async def together(self, *starts: Start) -> list[Outcome]:
        """As one batch, in lockstep."""
        return await self._link.transact(starts, self._clock.now())

    async def _run(self, begin: str, start: Start) -> Any:
        try:
            (outcome,) = await self._link.transact([start], self._clock.now(), begin)
        except Spoiled as spoiled:
            raise spoiled.cause from spoiled
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def listen(self, callback: Listener) -> None:
        """Nobody listens: stories here look for themselves."""

    async def close(self) -> None:
        await self._link.close()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a player's part ended, and how many statements and commits it took."""

    value: Any
    error: Exception | None
    steps: int
    deadlocks: int


class Player:
    def __init__(self, link: Link, part: Part, now: float) -> None:
        self.link, self._now = link, now
        self._part = [part] if callable(part) else list(part)
        self._permits = asyncio.Semaphore(0)
        self.at_gate = asyncio.Event()
        self.deadlocks = 0
        self._steps = 0
        self.ended: Ended | None = None

    async def run(self) -> None:
        """Its transactions one after the other; how the last one ended, or the first that was refused."""
        value, error = None, None
        for start in self._part:
            if error is None:
                value, error = await self._until_committed(start)
        self.ended = Ended(value, error, self._steps, self.deadlocks)
        self.at_gate.set()

    async def _until_committed(self, start: Start) -> tuple[Any, Exception | None]:
        while True:
            try:
                return await self._transaction(start)
            except asyncpg.DeadlockDetectedError:
                self.deadlocks += 1
                await self.link.raw.execute("ROLLBACK")

    async def _transaction(self, start: Start) -> tuple[Any, Exception | None]:
        await self.link.raw.execute(BEGIN)
        transaction = start(self._now)
        rows: Sequence[Row] | None = None
        while True:
            try:
                sql, parameters = next(transaction) if rows is None else transaction.send(rows)
            except StopIteration as stop:
                await self._gate()
                await self.link.raw.execute("COMMIT")
                return stop.value, None
            except Exception as error:  # noqa: BLE001 - a refusal of the transaction is its outcome
                await self.link.raw.execute("ROLLBACK")
                return None, error
            if sql is None:
                rows = ()
                continue
            await self._gate()
            rows = await self._send(sql, parameters)

    async def _gate(self) -> None:
        self._steps += 1
        self.at_gate.set()
        await self._permits.acquire()

    def admit(self) -> None:
        self.at_gate.clear()
        self._permits.release()

    async def _send(self, sql: str, parameters: Any) -> Sequence[Row]:
        text = numbered(statement_text(sql, Dialect.POSTGRES))
        if type(parameters) is Many:
            await self.link.raw.executemany(text, list(parameters))
            return ()
        return [tuple(record) for record in await self.link.raw.fetch(text, *parameters)]


class Stage:
    """Two connections for the players, one for the story around them, one that watches the locks."""

    def __init__(
        self, links: Sequence[Link], watcher: asyncpg.Connection, clock: FakeClock, policy: Policy
    ) -> None:
        *self._links, story = links
        self._watcher = watcher
        self.clock = clock
        self.door = LinkDoor(story, clock)
        self.world = World(self.door, clock, policy)
        self._tables: list[str] = []

    async def prepare(self) -> None:
        self._tables = await empty(self._watcher)

    async def play(self, first: Part, second: Part, order: str) -> tuple[Ended, Ended]:
        players = [
            Player(link, part, self.clock.now())
            for link, part in zip(self._links, (first, second), strict=True)
        ]
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            for player in players:
                group.create_task(player.run())
                await player.at_gate.wait()
            for turn in order:
                await self._step(players["ab".index(turn)])
            while any(player.ended is None for player in players):
                for player in players:
                    await self._finish(player)
        ended = [player.ended for player in players]
        assert ended[0] is not None
        assert ended[1] is not None
        return ended[0], ended[1]

    async def _step(self, player: Player) -> bool:
        """One statement further. False: it has ended, or waits for the other's lock."""
        if player.ended is not None or not player.at_gate.is_set():
            return False
        player.admit()
        return await self._is_through(player)

    async def _finish(self, player: Player) -> None:
        while await self._step(player):
            pass
        await self._is_through(player)

    async def _is_through(self, player: Player) -> bool:
        pid = player.link.raw.get_server_pid()
        while not player.at_gate.is_set():
            try:
                async with asyncio.timeout(0.002):
                    await player.at_gate.wait()
            except TimeoutError:
                if await self._watcher.fetchval("SELECT cardinality(pg_blocking_pids($1))", pid):
                    return False
        return True

    # ---- every order ---------------------------------------------------------------------------------

    async def every_order(
        self, first: Part, second: Part, check: Check | None = None, *, grid: int = 0
    ) -> int:
        """Play the two in all orders from the same beginning; afterwards everything must make sense.

        Each is interrupted once by the other at every statement; with a `grid` also both by each other, at
        every `grid`-th pair of statements. Returns how many different ends there were: what follows from
        the same rows is looked at once."""
        saved = await self.save()
        a, b = await self.play(first, second, "")
        seen: set[str] = set()
        for order in sorted(set(_orders(a.steps, b.steps, grid))):
            await self.restore(saved)
            try:
                a, b = await self.play(first, second, order)
                end = f"{a.value} {a.error!r} {b.value} {b.error!r} {await self._fingerprint()}"
                if end not in seen:
                    seen.add(end)
                    await self._examine(a, b, check)
            except BaseException as error:
                error.add_note(f"in the order {order!r}")
                raise
        return len(seen)

    async def _examine(self, a: Ended, b: Ended, check: Check | None) -> None:
        await invariants.check(self.world)
        await self.world.mail()
        await invariants.nobody_sleeps_through_mail(self.world)
        if check is not None:
            await check(a, b)
        await self.world.die()
        await self.world.live()
        await invariants.check(self.world)
        await invariants.everything_is_over(self.world)

    async def save(self) -> Saved:
        rows = {table: await self._watcher.fetch(f"SELECT * FROM {table}") for table in self._tables}  # noqa: S608
        return Saved(rows, self.clock.now(), self.world.worker)

    async def restore(self, saved: Saved) -> None:
        self.clock.set(saved.now)
        self.world.worker = saved.worker
        self.world.held.clear()
        async with self._watcher.transaction():
            await self._watcher.execute(";".join(f"DELETE FROM {table}" for table in self._tables))  # noqa: S608
            for table, rows in saved.rows.items():
                if rows:
                    await self._watcher.copy_records_to_table(table, records=[tuple(row) for row in rows])
            # The same story gives the same rows, ids included.
            await self._watcher.execute(";".join(_NEXT_ID.format(table) for table in _NUMBERED))

    async def _fingerprint(self) -> str:
        parts = [f"(SELECT string_agg(t::text, '|' ORDER BY t::text) FROM {table} t)" for table in _TOLD]  # noqa: S608
        return str(await self._watcher.fetchval(f"SELECT md5(concat({', '.join(parts)}))"))


@dataclass(frozen=True, slots=True)
class Saved:
    rows: dict[str, list[asyncpg.Record]]
    now: float
    worker: int


_NEXT_ID = "SELECT setval(pg_get_serial_sequence('{0}', 'id'), 1 + (SELECT COALESCE(MAX(id), 0) FROM {0}))"

_NUMBERED = ("inbox", "outbox", "deliveries")

#: what a story leaves behind
_TOLD = (
    "sessions", "tasks", "runs", "messages", "calls", "inbox", "outbox", "events", "deliveries", "workers",
)  # fmt: skip


def _orders(first: int, second: int, grid: int) -> Iterator[str]:
    for at in range(first + 1):
        yield "a" * at + "b" * second
    for at in range(second + 1):
        yield "b" * at + "a" * first
    if grid:
        for at in range(1, first, grid):
            for also_at in range(1, second, grid):
                yield "a" * at + "b" * also_at + "a" * first
                yield "b" * also_at + "a" * at + "b" * second


@asynccontextmanager
async def open_stage(dsn: str, clock: FakeClock, policy: Policy) -> AsyncIterator[Stage]:
    links = [await connect(dsn, PostgresSettings(idle_in_transaction_s=30)) for _ in range(3)]
    watcher = await asyncpg.connect(dsn)
    try:
        for link in links:
            await link.raw.execute(_QUICK_DEADLOCKS)
        stage = Stage(links, watcher, clock, policy)
        await stage.prepare()
        yield stage
    finally:
        await watcher.close()
        for link in links:
            link.drop()
