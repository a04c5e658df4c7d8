"""`ready`: how soon does a gateway answer after it was started, and what does it weigh when nobody asks anything?

Beside it, in turn, what its two libraries take alone: that much nobody can save.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.machine import resident_kb
from benchmarks.places import Place
from benchmarks.report import Report, Row, at_most, say
from clutch.surfaces.http_client import connect

TIMES_MAX: Final = 8.0
IDLE_MB_MAX: Final = 150.0
FLOOR: Final = "import starlette, uvicorn"


async def run(report: Report, places: Sequence[Place], reps: int, sizes: Sequence[int]) -> None:
    del places, sizes  # one process, one file
    for rep in range(reps):
        say(f"ready: rep {rep}")
        report.add(await _floor(rep))
        report.add(await _gateway(rep))
    times = report.ratio(
        "ready_s", {"bench": "ready", "system": "clutch"}, {"bench": "ready", "system": "floor"}
    )
    report.targets.append(at_most("ready: gateway over its libraries", times, TIMES_MAX))
    idle = report.median("idle_mb", bench="ready", system="clutch")
    report.targets.append(at_most("ready: idle MB", idle, IDLE_MB_MAX))


async def _floor(rep: int) -> Row:
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", FLOOR)
    code = await process.wait()
    took = round(time.perf_counter() - began, 4)
    return Row("ready", "floor", "", 1, rep, code == 0, None, took, {"ready_s": took, "idle_mb": None})


async def _gateway(rep: int) -> Row:
    with TemporaryDirectory(prefix="clutch-ready-") as directory:
        state = Path(directory) / "state"
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "clutch", "serve", "--state", str(state), "--json",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdout is not None, "it was asked for"
        try:
            up = json.loads(await process.stdout.readline())
            said = await asyncio.to_thread(connect(state).get, "/v1/health")
            took = round(time.perf_counter() - began, 4)
            weighs = round(resident_kb(process.pid) / 1024, 1)
        finally:
            process.terminate()
            await process.wait()
    is_ok = up["ok"] and said["status"] == "ok"
    return Row("ready", "clutch", "sqlite", 1, rep, is_ok, None, took, {"ready_s": took, "idle_mb": weighs})
