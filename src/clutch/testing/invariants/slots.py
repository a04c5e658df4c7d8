"""How the slots of a lane are divided, as claims give them (`core.fair_share`). Simulated worlds never fill a lane for
long enough: this lays out sessions that are due and lets claim after claim take one."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

from clutch.core import spawn as spawn_rules
from clutch.core.authority import AgentGrant, root_rights, to_text
from clutch.core.fair_share import PASSED_MAX, RANKS, DueSession, Priority, Queue
from clutch.core.model import Lane
from clutch.core.policy import Limits, Policy
from clutch.core.spawn import SpawnRefusal, SpawnRequest
from clutch.store.sqlite import SqliteStore
from clutch.store.transaction import ManyRows, Row, Tx
from clutch.testing.clock import FakeClock
from clutch.testing.invariants.probes import Probe
from clutch.transactions import claims, sessions, workers
from clutch.transactions.spawn import ChildRequest, spawn

_WORKER = 1
_LOW = RANKS[Priority.LOW]
_HIGH = RANKS[Priority.HIGH]
_ROOTS = 3 * claims.ROOTS_MAX


def _story() -> Iterator[str]:
    yield from asyncio.run(_played())


async def _played() -> list[str]:
    with tempfile.TemporaryDirectory(prefix="clutch-probe-") as folder:
        async with SqliteStore(Path(folder) / "clutch.db", FakeClock()) as db:
            await db.alone(workers.register, _WORKER, 1e9, "host", 1, version="0")
            return [wrong async for wrong in _wrong(db)]


async def _wrong(db: SqliteStore) -> AsyncIterator[str]:
    backlog = [DueSession(1.0, number, 1, "b") for number in range(1, 60)]
    others = [DueSession(2.0, number, 2, "a") for number in range(100, 160)]
    served = await _served(db, [*backlog, *others], 4, 24, weights={"a": 3})
    if (count := sum(number >= 100 for number in served)) != 18:
        yield f"share a, of weight 3 beside 1, got {count} of 24 slots"
    urgent = [DueSession(2.0, number, 2, "b", _HIGH) for number in range(100, 160)]
    served = await _served(db, [DueSession(1.0, 1, 1, "b", _LOW), *urgent], 1, PASSED_MAX + 1)
    if served.index(1) != PASSED_MAX if 1 in served else True:
        yield "the session that waited longest was not passed over exactly as often as high priority may"
    roots = [DueSession(2.0, number, number) for number in range(1000, 1000 + _ROOTS)]
    served = await _served(
        db, [*(DueSession(1.0, number, 1) for number in range(1, 40)), *roots], 2, 10, first=1
    )
    if len({(number - 1000) // claims.ROOTS_MAX for number in served if number >= 1000}) < 3:
        yield "roots behind the first that a claim reads stay hidden"
    async for wrong in _inherited(db):
        yield wrong


async def _served(
    db: SqliteStore,
    waiting: Sequence[DueSession],
    cap: int,
    rounds: int,
    *,
    weights: Mapping[str, int] = claims.NO_WEIGHTS,
    first: int | None = None,
) -> list[int]:
    """The sessions that get a slot, one after the other; the oldest turn ends when all slots are taken.

    `first`: works from the start and does not end."""
    await db.alone(_lay, waiting)
    await db.alone(_write, "UPDATE lanes SET passed = 0, positions = ''")
    await db.alone(claims.set_lanes, {Lane.SUBAGENT: cap})
    if first is not None:
        await db.alone(_write, "UPDATE sessions SET owner = ?, due = NULL WHERE id = ?", _WORKER, first)
    served: list[int] = []
    at_once = cap if first is None else cap - 1
    for _ in range(rounds):
        got = await db.alone(claims.claim, _WORKER, 1, (Lane.SUBAGENT,), weights=weights)
        served += [one.session_id for one in got]
        if len(served) >= at_once:
            await db.alone(
                _write,
                "UPDATE sessions SET owner = NULL, due = NULL WHERE id = ?",
                served[len(served) - at_once],
            )
    await db.alone(_write, "DELETE FROM sessions")
    return served


def _lay(now: float, waiting: Sequence[DueSession]) -> Tx[None]:
    del now
    yield (
        "INSERT INTO sessions(id, key, agent_id, root_id, depth, lane, role, is_task, rights, due, created_at, share,"
        " priority) VALUES(?, ?, 'main', ?, 1, 'subagent', 'leaf', 0, '{}', ?, 1, ?, ?)",
        ManyRows((one.id, f"k{one.id}", one.root_id, one.due, one.share, one.rank) for one in waiting),
    )


def _write(now: float, sql: str, *parameters: int) -> Tx[None]:
    del now
    yield sql, parameters


def _select(now: float, sql: str) -> Tx[list[Row]]:
    del now
    return list((yield sql, ()))


async def _inherited(db: SqliteStore) -> AsyncIterator[str]:
    rights = to_text(root_rights(AgentGrant(depth_max=3)))
    main = await db.alone(
        sessions.open_session, sessions.NewMain(1, "agent:main:main", "main", rights, None, ".")
    )
    asked = (SpawnRequest("look", share="a", priority=Priority.LOW), SpawnRequest("look"))
    for number, (parent, request) in enumerate(zip((main, 10), asked, strict=True)):
        order = ChildRequest(str(number), 10 + number, f"00000000-0000-4000-8000-{number:012x}", request, 0)
        _ = await db.alone(spawn, Policy(limits=Limits(depth_max=3)), parent, main, [order])
    found = await db.read(_select, "SELECT share, priority FROM sessions WHERE depth = 2")
    if found != [("a", _LOW)]:
        yield f"the child of a task of share a and low priority has {found}"
    for wish in (SpawnRequest("look", share="b"), SpawnRequest("look", priority=Priority.HIGH)):
        if not isinstance(spawn_rules.queue_of(wish, Queue(_LOW, "a"), is_agent=True), SpawnRefusal):
            yield f"an agent of share a and low priority may spawn with {wish.share or wish.priority}"


PROBE = Probe("fair-share", "slots are divided by weight and priority, and no session stays behind", _story)
