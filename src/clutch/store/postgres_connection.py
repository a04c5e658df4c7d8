"""One PostgreSQL connection: its settings, how it runs a batch in lockstep, its errors in our words.

Knows the driver. Knows nothing of queues, retries or the event loop's tasks.

Every statement of a group is tagged with the number of its operation, so that one trip carries the
statements of many and the rows still find their way back."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
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
from clutch.store.postgres_address import PostgresAddress
from clutch.store.transaction import Row, Spoiled, TransactionOutcome

try:
    import asyncpg
except ImportError as error:
    raise UnsupportedStore(
        "PostgreSQL needs the driver `asyncpg`: pip install 'clutch-agents[postgres]'"
    ) from error

_HAS_TRANSACTION_TIMEOUT: Final = 17

#: Between tries to reach a server that is away.
_FIRST_PAUSE_S: Final = 0.05
_LAST_PAUSE_S: Final = 1.0

#: For each server where an address names several: one that is away must leave time for the others.
_ONE_OF_SEVERAL_S: Final = 2.0

#: What a server answers only while it takes writes: not a standby, nor a former primary that was left up read-only.
#: It is asked with every BEGIN, so that no connection stays with the old server after a failover.
PING: Final = (
    "SELECT 1 / CASE WHEN pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool"
    " THEN 0 ELSE 1 END"
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
    # A setting of the URL that the server does not know, or not with this value.
    asyncpg.UndefinedObjectError,
    asyncpg.InvalidParameterValueError,
    asyncpg.CantChangeRuntimeParamError,
    ssl.SSLCertVerificationError,
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
    #: How often a quiet connection is asked whether its server still takes writes.
    ping_s: float = 5.0
    application_name: str = "clutch"
    #: A pooler gives each transaction another server connection: what is set must be set inside of the transaction.
    is_shared: bool = False
    #: Before that is known nothing is set at all: a pooler would keep it for its other clients.
    is_bare: bool = False
    cached_statements: int = 1000

    @property
    def connections_max(self) -> int:
        """Return how many connections a gateway opens: beside these, one for hints and one for its process lock."""
        return self.pumps + self.alone_connections + self.readers + 2

    def safety(self, server_major: int) -> dict[str, str]:
        """What every connection must have; the server says so before the connection is used."""
        timeouts = {
            "idle_in_transaction_session_timeout": _milliseconds(self.idle_in_transaction_s),
            "statement_timeout": _milliseconds(self.statement_timeout_s),
            "lock_timeout": _milliseconds(self.lock_timeout_s),
        }
        if server_major >= _HAS_TRANSACTION_TIMEOUT:
            timeouts["transaction_timeout"] = _milliseconds(self.transaction_s)
        # The sockets behind a pooler are its own.
        return timeouts if self.is_shared else timeouts | _KEEPALIVES


#: A server notices within half a minute that our machine is gone, and frees its locks.
_KEEPALIVES: Final = {
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "4",
}

#: Our machine notices within ten seconds that the server's is gone.
_SOCKET_OPTIONS: Final = (
    ("SOL_SOCKET", "SO_KEEPALIVE", 1),
    ("IPPROTO_TCP", "TCP_KEEPIDLE", 4),
    ("IPPROTO_TCP", "TCP_KEEPINTVL", 2),
    ("IPPROTO_TCP", "TCP_KEEPCNT", 3),
    ("IPPROTO_TCP", "TCP_USER_TIMEOUT", 10_000),  # milliseconds, for what was sent and not acknowledged
)


@dataclass(frozen=True, slots=True)
class _Text:
    """A statement as PostgreSQL reads it. `tagged` also returns the place of the operation first; `asking` asks whether
    the server takes writes, too."""

    plain: str
    tagged: str | None
    asking: str


class Link:
    """One connection. `is_lost` once: for ever."""

    def __init__(self, raw: Any, preface: str = PING) -> None:
        self.raw = raw
        self.is_lost = False
        #: sent with each BEGIN: whether the server takes writes and, behind a pooler, what is set on it
        self.preface = preface

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

    async def read_at_once(self, start: Start, now: float) -> TransactionOutcome | None:
        """Run a read that is one statement without BEGIN and COMMIT; None: it has more, and none was answered.

        Raises Unsent or StoreLost."""
        lockstep = Lockstep([start], now)
        if groups := lockstep.round():
            (group,) = groups
            if group.is_many or not is_reading(group.sql):
                return None
            try:
                lockstep.answer(group, await self._send(group, is_asking=True))
            except Spoiled as spoiled:
                return TransactionOutcome(error=spoiled.cause)
            except BaseException:
                self.drop()
                raise
        return lockstep.outcomes[0] if not lockstep.round() else None

    async def write_at_once(self, start: Start, now: float) -> TransactionOutcome:
        """Run one statement without BEGIN and COMMIT. It may run twice: every trouble is a StoreLost."""
        lockstep = Lockstep([start], now)
        (group,) = lockstep.round()
        try:
            lockstep.answer(group, await self._trip(group))
        except TROUBLE as error:
            self.drop()
            raise StoreLost(reason(error)) from error
        except Spoiled as spoiled:  # it found that it comes too late
            return TransactionOutcome(error=spoiled.cause)
        except BaseException:
            self.drop()
            raise
        assert not lockstep.round(), "one statement"
        return lockstep.outcomes[0]

    async def _begin(self, begin: str) -> None:
        try:
            await self.raw.execute(f"{begin}; {self.preface}")
        except TROUBLE as error:
            self.drop()
            raise DeadConnection(reason(error)) from error
        except BaseException:
            # A cancelled reader: the transaction may be open, and the next reader would see its old snapshot.
            self.drop()
            raise

    async def _send(self, group: StatementGroup, *, is_asking: bool = False) -> Answers:
        try:
            return await self._trip(group, is_asking=is_asking)
        except TROUBLE as error:
            if self._is_loss(error):
                raise StoreLost from error
            raise Spoiled(in_our_words(error)) from error

    async def _trip(self, group: StatementGroup, *, is_asking: bool = False) -> Answers:
        text, operations = _text(group.sql), group.operations
        if group.is_many:
            await self.raw.executemany(text.plain, [row for each in operations for row in each.parameters])
            return ()
        if len(operations) == 1:
            sql = text.asking if is_asking else text.plain
            records = await self.raw.fetch(sql, *operations[0].parameters)
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
        except BaseException:
            self.drop()
            raise

    def _is_loss(self, error: Exception) -> bool:
        # A division by zero is the answer to PING.
        return self.raw.is_closed() or isinstance(error, (*_LOSSES, asyncpg.DivisionByZeroError))

    def drop(self) -> None:
        self.is_lost = True
        self.raw.terminate()

    async def close(self) -> None:
        try:
            await self.raw.close(timeout=5)
        except TROUBLE:
            self.drop()


async def connect(address: PostgresAddress, settings: PostgresSettings) -> Link:
    """A new connection to the first server that takes writes; raises what the driver raised where none does."""
    several = len(address.servers) > 1
    timeout_s = min(settings.connect_timeout_s, _ONE_OF_SEVERAL_S) if several else settings.connect_timeout_s
    errors: list[Exception] = []
    for server in address.servers:
        try:
            return await _connect_to(server, address.settings, settings, timeout_s)
        except TROUBLE as error:
            errors.append(error)
    # One that may come back is worth waiting for, whatever the others said.
    raise next((one for one in errors if not isinstance(one, _HOPELESS)), errors[0])


async def _connect_to(
    server: str, wishes: Mapping[str, str], settings: PostgresSettings, timeout_s: float
) -> Link:
    raw = await asyncpg.connect(
        server,
        server_settings={"application_name": settings.application_name},
        target_session_attrs="any",
        timeout=timeout_s,
        # The server ends a statement first; this is for a server that says nothing any more.
        command_timeout=settings.statement_timeout_s + settings.connect_timeout_s,
        statement_cache_size=settings.cached_statements,
        max_cached_statement_lifetime=0,
    )
    try:
        _watch_socket(raw)
        async with asyncio.timeout(timeout_s):
            return await _configured(raw, wishes, settings)
    except BaseException:
        raw.terminate()
        raise


def _watch_socket(raw: Any) -> None:
    wire = raw._transport.get_extra_info("socket")  # the driver has no option for it
    for level, name, value in _SOCKET_OPTIONS if wire.family != socket.AF_UNIX else ():
        if hasattr(socket, name):  # not every system has all of them
            wire.setsockopt(getattr(socket, level), getattr(socket, name), value)


async def connect_patiently(
    address: PostgresAddress, settings: PostgresSettings, is_wanted: Callable[[], bool] = lambda: True
) -> Link:
    """A new connection, however long the server needs to come back, within the patience of the settings and while it
    is wanted. A server that can be reached is connected to in any case."""
    loop = asyncio.get_running_loop()
    give_up_at, pause_s = loop.time() + settings.patience_s, _FIRST_PAUSE_S
    while True:
        try:
            return await connect(address, settings)
        except _HOPELESS as error:
            raise StoreError(f"PostgreSQL refuses the connection: {error}") from error
        except TROUBLE as error:
            if "statement pooling mode" in str(error):
                raise UnsupportedStore(_STATEMENT_POOLER) from error
            if loop.time() + pause_s > give_up_at or not is_wanted():
                why = f"the database cannot be reached ({reason(error)}); nothing was sent"
                raise StoreLost(why, is_unsent=True) from error
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)


def reason(error: Exception) -> str:
    """The text of what the driver raised; of PING, what it means."""
    if isinstance(error, asyncpg.DivisionByZeroError):
        return "the server is a standby or read-only"
    return str(error) or type(error).__name__


async def _configured(raw: Any, wishes: Mapping[str, str], settings: PostgresSettings) -> Link:
    """Set what safety depends on, and read it back in a transaction: behind a pooler the next statement may run on
    another server connection."""
    safety = {} if settings.is_bare else settings.safety(raw.get_server_version().major)
    # Small statements by the thousand: compiling them costs more than running them.
    text = _setting({**wishes, **safety, "jit": "off"}, is_local=settings.is_shared)
    link = Link(raw, f"{PING}, {text}" if settings.is_shared else PING)
    if not settings.is_bare and not settings.is_shared:
        await raw.execute(f"SELECT {text}")
    await raw.execute(f"{BEGIN_READING}; {link.preface}")
    if not settings.is_bare:
        await _check_settings(
            raw, safety | {name: wishes[name] for name in ("search_path",) if name in wishes}
        )
        await _set_codecs(raw)
    await raw.execute("COMMIT")
    return link


async def _set_codecs(raw: Any) -> None:
    """The same Python types as SQLite gives: SUM of integers is an int, a comparison is 0 or 1."""
    await raw.set_type_codec("numeric", schema="pg_catalog", encoder=str, decoder=_number_in, format="text")
    await raw.set_type_codec(
        "bool",
        schema="pg_catalog",
        encoder=lambda value: "t" if value else "f",
        decoder=_truth,
        format="text",
    )


def _setting(values: Mapping[str, str], *, is_local: bool) -> str:
    calls = [f"set_config({_literal(name)}, {_literal(value)}, {is_local})" for name, value in values.items()]
    # A commit that is acknowledged before it is durable would break every promise made above this file.
    # Stronger settings (remote_apply) are left alone.
    kept = "current_setting('synchronous_commit')"
    durable = f"CASE {kept} WHEN 'off' THEN 'on' ELSE {kept} END"
    return ", ".join([*calls, f"set_config('synchronous_commit', {durable}, {is_local})"])


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


async def _check_settings(raw: Any, wanted: Mapping[str, str]) -> None:
    rows = await raw.fetch(
        "SELECT name, setting FROM pg_settings WHERE name = ANY($1)", [*wanted, "synchronous_commit"]
    )
    found = dict(rows)
    for name, value in wanted.items():
        # A Unix socket has no keepalives, and says 0.
        is_kept = found.get(name) == value or (name in _KEEPALIVES and found.get(name) == "0")
        if not is_kept:
            raise UnsupportedStore(_DROPPED.format(name=name, found=found.get(name, "unset"), value=value))
    if found.get("synchronous_commit") == "off":
        raise UnsupportedStore(_DROPPED.format(name="synchronous_commit", found="off", value="on"))


_STATEMENT_POOLER: Final = (
    "a connection pooler such as PgBouncer answers at this address and allows no transactions (statement mode): use"
    " its transaction mode and set `database.direct`, or its session mode"
)
_DROPPED: Final = (
    "the connection has {name} = {found} after Clutch has set it to {value}: a pooler or proxy between here and the"
    " server drops settings. Let it pass them, or set `database` to the address of the PostgreSQL server itself"
)


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
    asking = f"SELECT q.* FROM ({plain}) q WHERE ({PING}) = 1"  # noqa: S608 - our own text
    tag = f"${sql.count('?') + sql.count('{any}') + 1}::int AS operation"
    if not is_reading(sql) and not is_returning(sql):
        return _Text(plain, None, asking)
    # A locking SELECT must run once and whole; the planner may not fold it into the outer one.
    how = "MATERIALIZED " if any(word in sql for word in ("{lock}", "{skip}", "{keep}")) else ""
    return _Text(plain, f"WITH q AS {how}({plain}) SELECT {tag}, q.* FROM q", asking)  # noqa: S608 - our own text


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
