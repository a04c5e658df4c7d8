"""`w2`: kill -9 in the middle of a fan-out. What has to be done again, and does anything happen twice?

The children have different paces and the lane has room for half of them, so that the blow finds some done, some
at every step, and some not begun. A new process on the same state is told nothing; the server and a file that
every child appends to are the witnesses.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks import w_job
from benchmarks.places import Place
from benchmarks.report import Report, Row, at_most, say
from benchmarks.w_process import Process, started
from benchmarks.w_worker import RAISED
from clutch.offline_reader import looking_at
from clutch.store.transaction import Tx

SYSTEMS: Final = ("direct", "library")
SIZES: Final = (20, 200)
_FIELDS: Final = (
    "calls_before_kill", "finished_before_kill", "in_flight_at_kill", "calls_after", "ideal_after",
    "repeated_calls", "children_from_zero", "side_effects", "side_effects_repeated", "results", "delivered",
    "twice", "first_call_after_start_s",
)  # fmt: skip


async def run(
    report: Report,
    places: Sequence[Place],
    reps: int,
    sizes: Sequence[int],
    systems: Sequence[str] = SYSTEMS,
) -> None:
    del places  # state on SQLite only
    report.config["w2"] = {
        "raised": RAISED,
        "worker.lanes.subagent": "half of n",
        "killed_at": "half of the calls",
    }
    for n in sizes or SIZES:
        for rep in range(reps):
            for system in systems:
                say(f"w2: {system}, {n} children, rep {rep}")
                report.add(await _row(system, n, rep))
        for system in systems:
            mine: dict[str, Any] = {"bench": "w2", "system": system, "n": n}
            bad = sum(mine.items() <= row.as_json().items() and not row.ok for row in report.rows)
            report.targets.append(at_most(f"w2 {system} n={n}: runs that broke a promise", bad, 0))


async def _row(system: str, n: int, rep: int) -> Row:
    began = time.perf_counter()
    try:
        figures = await _killed_and_resumed(system, n)
        why = problem(figures, n)
    except (RuntimeError, TimeoutError, OSError, ValueError) as error:
        figures, why = dict.fromkeys((*_FIELDS, "cpu_s")), f"{type(error).__name__}: {error}"
    wall_s = round(time.perf_counter() - began, 4)
    kept = {name: figures[name] for name in _FIELDS}
    return Row("w2", system, "sqlite", n, rep, why is None, figures["cpu_s"], wall_s, kept, why)


async def _killed_and_resumed(system: str, n: int) -> dict[str, Any]:
    with TemporaryDirectory(prefix="clutch-w2-") as directory:
        state, effects = Path(directory) / "state", Path(directory) / "effects"
        state.mkdir(mode=0o700)
        async with started("benchmarks.w_server", "--uneven") as server:
            url = await server.line()
            known = (
                "--system",
                system,
                "--url",
                url,
                "--state",
                str(state),
                "--effects",
                str(effects),
                "--lane",
                str(max(1, n // 2)),
            )
            await _killed_at_half(server, n, effects, *known, "--children", str(n))
            finished, _ = _ended_and_delivered(state)
            born = time.time()
            async with started("benchmarks.w_worker", *known, "--resume") as second:
                measured = json.loads(await second.line())
            seen = await server.figures("report")
        lines = effects.read_text().split()
        return seen | {
            "cpu_s": measured["cpu_s"],
            "finished_before_kill": finished,
            "in_flight_at_kill": seen["children_begun"] - finished,
            "ideal_after": w_job.expected_calls(n) - seen["answered_before_kill"],
            "side_effects": len(lines),
            "side_effects_repeated": len(lines) - len(set(lines)),
            "delivered": _ended_and_delivered(state)[1],
            "first_call_after_start_s": _since(born, seen["first_call_at"]),
        }


async def _killed_at_half(server: Process, n: int, effects: Path, *known: str) -> None:
    async with started("benchmarks.w_worker", *known) as first:
        await first.line()
        _empty(effects)  # of what the warm-up did
        await server.order("reset")
        await server.order(f"watch {w_job.expected_calls(n) // 2}")
        first.tell("go")
        await server.line()
        await first.kill()
        await server.order("mark")


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _since(born: float, moment: float | None) -> float | None:
    return None if moment is None else round(moment - born, 3)


#: Those of the warm-up have another requester.
_OURS: Final = """SELECT COUNT(*) FILTER (WHERE outcome IS NOT NULL), COUNT(*) FILTER (WHERE delivery = 'delivered')
    FROM tasks JOIN sessions ON sessions.id = tasks.requester_id WHERE sessions.key = 'agent:main:main'"""


def _ended_and_delivered(state: Path) -> tuple[int, int]:
    def count(now: float) -> Tx[tuple[int, int]]:
        del now
        ((ended, delivered),) = yield _OURS, ()
        return ended, delivered

    with looking_at(state) as look:
        found: tuple[int, int] = look(count)
    return found


def problem(figures: Mapping[str, Any], n: int) -> str | None:
    if figures["results"] != n or figures["delivered"] != n:
        return (
            f"{figures['results']} of {n} results were told, {figures['delivered']} are marked as delivered"
        )
    if figures["repeated_calls"] > figures["in_flight_at_kill"]:
        return (
            f"{figures['repeated_calls']} calls repeated, {figures['in_flight_at_kill']} children in flight"
        )
    for name in ("children_from_zero", "side_effects_repeated", "twice"):
        if figures[name]:
            return f"{name}: {figures[name]}"
    return None
