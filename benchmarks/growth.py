"""`growth`: does a task cost more when a million finished ones are stored? Also: does listing a small tree?

The measured requesters have a long history of their own, so that a query without the right index shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from benchmarks.finished import FIRST_MEASURED, TREE_ROOT, fill, settle
from benchmarks.places import Meter, Place
from benchmarks.report import Report, Row, at_most, say
from benchmarks.task import RAISED, TASKS_PER_PARENT
from benchmarks.traffic import Traffic, by_clients
from clutch.store.transaction import Database
from clutch.transactions.read import transcripts

SIZES: Final[Mapping[str, tuple[int, int]]] = {"sqlite": (1000, 1_000_000), "postgres": (1000, 100_000)}
REQUESTERS: Final = 20
TASKS: Final = REQUESTERS * TASKS_PER_PARENT
_LISTINGS: Final = 50

#: large / small
TARGETS: Final = {"transition_cpu_us": 1.3, "transition_wall_us": 2.0, "list_tree_us": 1.5}


async def run(
    report: Report, places: Sequence[Place], reps: int, sizes: Sequence[int], requesters: int = REQUESTERS
) -> None:
    report.config["growth"] = {"raised": RAISED}
    for place in places:
        small, large = _sizes(sizes, place.backend)
        addresses = {stored: place.new() for stored in (small, large)}
        try:
            for stored, address in addresses.items():
                say(f"growth: {place.backend} with {stored} finished tasks is made")
                await _make(place, address, stored, requesters)
            for rep in range(reps):
                for stored, address in addresses.items():
                    say(f"growth: {place.backend} over {stored} finished tasks, rep {rep}")
                    report.add(await _row(place, address, stored, rep, requesters))
        finally:
            for address in addresses.values():
                place.remove(address)
        _judge(report, place.backend, small, large)


def _sizes(asked: Sequence[int], backend: str) -> tuple[int, int]:
    if not asked:
        return SIZES[backend]
    return (min(asked), max(asked)) if len(set(asked)) > 1 else (max(1, asked[0] // 100), asked[0])


def _judge(report: Report, backend: str, small: int, large: int) -> None:
    for figure, limit in TARGETS.items():
        where: dict[str, Any] = {"bench": "growth", "backend": backend}
        value = report.ratio(figure, where | {"stored": large}, where | {"stored": small})
        name = f"growth {backend}: {figure}, {large} / {small} stored"
        report.targets.append(at_most(name, value, limit))


async def _make(place: Place, address: str, stored: int, requesters: int) -> None:
    async with place.open(address) as db:
        await fill(db, stored, requesters)
        await settle(db, place.backend)


async def _row(place: Place, address: str, stored: int, rep: int, requesters: int) -> Row:
    n = requesters * TASKS_PER_PARENT
    async with place.open(address) as db, Traffic(db) as traffic:
        parents = list(range(FIRST_MEASURED, FIRST_MEASURED + requesters))
        await by_clients(
            requesters, requesters, parents, traffic.task
        )  # what is read for the first time is slow
        before, meter = db.stats.transactions, Meter(place)
        await by_clients(n, requesters, parents, traffic.task)
        wall_s, cpu_s, server_cpu_s = meter.wall_s(), meter.cpu_s(), meter.server_cpu_s()
        transitions = db.stats.transactions - before
        list_tree_s = await _list_tree_s(db)
    figures = {
        "stored": stored,
        "transition_cpu_us": round(1e6 * (cpu_s + (server_cpu_s or 0.0)) / transitions, 1),
        "transition_wall_us": round(1e6 * wall_s / transitions, 1),
        "list_tree_us": round(1e6 * list_tree_s, 1),
    }
    return Row("growth", "clutch", place.backend, n, rep, True, round(cpu_s, 4), round(wall_s, 4), figures)


async def _list_tree_s(db: Database) -> float:
    clock = asyncio.get_running_loop().time
    taken = []
    for _ in range(_LISTINGS):
        started = clock()
        rows = await db.read(transcripts.tree, TREE_ROOT)
        taken.append(clock() - started)
        if not rows:
            raise RuntimeError("the tree to list is empty")
    return median(taken)
