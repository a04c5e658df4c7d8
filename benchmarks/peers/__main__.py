"""`python -m benchmarks.peers`: Clutch and other agent libraries with the same jobs, the same model, in one run.

Prints one JSON line per run of a system and a summary with the ratios to Clutch. `ok` and the exit code judge Clutch
alone: a peer that cannot be installed or does not finish is a row that says why.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Final

from benchmarks import machine
from benchmarks.peers.environment import NotInstalled, all_versions, python_of
from benchmarks.peers.registry import CLUTCH, PEERS
from benchmarks.peers.workload import WORKLOADS, measured, model
from benchmarks.report import Report, Row, at_most, say

SIZES: Final[Mapping[str, tuple[int, ...]]] = {
    "w1": (40,),
    "w2": (20,),
    "fanin": (40,),
    "history": (10, 100, 300, 1000),
}
PARENT_TURNS_MAX: Final = 2
#: Of the bytes that a call leaves behind, long history / short. Flat, with room for the rounding of small databases.
GROWTH_MAX: Final = 2.0
#: What a ratio to Clutch is made of.
COMPARED: Final[Mapping[str, str]] = {
    "w1": "cpu_ms_per_child",
    "w2": "repeated_calls",
    "fanin": "cpu_s",
    "history": "cpu_ms_per_call",
}


class PeerReport(Report):
    """Judges the rows of Clutch; those of the peers are reported."""

    @property
    def ok(self) -> bool:
        ours = [row for row in self.rows if PEERS[row.system].is_ours]
        return bool(ours) and all(row.ok for row in ours) and all(target.ok for target in self.targets)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    benches = [name for name in WORKLOADS if name in options.only] or list(WORKLOADS)
    systems = [name for name in PEERS if name in options.only] or list(PEERS)
    report = PeerReport()
    report.config = {"reps": options.reps, "n": options.n or "default", "versions": all_versions()}
    with suppress(KeyboardInterrupt):  # what was measured until then is reported
        asyncio.run(_run(report, benches, systems, options))
    judge(report, benches, systems)
    return 0 if report.finish(machine.describe(Path(gettempdir()))) else 1


async def _run(
    report: Report, benches: Sequence[str], systems: Sequence[str], options: argparse.Namespace
) -> None:
    missing = _missing(systems)
    rounds = [
        (bench, rep, n) for bench in benches for rep in range(options.reps) for n in options.n or SIZES[bench]
    ]
    async with model() as (server, url):
        for bench, rep, n in rounds:
            for system in systems:  # alternating, so that a busy minute hits all of them
                say(f"{bench}: {system}, n={n}, rep {rep}")
                peer, why = PEERS[system], missing.get(system)
                if why is not None:
                    report.add(Row(bench, system, peer.backend, n, rep, False, None, 0.0, why=why))
                else:
                    report.add(await measured(bench, peer, n, rep, server, url))


def _missing(systems: Sequence[str]) -> Mapping[str, str]:
    """Environments are made before anything is measured. Why each that could not be made is missing."""
    missing = {}
    for system in systems:
        try:
            python_of(PEERS[system])
        except NotInstalled as error:
            missing[system] = str(error)
            say(f"{system}: {error}")
    return missing


def judge(report: Report, benches: Sequence[str], systems: Sequence[str]) -> None:
    """Targets for Clutch's own promises, and for every peer how many times Clutch's figure it needs."""
    for bench in benches:
        for n in sorted({row.n for row in report.rows if row.bench == bench}):
            for system in systems:
                mine: dict[str, Any] = {"bench": bench, "system": system, "n": n}
                if PEERS[system].is_ours:
                    _promises(report, mine)
                if system != CLUTCH:
                    value = report.ratio(COMPARED[bench], mine, mine | {"system": CLUTCH})
                    report.ratios[f"{bench} n={n}: {COMPARED[bench]}, {system} / clutch"] = value
    if "history" in benches:
        for system in (name for name in systems if PEERS[name].is_ours):
            _growth(report, system)


def _promises(report: Report, mine: Mapping[str, Any]) -> None:
    name = f"{mine['bench']} {mine['system']} n={mine['n']}"
    if mine["bench"] == "w2":
        for figure in ("lost", "twice", "side_effects_repeated"):
            report.targets.append(at_most(f"{name}: {figure}", report.median(figure, **mine), 0))
    elif mine["bench"] == "fanin":
        turns = report.median("parent_turns", **mine)
        report.targets.append(at_most(f"{name}: parent turns", turns, PARENT_TURNS_MAX))


def _growth(report: Report, system: str) -> None:
    sizes = sorted({row.n for row in report.rows if row.bench == "history"})
    if len(sizes) > 1:
        # The smallest run shares one page between its rows, so the next one is what growth is measured from.
        first = sizes[1] if len(sizes) > 2 else sizes[0]
        longest, shortest = ({"bench": "history", "system": system, "n": n} for n in (sizes[-1], first))
        value = report.ratio("stored_bytes_per_call", longest, shortest)
        name = f"history {system}: stored bytes per call, {sizes[-1]} / {first} calls"
        report.targets.append(at_most(name, value, GROWTH_MAX))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        epilog="Example: make bench-peers ONLY=w1,clutch,langgraph N=20 REPS=1",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = ", ".join([*WORKLOADS, *PEERS])
    parser.add_argument("--only", type=_names, default=[], help=f"workloads, systems or both, of {known}")
    parser.add_argument(
        "--n",
        type=_sizes,
        default=[],
        help="children (w1, w2, fanin) or calls (history) instead of the default",
    )
    parser.add_argument("--reps", type=int, default=3, help="repetitions; a value is their median")
    return parser.parse_args(arguments)


def _names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in WORKLOADS and name not in PEERS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join([*WORKLOADS, *PEERS])}")
    return names


def _sizes(text: str) -> list[int]:
    sizes = [int(size) for size in text.split(",") if size]
    if any(size < 1 for size in sizes):
        raise argparse.ArgumentTypeError("sizes are positive numbers")
    return sizes


if __name__ == "__main__":
    sys.exit(main())
