"""Shares of two tenants: what finishes while both have more waiting than there are slots."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from clutch.core.model import Lane
from clutch.ports import ModelRequest
from tests.engine.conftest import Build
from tests.engine.house import POLICY, opening

pytestmark = pytest.mark.anyio

SLOTS = 4
TASKS = 40  #: of each tenant
ENDED = 24


async def test_finished_tasks_of_two_tenants_approach_their_weights(build: Build) -> None:
    """The tenant of the lower weight was first and has a longer line than any claim reads."""
    answered = asyncio.Semaphore(0)

    async def script(request: ModelRequest) -> str:
        if "job" in opening(request):
            await answered.acquire()  # first asked, first answered
        return "ok"

    policy = replace(
        POLICY,
        limits=replace(
            POLICY.limits, children_max=2 * TASKS, descendants_max=2 * TASKS, retained_max=2 * TASKS
        ),
        work=replace(POLICY.work, lanes={Lane.MAIN: 1, Lane.SUBAGENT: SLOTS}, shares={"tenant-a": 3, "*": 1}),
    )
    house = await build(script, policy)
    await house.spawn(TASKS, share="tenant-b", notify_parent=False)
    await house.spawn(TASKS, first=TASKS, share="tenant-a", notify_parent=False)
    await house.hire()
    for ended in range(ENDED):
        await house.until_asked("job", ended + SLOTS)
        answered.release()
    await house.until_asked("job", ENDED + SLOTS)
    rows = await house.rows(
        "SELECT s.share FROM tasks t JOIN sessions s ON s.id = t.id WHERE t.outcome = 'ok'"
    )
    assert Counter(share for (share,) in rows) == {"tenant-a": ENDED * 3 // 4, "tenant-b": ENDED // 4}
    for _ in range(2 * TASKS):
        answered.release()
    await house.until_quiet()
