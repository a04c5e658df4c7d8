"""One PostgreSQL connection: its settings, how it runs a batch in lockstep, its errors in our words.

Knows the driver. Knows nothing of queues, retries or the event loop's tasks.

Every statement of a group is tagged with the number of its operation, so that one trip carries the
statements of many and the rows still find their way back."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from clutch.errors import (
    ConstraintViolated,
    DiskFull,
    StoreBusy,
    StoreError,
    StoreLost,
    StoreRefused,
    TooSlow,
    UnsupportedStore,
)
from clutch.store.dialect import Dialect, is_reading, is_returning, numbered, statement_text
from clutch.store.jobs import Answers, Lockstep, Start, StatementGroup
from clutch.store.transaction import LOOK, Row, Spoiled, TransactionOutcome

try:
    import asyncpg
except ImportError as error:
    raise UnsupportedStore(
        "PostgreSQL needs the driver `asyncpg`: pip install 'clutch-agents[postgres]'"
    ) from error

#: 14 is the oldest that its own community still repairs, and has client_connection_check_interval.
_OLDEST_SERVER: Final = 14

_HAS_TRANSACTION_TIMEOUT: Final = 17

_CACHED_STATEMENTS: Final = 1000

#: Between tries to reach a server that is away.
_FIRST_PAUSE_S: Final = 0.05
_LAST_PAUSE_S: Final = 1.0

#: A pooler hands one server connection to many clients: the locks that say which process is alive leak to others, and
#: the timeouts that free the rows of a frozen process are not set.
_POOLER: Final = (
    "a connection pooler such as PgBouncer answers at this address ({sign}); Clutch keeps locks and timeouts on its"
    " connections, which a pooler does not preserve: set `database` to the address of the PostgreSQL server itself"
)

BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
BEGIN_READING: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class DeadConnection(Exception):
    """The connection was found dead before anything was sent: a new one may try."""


#: all the driver and the network may raise; the last one when a connection breaks between two statements
TROUBLE: Final = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)

_HOPELESS: Final = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.ClientConfigurationError,
)

_LOSSES: Final = (
    OSError,  # also TimeoutError: a server that does not answer
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)


@dataclass(frozen=True, slots=True)
class PostgresSettings:
    """What safety depends on is set here for every connection, whatever the server's defaults are."""

    #: Must be below the lease of a worker: one frozen inside a transaction keeps its row locks, and those
    #: sessions could never be taken over.
    idle_in_transaction_s: float = 5.0
    #: The same for one frozen in the middle of a message, which counts as active. PostgreSQL has it since 17;
    #: with an older one such a freeze holds its rows until the process continues or dies.
    transaction_s: float = 5.0
    statement_timeout_s: float = 30.0
    #: A batch waits as long as its slowest lock, so it rather gives up and runs one by one.
    lock_timeout_s: float = 2.0
    connect_timeout_s: float = 5.0
    #: How long callers wait for a server that is away before they get an error.
    patience_s: float = 15.0
    #: How many times a transaction that met a deadlock or a lock is tried again.
    retries: int = 4
    #: Pumps beyond one let batches overlap; keys still never run at the same time.
    pumps: int = 1
    batch_max: int = 256
    alone_connections: int = 2
    readers: int = 4
    application_name: str = "clutch"

    @property
    def connections_max(self) -> int:
        """Return how many connections a gateway opens: beside these, one for hints and one for its process lock."""
        return self.pumps + self.alone_connections + self.readers + 2

    def server_settings(self) -> dict[str, str]:
        return {
            "application_name": self.application_name,
            "idle_in_transaction_session_timeout": _milliseconds(self.idle_in_transaction_s),
            "statement_timeout": _milliseconds(self.statement_timeout_s),
            "lock_timeout": _milliseconds(self.lock_timeout_s),
            # A server notices within half a minute that our machine is gone, and frees its locks.
            "tcp_keepalives_idle": "10",
            "tcp_keepalives_interval": "5",
            "tcp_keepalives_count": "4",
            # Small statements by the thousand: compiling them costs more than running them.
            "jit": "off",
        }


@dataclass(frozen=True, slots=True)
class _Text:
    """A statement as PostgreSQL reads it; `tagged` also returns the place of the operation first."""

    plain: str
    tagged: str | None


