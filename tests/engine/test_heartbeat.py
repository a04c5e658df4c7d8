"""A worker rings the timers of sessions that look up by themselves; the checklist is a file in the workspace."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from clutch.core.agents import CHECKLIST, HEARTBEAT_PROMPT, Agent, Heartbeat, roster
from clutch.engine.prompt import Documents
from clutch.engine.worker import each
from clutch.errors import StoreBusy
from clutch.ports import ModelRequest
from clutch.store.transaction import HINT, LOOK, Tx
from clutch.transactions import wake as wake_tx
from tests.engine.conftest import Build
from tests.engine.house import POLICY, House

pytestmark = pytest.mark.anyio

BEATING = replace(POLICY, agents=roster([Agent("main", heartbeat=Heartbeat(every_s=600.0))]))


async def script(request: ModelRequest) -> str:
    return "close the windows" if "storm" in request.system else "HEARTBEAT_OK"


def _works_in(now: float, session_id: int, workspace: str) -> Tx[None]:
    yield "UPDATE sessions SET workspace = ? WHERE id = ?", (workspace, session_id)


def _look(now: float) -> Tx[None]:
    """No tick comes in these tests, and the clock jumps: somebody says that there is something to see."""
    yield HINT, LOOK


async def notify(house: House, text: str) -> None:
    await house.db.tx(house.main, wake_tx.notify, house.policy, house.main, text)


async def wake(house: House) -> None:
    await house.db.tx(house.main, wake_tx.wake_for_heartbeat, house.policy, house.main)


async def test_a_wake_shows_what_happened_in_one_turn_and_tells_the_person(build: Build) -> None:
    house = await build(script)
    await house.hire()

    async def has_rung() -> bool:
        return not await house.rows("SELECT 1 FROM sessions WHERE heartbeat_at IS NOT NULL")

    await notify(house, "rain")
    await notify(house, "storm")
    for _ in range(3):
        await wake(house)
    await house.until_asked(HEARTBEAT_PROMPT)
    await house.until_quiet()
    assert [request.system.count("- rain\n- storm") for request in house.model.requests] == [1]
    assert await house.replies() == ["close the windows"]
    await wake(house)
    await house.until(has_rung)
    assert len(house.model.requests) == 1, "what happened was read: there is no reason left"


async def test_the_schedule_rings_and_reads_the_checklist_of_the_workspace(
    build: Build, tmp_path: Path
) -> None:
    (tmp_path / CHECKLIST).write_text("Is the disk full?")
    house = await build(script, BEATING)
    house.more["checklists"] = Documents(1000, CHECKLIST)
    await house.db.alone(_works_in, house.main, str(tmp_path))
    await house.hire()
    assert not house.model.requests
    house.clock.jump(601)
    await house.db.tx((), _look)
    await house.until_asked("Is the disk full?")
    await house.until_quiet()
    assert await house.replies() == []


async def test_without_a_checklist_the_schedule_costs_no_model_call(build: Build, tmp_path: Path) -> None:
    house = await build(script, BEATING)
    house.more["checklists"] = Documents(1000, CHECKLIST)
    await house.db.alone(_works_in, house.main, str(tmp_path))
    await house.hire()
    before = await house.rows("SELECT heartbeat_at FROM sessions")
    house.clock.jump(601)
    await house.db.tx((), _look)

    async def has_rung() -> bool:
        return await house.rows("SELECT heartbeat_at FROM sessions") > before

    await house.until(has_rung)
    assert not house.model.requests
    assert not await house.rows("SELECT 1 FROM inbox")


async def test_a_cancellation_wins_over_an_error_of_the_store_in_the_same_moment() -> None:
    begun = asyncio.Event()

    async def fails_when_cancelled(_: int) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise StoreBusy from None

    work = asyncio.create_task(each([1], fails_when_cancelled))
    await begun.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
