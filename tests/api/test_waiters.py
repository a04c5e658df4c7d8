"""Whoever waits may stop waiting: the task does not notice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clutch import Clutch
from clutch.core.messages import Answer
from clutch.core.model import Outcome
from clutch.ports import ModelRequest, OnDelta

pytestmark = pytest.mark.anyio


class Held:
    def __init__(self) -> None:
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        self.asked.set()
        await self.go.wait()
        return Answer("done", model="scripted")


@pytest.mark.scenario(54)
async def test_timeout_of_a_waiter_is_not_the_timeout_of_the_task(tmp_path: Path) -> None:
    models = Held()
    async with Clutch(state=tmp_path / "state", models=models, workspace=tmp_path) as c:
        task = await c.spawn("work", run_timeout_seconds=3600)
        await models.asked.wait()
        before = await task.info()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await task
        after = await task.info()
        assert (after.phase, after.outcome, after.attempt) == ("running", None, before.attempt)
        assert after == before
        models.go.set()
        result = await task
        assert (result.outcome, result.text) == (Outcome.OK, "done")
