"""One process of a fleet on a PostgreSQL database, as `fleet` needs it. It is talked to in lines.

`gateway`   an engine with a model that answers after a while; prints `ready`, ends with its standard input
`claims`    prints `ready`, and after a line claims sessions batch by batch until none is due; prints what it got
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.boot_worker import Script
from clutch.core.messages import Answer
from clutch.core.model import Lane
from clutch.core.policy import Policy, Work
from clutch.ports import ModelRequest, OnDelta
from clutch.store.postgres import PostgresStore
from clutch.store.transaction import Tx
from clutch.transactions import workers
from clutch.transactions.claims import claim
from clutch.wiring import SystemClock, running_engine

_LEASE_S: Final = 600.0
_BATCH: Final = 20  #: sessions that a claim takes at most


class SlowScript(Script):
    def __init__(self, latency_s: float) -> None:
        super().__init__()
        self._latency_s = latency_s

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        await asyncio.sleep(self._latency_s)
        return await super().ask(request, on_delta)


async def gateway(options: argparse.Namespace) -> None:
    lanes = {Lane.MAIN: options.lane, Lane.SUBAGENT: options.lane}
    policy = replace(Policy(), work=Work(lanes=lanes, sessions_max=options.slots))
    script = SlowScript(options.latency)
    with TemporaryDirectory(prefix="clutch-fleet-") as state:
        async with running_engine(
            state=state, database=options.database, policy=policy, models=script, toolbox=script
        ):
            print("ready", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            print(json.dumps({"cpu_s": round(time.process_time(), 3)}), flush=True)
            await asyncio.to_thread(sys.stdin.readline)


def _register(now: float, number: int, cap: int) -> Tx[None]:
    lanes = {Lane.MAIN: cap, Lane.SUBAGENT: cap}
    yield from workers.register(now, number, _LEASE_S, "bench", number, version="bench", lanes=lanes)


async def claims(options: argparse.Namespace) -> None:
    async with PostgresStore(options.database, SystemClock()) as db:
        await db.alone(_register, options.number, options.lane)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        began, claimed, took_ms = time.perf_counter(), 0, []
        while True:
            started = time.perf_counter()
            found = await db.alone(claim, options.number, _BATCH)
            took_ms.append(1000 * (time.perf_counter() - started))
            if not found:
                break
            claimed += len(found)
        figures = {"claimed": claimed, "seconds": time.perf_counter() - began, "claim_ms": took_ms}
        print(json.dumps(figures), flush=True)
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet_worker", description=__doc__)
    parser.add_argument("kind", choices=("gateway", "claims"))
    parser.add_argument("--database", required=True)
    parser.add_argument("--lane", type=int, default=100_000)
    parser.add_argument("--slots", type=int, default=200_000, help="sessions that a gateway holds at once")
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--number", type=int, default=0)
    said = parser.parse_args()
    asyncio.run(gateway(said) if said.kind == "gateway" else claims(said))