class Link:
    """One connection. `is_lost` once: for ever."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.is_lost = False

    async def transact(
        self, starts: Sequence[Start], now: float, begin: str = BEGIN
    ) -> list[TransactionOutcome]:
        """Run a batch in one transaction.

        Raises Spoiled (nothing is written), Unsent (nor even sent) or StoreLost (who knows)."""
        await self._begin(begin)
        try:
            lockstep = Lockstep(starts, now)
            while groups := lockstep.round():
                for group in groups:
                    lockstep.answer(group, await self._send(group))
            await self._commit()
        except Spoiled:
            await self._roll_back()
            raise
        except BaseException:
            # Lost, a cancelled reader, a defect: the state of the connection is unknown.
            self.drop()
            raise
        return lockstep.outcomes

    async def _begin(self, begin: str) -> None:
        try:
            await self.raw.execute(begin)
        except TROUBLE as error:
            self.drop()
            raise DeadConnection(str(error)) from error

    async def _send(self, group: StatementGroup) -> Answers:
        try:
            return await self._trip(group)
        except TROUBLE as error:
            if self._is_loss(error):
                raise StoreLost from error
            raise Spoiled(in_our_words(error)) from error

    async def _trip(self, group: StatementGroup) -> Answers:
        text, operations = _text(group.sql), group.operations
        if group.is_many:
            await self.raw.executemany(text.plain, [row for each in operations for row in each.parameters])
            return ()
        if len(operations) == 1:
            records = await self.raw.fetch(text.plain, *operations[0].parameters)
            return [[tuple(record) for record in records]]
        if text.tagged is None:
            await self.raw.executemany(text.plain, [each.parameters for each in operations])
            return ()
        rows = [(*each.parameters, place) for place, each in enumerate(operations)]
        return _by_place(await self.raw.fetchmany(text.tagged, rows), len(operations))

    async def _commit(self) -> None:
        try:
            status = await self.raw.execute("COMMIT")
        except TROUBLE as error:
            if self._is_loss(error):
                raise StoreLost from error
            raise Spoiled(in_our_words(error)) from error
        # The server answers the COMMIT of a transaction that has failed with a polite ROLLBACK.
        if status != "COMMIT":
            raise Spoiled(StoreError(f"the server answered COMMIT with {status}; nothing was written"))

    async def _roll_back(self) -> None:
        try:
            await self.raw.execute("ROLLBACK")
        except TROUBLE:
            self.drop()

    def _is_loss(self, error: Exception) -> bool:
        return self.raw.is_closed() or isinstance(error, _LOSSES)

    def drop(self) -> None:
        self.is_lost = True
        self.raw.terminate()

    async def close(self) -> None:
        try:
            await self.raw.close(timeout=5)
        except TROUBLE:
            self.drop()


async def connect(dsn: str, settings: PostgresSettings) -> Link:
    """A new connection, or what the driver raised."""
    raw = await asyncpg.connect(
        dsn,
        server_settings=settings.server_settings(),
        timeout=settings.connect_timeout_s,
        # The server ends a statement first; this is for a server that says nothing any more.
        command_timeout=settings.statement_timeout_s + settings.connect_timeout_s,
        statement_cache_size=_CACHED_STATEMENTS,
        max_cached_statement_lifetime=0,
    )
    try:
        await _configure(raw)
        if raw.get_server_version().major >= _HAS_TRANSACTION_TIMEOUT:
            await raw.execute(f"SET transaction_timeout = {_milliseconds(settings.transaction_s)}")
    except BaseException:
        raw.terminate()
        raise
    return Link(raw)


async def connect_patiently(dsn: str, settings: PostgresSettings) -> Link:
    """A new connection, however long the server needs to come back, within the patience of the settings."""
    loop = asyncio.get_running_loop()
    give_up_at, pause_s = loop.time() + settings.patience_s, _FIRST_PAUSE_S
    while True:
        try:
            return await connect(dsn, settings)
        except asyncpg.ProtocolViolationError as error:
            raise UnsupportedStore(_POOLER.format(sign=error)) from error
        except _HOPELESS as error:
            raise StoreError(f"PostgreSQL refuses the connection: {error}") from error
        except TROUBLE as error:
            if loop.time() + pause_s > give_up_at:
                raise StoreLost(f"the database cannot be reached ({error}); nothing was sent") from error
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)


async def _configure(raw: Any) -> None:
    """The same Python types as SQLite gives: SUM of integers is an int, a comparison is 0 or 1."""
    await raw.set_type_codec("numeric", schema="pg_catalog", encoder=str, decoder=_number_in, format="text")
    await raw.set_type_codec(
        "bool",
        schema="pg_catalog",
        encoder=lambda value: "t" if value else "f",
        decoder=_truth,
        format="text",
    )
    # A commit that is acknowledged before it is durable would break every promise made above this file.
    # Stronger settings (remote_apply) are left alone.
    await raw.execute(
        "SELECT set_config('synchronous_commit', 'on', false) "
        "WHERE current_setting('synchronous_commit') = 'off'"
    )


async def refuse_unsuitable_server(link: Link) -> None:
    # A server answers with the number of the process that serves this connection; a pooler invents one.
    if await link.raw.fetchval("SELECT pg_backend_pid()") != link.raw.get_server_pid():
        raise UnsupportedStore(_POOLER.format(sign="the connection changes between server processes"))
    major = link.raw.get_server_version().major
    if major < _OLDEST_SERVER:
        raise UnsupportedStore(f"PostgreSQL {major} is too old; {_OLDEST_SERVER} or newer is needed")
    encoding = await link.raw.fetchval("SHOW server_encoding")
    if encoding != "UTF8":
        raise UnsupportedStore(f"the database has encoding {encoding}; create one with ENCODING 'UTF8'")


def in_our_words(error: Exception) -> StoreError:
    match error:
        case asyncpg.DiskFullError():
            return DiskFull()
        case asyncpg.DeadlockDetectedError() | asyncpg.SerializationError() | asyncpg.LockNotAvailableError():
            return StoreBusy()
        case asyncpg.IntegrityConstraintViolationError():
            return ConstraintViolated(str(error))
        case asyncpg.ReadOnlySQLTransactionError():
            return StoreError(f"this transaction may only read: {error}")
        case asyncpg.CharacterNotInRepertoireError() | asyncpg.UntranslatableCharacterError():
            return StoreRefused("text with a NUL character cannot be stored")
        case asyncpg.QueryCanceledError():
            return TooSlow()
        case asyncpg.SyntaxOrAccessError() | asyncpg.DataError() | asyncpg.FeatureNotSupportedError():
            return StoreRefused(f"PostgreSQL refuses a statement: {error}")
        case _:
            return StoreError(f"PostgreSQL: {error}")


@lru_cache(maxsize=4096)
def _text(sql: str) -> _Text:
    plain = numbered(statement_text(sql, Dialect.POSTGRES))
    tag = f"${sql.count('?') + sql.count('{any}') + 1}::int AS operation"
    if not is_reading(sql) and not is_returning(sql):
        return _Text(plain, None)
    # A locking SELECT must run once and whole; the planner may not fold it into the outer one.
    how = "MATERIALIZED " if "{lock}" in sql or "{skip}" in sql else ""
    return _Text(plain, f"WITH q AS {how}({plain}) SELECT {tag}, q.* FROM q")  # noqa: S608 - our own text


def _by_place(records: Sequence[Any], count: int) -> list[list[Row]]:
    answers: list[list[Row]] = [[] for _ in range(count)]
    for record in records:
        place, *row = record
        answers[place].append(tuple(row))
    return answers


def _milliseconds(seconds: float) -> str:
    return str(max(1, int(seconds * 1000)))


def _number_in(text: str) -> int | float:
    return int(text) if text.lstrip("-").isdigit() else float(text)


def _truth(text: str) -> int:
    return int(text == "t")


# --------------------------------------------------------------------------------------------------
# Hints between processes on PostgreSQL: NOTIFY after the commit, LISTEN, both on one connection of its own.
#
# Inside the write transaction a NOTIFY costs throughput (its commit takes a lock of the whole database). A hint
# may be lost with the process or the connection; the tables are certain. After a gap the
# listeners get the hint LOOK.

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
        """`run` returns when all hints are sent."""
        self._is_closing = True
        self._changed.set()

    async def run(self, listening: asyncio.Event) -> None:
        """Until closed. Sets `listening` whenever notifications of others arrive."""
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


# --------------------------------------------------------------------------------------------------
# Which workers are alive, known to PostgreSQL itself: each process holds an advisory lock under its number.
#
# When a process dies its connection goes, and the server frees the lock at once: no lease has to run out.
# A process that loses only this connection is buried too early; it meets that at its next write and comes
# back under a new number, so nothing but time is lost.

#: The first half of a two-part advisory lock; every gateway takes the same one.
_LIVES: Final = 0x_C1_07


class PostgresLives:
    def __init__(self, connect: Callable[[], Awaitable[Link]]) -> None:
        self._connect = connect
        self._link: Link | None = None

    async def hold(self, number: int) -> None:
        """Until this process dies or takes another number."""
        await self.close()
        self._link = await self._connect()
        try:
            await self._link.raw.fetch("SELECT pg_advisory_lock($1::int, $2::int)", _LIVES, number)
        except TROUBLE as error:
            raise StoreLost(f"the database went away ({error})") from error

    async def dead(self, numbers: Sequence[int]) -> list[int]:
        """Those whose lock is free. The test releases what it took within the same statement."""
        if not numbers or self._link is None:
            return []
        try:
            rows = await self._link.raw.fetch(
                "SELECT n FROM unnest($2::int[]) AS n"
                " WHERE CASE WHEN pg_try_advisory_lock($1::int, n) THEN pg_advisory_unlock($1::int, n) ELSE false END",
                _LIVES,
                list(numbers),
            )
        except TROUBLE:
            return []  # the lease is the backstop
        return [row[0] for row in rows]

    async def close(self) -> None:
        if self._link is not None:
            with contextlib.suppress(StoreError):
                await self._link.close()
            self._link = None
