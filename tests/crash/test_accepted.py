"""What was said to somebody is still so after kill -9: `accepted`, and `killed`. Real processes, real databases."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from clutch import Clutch, KillResult, Limits, Policy, Task
from clutch.core.messages import Answer
from clutch.core.model import Outcome
from clutch.core.policy import Work
from clutch.ports import ModelRequest, OnDelta

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SIGKILLED = -9
POLICY = replace(Policy(limits=Limits(depth_max=2)), work=Work(tick_s=0.05, stop_s=0.2))

VICTIM = """
import asyncio, os, signal, sys
from clutch import Clutch, Limits, Policy
from clutch.core.messages import Answer, Call, Input
from clutch.testing.crash import CrashAt, kill_this_process

class Hangs:
    deep = asyncio.Event()

    async def ask(self, request, on_delta):
        if "do parent" in request.transcript[0].text and len(request.transcript) == 1:
            call = Call("sessions_spawn", {"task": "do child", "label": "child"})
            return Answer("", (call,), model="scripted", stop="tools")
        if "do child" in request.transcript[0].text:
            self.deep.set()
        await asyncio.Event().wait()

async def main(state, database, point):
    models, policy = Hangs(), Policy(limits=Limits(depth_max=2))
    async with Clutch(state=state, database=database or None, models=models, policy=policy) as c:
        task = await c.spawn("do parent", label="parent", notify_parent=True)
        print(task.id, flush=True)
        if point == "accepted":
            kill_this_process()
        await models.deep.wait()
        c.services.db = CrashAt(c.services.db, point)
        await task.kill("enough")

asyncio.run(main(*sys.argv[1:]))
"""


class Talks:
    """Answers at once or never, and remembers whether anybody asked."""

    def __init__(self, *, answers: bool = True) -> None:
        self.requests: list[ModelRequest] = []
        self._go = asyncio.Event()
        if answers:
            self._go.set()

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        self.requests.append(request)
        await self._go.wait()
        return Answer("done", model="scripted")


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> str | None:
    dsn: str | None = request.getfixturevalue("postgres_dsn") if request.param == "postgres" else None
    return dsn


def dies(tmp_path: Path, database: str | None, point: str) -> str:
    """The id of the task that it was told of before its end."""
    command = [sys.executable, "-c", VICTIM, str(tmp_path / "state"), database or "", point]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == SIGKILLED
    return done.stdout.strip()


def again(tmp_path: Path, database: str | None, models: Talks) -> Clutch:
    return Clutch(state=tmp_path / "state", database=database, models=models, policy=POLICY)


@pytest.mark.scenario(2)
async def test_a_task_that_was_accepted_is_listed_after_a_crash_and_goes_on(
    tmp_path: Path, database: str | None
) -> None:
    accepted = dies(tmp_path, database, "accepted")
    async with again(tmp_path, database, Talks()) as c:
        assert [(task.id, task.label) for task in await c.tasks()] == [(accepted, "parent")]
        assert (await (await c.get(accepted))).outcome is Outcome.OK


@pytest.mark.scenario(121)
@pytest.mark.parametrize("point", ["guarded:before", "guarded:after"])
async def test_a_kill_that_a_crash_interrupted_is_done_or_can_be_done_and_nothing_is_half_dead(
    tmp_path: Path, database: str | None, point: str
) -> None:
    killed = dies(tmp_path, database, point)
    models = Talks(answers=False)
    async with again(tmp_path, database, models) as c:
        parent, child = sorted(await c.tasks(), key=lambda task: task.id)
        assert parent.id == killed
        if point == "guarded:after":  # nobody heard of it, and it is so
            assert [await outcome(task) for task in (parent, child)] == ["killed", "killed"]
            assert await parent.kill("enough") == KillResult(already_finished=(parent.id,))
            await c.wait_idle()
            assert models.requests == [], "what was killed ran again, or was told"
        else:  # it never was: both live, and asking again ends both
            assert [await outcome(task) for task in (parent, child)] == [None, None]
            assert await parent.kill("enough") == KillResult(stopped=(parent.id, child.id))
        assert [await outcome(task) for task in (parent, child)] == ["killed", "killed"]


async def outcome(task: Task) -> str | None:
    found: str | None = (await task.info()).outcome
    return found
