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
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import asyncpg

from clutch.core.policy import Policy
from clutch.store.dialect import Dialect, numbered, statement_text
from clutch.store.postgres_address import parse_address
from clutch.store.postgres_connection import BEGIN, BEGIN_READING, Link, PostgresSettings, connect
from clutch.store.transaction import (
    DatabaseStats,
    Keys,
    Listener,
    ManyRows,
    Row,
    Spoiled,
    TransactionOutcome,
    Tx,
)
from clutch.testing.clock import FakeClock
from tests.examples import IS_FULL
from tests.patience import PATIENCE_S
from tests.transactions import invariants
from tests.transactions.emptying import empty
from tests.transactions.world import World

Start: TypeAlias = Callable[[float], Tx[Any]]
Part: TypeAlias = Start | Sequence[Start]
Check: TypeAlias = Callable[["Ended", "Ended"], Awaitable[None]]

_BLOCKED_S = 0.001  # a statement that takes longer may be waiting for a lock, so look
_QUICK_DEADLOCKS = "SET deadlock_timeout = '5ms'"


class LinkDatabase:
    """The plainest database: one connection, one transaction at a time."""

    def __init__(self, link: Link, clock: FakeClock) -> None:
        self.stats = DatabaseStats()
        self._link, self._clock = link, clock

    async def tx(self, keys: Keys, fn: Callable[..., Tx[Any]], /, *args: Any, **kwargs: Any) -> Any:
        return await self._run(BEGIN, lambda now: fn(now, *args, **kwargs))

    async def alone(self, fn: Callable[..., Tx[Any]], /, *args: Any, **kwargs: Any) -> Any:
        return await self._run(BEGIN, lambda now: fn(now, *args, **kwargs))

    async def read(self, fn: Callable[..., Tx[Any]], /, *args: Any, **kwargs: Any) -> Any:
        return await self._run(BEGIN_READING, lambda now: fn(now, *args, **kwargs))

    async def urgent(self, fn: Callable[..., Tx[Any]], /, *args: Any, **kwargs: Any) -> Any:
        return await self.tx((), fn, *args, **kwargs)

    is_hearing = False

    async def together(self, *starts: Start) -> list[TransactionOutcome]:
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
    """How a player's part ended."""

    value: Any
    error: Exception | None


@dataclass(frozen=True, slots=True)
class Order:
    """The leader takes so many steps, then the other so many; then the leader goes on to its end."""

    leader: int
    before: int
    between: int

    def after(self, played: Played, stride: int) -> Order:
        """The next one; after the leader's last step there is none."""
        if played.interrupted:
            return replace(self, between=self.between + stride)
        return replace(self, before=self.before + 1, between=1)


@dataclass(frozen=True, slots=True)
class Played:
    first: Ended
    second: Ended
    led: bool  #: the leader took all its steps, and has more
    interrupted: bool  #: so did the other


