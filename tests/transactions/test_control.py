"""Kill, pause, decide, retry and continue: what a person or a parent may do to a task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clutch.core.events import PlanVerdict
from clutch.core.ids import plan_hash
from clutch.core.messages import Input
from clutch.core.model import Delivery, LetterState, Outcome, Phase, Plan
from clutch.core.status import elapsed_s
from clutch.transactions import control, messages, turn
from clutch.transactions.control import KillReport, NotPossible, PlanChanged, UnknownTask
from clutch.transactions.read import tasks, transcripts
from clutch.transactions.sessions import Stale
from tests.transactions.world import World, calls

pytestmark = pytest.mark.anyio


async def kill(world: World, task_id: int, reason: str = "enough") -> KillReport:
    return await world.db.alone(control.kill, world.policy, task_id, reason, "person")


async def again(world: World, task_id: int, how: str, text: str = "", idem: str = "again") -> Any:
    return await world.db.alone(control.again, world.policy, task_id, how, idem, text=text, actor="person")


# ---- kill --------------------------------------------------------------------------------------------


@pytest.mark.scenario(114)
async def test_kill_ends_the_task_and_everything_below_in_one_commit(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    child = await world.started(parent.session_id, "child")
    grandchild = await world.child(child.session_id, "grandchild")
    report = await kill(world, parent.session_id, "wrong way")
    dead = (parent.session_id, child.session_id, grandchild)
    assert report == KillReport(dead, ())
    for task_id in dead:
        task = await world.task(task_id)
        assert (task.phase, task.outcome, task.error) == (Phase.COMPLETED, Outcome.KILLED, "wrong way")
        assert task.delivery is Delivery.SKIPPED
        session = await world.session(task_id)
        assert (session.owner, session.closed, session.run_id, session.due) == (None, 1, None, None)


async def test_killed_task_is_never_announced(world: World, main: int) -> None:
    run = await world.started(main)
    await kill(world, run.session_id)
    await world.live()
    assert await world.inputs(main) == []
    assert await world.trace(run.session_id) == []


async def test_owner_of_a_killed_run_meets_it_at_its_next_write(world: World, main: int) -> None:
    run = await world.started(main)
    await kill(world, run.session_id)
    for write in (run.step(), run.finish(), run.fail(), run.yields()):
        with pytest.raises(Stale):
            await write
    assert len(await world.transcript(run.session_id)) == 1


async def test_kill_is_final_across_a_restart(world: World, main: int) -> None:
    run = await world.started(main)
    await kill(world, run.session_id)
    await world.die()
    assert await world.claim() == []


@pytest.mark.scenario(116)
async def test_second_kill_says_already_finished(world: World, main: int) -> None:
    run = await world.started(main)
    child = await world.child(run.session_id)
    await kill(world, run.session_id)
    before = [await world.timeline(run.session_id), await world.timeline(child)]
    assert await kill(world, run.session_id) == KillReport((), (run.session_id,))
    assert [await world.timeline(run.session_id), await world.timeline(child)] == before


async def test_kill_of_a_finished_task_changes_nothing(world: World, main: int) -> None:
    run = await world.started(main)
    await run.finish("done")
    before = await world.task(run.session_id)
    assert await kill(world, run.session_id) == KillReport((), (run.session_id,))
    assert await world.task(run.session_id) == before
    await world.live()
    assert (await world.task(run.session_id)).delivery is Delivery.DELIVERED


@pytest.mark.scenario(115)
async def test_live_child_below_an_ended_parent_is_stopped(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    child = await world.child(parent.session_id, "child")
    await parent.finish("my part")
    world.clock.advance(1801)
    await world.ring()
    assert await kill(world, parent.session_id) == KillReport((child,), (parent.session_id,))
    assert (await world.task(child)).outcome is Outcome.KILLED


async def test_results_of_ended_descendants_that_nobody_took_are_skipped(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    child = await world.child(parent.session_id, "child")
    await world.end(child, "for my parent")
    await kill(world, parent.session_id)
    task = await world.task(child)
    assert (task.phase, task.outcome, task.result) == (Phase.COMPLETED, Outcome.OK, "for my parent")
    assert (task.delivery, task.delivery_reason) == (Delivery.SKIPPED, "killed")
    assert (await world.letter(child)).state == LetterState.VOID
    await world.live()
    assert await world.inputs(main) == []


async def test_result_that_was_taken_but_not_answered_dies_with_its_reader(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    child = await world.child(parent.session_id, "child")
    await parent.yields()
    await world.end(child)
    await world.start(parent.session_id)
    await kill(world, parent.session_id)
    await world.live()
    assert (await world.task(child)).delivery is Delivery.SKIPPED
    assert await world.inputs(main) == []


@pytest.mark.scenario(217)
async def test_late_letter_of_a_descendant_that_went_up_is_skipped_by_the_kill(
    world: World, main: int
) -> None:
    parent = await world.started(main, "parent")
    child = await world.started(parent.session_id, "child")
    await parent.finish("my part")
    world.clock.advance(1801)
    await world.ring()
    await child.finish("late finding")
    await world.mail()
    assert (await world.letter(child.session_id)).session_id == main
    await kill(world, parent.session_id)
    task = await world.task(child.session_id)
    assert (task.delivery, task.delivery_reason) == (Delivery.SKIPPED, "killed")
    await world.live()
    assert all("late finding" not in text for text in await world.inputs(main))


async def test_kill_wakes_a_parent_that_waits_for_the_last_child(world: World, main: int) -> None:
    await world.tell(main, "go")
    run = await world.start(main)
    await run.spawn("a", "b")
    await run.results()
    await run.yields()
    for (task,) in await world.rows("SELECT id FROM tasks"):
        await kill(world, task)
    await (await world.start(main)).finish("nothing came of it")
    text = (await world.inputs(main))[-1]
    assert text.startswith("[0 background tasks completed]")
    assert text.count("Not among these") == 2


@pytest.mark.parametrize("phase", ["queued", "paused", "quota", "children", "ending", "deferred", "plan"])
async def test_every_phase_that_has_not_ended_can_be_killed(world: World, main: int, phase: str) -> None:
    task = await world.child(main, plan_mode=phase == "plan")
    if phase == "paused":
        await world.db.alone(control.pause, world.policy, task, "person")
    elif phase != "queued":
        run = await world.start(task)
        match phase:
            case "quota":
                await run.stumble()
            case "children":
                await world.child(task)
                await run.yields()
            case "ending":
                await run.fail()
            case "deferred":
                await world.child(task)
                await run.finish("part")
            case _:
                await run.finish("a plan")
    assert (await kill(world, task)).stopped[0] == task
    assert (await world.task(task)).outcome is Outcome.KILLED
    await world.live()
    assert all("Subagent" not in text for text in await world.inputs(main))


async def test_unknown_task_is_said_to_be_unknown(world: World, main: int) -> None:
    for target in (999, main):
        with pytest.raises(UnknownTask):
            await kill(world, target)


@pytest.mark.scenario(119)
@pytest.mark.scenario(58)
async def test_words_of_a_run_that_lost_its_session_are_kept_and_change_nothing(
    world: World, main: int
) -> None:
    run = await world.started(main)
    await kill(world, run.session_id)
    before = await world.task(run.session_id)
    await world.db.tx(run.session_id, turn.late, world.policy, run.session_id, "I had it!")
    after = await world.task(run.session_id)
    assert after._replace(seq=before.seq) == before
    assert (await world.timeline(run.session_id))[-1] == "late: I had it!"


async def test_late_words_of_a_main_session_are_nobodys(world: World, main: int) -> None:
    await world.db.tx(main, turn.late, world.policy, main, "hello?")


# ---- pause and resume --------------------------------------------------------------------------------


async def pause(world: World, task_id: int) -> tuple[int, ...]:
    return await world.db.alone(control.pause, world.policy, task_id, "person")


async def resume(world: World, task_id: int) -> tuple[int, ...]:
    return await world.db.alone(control.resume, world.policy, task_id, "person")


async def test_pause_parks_the_subtree_and_resume_goes_on(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    child = await world.child(parent.session_id, "child")
    assert await pause(world, parent.session_id) == (parent.session_id, child)
    assert await pause(world, parent.session_id) == ()
    await parent.step()
    assert await world.claim() == []
    assert await resume(world, parent.session_id) == (parent.session_id, child)
    assert await resume(world, parent.session_id) == ()
    await world.live()
    assert (await world.task(parent.session_id)).delivery is Delivery.DELIVERED


async def test_paused_time_does_not_count(world: World, main: int) -> None:
    run = await world.started(main, run_timeout_s=100.0)
    world.clock.advance(30)
    await pause(world, run.session_id)
    await run.step()
    world.clock.advance(1000)
    await world.ring()
    await resume(world, run.session_id)
    world.clock.advance(1000)
    await world.start(run.session_id)
    assert (await world.task(run.session_id)).deadline_at == world.clock.now() + 70


async def test_resumed_run_is_the_same_run_and_no_crash(world: World, main: int) -> None:
    run = await world.started(main)
    await pause(world, run.session_id)
    await run.step()
    await resume(world, run.session_id)
    again_ = await world.start(run.session_id)
    assert again_.run_id == run.run_id
    assert await world.one("SELECT crashes FROM runs WHERE id = ?", run.run_id) == 0


async def test_pause_between_claim_and_begin_releases_the_session(world: World, main: int) -> None:
    task = await world.child(main)
    await world.claim()
    await pause(world, task)
    assert await world.begin(task) is None
    assert await world.phase(task) == (Phase.PAUSED, "pause")
    await resume(world, task)
    await world.end(task)


async def test_pause_of_an_interrupted_run_waits_for_resume(world: World, main: int) -> None:
    run = await world.started(main)
    await world.die()
    await pause(world, run.session_id)
    assert await world.phase(run.session_id) == (Phase.PAUSED, "pause")
    assert await world.claim() == []
    await resume(world, run.session_id)
    assert (await world.start(run.session_id)).run_id == run.run_id


@pytest.mark.parametrize("meanwhile", ["nothing", "alarm", "letter"])
async def test_a_run_that_loses_its_worker_while_it_pauses_is_parked(
    world: World, main: int, meanwhile: str
) -> None:
    run = await world.started(main, run_timeout_s=10)
    await pause(world, run.session_id)
    await world.die()
    if meanwhile == "alarm":
        world.clock.advance(60)
        await world.ring()
    elif meanwhile == "letter":
        await world.tell(run.session_id, "more")
        await world.mail()
    assert await world.claim() == [run.session_id]
    assert await world.begin(run.session_id) is None
    assert await world.phase(run.session_id) == (Phase.PAUSED, "pause")


async def test_a_task_that_loses_its_worker_between_claim_and_begin_is_parked(
    world: World, main: int
) -> None:
    task = await world.child(main)
    await world.claim()
    await pause(world, task)
    await world.die()
    await world.db.tx(task, messages.send, world.policy, task, "k", "and this", actor="person")
    assert await world.claim() == [task]
    assert await world.begin(task) is None
    assert await world.phase(task) == (Phase.PAUSED, "pause")
    assert await world.claim() == []
    await resume(world, task)
    await world.end(task)


async def test_pause_taken_back_before_the_boundary_changes_nothing(world: World, main: int) -> None:
    run = await world.started(main)
    await pause(world, run.session_id)
    await resume(world, run.session_id)
    assert (await run.step()).goes_on


async def test_finish_before_the_boundary_ends_a_paused_task(world: World, main: int) -> None:
    run = await world.started(main)
    await pause(world, run.session_id)
    await run.finish("was done anyway")
    await world.live()
    assert (await world.task(run.session_id)).delivery is Delivery.DELIVERED


async def test_paused_parent_that_waited_for_children_is_woken_by_resume(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    child = await world.child(parent.session_id, "child")
    await parent.finish("part")
    run = await world.start(child)
    await pause(world, parent.session_id)
    await run.finish("found")
    await world.mail()
    assert await world.due(parent.session_id) is None
    await resume(world, parent.session_id)
    assert await world.due(parent.session_id) == world.clock.now()


# ---- plans -------------------------------------------------------------------------------------------


async def planned(world: World, main: int, plan: str = "look, then leap") -> int:
    run = await world.started(main, plan_mode=True, run_timeout_s=100.0)
    await run.finish(plan)
    assert (await world.task(run.session_id)).phase is Phase.AWAITING_APPROVAL
    return run.session_id


async def decide(
    world: World, task_id: int, verdict: PlanVerdict, text: str = "", plan: str = "look, then leap"
) -> Any:
    return await world.db.alone(
        messages.decide, world.policy, task_id, verdict, plan_hash(plan), text=text, actor="person"
    )


async def test_a_decision_in_words_that_is_repeated_after_a_crash_says_nothing_new(
    world: World, main: int
) -> None:
    task = await planned(world, main)
    await world.start(main)
    known = (world.policy, task, main, "APPROVED: go")
    decided = await world.db.alone(messages.decide_as_read, *known, actor="main")
    again = await world.db.alone(messages.decide_as_read, *known, actor="main")
    assert decided is not None
    assert again is not None
    assert again.phase is Phase.QUEUED
    rows = await world.rows("SELECT kind FROM inbox WHERE session_id = ? AND kind <> 'task'", task)
    assert rows == [("decision",)]


@pytest.mark.scenario(138)
async def test_approved_plan_goes_on_in_the_same_transcript(world: World, main: int) -> None:
    task = await planned(world, main)
    await world.start(main)
    assert plan_hash("look, then leap") in (await world.inputs(main))[-1]
    world.clock.advance(1000)
    approved = await decide(world, task, PlanVerdict.APPROVE, "carefully")
    assert (approved.phase, approved.plan, approved.generation) == (Phase.QUEUED, Plan.APPROVED, 2)
    run = await world.start(task)
    assert (await world.inputs(task))[-1] == "APPROVED: carefully"
    assert (await world.task(task)).deadline_at == world.clock.now() + 100
    await run.finish("leapt")
    done = await world.task(task)
    assert (done.phase, done.result) == (Phase.ANNOUNCING, "leapt")


@pytest.mark.parametrize("verdict", [PlanVerdict.APPROVE, PlanVerdict.REVISE])
async def test_decision_on_a_paused_task_is_read_at_resume(
    world: World, main: int, verdict: PlanVerdict
) -> None:
    task = await planned(world, main)
    await pause(world, task)
    decided = await decide(world, task, verdict, "carefully")
    assert (decided.phase, decided.reason) == (Phase.PAUSED, "pause")
    await world.db.alone(control.resume, world.policy, task, "person")
    await world.start(task)
    assert (await world.inputs(task))[-1].endswith(": carefully")


@pytest.mark.scenario(139)
async def test_rejected_plan_gets_a_new_round_with_the_reason(world: World, main: int) -> None:
    task = await planned(world, main)
    revised = await decide(world, task, PlanVerdict.REVISE, "too risky")
    assert (revised.phase, revised.plan, revised.plan_round) == (Phase.QUEUED, Plan.DRAFTING, 1)
    run = await world.start(task)
    assert (await world.inputs(task))[-1] == "REJECTED: too risky"
    await run.finish("look twice")
    assert (await world.task(task)).phase is Phase.AWAITING_APPROVAL


async def test_plan_rejected_for_good_is_an_error(world: World, main: int) -> None:
    task = await planned(world, main)
    ended = await decide(world, task, PlanVerdict.END, "no")
    assert (ended.phase, ended.outcome, ended.error) == (Phase.ANNOUNCING, Outcome.ERROR, "plan rejected: no")


@pytest.mark.scenario(215)
async def test_decision_about_another_plan_is_refused(world: World, main: int) -> None:
    task = await planned(world, main)
    with pytest.raises(PlanChanged):
        await decide(world, task, PlanVerdict.APPROVE, plan="something else")
    assert (await world.task(task)).phase is Phase.AWAITING_APPROVAL


async def test_plan_is_decided_once(world: World, main: int) -> None:
    task = await planned(world, main)
    await decide(world, task, PlanVerdict.APPROVE)
    with pytest.raises(NotPossible):
        await decide(world, task, PlanVerdict.END)


async def test_letter_about_a_plan_that_was_decided_meanwhile_is_void(world: World, main: int) -> None:
    task = await planned(world, main)
    await decide(world, task, PlanVerdict.APPROVE)
    await world.mail()
    await world.claim()
    assert await world.begin(main) is None
    assert await world.one("SELECT state FROM inbox WHERE kind = 'plan'") == LetterState.VOID


async def test_restart_changes_nothing_for_a_plan_that_waits(world: World, main: int) -> None:
    task = await planned(world, main)
    before = await world.task(task)
    await world.die()
    world.clock.advance(100_000)
    await world.ring()
    assert await world.task(task) == before


# ---- retry and continue ------------------------------------------------------------------------------


async def finished(world: World, main: int, text: str = "first result") -> int:
    task = await world.child(main)
    await world.end(task, text)
    world.clock.advance(2)
    await (await world.start(main)).finish("told")
    assert (await world.task(task)).phase is Phase.COMPLETED
    return task


@pytest.mark.scenario(209)
async def test_continue_goes_on_in_the_same_transcript_and_is_announced_once_more(
    world: World, main: int
) -> None:
    task = await finished(world, main)
    changed = await again(world, task, "continue", "now the other half")
    assert (changed.phase, changed.generation, changed.result) == (Phase.QUEUED, 2, None)
    run = await world.start(task)
    briefing = await world.db.read(transcripts.briefing, task)
    assert briefing.transcript[-1] == Input("now the other half", "instruction")
    assert len(briefing.transcript) == 3
    await run.finish("second result")
    await world.live()
    assert sum("second result" in text for text in await world.inputs(main)) == 1


async def test_retry_starts_from_an_empty_transcript_and_keeps_the_old(world: World, main: int) -> None:
    task = await finished(world, main)
    before = len(await world.transcript(task))
    await again(world, task, "retry")
    await world.start(task)
    briefing = await world.db.read(transcripts.briefing, task)
    assert briefing.transcript == (Input("[Subagent task, depth 1 of 3]\n\ndo child", "task"),)
    assert len(await world.transcript(task)) == before + 1


async def test_retry_forgets_calls_the_killed_run_left_open(world: World, main: int) -> None:
    run = await world.started(main)
    await run.respond(calls("write"))
    await kill(world, run.session_id)
    await again(world, run.session_id, "retry")
    await world.end(run.session_id, "no tools this time")
    await world.live()
    await again(world, run.session_id, "continue", "more", idem="more")
    await world.start(run.session_id)
    briefing = await world.db.read(transcripts.briefing, run.session_id)
    assert [type(message).__name__ for message in briefing.transcript] == ["Input", "Answer", "Input"]


async def test_same_request_twice_is_one_new_run(world: World, main: int) -> None:
    task = await finished(world, main)
    first = await again(world, task, "continue", "more")
    assert await again(world, task, "continue", "more") == first


@pytest.mark.parametrize("how", ["retry", "continue"])
async def test_unfinished_task_cannot_be_run_again(world: World, main: int, how: str) -> None:
    task = await world.child(main)
    with pytest.raises(NotPossible, match="use `steer`"):
        await again(world, task, how)


@pytest.mark.parametrize("how", ["retry", "continue"])
async def test_result_that_waits_to_be_read_is_overtaken_by_the_new_run(
    world: World, main: int, how: str
) -> None:
    task = await world.child(main)
    await world.end(task, "first result")
    assert (await again(world, task, how)).generation == 2
    await world.end(task, "second result")
    await world.live()
    said = "".join(await world.inputs(main))
    assert (said.count("first result"), said.count("second result")) == (0, 1)


@pytest.mark.parametrize("reader_fails", [False, True])
async def test_result_that_is_being_read_is_told_and_so_is_that_of_the_new_run(
    world: World, main: int, reader_fails: bool
) -> None:
    task = await world.child(main)
    await world.end(task, "first result")
    world.clock.advance(2)
    reader = await world.start(main)
    assert (await again(world, task, "continue", "more")).phase is Phase.QUEUED
    await world.end(task, "second result")
    await (reader.fail() if reader_fails else reader.finish("told"))
    await world.live()
    said = "".join(await world.inputs(main))
    assert (said.count("first result"), said.count("second result")) == (1, 1)
    assert ((await world.task(task)).phase, (await world.task(task)).generation) == (Phase.COMPLETED, 2)


@pytest.mark.parametrize("is_given_up", [False, True], ids=["retried", "given up"])
async def test_silent_new_run_does_not_tell_again_what_the_turn_of_a_user_shows(
    world: World, main: int, is_given_up: bool
) -> None:
    """A failed turn left the first result in the transcript: every later turn shows it to its model."""
    if is_given_up:
        rules = replace(world.policy.announcing, fast_tries=1, slow=False)
        world.policy = replace(world.policy, announcing=rules)
    task = await world.child(main)
    await world.end(task, "first result")
    world.clock.advance(2)
    await (await world.start(main)).fail("no model")
    await world.tell(main, "and?")
    reader = await world.start(main)
    await again(world, task, "continue", "more")
    await world.end(task, "NO_REPLY")
    await reader.finish("it found the first")
    await world.live()
    said = "".join(await world.inputs(main))
    assert said.count("first result") == 1
    delivered = [row for row in await world.trace(task) if row[1] == "delivered"]
    assert len(delivered) == (not is_given_up)


async def test_a_silent_new_run_does_not_tell_again_what_is_being_read(world: World, main: int) -> None:
    task = await world.child(main)
    await world.end(task, "first result")
    world.clock.advance(2)
    reader = await world.start(main)
    await again(world, task, "continue", "more")
    await world.end(task, "NO_REPLY")
    await reader.finish("told")
    await world.live()
    assert "".join(await world.inputs(main)).count("first result") == 1


async def test_removal_is_refused_until_the_requester_has_heard(world: World, main: int) -> None:
    task = await world.child(main)
    await world.end(task, "first result")
    with pytest.raises(NotPossible, match="once its result is delivered"):
        await world.db.alone(control.remove, world.policy, task, "person")


async def test_new_run_passes_admission_like_a_spawn(world: World, main: int) -> None:
    task = await finished(world, main)
    world.policy = replace(world.policy, limits=replace(world.policy.limits, children_max=1))
    await world.child(main)
    with pytest.raises(NotPossible, match="1/1"):
        await again(world, task, "retry")
    assert (await world.task(task)).phase is Phase.COMPLETED


async def test_silent_new_run_of_a_task_that_was_told_tells_nothing_twice(world: World, main: int) -> None:
    task = await finished(world, main)
    await again(world, task, "continue", "anything else?")
    await world.end(task, "NO_REPLY")
    silent = await world.task(task)
    assert (silent.delivery, silent.delivery_reason, silent.result) == (Delivery.SKIPPED, "silent", None)


async def test_elapsed_time_counts_from_the_first_start_and_runtime_adds_up_the_runs(
    world: World, main: int
) -> None:
    """The runtime has neither the night before it was continued nor the time it was paused."""
    run = await world.started(main, "job")
    world.clock.advance(10)
    await run.finish("half")
    world.clock.advance(2)
    await (await world.start(main)).finish("told")
    world.clock.advance(36_000)
    await again(world, run.session_id, "continue", "the other half")
    more = await world.start(run.session_id)
    world.clock.advance(20)
    await world.db.alone(control.pause, world.policy, run.session_id, "person")
    await more.step()
    world.clock.advance(500)
    await world.db.alone(control.resume, world.policy, run.session_id, "person")
    last = await world.start(run.session_id)
    world.clock.advance(30)
    (view,) = await world.db.read(tasks.of, [run.session_id])
    assert elapsed_s(view) == 10 + 2 + 36_000 + 20 + 500 + 30
    await last.finish("whole")
    world.clock.advance(2)
    await (await world.start(main)).finish("told")
    assert "Stats: runtime 1m" in (await world.inputs(main))[-1]


async def test_task_with_cleanup_is_done_when_somebody_says_so(world: World, main: int) -> None:
    from clutch.core.spawn import CleanupPolicy

    task = await world.child(main, cleanup=CleanupPolicy.DELETE)
    await world.end(task)
    world.clock.advance(2)
    await (await world.start(main)).finish("told")
    pending = await world.task(task)
    assert (pending.phase, pending.delivery) == (Phase.CLEANUP_PENDING, Delivery.DELIVERED)
    assert pending.wake_at == world.clock.now() + 60
    await world.clean(task)
    assert (await world.task(task)).phase is Phase.COMPLETED
