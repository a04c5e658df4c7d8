"""`python -m benchmarks`: runs what is asked for and prints it. Data on stdout, words on stderr; exit 0 iff ok."""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import Final

from benchmarks import boot, calls, cli, fanin, fleet, growth, load, machine, page, ready, store, w1, w2
from benchmarks.places import Place, places
from benchmarks.report import Report, Row, say
from clutch.cli.serve import collect_rarely

Bench = Callable[[Report, Sequence[Place], int, Sequence[int]], Awaitable[None]]

BENCHES: Final[Mapping[str, Bench]] = {
    "store": store.run,
    "growth": growth.run,
    "boot": boot.run,
    "calls": calls.run,
    "w1": w1.run,
    "w2": w2.run,
    "fanin": fanin.run,
    "ready": ready.run,
    "cli": cli.run,
    "page": page.run,
    "fleet": fleet.run,
    "load": load.run,
}
#: All but `load`, which takes ten minutes and runs only on request.
_SHORT: Final = "store,growth,boot,calls,w1,w2,fanin,ready,cli,page"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    collect_rarely()  # as every gateway does; the floors, which run here too, have the same
    report = Report()
    report.config |= {"reps": options.reps, "n": options.n or "default"}
    with places() as known:
        for name in options.only:
            asyncio.run(_guarded(name, report, list(known.values()), options))
            gc.collect()
        described = machine.describe(Path(gettempdir()))
    return 0 if report.finish(described) else 1


async def _guarded(name: str, report: Report, known: Sequence[Place], options: argparse.Namespace) -> None:
    """A benchmark that breaks is a failed row; the others still run."""
    try:
        if name == "load":
            await load.run(report, known, options.reps, options.n, options.seconds)
        else:
            await BENCHES[name](report, known, options.reps, options.n)
    except Exception as error:  # noqa: BLE001 - reported as a row
        say(traceback.format_exc())
        report.add(Row(name, "clutch", "", 0, 0, False, None, 0.0, why=f"{type(error).__name__}: {error}"))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", type=_names, default=_SHORT, help=f"of {', '.join(BENCHES)}")
    parser.add_argument(
        "--n",
        type=_sizes,
        default=[],
        help="instead of the default sizes: tasks (store), stored (growth), unfinished (boot),"
        " children (w1, w2, fanin), tasks (page), watchers (load)",
    )
    parser.add_argument("--reps", type=int, default=3, help="repetitions; a value is their median")
    parser.add_argument("--load", type=int, default=0, help="1: nothing but `load`, unless --only names more")
    parser.add_argument("--seconds", type=float, default=load.SECONDS, help="how long `load` goes on")
    options = parser.parse_args(arguments)
    if options.load:
        options.only = [*([] if options.only == _names(_SHORT) else options.only), "load"]
    return options


def _names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in BENCHES:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(BENCHES)}")
    return names


def _sizes(text: str) -> list[int]:
    sizes = [int(size) for size in text.split(",") if size]
    if any(size < 1 for size in sizes):
        raise argparse.ArgumentTypeError("sizes are positive numbers")
    return sizes


if __name__ == "__main__":
    sys.exit(main())
