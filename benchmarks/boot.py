"""`boot`: how soon is a new process at work where a dead one left off? Each repetition starts a real process.

The clock starts before the process does, so the interpreter and all imports count.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.boot_worker import RAISED
from benchmarks.places import Place
from benchmarks.report import Report, Row, at_most, say
from benchmarks.unfinished import leave
from clutch.store.sqlite import SqliteStore
from clutch.wiring import DATABASE_FILE, SystemClock

UNFINISHED: Final = 10_000
FIRST_RESUMED_S: Final = 2.0
ALL_OWNED_S: Final = 10.0
_PATIENCE_S: Final = 60.0


async def run(report: Report, places: Sequence[Place], reps: int, sizes: Sequence[int]) -> None:
    report.config["boot"] = {"raised": RAISED}
    for place in places:
        for unfinished in sizes or (UNFINISHED,):
            for rep in range(reps):
                say(f"boot: {place.backend} with {unfinished} unfinished tasks, rep {rep}")
                report.add(await _row(place, unfinished, rep))
        _judge(report, place.backend)


def _judge(report: Report, backend: str) -> None:
    for figure, limit in (("first_resumed_s", FIRST_RESUMED_S), ("all_owned_s", ALL_OWNED_S)):
        value = report.median(figure, bench="boot", backend=backend)
        report.targets.append(at_most(f"boot {backend}: {figure}", value, limit))


async def _row(place: Place, unfinished: int, rep: int) -> Row:
    with TemporaryDirectory(prefix="clutch-boot-") as state:
        if place.backend == "sqlite":
            async with SqliteStore(Path(state) / DATABASE_FILE, SystemClock()) as db:
                await leave(db, unfinished)
            return await _start(place, unfinished, rep, "--state", state)
        address = place.new()
        try:
            async with place.open(address) as db:
                await leave(db, unfinished)
            return await _start(place, unfinished, rep, "--database", address)
        finally:
            place.remove(address)


async def _start(place: Place, unfinished: int, rep: int, *where: str) -> Row:
    started = time.time()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.boot_worker", *where, "--started", str(started),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        output, _ = await asyncio.wait_for(process.communicate(), _PATIENCE_S)
        measured, why = _measured(output, process.returncode)
    except TimeoutError:
        process.kill()
        await process.wait()
        measured, why = {}, f"not done after {_PATIENCE_S:.0f} s"
    figures = {
        "unfinished": unfinished,
        "first_resumed_s": measured.get("first_resumed_s"),
        "all_owned_s": measured.get("all_owned_s"),
    }
    return Row(
        "boot", "clutch", place.backend, unfinished, rep, why is None, measured.get("cpu_s"),
        round(time.time() - started, 4), figures, why,
    )  # fmt: skip


def _measured(output: bytes, code: int | None) -> tuple[dict[str, Any], str | None]:
    if code != 0:
        return {}, f"the worker ended with {code}"
    return json.loads(output), None
