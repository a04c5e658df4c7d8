"""Where states are counted, grouped and shown to the parent agent, each task has the state of its row."""

from __future__ import annotations

from typing import Any

import pytest

from clutch.core.compaction import ContextLimits
from clutch.core.model import NEEDS_USER, Outcome, Phase, Reason, TaskStatus
from clutch.core.policy import Policy
from clutch.core.status import task_status
from clutch.core.text.prompts import children_section
from clutch.core.views import OpenQuestion
from clutch.store.transaction import Database
from clutch.testing.clock import FakeClock
from clutch.transactions import control
from clutch.transactions.read import lists, transcripts
from clutch.transactions.read.lists import ListState, TaskFilter
from tests.core.test_status import AT, CASES
from tests.transactions.test_questions import WHICH, asks
from tests.transactions.test_views import shown
from tests.transactions.world import Run, World, write

pytestmark = pytest.mark.anyio

#: The count that a task of each state is part of.
COUNTED_AS = {
    **dict.fromkeys((TaskStatus.STARTING, TaskStatus.QUEUED), "queued"),
    **dict.fromkeys((TaskStatus.NEEDS_APPROVAL, TaskStatus.NEEDS_ANSWER), "needs_you"),
    **dict.fromkeys(
        (TaskStatus.WAITING, TaskStatus.PAUSED, TaskStatus.RATE_LIMITED, TaskStatus.FAILING), "waiting"
    ),
    TaskStatus.TIMED_OUT: "timeout",
}


@pytest.mark.parametrize(("expected", "changes", "_"), CASES, ids=[expected.name for expected, _, _ in CASES])
async def test_the_summary_the_list_and_the_prompt_show_the_state_of_the_row(
    db: Database, clock: FakeClock, expected: TaskStatus, changes: dict[str, Any], _: str
) -> None:
    world = World(db, clock, Policy())
    await world.hire()
    main = await world.main()
    run = await world.started(main, "survey")
    await rewrite(run, **changes)
    (view,) = (await db.read(lists.task_page)).tasks
    assert task_status(view) is expected
    counted = await db.read(lists.summary)
    states = ("queued", "running", "waiting", "needs_you", "done", "failed", "timeout", "killed", "lost")
    assert [name for name in states if getattr(counted, name)] == [COUNTED_AS.get(expected, expected.value)]
    needing = await db.read(lists.task_page, TaskFilter(state=ListState.ATTENTION))
    assert [one.task_id for one in needing.tasks] == [run.session_id] * (expected in NEEDS_USER)
    around = await db.read(transcripts.around, main, ContextLimits())
    assert f"\n- {expected} " in children_section(around.active, around.recent)


async def rewrite(
    run: Run,
    *,
    phase: Phase = Phase.RUNNING,
    cause: Reason = Reason.STARTED,
    outcome: Outcome | None = None,
    question: OpenQuestion | None = None,
    parked_until: float | None = None,
    is_paused: bool = False,
    **_: object,
) -> None:
    """Give the rows of the run's task the state of a case, at the present moment."""
    db, now, task = run.world.db, run.world.clock.now(), run.session_id
    until = None if parked_until is None else now + parked_until - AT
    await db.alone(write, "UPDATE sessions SET paused = ? WHERE id = ?", int(is_paused), task)
    await db.alone(write, "UPDATE runs SET parked_until = ? WHERE id = ?", until, run.run_id)
    change = "UPDATE tasks SET phase = ?, reason = ?, outcome = ?, ended_at = ? WHERE id = ?"
    await db.alone(write, change, phase, cause, outcome, None if outcome is None else now, task)
    if question is not None:
        asked = (
            "INSERT INTO questions(id, session_id, seq, idx, kind, body, hash, asked_at)"
            " VALUES(?, ?, 1, 0, ?, ?, '', 0.0)"
        )
        await db.alone(write, asked, run.world.number(), task, question.kind, WHICH)


async def test_a_task_that_asks_and_is_paused_is_counted_as_paused(world: World, main: int) -> None:
    run = await asks(world, main, WHICH)
    assert (await world.db.read(lists.summary)).needs_you == 1
    await world.db.alone(control.pause, world.policy, run.session_id, "person")
    counted = await world.db.read(lists.summary)
    assert task_status(await shown(world, run.session_id)) is TaskStatus.PAUSED
    assert (counted.needs_you, counted.waiting) == (0, 1)


async def test_a_rate_limited_task_is_counted_as_queued_when_it_is_due(world: World, main: int) -> None:
    run = await world.started(main)
    await run.stumble(retry_at=world.clock.now() + 60)
    assert (await world.db.read(lists.summary)).waiting == 1
    world.clock.advance(60)
    counted = await world.db.read(lists.summary)
    assert task_status(await shown(world, run.session_id)) is TaskStatus.QUEUED
    assert (counted.queued, counted.waiting) == (1, 0)