class Player:
    def __init__(self, link: Link, part: Part, now: float) -> None:
        self.link, self._now = link, now
        self._part = [part] if callable(part) else list(part)
        self._permits = asyncio.Semaphore(0)
        self.at_gate = asyncio.Event()
        self.transactions = 0  #: that have ended, and with them their locks
        self.ended: Ended | None = None

    async def run(self) -> None:
        """Its transactions one after the other; how the last one ended, or the first that was refused."""
        value, error = None, None
        for start in self._part:
            if error is None:
                value, error = await self._until_committed(start)
                self.transactions += 1
        self.ended = Ended(value, error)
        self.at_gate.set()

    async def _until_committed(self, start: Start) -> tuple[Any, Exception | None]:
        while True:
            try:
                return await self._transaction(start)
            except asyncpg.DeadlockDetectedError:
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
        self.at_gate.set()
        await self._permits.acquire()

    def admit(self) -> None:
        self.at_gate.clear()
        self._permits.release()

    async def _send(self, sql: str, parameters: Any) -> Sequence[Row]:
        text = numbered(statement_text(sql, Dialect.POSTGRES))
        if type(parameters) is ManyRows:
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
        self.db = LinkDatabase(story, clock)
        self.world = World(self.db, clock, policy)
        self._tables: list[str] = []
        self.orders = 0  #: played
        # With a stride, an interruption still comes after every statement of the leader, and the longest of them
        # goes to the end of the other; lengths between are left to `make trust`.
        self.stride = 1 if IS_FULL else 5

    async def prepare(self) -> None:
        self._tables = await empty(self._watcher)
        await self._watcher.execute(_wardrobe(self._tables))

    async def play(self, first: Part, second: Part, order: Order) -> Played:
        """Along the order as far as it goes, then whoever came first to the end, then the other."""
        a, b = (
            Player(link, part, self.clock.now())
            for link, part in zip(self._links, (first, second), strict=True)
        )
        leader, other = (a, b) if order.leader == 0 else (b, a)
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            for player in (a, b):
                group.create_task(player.run())
                await player.at_gate.wait()
            led = await self._steps(leader, other, order.before)
            interrupted = await self._steps(other, leader, order.between)
            while leader.ended is None or other.ended is None:
                await self._finish(leader, other)
                await self._finish(other, leader)
        assert a.ended is not None
        assert b.ended is not None
        return Played(a.ended, b.ended, led, interrupted)

    async def _steps(self, player: Player, other: Player, count: int) -> bool:
        """False: it could not take them all, or has ended with the last of them."""
        taken = [await self._step(player, other) for _ in range(count)]
        return all(taken) and player.ended is None

    async def _step(self, player: Player, other: Player) -> bool:
        """One statement further. False: it has ended, or waits for the other's lock."""
        if player.ended is not None or not player.at_gate.is_set():
            return False
        before = player.transactions
        player.admit()
        is_through = await self._is_through(player)
        if player.transactions > before and other.ended is None:
            await self._is_through(
                other
            )  # whoever waited for these locks goes on now, and not some time later
        return is_through

    async def _finish(self, player: Player, other: Player) -> None:
        while await self._step(player, other):
            pass
        await self._is_through(player)

    async def _is_through(self, player: Player) -> bool:
        pid = player.link.raw.get_server_pid()
        while not player.at_gate.is_set():
            try:
                async with asyncio.timeout(_BLOCKED_S):
                    await player.at_gate.wait()
            except TimeoutError:
                if await self._watcher.fetchval("SELECT cardinality(pg_blocking_pids($1))", pid):
                    return False
        return True

    # ---- every order ---------------------------------------------------------------------------------

    async def every_order(self, first: Part, second: Part, check: Check | None = None) -> int:
        """Play the two in all orders, or one in `stride`, from the same beginning, and check what each leads to.

        Either comes first; after every statement the other interrupts it, for every number of statements, and
        is interrupted in turn. Whoever has ended or waits for a lock cannot go on, so an order that asks for it
        is one that was played. Returns how many different ends there were: what follows from the same rows is
        looked at once."""
        saved = await self.save()
        seen: set[str] = set()
        for leader in (0, 1):
            order, played = Order(leader, 1, 1), None
            while played is None or played.led:
                await self.restore(saved)
                with _noted(order):
                    played = await self.play(first, second, order)
                    await self._examine_new(played, seen, check)
                order = order.after(played, self.stride)
                self.orders += 1
        return len(seen)

    async def _examine_new(self, played: Played, seen: set[str], check: Check | None) -> None:
        a, b = played.first, played.second
        end = f"{a.value} {a.error!r} {b.value} {b.error!r} {await self._fingerprint()}"
        if end not in seen:
            seen.add(end)
            await self._examine(a, b, check)

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
        await self._watcher.execute(";".join(_SAVE.format(table) for table in self._tables))
        return Saved(self.clock.now(), self.world.worker)

    async def restore(self, saved: Saved) -> None:
        """The same story gives the same rows, ids included."""
        self.clock.set(saved.now)
        self.world.worker = saved.worker
        self.world.held.clear()
        await self._watcher.fetchval("SELECT saved.restore()")

    async def _fingerprint(self) -> str:
        parts = [f"(SELECT string_agg(t::text, '|' ORDER BY t::text) FROM {table} t)" for table in _TOLD]  # noqa: S608
        return str(await self._watcher.fetchval(f"SELECT md5(concat({', '.join(parts)}))"))


@dataclass(frozen=True, slots=True)
class Saved:
    """What the database does not remember by itself."""

    now: float
    worker: int


#: Copies beside the tables, and one prepared way back: it is gone a thousand times.
_SAVE = "DELETE FROM saved.{0}; INSERT INTO saved.{0} SELECT * FROM {0}"
_RESTORE = "DELETE FROM {0}; INSERT INTO {0} SELECT * FROM saved.{0}"
_NEXT_ID = "PERFORM setval(pg_get_serial_sequence('{0}', 'id'), 1 + (SELECT COALESCE(MAX(id), 0) FROM {0}))"
_NUMBERED = ("inbox", "outbox", "deliveries")


def _wardrobe(tables: Sequence[str]) -> str:
    copies = ";".join(f"CREATE TABLE IF NOT EXISTS saved.{table} (LIKE {table})" for table in tables)
    body = ";".join(
        [*(_RESTORE.format(table) for table in tables), *(_NEXT_ID.format(table) for table in _NUMBERED)]
    )
    return (
        f"CREATE SCHEMA IF NOT EXISTS saved; {copies};"
        f" CREATE OR REPLACE FUNCTION saved.restore() RETURNS void LANGUAGE plpgsql AS $$BEGIN {body}; END$$"
    )


#: what a story leaves behind
_TOLD = (
    "sessions", "tasks", "runs", "messages", "calls", "inbox", "outbox", "events", "deliveries", "workers",
    "replies",
)  # fmt: skip


@contextmanager
def _noted(order: Order) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"in {order}")
        raise


@asynccontextmanager
async def open_stage(dsn: str, clock: FakeClock, policy: Policy) -> AsyncIterator[Stage]:
    links = [await connect(parse_address(dsn), PostgresSettings(idle_in_transaction_s=30)) for _ in range(3)]
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
