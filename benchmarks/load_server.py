"""The gateway of `load` and `page`: a process of its own, with a model that takes its time and many lanes.

Prints where it answers, then works until its stdin is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from random import Random
from typing import Final

from clutch.api.gateway import Leaving
from clutch.cli.serve import collect_rarely, share_one_heap
from clutch.core.messages import Answer, Call, Input, Results, Usage
from clutch.core.model import Lane
from clutch.core.policy import Limits, Policy, Serving, Work
from clutch.ports import Delta, DeltaKind, ModelRequest, OnDelta
from clutch.wiring import Clutch

CALLS: Final = 4  #: of the model, for each child of `load`; between them it uses a tool
RAISED: Final = {
    "maxChildrenPerAgent": 100,
    "maxDescendants": 1000,
    "maxRetained": 200,
    "worker.lanes.main": 100,
    "worker.lanes.subagent": 1000,
    "gateway.requestsPerSecond": 0,
}


class Patient:
    """Says a few words as they come, uses a tool, and is done after some calls; a main agent answers at once."""

    def __init__(self, call_s: float, calls: int) -> None:
        self._call_s, self._calls = call_s, calls
        self._random = Random(1)

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        used = Usage(input=400, output=40)
        told = [message.text for message in request.transcript if isinstance(message, Input)]
        if not any("load-child" in text for text in told[:1]):
            return Answer("noted", model="load", usage=used)
        await asyncio.sleep(self._call_s * self._random.uniform(0.5, 1.5))  # no two models take the same time
        on_delta(Delta(DeltaKind.TEXT, "a few words "))
        done = sum(isinstance(message, Results) for message in request.transcript)
        if done + 1 < self._calls:
            return Answer("next", (Call("note", {"text": f"step {done}"}),), model="load", usage=used)
        return Answer("all done\nSUMMARY: done", model="load", usage=used)


async def serve(state: Path, call_s: float, calls: int) -> None:
    policy = Policy(
        limits=Limits(children_max=100, descendants_max=1000, retained_max=200),
        work=Work(lanes={Lane.MAIN: 100, Lane.SUBAGENT: 1000}, sessions_max=2000),
        serving=Serving(requests_per_s=0),
    )
    clutch = Clutch(state=state, policy=policy, models=Patient(call_s, calls), workspace=state.parent)

    @clutch.tool
    def note(text: str) -> str:
        """Keep a note."""
        return f"kept: {text}"

    clutch.leaving = Leaving(clutch, None)  # a process of our own, as `clutch serve` is
    async with clutch:
        collect_rarely()
        print(clutch.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--call-s", type=float, required=True)
    parser.add_argument("--calls", type=int, default=CALLS)
    given = parser.parse_args()
    share_one_heap()
    asyncio.run(serve(given.state, given.call_s, given.calls))
