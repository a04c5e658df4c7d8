"""`fleet`: several gateways on one PostgreSQL server of this machine.

slots      gateways with a fixed number of slots and a model with a latency: what more gateways give while
           the processor is not the limit
processor  the same with a model that answers at once: what this machine gives; no target, cores are shared with
           the server
idle       statements per second of gateways without work
claims     processes that claim from one queue, and whether a cap holds exactly
snapshot   claims while another transaction holds an old snapshot; a scaled form of an hour of steps
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg

from benchmarks.places import Place
from benchmarks.report import Report, Row, at_least, at_most, percentile, say
from benchmarks.unfinished import leave
from benchmarks.w_process import Process, started
from clutch.store.postgres import PostgresStore
from clutch.testing.postgres import temporary_server
from clutch.transactions import claims
from clutch.wiring import SystemClock

GATEWAYS: Final = (1, 2, 4)
TWO_OVER_ONE: Final = 1.6
TASKS: Final = 400
SLOTS: Final = 12  #: per gateway
LATENCY_S: Final = 0.4

IDLE_GATEWAYS: Final = 10
IDLE_STATEMENTS_PER_S: Final = 20.0
_IDLE_S: Final = 20.0
_SETTLE_S: Final = 5.0  #: statements of the start are not those of an idle fleet

CLAIMERS: Final = 8
DUE: Final = 5_000
CAP: Final = 137  #: no multiple of a batch

ROUNDS: Final = 40  #: claims and releases of all sessions; each leaves a dead version of every row
SNAPSHOT_SESSIONS: Final = 500
SNAPSHOT_P99: Final = 3.0

_PATIENCE_S: Final = 300.0


async def run(report: Report, places: Sequence[Place], reps: int, sizes: Sequence[int]) -> None:
    del places  # a server of its own: the figures are of the whole server
    report.config["fleet"] = {"slots": SLOTS, "latency_s": LATENCY_S, "snapshot": "scaled", "due": DUE}
    for rep in range(reps):
        for count in GATEWAYS:
            for system, slots, latency_s in (("slots", SLOTS, LATENCY_S), ("processor", 200, 0.0)):
                say(f"fleet: {system}, {count} gateways, rep {rep}")
                report.add(
                    await _throughput(system, count, (sizes or (TASKS,))[0], slots, latency_s, rep=rep)
                )
    mine: dict[str, Any] = {"bench": "fleet", "system": "slots"}
    ratio = report.ratio("tasks_per_s", mine | {"gateways": 2}, mine | {"gateways": 1})
    report.targets.append(at_least("fleet: tasks/s of two gateways, of one", ratio, TWO_OVER_ONE))
    for measure in (_idle, _claims, _snapshot):
        say(f"fleet: {measure.__name__.removeprefix('_')}")
        await measure(report)


@asynccontextmanager
async def _database(settings: str = "") -> AsyncIterator[tuple[str, Path]]:
    server = temporary_server(fsync=True)
    server.start()
    try:
        for setting in filter(None, (*settings.split(";"), "max_connections = 300")):
            server.execute(f"ALTER SYSTEM SET {setting}")
        server.restart()
        server.execute("CREATE DATABASE fleet")
        address = server.dsn("fleet")
        yield address, Path(address.rpartition("host=")[2]) / "log"
    finally:
        server.stop()


@asynccontextmanager
async def _processes(kind: str, count: int, address: str, *more: str) -> AsyncIterator[list[Process]]:
    async with AsyncExitStack() as stack:
        fleet = [
            await stack.enter_async_context(
                started(
                    "benchmarks.fleet_worker", kind, "--database", address, "--number", str(100 + n), *more
                )
            )
            for n in range(count)
        ]
        for one in fleet:
            await one.line()
        yield fleet


async def _throughput(system: str, count: int, tasks: int, slots: int, latency_s: float, *, rep: int) -> Row:
    async with _database() as (address, _):
        await _leave(address, tasks)
        begun = _processes("gateway", count, address, "--slots", str(slots), "--latency", str(latency_s))
        async with begun as fleet:
            await _execute(address, "UPDATE sessions SET due = 1 WHERE closed = 0")
            began = time.perf_counter()
            await _until_none_is_left(address)
            wall_s = time.perf_counter() - began
            cpu_s = sum([(await one.figures("figures"))["cpu_s"] for one in fleet])
    figures = {"gateways": count, "tasks_per_s": round(tasks / wall_s, 2), "latency_s": latency_s}
    return Row("fleet", system, "postgres", tasks, rep, True, round(cpu_s, 3), round(wall_s, 3), figures)


async def _until_none_is_left(address: str) -> None:
    connection = await asyncpg.connect(address)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            query = "SELECT COUNT(*) FROM tasks WHERE phase NOT IN ('completed', 'completed_giveup')"
            while await connection.fetchval(query):  # noqa: ASYNC110 - asks a database
                await asyncio.sleep(0.05)
    finally:
        await connection.close()


async def _idle(report: Report) -> None:
    async with (
        _database("log_statement = 'all'") as (address, log),
        _processes("gateway", IDLE_GATEWAYS, address),
    ):
        await asyncio.sleep(_SETTLE_S)
        before = _statements(log)
        await asyncio.sleep(_IDLE_S)
        rate = (_statements(log) - before) / _IDLE_S
    figures = {"gateways": IDLE_GATEWAYS, "statements_per_s": round(rate, 2)}
    report.add(Row("fleet", "idle", "postgres", 0, 0, True, None, _IDLE_S, figures))
    report.targets.append(
        at_most(f"fleet: statements/s of {IDLE_GATEWAYS} idle gateways", rate, IDLE_STATEMENTS_PER_S)
    )


def _statements(log: Path) -> int:
    """The server writes one line per statement, prepared ones as `execute`."""
    text = log.read_text(errors="replace")
    return text.count("LOG:  statement:") + text.count("LOG:  execute ")


async def _claims(report: Report) -> None:
    for cap, name in ((DUE, "claims"), (CAP, "capped claims")):
        async with _database() as (address, _):
            await _due_sessions(address, DUE)
            async with _processes("claims", CLAIMERS, address, "--lane", str(cap)) as fleet:
                began = time.perf_counter()
                found = await asyncio.gather(*(one.figures("go", _PATIENCE_S) for one in fleet))
                wall_s = time.perf_counter() - began
        claimed = sum(one["claimed"] for one in found)
        figures = {"gateways": CLAIMERS, "claimed": claimed, "claims_per_s": round(claimed / wall_s, 1)}
        why = None if claimed == cap else f"{claimed} sessions were claimed with a cap of {cap}"
        report.add(Row("fleet", name, "postgres", DUE, 0, why is None, None, round(wall_s, 3), figures, why))


async def _leave(address: str, count: int) -> None:
    """Unfinished tasks without an owner, none of them due yet."""
    async with PostgresStore(address, SystemClock()) as db:
        await leave(db, count)
    await _execute(address, "DELETE FROM workers", "UPDATE sessions SET owner = NULL, due = NULL")


async def _due_sessions(address: str, count: int) -> None:
    await _leave(address, count)
    await _execute(address, "UPDATE sessions SET due = 1, closed = 0 WHERE is_task = 1")


async def _execute(address: str, *statements: str) -> None:
    connection = await asyncpg.connect(address)
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


async def _snapshot(report: Report) -> None:
    async with _database() as (address, _):
        await _due_sessions(address, SNAPSHOT_SESSIONS)
        connection, holder = await asyncpg.connect(address), await asyncpg.connect(address)
        async with _processes("claims", 1, address, "--lane", str(SNAPSHOT_SESSIONS)):
            free = await _rounds(address, connection)
            await connection.execute("VACUUM sessions")
            size = await connection.fetchval(_SIZE)
            async with holder.transaction(isolation="repeatable_read"):
                await holder.fetch("SELECT 1")
                held = await _rounds(address, connection)
                grown = await connection.fetchval(_SIZE)
            await connection.execute("VACUUM sessions")
            await _rounds(address, connection)
            after = await connection.fetchval(_SIZE)
        await connection.close()
        await holder.close()
    p99, p99_held = percentile(sorted(free), 0.99), percentile(sorted(held), 0.99)
    figures = {
        "rounds": ROUNDS, "claim_p99_ms": round(p99, 3), "claim_p99_held_ms": round(p99_held, 3),
        "size": size, "size_held": grown, "size_after": after, "scaled": True,
    }  # fmt: skip
    report.add(Row("fleet", "snapshot", "postgres", SNAPSHOT_SESSIONS, 0, True, None, 0.0, figures))
    report.targets.append(
        at_most("fleet: claim p99 with a snapshot held (scaled)", p99_held / p99, SNAPSHOT_P99)
    )
    report.targets.append(
        at_most(
            "fleet: size after as many steps without it, of the size with it (scaled)", after / grown, 1.0
        )
    )


_SIZE: Final = "SELECT pg_relation_size('sessions')"


async def _rounds(address: str, connection: Any, rounds: int = ROUNDS) -> list[float]:
    """Claim all sessions in batches, release them, and again. Return what each claim took."""
    took_ms: list[float] = []
    async with PostgresStore(address, SystemClock()) as db:
        for _ in range(rounds):
            while True:
                began = time.perf_counter()
                found = await db.alone(claims.claim, 100, 20)
                took_ms.append(1000 * (time.perf_counter() - began))
                if not found:
                    break
            await connection.execute("UPDATE sessions SET owner = NULL, due = 1 WHERE is_task = 1")
    return took_ms
