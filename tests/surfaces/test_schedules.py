"""Schedules through every surface: HTTP, the command, Python with and without a loop, the config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clutch import Clutch, ClutchError, InvalidInput, NotFound
from clutch.surfaces.http_client import Declined, connect
from clutch.sync import Clutch as BlockingClutch

pytestmark = pytest.mark.anyio

NIGHTLY: dict[str, Any] = {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}


async def test_a_program_adds_runs_pauses_and_removes_a_schedule(tmp_path: Path) -> None:
    async with Clutch(tmp_path, serve=False) as c:
        nightly = await c.schedule("nightly", "question: sizes", **NIGHTLY, max_runs=9)
        known = await nightly.info()
        assert len(known["nextTimes"]) == 3
        assert all("T02:30:00+0" in moment for moment in known["nextTimes"])
        assert (known["status"], known["runs"], known["missed"]) == ("active", 0, "once")
        task = await nightly.run()
        assert (await task).outcome == "ok"
        (slot,) = (await nightly.info())["history"]
        assert (slot["state"], slot["taskId"], slot["outcome"]) == ("manual", task.id, "ok")
        await nightly.pause()
        assert (await nightly.info())["status"] == "paused"
        await nightly.resume()
        assert [one.name for one in await c.schedules()] == ["nightly"]
        await nightly.remove()
        with pytest.raises(NotFound):
            await nightly.info()


async def test_a_slot_starts_a_task_by_itself(tmp_path: Path) -> None:
    async with Clutch(tmp_path, serve=False) as c:
        often = await c.schedule("often", "question: sizes", every_seconds=1, max_runs=1)
        while not (history := (await often.info())["history"]):
            await c.services.changes.until(c.services.changes.next_change)
        task = await c.get(history[0]["taskId"])
        assert (await task).outcome == "ok"
        assert "started by schedule often, slot 20" in (await task.why()).text


async def test_wrong_parameters_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    async with Clutch(tmp_path, serve=False) as c:
        with pytest.raises(InvalidInput, match="exactly one of"):
            await c.schedule("x", "work")
        with pytest.raises(InvalidInput, match="must be one of: skip, once, all"):
            await c.schedule("x", "work", every_seconds=60, missed="never")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="session"):
            await c.schedule("x", "work", every_seconds=60, session="nowhere")
        with pytest.raises(InvalidInput, match="agent"):
            await c.schedule("x", "work", every_seconds=60, agent_id="Nobody!")
        with pytest.raises(InvalidInput, match="there is no agent 'nobody' that 'main' may start"):
            await c.schedule("x", "work", every_seconds=60, agent_id="nobody")
        for wrong in ({"total_usd": "-1"}, {"run_tokens": 0}, {"max_runs": 0}, {"catch_up": 0}):
            (field,) = wrong
            with pytest.raises(InvalidInput) as refused:
                await c.schedule("x", "work", every_seconds=60, **wrong)
            assert refused.value.field == field
        assert await c.schedules() == []


async def test_the_config_owns_its_schedules_until_they_leave_it(tmp_path: Path) -> None:
    file = tmp_path / "clutch.json"
    file.write_text('{schedules: {nightly: {cron: "0 3 * * *", task: "question: sizes", every: "1h"}}}')
    with pytest.raises(ClutchError, match="exactly one of"):
        Clutch(tmp_path, serve=False)
    file.write_text('{schedules: {nightly: {cron: "0 3 * * *", task: "question: sizes"}}}')
    async with Clutch(tmp_path, serve=False) as c:
        (nightly,) = await c.schedules()
        assert (await nightly.info())["owner"] == "config"
        with pytest.raises(InvalidInput, match="belongs to the config"):
            await nightly.remove()
        file.write_text('{schedules: {hourly: {every: "1h", task: "question: sizes"}}}')
        await c.reload()
        assert [one.name for one in await c.schedules()] == ["hourly"]
    file.write_text("{}")
    async with Clutch(tmp_path, serve=False) as c:
        assert await c.schedules() == []


def test_a_program_without_a_loop_and_the_commands(tmp_path: Path) -> None:
    with BlockingClutch(tmp_path) as c:
        c.schedule("nightly", "question: sizes", **NIGHTLY)
        assert [one.name for one in c.schedules()] == ["nightly"]
        client = connect(tmp_path)
        made = client.post("/v1/schedules/often", {"task": "question: sizes", "everySeconds": 3600})
        assert (made["when"], made["status"]) == ("every 1h", "active")
        with pytest.raises(Declined) as refused:
            client.post("/v1/schedules/often", {"task": "x", "cron": "nonsense"})
        assert refused.value.said["field"] == "cron"
        with pytest.raises(Declined) as refused:
            client.post("/v1/schedules/often", {"task": "x", "everySeconds": 60, "totalUsd": "-1"})
        assert refused.value.said["field"] == "totalUsd"
