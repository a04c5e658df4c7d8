"""`calls`: what one model call costs in each adapter, with nothing around it.

Many children against one's own endpoint are what the direct adapter is for; so it must be far cheaper than the
library, which speaks to everybody. Each adapter asks from a process of its own, the model is another one (`w_server`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Final

from benchmarks import w_job
from benchmarks.places import Place
from benchmarks.report import Report, Row, at_most, say
from benchmarks.w_process import started
from clutch.core.messages import Input
from clutch.models.demo_model import OfflineModel
from clutch.models.library import LibraryModels
from clutch.models.provider import AdapterKind, Provider
from clutch.models.router import Router
from clutch.ports import ModelRequest

SYSTEMS: Final = ("direct", "library")
CALLS: Final = 1000
OF_LIBRARY: Final = 0.25  #: at most this part of the library's CPU
_AT_ONCE: Final = 50
_WARM: Final = 50  # calls that are not measured: imports, connections, caches
_IDLE_S: Final = 60.0
_PATIENCE_S: Final = 120.0


async def run(report: Report, places: Sequence[Place], reps: int, sizes: Sequence[int]) -> None:
    del places  # nothing is stored
    for n in sizes or (CALLS,):
        for rep in range(reps):
            for system in SYSTEMS:
                say(f"calls: {n} in {system}, rep {rep}")
                report.add(await _row(system, n, rep))
        mine, theirs = ({"bench": "calls", "system": system, "n": n} for system in SYSTEMS)
        ratio = report.ratio("cpu_ms_per_call", mine, theirs)
        report.targets.append(at_most(f"calls n={n}: CPU per call, direct / library", ratio, OF_LIBRARY))


async def _row(system: str, n: int, rep: int) -> Row:
    async with started("benchmarks.w_server") as server:
        known = ("--system", system, "--url", await server.line(), "--calls", str(n))
        async with started("benchmarks.calls", *known) as worker:
            await worker.line()
            await server.order("reset")
            took = await worker.figures("go", _PATIENCE_S)
            seen = (await server.figures("report"))["llm_calls"]
    why = None if seen == n else f"the server saw {seen} calls instead of {n}"
    figures = {"cpu_ms_per_call": round(1000 * took["cpu_s"] / n, 4), "llm_calls": seen}
    return Row("calls", system, "", n, rep, why is None, took["cpu_s"], took["wall_s"], figures, why)


# ---- the process that asks -------------------------------------------------------------------------------


async def _ask(said: argparse.Namespace) -> None:
    provider = Provider("bench", said.url, adapter=said.system, speaks="openai-chat")
    router = Router([provider], offline=OfflineModel(), library=LibraryModels, idle_s=_IDLE_S)
    await _ask_all(router, -_WARM, 0)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    cpu_s, began = time.process_time(), time.time()
    await _ask_all(router, 0, said.calls)
    took = {"cpu_s": round(time.process_time() - cpu_s, 4), "wall_s": round(time.time() - began, 4)}
    print(json.dumps(took), flush=True)
    await router.aclose()


async def _ask_all(router: Router, first: int, last: int) -> None:
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int) -> None:
        words = Input(w_job.task(abs(number)))
        async with room:
            await router.ask(
                ModelRequest(f"bench:{w_job.MODEL}", "", (words,), (), f"call:{number}"), lambda _: None
            )

    await asyncio.gather(*(one(number) for number in range(first, last)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calls", description=__doc__)
    parser.add_argument("--system", type=AdapterKind, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--calls", type=int, required=True)
    asyncio.run(_ask(parser.parse_args()))


if __name__ == "__main__":
    main()
