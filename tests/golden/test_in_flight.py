"""Work that a killed process of an earlier version left behind: this version finishes it, and delivers it once."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from clutch import Clutch, Outcome, Task
from clutch.testing import RecordingChannel
from clutch.transactions import invariants
from tests.golden.contract import FOLDER
from tests.golden.in_flight import BUSY, DEAD, POLICY, WAITS, Script, toolbox
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

MAIN = "agent:main:main"
STATES = sorted(FOLDER.glob("state_*.sql"))


def load(file: Path, state: Path) -> None:
    state.mkdir(0o700)
    with closing(sqlite3.connect(state / "clutch.db")) as database:
        database.executescript(file.read_text(encoding="utf-8"))


async def told(task: Task) -> tuple[str, int]:
    """Return what became of the delivery of its result, and how often it was delivered."""
    why = await task.why()
    tries = [one.outcome for one in why.deliveries]
    return why.task.delivery.state, tries.count("delivered")


@pytest.mark.parametrize("file", STATES, ids=[file.stem for file in STATES])
async def test_work_in_flight_is_finished_and_delivered_once(file: Path, tmp_path: Path) -> None:
    load(file, tmp_path / "state")
    mail, fax, post = RecordingChannel(), RecordingChannel(), RecordingChannel()
    paid: list[str] = []

    async def pay() -> str:
        paid.append("again")
        return "paid"

    async with (
        Clutch(
            state=tmp_path / "state",
            policy=POLICY,
            models=Script(is_dying=False),
            tools=toolbox(pay),
            channels={"mail": mail, "fax": fax, "post": post},
            serve=False,
        ) as clutch,
        asyncio.timeout(PATIENCE_S),
    ):
        tasks = {task.label: task for task in await clutch.tasks()}
        assert set(tasks) == set(WAITS)
        for question in await clutch.inbox():
            await clutch.answer(question, "answer" if question.kind == "question" else "approve", "a")
        await tasks["paused"].resume()
        await tasks["undelivered"].redeliver()
        assert {(await task.result()).outcome for task in tasks.values()} == {Outcome.OK}
        for session in (BUSY, DEAD, MAIN):
            await clutch.wait_idle(session=session)
        assert {label: await told(task) for label, task in tasks.items()} == dict.fromkeys(
            WAITS, ("delivered", 1)
        )
        assert await clutch.reply(session=DEAD) == "answer 1 to dead"
        assert await clutch.reply(session=MAIN) == "answer 0 to hello"
        for query in invariants.standing(is_served=True):
            assert await clutch.services.db.read(invariants.broken, query) == [], query
    assert paid == [], "whether it was paid is unknown: it is not paid again"
    sent = [[one.body for one in channel.sent] for channel in (mail, fax, post)]
    assert sent == [["hello mail:ada"], [], ["hello post:eve"]], "what may have arrived is not sent again"
