"""What a program sees of its tasks: the same objects as every other surface."""

from __future__ import annotations

from pathlib import Path

import pytest

from clutch.errors import InvalidInput, NotFound
from tests.api.test_api import Patient, clutch

pytestmark = pytest.mark.anyio


async def test_a_task_tells_all_about_itself_while_it_runs_and_when_it_is_over(tmp_path: Path) -> None:
    model = Patient()
    async with clutch(tmp_path / "state", model) as c:
        task = await c.spawn("survey", label="looker", notify_parent=True)
        await model.asked.wait()
        running = await task.info()
        assert (running.task_id, running.phase, running.outcome) == (task.id, "running", None)
        assert (await task.why()).blocked_on is None
        model.go.set()
        await task
        await c.wait_idle()
        over = await task.info()
        assert (over.outcome, over.delivery.state) == ("ok", "delivered")
        assert over.evidence is not None
        assert over.evidence.stop_reason == "end"


async def test_tasks_are_found_by_requester_phase_outcome_and_label(tmp_path: Path) -> None:
    async with clutch(tmp_path / "state") as c:
        first = await c.spawn("one", label="first")
        await first
        other = await c.spawn("two", label="second", session="agent:main:chat:side")
        await other
        await c.wait_idle()
        await c.wait_idle(session="agent:main:chat:side")
        assert [task.id for task in await c.tasks()] == [other.id, first.id]
        assert [task.label for task in await c.tasks(requester="agent:main:chat:side")] == ["second"]
        assert [task.id for task in await c.tasks(phase="completed", outcome="ok")] == [other.id, first.id]
        assert [task.id for task in await c.tasks(label="first")] == [first.id]
        assert await c.tasks(phase="running") == []
        assert await c.tasks(undelivered=True) == []
        assert len(await c.tasks(limit=1)) == 1


async def test_a_wrong_word_is_named_with_the_right_ones(tmp_path: Path) -> None:
    async with clutch(tmp_path / "state") as c:
        with pytest.raises(InvalidInput, match="phase: must be one of: spawning, queued"):
            await c.tasks(phase="runing")
        with pytest.raises(InvalidInput, match="outcome: must be one of: ok"):
            await c.tasks(outcome="fine")
        with pytest.raises(NotFound, match="nobody"):
            await c.tasks(requester="nobody")
