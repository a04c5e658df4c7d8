"""Evidence is written in the transaction that fixes the outcome, whichever way a task ends."""

from __future__ import annotations

import pytest

from clutch.core.messages import Answer, Call, Usage
from clutch.core.model import Outcome, Phase
from clutch.core.views import Evidence, evidence_of
from clutch.transactions import control, messages
from tests.transactions.world import Run, World, calls

pytestmark = pytest.mark.anyio


async def evidence(world: World, task_id: int) -> Evidence | None:
    ((text, generation),) = await world.rows("SELECT evidence, generation FROM tasks WHERE id = ?", task_id)
    return evidence_of(text, generation)


async def write(run: Run, *paths: str, tool: str = "write") -> None:
    wanted = tuple(Call(tool, {"path": path, "text": "x"}) for path in paths)
    await run.respond(Answer("", wanted, Usage(10, 5), "scripted", "tools"))
    await run.results()


@pytest.mark.scenario(66)
async def test_without_assistant_text_the_result_is_null_and_the_evidence_shows_the_calls(
    world: World, main: int
) -> None:
    run = await world.started(main, task="a task full of words")
    await run.respond(calls("read", "search"))
    await run.results("a text that reads like a fine answer")
    await run.step("read")
    assert await evidence(world, run.session_id) is None
    await run.finish("")
    task = await world.task(run.session_id)
    assert (task.outcome, task.result, task.fallback) == (Outcome.OK, None, None)
    assert await evidence(world, run.session_id) == Evidence(3, stop_reason="end")


async def test_files_that_were_written_are_named_and_those_only_read_are_not(world: World, main: int) -> None:
    run = await world.started(main)
    await write(run, "report.md", "notes/a.txt")
    await write(run, "report.md", tool="edit")
    await write(run, "secret.txt", tool="read")
    await run.finish("done")
    assert await evidence(world, run.session_id) == Evidence(
        4, ("report.md", "notes/a.txt"), stop_reason="end"
    )


async def test_a_timeout_leaves_evidence(world: World, main: int) -> None:
    run = await world.started(main, run_timeout_s=10.0)
    await write(run, "half.txt")
    world.clock.advance(9)
    await world.ring()
    world.clock.advance(2)
    await world.ring()
    assert (await world.task(run.session_id)).outcome is Outcome.TIMEOUT
    assert await evidence(world, run.session_id) == Evidence(1, ("half.txt",), stop_reason="timeout")


async def test_a_failure_leaves_evidence_when_its_grace_is_over(world: World, main: int) -> None:
    run = await world.started(main)
    await run.step()
    await run.fail("broken")
    assert (await world.phase(run.session_id))[0] is Phase.ENDING
    assert await evidence(world, run.session_id) is None
    world.clock.advance(16)
    await world.ring()
    assert await evidence(world, run.session_id) == Evidence(1, stop_reason="broken")


async def test_a_kill_leaves_evidence_and_names_the_children_that_were_out(world: World, main: int) -> None:
    run = await world.started(main, "parent")
    told = await world.child(run.session_id, "told")
    await run.yields()
    await world.end(told)
    run = await world.start(run.session_id)
    out = await world.child(run.session_id, "out")
    await run.step()
    await world.db.alone(control.kill, world.policy, run.session_id, "enough", "person")
    assert await evidence(world, run.session_id) == Evidence(
        2, children_joined=1, children_missing=("out",), stop_reason="killed"
    )
    assert await evidence(world, out) == Evidence(stop_reason="killed")


async def test_a_parent_counts_the_children_it_has_heard(world: World, main: int) -> None:
    run = await world.started(main, "parent")
    await run.spawn("a", "b")
    await run.results()
    await run.finish("waiting for them")
    await world.live()
    task = await world.task(run.session_id)
    assert (task.outcome, task.generation) == (Outcome.OK, 2)
    assert await evidence(world, run.session_id) == Evidence(2, children_joined=2, stop_reason="end")


async def test_a_new_generation_has_no_evidence_before_it_ends(world: World, main: int) -> None:
    run = await world.started(main)
    await run.step()
    await run.finish("first")
    await world.db.alone(messages.steer, world.policy, run.session_id, "s", "again", actor="person")
    assert await evidence(world, run.session_id) is None
    await world.end(run.session_id, "second")
    assert await evidence(world, run.session_id) == Evidence(1, stop_reason="end")


async def test_a_retry_begins_with_a_clean_ledger(world: World, main: int) -> None:
    run = await world.started(main)
    await write(run, "old.txt")
    await run.finish("first")
    await world.live()
    await world.db.alone(control.again, world.policy, run.session_id, "retry", "k", text="", actor="person")
    await world.end(run.session_id, "second")
    assert await evidence(world, run.session_id) == Evidence(stop_reason="end")


async def test_a_wait_that_expired_names_the_missing_beside_the_calls(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    await parent.spawn("stuck")
    await parent.results()
    await parent.finish("what I have")
    stuck = await world.start(await world.one("SELECT id FROM tasks WHERE label = 'stuck'"))
    world.clock.advance(1801)
    await world.ring()
    shown = await evidence(world, parent.session_id)
    assert shown == Evidence(1, children_missing=("stuck",), stop_reason="descendants expired")
    await stuck.finish("late")
