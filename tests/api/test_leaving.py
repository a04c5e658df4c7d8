"""Leaving `async with Clutch(...)`: what the next start repeats is cut at once, everything else gets its time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from clutch import Answer, Call, Clutch, Delta, DeltaKind, ModelRequest, Policy, Task, Work
from clutch.core.messages import Results
from clutch.ports import OnDelta
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

#: An end that waits for a step would take an hour.
PATIENT = Policy(work=Work(tick_s=0.02, stop_s=3600.0))


@dataclass
class Endless:
    """A model that never answers, one that streams for ever, or one that calls a tool; after a restart it answers."""

    how: str
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    calls: int = 0
    results: list[str] = field(default_factory=list)

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        self.calls += 1
        self.asked.set()
        results = [entry for entry in request.transcript if isinstance(entry, Results)]
        if results or self.how == "answers":
            self.results = [one.text for entry in results for one in entry.results]
            return Answer("done", model="m")
        if self.how in ("safe", "unsafe"):
            return Answer("", (Call(f"{self.how}_tool", {}),), model="m")
        while True:
            if self.how == "streams":
                on_delta(Delta(DeltaKind.TEXT, "and "))
            await asyncio.sleep(0.01)


class Tools:
    def __init__(self) -> None:
        self.began, self.go, self.runs = asyncio.Event(), asyncio.Event(), 0

    async def run(self) -> str:
        self.runs += 1
        self.began.set()
        await self.go.wait()
        return "the tool has run"


@asynccontextmanager
async def opened(home: Path, model: Endless, tools: Tools) -> AsyncIterator[Clutch]:
    c = Clutch(home / "state", models=model, policy=PATIENT, workspace=home)

    @c.tool(replay_safe=True)
    async def safe_tool() -> str:
        """Waits."""
        return await tools.run()

    @c.tool
    async def unsafe_tool() -> str:
        """Waits, too."""
        return await tools.run()

    async with asyncio.timeout(PATIENCE_S), c:
        yield c


async def resumed(home: Path, task: Task[object], model: Endless, tools: Tools) -> None:
    async with opened(home, model, tools) as c:
        again = await c.get(task.id)
        assert (await again).text == "done"
        info = await again.info()
        assert (info.outcome, info.generation) == ("ok", 1)


@pytest.mark.parametrize("how", ["silent", "streams"])
async def test_a_model_call_is_cut_at_once_and_repeated_by_the_next_start(tmp_path: Path, how: str) -> None:
    model = Endless(how)
    async with opened(tmp_path, model, Tools()) as c:
        task = await c.spawn("work")
        await model.asked.wait()
    assert model.calls == 1
    after = Endless("answers")
    await resumed(tmp_path, task, after, Tools())
    assert after.calls == 1


async def test_a_tool_that_may_run_twice_is_cut_at_once_and_runs_again(tmp_path: Path) -> None:
    tools, again = Tools(), Tools()
    async with opened(tmp_path, Endless("safe"), tools) as c:
        task = await c.spawn("work")
        await tools.began.wait()
    again.go.set()
    after = Endless("safe")
    await resumed(tmp_path, task, after, again)
    assert (tools.runs, again.runs, after.results) == (1, 1, ["the tool has run"])


async def test_a_tool_that_may_not_run_twice_gets_its_time(tmp_path: Path) -> None:
    tools, again = Tools(), Tools()
    async with opened(tmp_path, Endless("unsafe"), tools) as c:
        task = await c.spawn("work")
        await tools.began.wait()
        asyncio.get_running_loop().call_later(0.2, tools.go.set)
    after = Endless("unsafe")
    await resumed(tmp_path, task, after, again)
    assert (tools.runs, again.runs, after.results) == (1, 0, ["the tool has run"])
