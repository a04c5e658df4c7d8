"""`store`: what the protocol costs over the bare writes of the same rows, at 1, 50 and 500 tasks at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks import shape
from benchmarks.floor import Floor, writer
from benchmarks.places import Meter, Place
from benchmarks.report import Report, Row, at_least, percentile, say
from benchmarks.task import RAISED
from benchmarks.traffic import Traffic, by_clients, parents_needed

#: Tasks for about a second of work each on a small machine.
COUNTS: Final[Mapping[int, int]] = {1: 40, 50: 600, 500: 1500}

#: Of the floor's tasks per second, with 50 at a time.
TARGETS: Final[Mapping[str, float]] = {"sqlite": 0.5, "postgres": 0.3}
TARGET_CLIENTS: Final = 50


async def run(
    report: Report,
    places: Sequence[Place],
    reps: int,
    sizes: Sequence[int],
    clients: Sequence[int] = tuple(COUNTS),
) -> None:
    report.config["store"] = {"raised": RAISED}
    for place in places:
        for c in clients:
            for n in sizes or (COUNTS.get(c, c),):
                for rep in range(reps):
                    for system in ("floor", "clutch"):
                        say(f"store: {system} on {place.backend}, {n} tasks, {c} at a time, rep {rep}")
                        report.add(await _row(place, system, n, c, rep))
    for place in places:
        _judge(report, place.backend)
    await shape.judge(report)


def _judge(report: Report, backend: str) -> None:
    above: dict[str, Any] = {"bench": "store", "backend": backend, "c": TARGET_CLIENTS, "system": "clutch"}
    value = report.ratio("tasks_per_s", above, above | {"system": "floor"})
    name = f"store {backend} c={TARGET_CLIENTS}: tasks per second, clutch / floor"
    report.targets.append(at_least(name, value, TARGETS[backend]))


async def _row(place: Place, system: str, n: int, c: int, rep: int) -> Row:
    address = place.new()
    try:
        async with place.open(address):
            pass  # makes the tables
        measured = await (_floor if system == "floor" else _clutch)(place, address, n, c)
    finally:
        place.remove(address)
    cpu_s, wall_s, figures = measured
    return Row("store", system, place.backend, n, rep, True, cpu_s, wall_s, figures)


_Measured = tuple[float, float, dict[str, Any]]


async def _clutch(place: Place, address: str, n: int, c: int) -> _Measured:
    async with place.open(address) as db, Traffic(db) as traffic:
        parents = await traffic.new_parents(parents_needed(n, c))
        commits, meter = db.stats.commits, Meter(place)
        taken = await by_clients(n, c, parents, traffic.task)
        return _figures(meter, n, c, taken, db.stats.commits - commits)


async def _floor(place: Place, address: str, n: int, c: int) -> _Measured:
    async with writer(place, address) as bare:
        floor = Floor(bare)
        parents = await floor.new_parents(parents_needed(n, c))
        commits, meter = bare.commits, Meter(place)
        taken = await by_clients(n, c, parents, floor.task)
        return _figures(meter, n, c, taken, bare.commits - commits)


def _figures(meter: Meter, n: int, c: int, taken: list[float], commits: int) -> _Measured:
    wall_s, cpu_s, server_cpu_s = meter.wall_s(), meter.cpu_s(), meter.server_cpu_s()
    return (
        round(cpu_s, 4),
        round(wall_s, 4),
        {
            "c": c,
            "group_commit": True,
            "tasks_per_s": round(n / wall_s, 1),
            "cpu_ms_per_task": round(1000 * cpu_s / n, 3),
            "server_cpu_ms_per_task": None if server_cpu_s is None else round(1000 * server_cpu_s / n, 3),
            "p50_ms": round(1000 * percentile(taken, 0.5), 2),
            "p99_ms": round(1000 * percentile(taken, 0.99), 2),
            "commits": commits,
        },
    )
