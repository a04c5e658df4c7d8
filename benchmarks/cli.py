"""`cli`: how long does `clutch ps` take from prompt to prompt, asking a gateway or beside a store nobody serves?

Beside it, in turn, what loading its two libraries takes alone. Compiled files are written before anything is measured,
as they are for everybody who types a command twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.places import Place
from benchmarks.report import Report, Row, at_most, say
from clutch.surfaces.http_client import connect

TIMES_MAX: Final = 3.0
TASKS: Final = 20  # a screenful
FLOOR: Final = ("-c", "import typer, rich")


async def run(report: Report, places: Sequence[Place], reps: int, sizes: Sequence[int]) -> None:
    del places, sizes  # one process after the other
    with TemporaryDirectory(prefix="clutch-cli-") as directory:
        state = Path(directory) / "state"
        async with _serving(state):
            client = connect(state)
            for number in range(TASKS):
                await asyncio.to_thread(
                    client.post, "/v1/tasks", {"task": f"say {number}", "onFull": "queue"}
                )
            await _measure(report, "gateway", state, reps)
        await _measure(report, "store", state, reps)
    for system in ("gateway", "store"):
        times = report.ratio("ps_s", {"bench": "cli", "system": system}, {"bench": "cli", "system": "floor"})
        report.targets.append(at_most(f"cli: ps ({system}) over its libraries", times, TIMES_MAX))


async def _measure(report: Report, system: str, state: Path, reps: int) -> None:
    look = ("-m", "clutch", "ps", "--state", str(state))
    for words in (FLOOR, look):
        await _timed("warm", words, 0)
    for rep in range(reps):
        say(f"cli {system}: rep {rep}")
        report.add(await _timed("floor", FLOOR, rep))
        report.add(await _timed(system, look, rep))


async def _timed(system: str, words: Sequence[str], rep: int) -> Row:
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, env=_environment(),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    code = await process.wait()
    took = round(time.perf_counter() - began, 4)
    return Row("cli", system, "sqlite", TASKS, rep, code == 0, None, took, {"ps_s": took})


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@asynccontextmanager
async def _serving(state: Path) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "clutch", "serve", "--state", str(state), "--json", env=_environment(),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None, "it was asked for"
    try:
        assert json.loads(await process.stdout.readline())["ok"]
        yield
    finally:
        process.terminate()
        await process.wait()
