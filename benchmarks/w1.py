"""`w1`: N children with three model calls and two tools each, over HTTP with streaming. What does Clutch add?

The floor does the same calls with nothing around them. Each system runs in a process of its own, the model in
another one; they share the machine, so a figure is compared with the floor's of the same run only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks import w_job
from benchmarks.places import Place
from benchmarks.report import Report, Row, Target, at_most, say
from benchmarks.w_process import started
from benchmarks.w_worker import RAISED

SYSTEMS: Final = ("floor", "direct", "library")
SIZES: Final = (100, 1000)
CPU_OVER_FLOOR: Final[Mapping[str, float]] = {"direct": 3.0, "library": 10.0}
#: Of the floor's makespan, up to so many children.
MAKESPAN_OVER_FLOOR: Final[Mapping[tuple[str, int], float]] = {
    ("direct", 100): 1.5,
    ("direct", 1000): 2.5,
    ("library", 100): 3.5,
}
LIBRARY_OVER_CPU: Final = 1.3  # beyond those: waiting for anything but the processor is a defect
RSS_KB: Final[Mapping[str, float]] = {"direct": 60, "library": 150}
_PATIENCE_S: Final = 30.0
_PATIENCE_PER_CHILD_S: Final = 0.2
_FIELDS: Final = (
    "results", "llm_calls", "expected_calls", "repeated_calls", "max_in_flight", "parent_calls",
    "cpu_ms_per_child", "makespan_s", "ideal_s", "rss_kb_per_child", "request_bytes_per_child",
    "disk_bytes_per_child", "server_cpu_s", "server_late_ms",
)  # fmt: skip


async def run(
    report: Report,
    places: Sequence[Place],
    reps: int,
    sizes: Sequence[int],
    systems: Sequence[str] = SYSTEMS,
) -> None:
    del places  # state on SQLite only
    report.config["w1"] = {"raised": RAISED, "latency_s": w_job.LATENCY_S}
    for n in sizes or SIZES:
        for rep in range(reps):
            for system in systems:
                say(f"w1: {system}, {n} children, rep {rep}")
                report.add(await _row(system, n, rep))
        for system in systems:
            report.targets += _targets(report, system, n)


async def _row(system: str, n: int, rep: int) -> Row:
    try:
        figures = await _fan_out(system, n)
        why = problem(figures, n)
    except (RuntimeError, TimeoutError, OSError, ValueError) as error:
        figures = dict.fromkeys((*_FIELDS, "cpu_s"))
        why = f"{type(error).__name__}: {error}"
    kept = {name: figures[name] for name in _FIELDS}
    wall_s = figures["makespan_s"] or 0.0
    return Row("w1", system, "sqlite", n, rep, why is None, figures["cpu_s"], wall_s, kept, why)


async def _fan_out(system: str, n: int) -> dict[str, Any]:
    with TemporaryDirectory(prefix="clutch-w1-") as directory:
        async with started("benchmarks.w_server") as server:
            url = await server.line()
            state = Path(directory) / "state"
            state.mkdir(mode=0o700)
            known = ("--system", system, "--url", url, "--state", str(state), "--children", str(n))
            async with started("benchmarks.w_worker", *known) as worker:
                await worker.line()
                await server.order("reset")
                measured = await worker.figures("go", _PATIENCE_S + n * _PATIENCE_PER_CHILD_S)
                return _per_child(measured | await server.figures("report"), n)


def _per_child(figures: dict[str, Any], n: int) -> dict[str, Any]:
    rss_kb = figures["rss_kb"]
    return figures | {
        "expected_calls": w_job.expected_calls(n),
        "ideal_s": w_job.IDEAL_S,
        "cpu_ms_per_child": round(1000 * figures["cpu_s"] / n, 3),
        "rss_kb_per_child": None if rss_kb is None else round(rss_kb / n, 1),
        "request_bytes_per_child": round(figures["request_bytes"] / n),
        "disk_bytes_per_child": round(figures["disk_bytes"] / n),
    }


def problem(figures: Mapping[str, Any], n: int) -> str | None:
    """What the server saw that should not be."""
    if figures["results"] != n:
        return f"{figures['results']} of {n} results came to the parent"
    if figures["repeated_calls"] or figures["unnamed_calls"]:
        return f"{figures['repeated_calls']} calls were repeated, {figures['unnamed_calls']} had no key"
    if figures["llm_calls"] != w_job.expected_calls(n):
        return f"{figures['llm_calls']} calls instead of {w_job.expected_calls(n)}"
    return None


def _targets(report: Report, system: str, n: int) -> list[Target]:
    if system == "floor":
        return []
    mine: dict[str, Any] = {"bench": "w1", "system": system, "n": n}
    floor = mine | {"system": "floor"}
    cpu = report.ratio("cpu_ms_per_child", mine, floor)
    rss = report.median("rss_kb_per_child", **mine)
    return [
        at_most(f"w1 {system} n={n}: CPU per child, of the floor's", cpu, CPU_OVER_FLOOR[system]),
        _makespan(report, mine, floor),
        at_most(f"w1 {system} n={n}: KB per child", rss, RSS_KB[system]),
    ]


def _makespan(report: Report, mine: Mapping[str, Any], floor: Mapping[str, Any]) -> Target:
    system, n = mine["system"], mine["n"]
    limit = next(
        (limit for (of, upto), limit in MAKESPAN_OVER_FLOOR.items() if of == system and n <= upto), None
    )
    if limit is not None:
        value = report.ratio("makespan_s", mine, floor)
        return at_most(f"w1 {system} n={n}: makespan, of the floor's", value, limit)
    makespan, cpu = report.median("makespan_s", **mine), report.median("cpu_s", **mine)
    value = makespan / cpu if makespan and cpu else None
    return at_most(f"w1 {system} n={n}: makespan, of its own CPU seconds", value, LIBRARY_OVER_CPU)
