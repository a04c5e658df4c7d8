"""Why a task is where it is: told from the rows of both databases, at every gate it can wait at."""

from __future__ import annotations

import pytest

from clutch.core import ids
from clutch.core.diagnosis import Gate
from clutch.core.events import PlanVerdict
from clutch.core.model import Lane
from clutch.core.questions import QuestionKind
from clutch.core.text.why import command, happening, opens_when, waiting_for
from clutch.transactions import claims, control, messages, turn_end
from clutch.transactions.questions import NewQuestion, call_body
from clutch.transactions.read import why as why_of
from clutch.transactions.read.why import TaskExplanation
from tests.transactions.test_heartbeat import MIDNIGHT, waking_by_heartbeat
from tests.transactions.world import World, calls

pytestmark = pytest.mark.anyio


async def why(world: World, task_id: int, **more: bool) -> TaskExplanation:
    found = await world.db.read(why_of.why, task_id, **more)
    assert found is not None
    return found


async def gate(world: World, task_id: int) -> Gate | None:
    stuck = (await why(world, task_id)).stuck
    return None if stuck is None else stuck.gate


async def test_a_told_task_has_its_whole_life_and_waits_at_no_gate(world: World, main: int) -> None:
    task = await world.child(main)
    await world.end(task)
    await world.live()
    found = await why(world, task)
    words = [happening(line)[0] for line in found.timeline]
    assert words == ["spawned", "started", "ended", "announced", "delivered", "cleaned"]
    assert [line.seq for line in found.timeline] == list(range(1, len(words) + 1))
    assert found.stuck is None
    assert await world.db.read(why_of.why, 77) is None


@pytest.mark.scenario(202)
async def test_each_attempt_has_target_depth_reason_route_paths_number_next_and_key(
    world: World, main: int
) -> None:
    task = await world.child(main)
    await world.end(task)
    world.clock.advance(2)
    await (await world.start(main)).fail("overloaded")
    failed_at = world.clock.now()
    await world.live()
    key = await world.one("SELECT key FROM sessions WHERE id = ?", task)
    first, second = (await why(world, task)).attempts
    assert (first.attempt, first.outcome, first.reason, first.at) == (1, "failed", "overloaded", failed_at)
    assert first.next_at == failed_at + 1
    assert (second.attempt, second.outcome, second.path, second.next_at) == (2, "delivered", "direct", None)
    for attempt in (first, second):
        assert (attempt.to_session, attempt.to_depth, attempt.why) == ("agent:main:main", 0, "requester")
        assert attempt.key == f"announce:v1:{key}:1"
        assert attempt.route_mode is not None
        assert attempt.transcript_seq is not None


# ---- every gate ------------------------------------------------------------------------------------------


async def test_lane_full(world: World, main: int) -> None:
    await world.db.alone(claims.set_lanes, {Lane.SUBAGENT: 1})
    busy, waits = await world.children(main, "busy", "waits")
    run = await world.start(busy)
    assert await gate(world, waits) is Gate.LANE_FULL
    assert await gate(world, busy) is None
    await run.finish()
    assert await gate(world, waits) is None
    await world.db.alone(claims.set_lanes, {Lane.SUBAGENT: 8})


async def test_lease(world: World, main: int) -> None:
    await world.hire(lease_s=5.0)
    run = await world.started(main)
    world.clock.advance(6)
    assert await gate(world, run.session_id) is Gate.LEASE
    await world.die()
    assert await gate(world, run.session_id) is None


async def test_where_nobody_serves_the_store_a_running_task_waits_for_somebody(
    world: World, main: int
) -> None:
    run = await world.started(main)
    stuck = (await why(world, run.session_id, is_served=False)).stuck
    assert stuck is not None
    assert (stuck.gate, command(stuck, "t")) == (Gate.LEASE, ("serve",))


async def test_descendants_active_of_one_that_ended_and_of_one_that_yielded(world: World, main: int) -> None:
    ended = await world.started(main, "ended")
    low = await world.child(ended.session_id, "low")
    await ended.finish("early")
    stuck = (await why(world, ended.session_id)).stuck
    assert stuck is not None
    assert (stuck.gate, waiting_for(stuck)) == (Gate.DESCENDANTS_ACTIVE, (ids.task_id(low),))
    assert stuck.until == world.clock.now() + world.policy.life.settle_expiry_s
    yielded = await world.started(main, "yielded")
    await world.child(yielded.session_id, "lower")
    await yielded.yields()
    assert await gate(world, yielded.session_id) is Gate.DESCENDANTS_ACTIVE


async def test_requester_busy(world: World, main: int) -> None:
    task = await world.child(main)
    await world.tell(main, "hello")
    turn = await world.start(main)
    await world.end(task)
    await world.mail()
    stuck = (await why(world, task)).stuck
    assert stuck is not None
    assert (stuck.gate, waiting_for(stuck)) == (Gate.REQUESTER_BUSY, ("agent:main:main",))
    await turn.finish()


