"""What `clutch doctor` finds about a PostgreSQL server: one finding per fact, each problem with its remedy.

`store/postgres_exam.py` collects the facts. None = the role may not see it, or the server does not have it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from clutch.core.text.format import duration, size

# The numbers at which a fact becomes a finding.
OLDEST_MAJOR: Final = 14  #: the oldest version that its community still maintains
TRANSACTION_TIMEOUT_MAJOR: Final = 17  #: the first with transaction_timeout
CLOCK_OFFSET_MAX_S: Final = 5.0  #: time services keep machines within a fraction of this
ROUND_TRIP_MAX_S: Final = 0.02  #: a step of a task takes several trips
#: Vacuum removes no row that a snapshot can still see; the hot tables double in size within minutes.
SNAPSHOT_MAX_S: Final = 300.0
DEAD_ROWS_MIN: Final = 10_000  #: fewer cost nothing, whatever their share
DEAD_SHARE_MAX: Final = 0.5  #: autovacuum starts at 0.2 by default; far beyond that it does not keep up
SLOT_BYTES_MAX: Final = 1024**3  #: log that a consumer which is gone keeps on the disk
FROZEN_AGE_MAX: Final = 1_000_000_000  #: half of the distance at which the server stops writing


class Pooler(StrEnum):
    """How a connection pooler shares server connections."""

    NONE = "none"
    SESSION = "session"
    TRANSACTION = "transaction"


class OldSnapshot(NamedTuple):
    age_s: float
    holder: str  #: who holds it, for the operator


class DeadRows(NamedTuple):
    table: str
    dead: int
    live: int


class Slot(NamedTuple):
    """A replication slot without a consumer."""

    name: str
    kept_bytes: int


class Connections(NamedTuple):
    used: int
    limit: int
    needed: int  #: by one gateway


@dataclass(frozen=True, slots=True)
class ServerFacts:
    version: str
    major: int
    pooler: Pooler
    encoding: str
    is_standby: bool
    is_read_only: bool  #: a primary on which new transactions may only read
    locks_hold: bool
    may_write: bool
    schema: str | None
    has_tables: bool  #: of Clutch, in that schema
    unsafe: Sequence[str]  #: settings with which a power failure damages or loses committed data
    autovacuum: bool
    clock_offset_s: float  #: of the server against this machine
    round_trip_s: float
    connections: Connections
    snapshot: OldSnapshot | None
    sees_others: bool  #: whether the role may see the transactions of other roles
    dead_rows: Sequence[DeadRows]
    slots: Sequence[Slot]
    frozen_age: int


@dataclass(frozen=True, slots=True)
class ExamFinding:
    """A finding that is ok and has a remedy is a warning."""

    id: str
    is_ok: bool
    detail: str
    remedy: str | None = None


def findings(facts: ServerFacts) -> list[ExamFinding]:
    """Return one finding per rule, in the order in which an operator should read them."""
    return [rule(facts) for rule in _RULES]


def _version(facts: ServerFacts) -> ExamFinding:
    detail = f"PostgreSQL {facts.version}"
    if facts.major < OLDEST_MAJOR:
        return ExamFinding("pg-version", False, detail, f"upgrade to PostgreSQL {OLDEST_MAJOR} or newer")
    if facts.major < TRANSACTION_TIMEOUT_MAJOR:
        told = (
            f"{detail} has no transaction_timeout: a gateway that freezes while it sends keeps its row locks"
        )
        return ExamFinding("pg-version", True, told, f"upgrade to {TRANSACTION_TIMEOUT_MAJOR} or newer")
    return ExamFinding("pg-version", True, detail)


def _encoding(facts: ServerFacts) -> ExamFinding:
    remedy = None if facts.encoding == "UTF8" else "create a database with ENCODING 'UTF8'"
    return ExamFinding("pg-encoding", remedy is None, f"encoding {facts.encoding}", remedy)


def _standby(facts: ServerFacts) -> ExamFinding:
    if facts.is_standby:
        remedy = "name the primary, or all hosts with target_session_attrs=read-write"
        return ExamFinding("pg-primary", False, "this server is a standby and accepts no writes", remedy)
    if facts.is_read_only:
        remedy = "set default_transaction_read_only = off for this role and database"
        return ExamFinding("pg-primary", False, "this server accepts no writes", remedy)
    return ExamFinding("pg-primary", True, "this server is the primary")


def _pooler(facts: ServerFacts) -> ExamFinding:
    match facts.pooler:
        case Pooler.NONE:
            return ExamFinding("pg-pooler", True, "connected to the server itself")
        case Pooler.SESSION:
            return ExamFinding("pg-pooler", True, "a pooler in session mode answers; Clutch works through it")
        case Pooler.TRANSACTION:
            told = "a pooler in transaction mode answers: locks and notifications need a server connection"
            remedy = "set `database.direct` to the address of the server, or use session mode"
            return ExamFinding("pg-pooler", True, told, remedy)


def _locks(facts: ServerFacts) -> ExamFinding:
    if facts.locks_hold:
        return ExamFinding("pg-locks", True, "advisory locks hold across connections")
    told = "advisory locks do not hold across connections: a dead gateway is noticed only when its lease ends"
    remedy = (
        "connect to the server itself (`database.direct`); some databases that speak the protocol lack them"
    )
    return ExamFinding("pg-locks", True, told, remedy)


def _rights(facts: ServerFacts) -> ExamFinding:
    if facts.schema is None:
        return ExamFinding("pg-rights", False, "the search_path names no schema that exists", "create it")
    if facts.may_write or facts.is_standby:
        return ExamFinding("pg-rights", True, f"the role may create tables in schema {facts.schema}")
    remedy = f"GRANT USAGE, CREATE ON SCHEMA {facts.schema} TO the role"
    return ExamFinding("pg-rights", False, f"the role may not create tables in schema {facts.schema}", remedy)


def _settings(facts: ServerFacts) -> ExamFinding:
    if facts.unsafe:
        told = f"{', '.join(facts.unsafe)}: a power failure loses or damages committed data"
        return ExamFinding("pg-settings", False, told, "switch it on in postgresql.conf and reload")
    return ExamFinding("pg-settings", True, "committed data survives a power failure")


def _clock(facts: ServerFacts) -> ExamFinding:
    offset = facts.clock_offset_s
    direction = "ahead of" if offset > 0 else "behind"
    told = f"the server's clock is {abs(offset):.2f} s {direction} this machine's (± {facts.round_trip_s / 2:.3f} s)"
    remedy = "set the clock of this machine by a time service" if abs(offset) > CLOCK_OFFSET_MAX_S else None
    return ExamFinding("pg-clock", True, told, remedy)


def _round_trip(facts: ServerFacts) -> ExamFinding:
    told = f"an answer takes {facts.round_trip_s * 1000:.1f} ms"
    remedy = (
        "run the gateways near the server: a step takes several trips"
        if facts.round_trip_s > ROUND_TRIP_MAX_S
        else None
    )
    return ExamFinding("pg-latency", True, told, remedy)


def _connections(facts: ServerFacts) -> ExamFinding:
    used, limit, needed = facts.connections
    left = max(0, limit - used)
    told = f"{left} of {limit} connections are left; a gateway uses up to {needed}"
    remedy = "raise max_connections, or put PgBouncer in front"
    if left < needed:
        return ExamFinding("pg-connections", False, told, remedy)
    # A gateway that is restarted connects before the server has noticed the end of the old one.
    return ExamFinding("pg-connections", True, told, remedy if left < 2 * needed else None)


def _snapshot(facts: ServerFacts) -> ExamFinding:
    found = facts.snapshot
    if found is not None and found.age_s > SNAPSHOT_MAX_S:
        told = f"a snapshot is held for {duration(found.age_s)} ({found.holder}); no dead row can be removed"
        return ExamFinding(
            "pg-snapshot", True, told, "end that transaction: SELECT pg_terminate_backend(PID)"
        )
    if not facts.sees_others:
        told = "transactions of other roles cannot be seen"
        return ExamFinding("pg-snapshot", True, told, "GRANT pg_read_all_stats TO the role, to check them")
    age = "none" if found is None else duration(found.age_s)
    return ExamFinding("pg-snapshot", True, f"oldest snapshot: {age}")


def _vacuum(facts: ServerFacts) -> ExamFinding:
    if not facts.autovacuum:
        return ExamFinding("pg-vacuum", False, "autovacuum is off: tables grow without end", "switch it on")
    bloated = [
        one
        for one in facts.dead_rows
        if one.dead >= DEAD_ROWS_MIN and one.dead > DEAD_SHARE_MAX * (one.live + one.dead)
    ]
    if not bloated:
        return ExamFinding("pg-vacuum", True, "autovacuum keeps up with the tables of Clutch")
    names = ", ".join(one.table for one in bloated)
    told = "; ".join(f"{one.table}: {one.dead} dead rows, {one.live} live" for one in bloated)
    return ExamFinding("pg-vacuum", True, told, f"VACUUM (ANALYZE) {names}; check pg-snapshot first")


def _slots(facts: ServerFacts) -> ExamFinding:
    heavy = [slot for slot in facts.slots if slot.kept_bytes > SLOT_BYTES_MAX]
    if not heavy:
        return ExamFinding("pg-slots", True, "no unused replication slot keeps much of the log")
    told = "; ".join(f"unused slot {slot.name} keeps {size(slot.kept_bytes)} of the log" for slot in heavy)
    remedy = "start its consumer, or drop it: SELECT pg_drop_replication_slot('NAME')"
    return ExamFinding("pg-slots", True, told, remedy)


def _freeze(facts: ServerFacts) -> ExamFinding:
    told = f"the oldest transaction number is {facts.frozen_age:,} transactions old"
    remedy = "VACUUM (FREEZE), before the server stops writing" if facts.frozen_age > FROZEN_AGE_MAX else None
    return ExamFinding("pg-freeze", True, told, remedy)


_RULES: Final[Sequence[Callable[[ServerFacts], ExamFinding]]] = (
    _version,
    _standby,
    _pooler,
    _locks,
    _rights,
    _encoding,
    _settings,
    _clock,
    _round_trip,
    _connections,
    _snapshot,
    _vacuum,
    _slots,
    _freeze,
)
