"""`fanin`: many children of one idle parent end within a second. How many turns of the parent does that cost?

Counted where it is paid for, at the model: requests of the parent, and how often each result stands in what it read.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.places import Meter, Place
from benchmarks.report import Report, Row, at_most, say
from clutch.core.messages import Answer, Input, Usage
from clutch.core.model import Lane
from clutch.core.policy import Limits, Policy, Work
from clutch.ports import ModelRequest, OnDelta
from clutch.wiring import Clutch

CHILDREN: Final = 100
PARENT_TURNS_MAX: Final = 2
ENDS_WITHIN_S: Final = 0.8
RAISED: Final = {
    "maxChildrenPerAgent": "n",
    "maxDescendants": "n",
    "maxRetained": "n",
    "worker.lanes.subagent": "n",
}
_PATIENCE_S: Final = 60.0
_FINDING: Final = re.compile(r"finding-(\d+)-")


async def run(report: Report, places: Sequence[Place], reps: int, sizes: Sequence[int]) -> None:
    report.config["fanin"] = {"raised": RAISED, "ends_within_s": ENDS_WITHIN_S}
    for place in places:
        for n in sizes or (CHILDREN,):
            for rep in range(reps):
                say(f"fanin: {n} children on {place.backend}, rep {rep}")
                report.add(await _row(place, n, rep))
            turns = report.median("parent_turns", bench="fanin", backend=place.backend, children=n)
            name = f"fanin {place.backend}: parent turns for {n} children"
            report.targets.append(at_most(name, turns, PARENT_TURNS_MAX))


async def _row(place: Place, n: int, rep: int) -> Row:
    model, meter = FanIn(n), Meter(place)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await _fan_in(place, model, n)
        why = model.problem()
    except (RuntimeError, TimeoutError, OSError) as error:
        why = f"{type(error).__name__}: {error}"
    figures = {
        "children": n,
        "parent_turns": model.parent_turns,
        "results_shown": len(model.shown),
        "shown_twice": sum(count > 1 for count in model.shown.values()),
    }
    cpu_s, wall_s = round(meter.cpu_s(), 4), round(meter.wall_s(), 4)
    return Row("fanin", "clutch", place.backend, n, rep, why is None, cpu_s, wall_s, figures, why)


async def _fan_in(place: Place, model: FanIn, n: int) -> None:
    policy = Policy(
        limits=Limits(children_max=n, descendants_max=n, retained_max=n),
        work=Work(lanes={Lane.MAIN: 4, Lane.SUBAGENT: n}, sessions_max=2 * n),
    )
    with TemporaryDirectory(prefix="clutch-fanin-") as directory:
        if place.backend == "sqlite":
            state = Path(directory) / "state"
            return await _spawn_and_wait(Clutch(state=state, policy=policy, models=model, serve=False), n)
        address = place.new()
        try:
            await _spawn_and_wait(Clutch(database=address, policy=policy, models=model, serve=False), n)
        finally:
            place.remove(address)


async def _spawn_and_wait(opening: Clutch, n: int) -> None:
    async with opening as clutch:
        await asyncio.gather(
            *(
                clutch.spawn(f"part {number}", label=f"part {number}", notify_parent=True)
                for number in range(n)
            )
        )
        await clutch.wait_idle()


class FanIn:
    """The children wait for the last one and then end one after the other; the parent says thank you."""

    def __init__(self, children: int) -> None:
        self.children = children
        self.parent_turns = 0
        self.shown: Counter[str] = Counter()  #: how often each result stands in what the parent has read
        self._waiting = 0
        self._all_there = asyncio.Event()

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        del on_delta
        first = request.transcript[0]
        assert isinstance(first, Input)
        part = re.search(r"part (\d+)\b", first.text)
        if first.source == "task" and part is not None:
            return await self._child(int(part[1]))
        self.parent_turns += 1
        read = "\n".join(message.text for message in request.transcript if isinstance(message, Input))
        self.shown = Counter(_FINDING.findall(read))
        return Answer("Thank you.", (), Usage(100, 2), "fanin")

    async def _child(self, number: int) -> Answer:
        self._waiting += 1
        if self._waiting == self.children:
            self._all_there.set()
        await self._all_there.wait()
        await asyncio.sleep(ENDS_WITHIN_S * number / self.children)
        return Answer(f"finding-{number}-of-{self.children}", (), Usage(100, 10), "fanin")

    def problem(self) -> str | None:
        if len(self.shown) != self.children:
            return f"{self.children - len(self.shown)} results were never shown"
        if max(self.shown.values()) > 1:
            return "a result was shown twice"
        return None