async def test_a_letter_that_waits_for_its_siblings_names_them(world: World, main: int) -> None:
    done, slow = await world.children(main, "done", "slow")
    await world.tell(main, "go")
    await (await world.start(main)).yields()
    await world.end(done)
    await world.mail()
    stuck = (await why(world, done)).stuck
    assert stuck is not None
    assert (stuck.gate, waiting_for(stuck)) == (Gate.DESCENDANTS_ACTIVE, (ids.task_id(slow),))


async def test_requester_missing_then_dead_letter(world: World, main: int) -> None:
    task = await world.child(main)
    await world.end(task)
    await world.db.alone(control.close_main, world.policy, main)
    await world.mail()
    stuck = (await why(world, task)).stuck
    assert stuck is not None
    assert stuck.gate is Gate.REQUESTER_MISSING
    assert "given up at" in opens_when(stuck)
    world.clock.advance(1801)
    await world.ring()
    dead = (await why(world, task)).stuck
    assert dead is not None
    assert (dead.gate, command(dead, ids.task_id(task))) == (
        Gate.DEAD_LETTER,
        ("redeliver", ids.task_id(task)),
    )
    await world.db.alone(control.open_main, world.policy, main)


async def test_backoff_of_a_letter_a_provider_and_a_grace(world: World, main: int) -> None:
    letter, provider, grace = await world.children(main, "letter", "provider", "grace")
    await (await world.start(provider)).stumble()
    await (await world.start(grace)).fail()
    assert await gate(world, provider) is Gate.BACKOFF
    assert await gate(world, grace) is Gate.BACKOFF
    await (await world.start(letter)).finish()
    world.clock.advance(2)
    await (await world.start(main)).fail()
    assert await gate(world, letter) is Gate.BACKOFF


async def test_needs_you_names_the_questions(world: World, main: int) -> None:
    run = await world.started(main)
    await run.respond(calls("shell"))
    asked = [NewQuestion(world.number(), 0, QuestionKind.APPROVAL, call_body("shell", {"command": "ls"}))]
    await world.db.tx(run.session_id, turn_end.ask, run.owned, run.head, asked, world.nonce())
    stuck = (await why(world, run.session_id)).stuck
    assert stuck is not None
    assert (stuck.gate, stuck.until) == (Gate.NEEDS_YOU, None)
    assert waiting_for(stuck) == (ids.question_id(asked[0].id),)


async def test_needs_you_for_a_plan(world: World, main: int) -> None:
    task = await world.child(main, plan_mode=True)
    await world.end(task, "the plan")
    assert await gate(world, task) is Gate.NEEDS_YOU
    view = (await why(world, task)).task
    assert view.plan is not None
    assert view.plan.hash is not None
    await world.db.alone(
        messages.decide, world.policy, task, PlanVerdict.APPROVE, view.plan.hash, text="", actor="person"
    )
    assert await gate(world, task) is None


async def test_quota_and_budget(world: World, main: int) -> None:
    quota, budget = await world.children(main, "quota", "budget")
    until = world.clock.now() + 100
    await (await world.start(quota)).stumble(retry_at=until)
    run = await world.start(budget)
    await world.db.tx(run.session_id, turn_end.wait, run.owned, 30.0)
    stuck = (await why(world, quota)).stuck
    assert stuck is not None
    assert (stuck.gate, stuck.until) == (Gate.QUOTA, until)
    assert await gate(world, budget) is Gate.BUDGET
    world.clock.advance(101)
    await world.hire()
    assert await gate(world, quota) is None


async def test_paused_says_how_to_resume(world: World, main: int) -> None:
    task = await world.child(main)
    await world.db.alone(control.pause, world.policy, task, "person")
    stuck = (await why(world, task)).stuck
    assert stuck is not None
    assert (stuck.gate, command(stuck, "?")) == (Gate.PAUSED, ("resume", ids.task_id(task)))


async def test_quiet_hours_name_the_moment_they_end(world: World, main: int) -> None:
    waking_by_heartbeat(world)
    world.clock.set(MIDNIGHT + 3 * 3600)
    await world.hire()
    task = await world.child(main)
    await world.end(task)
    await world.mail()
    stuck = (await why(world, task)).stuck
    assert stuck is not None
    assert (stuck.gate, waiting_for(stuck)) == (Gate.QUIET_HOURS, ("agent:main:main",))
    assert stuck.until == MIDNIGHT + 9 * 3600
    assert (await why(world, task)).task.delivery.attempts == 0


# ---- replay ----------------------------------------------------------------------------------------------


async def test_a_journal_has_every_letter_move_word_call_and_result_in_order(world: World, main: int) -> None:
    run = await world.started(main, task="look around")
    await run.step("read")
    await run.finish("seen")
    await world.live()
    told = await world.db.read(why_of.journal, run.session_id)
    assert [step.kind for step in told] == [
        "letter", "phase", "phase", "input", "call", "result", "answer", "phase", "phase", "phase", "phase",
    ]  # fmt: skip
    assert [step.at for step in told] == sorted(step.at for step in told)
    assert "look around" in told[3].text
    assert (told[4].text, told[6].text) == ("read", "seen")
    assert {step.run_id for step in told if step.seq and step.kind != "phase"} == {run.run_id}
