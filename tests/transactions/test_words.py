"""Words to sessions, removing, stopping, and the guard, on every database."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from clutch.core import session_tools
from clutch.core.authority import EVERY_SCOPE, AgentCaller, OperatorCaller, Role, Verb
from clutch.core.events import PlanVerdict
from clutch.core.ids import plan_hash
from clutch.core.messages import Input, Result, Results
from clutch.core.model import Delivery, LetterKind, LetterState, Outcome, Phase, Workspace
from clutch.core.policy import Control, LateResult
from clutch.errors import Forbidden, NotFound, RateLimited
from clutch.store.transaction import P, T, TxFunction
from clutch.transactions import authority, control, inbox, messages, task_files, turn, turn_begin
from clutch.transactions.authority import guarded
from clutch.transactions.control import AlreadyFinished, KillReport, NotPossible, StopReport
from clutch.transactions.read import lists, status
from tests.transactions.world import World, calls

pytestmark = pytest.mark.anyio

BOSS = OperatorCaller(EVERY_SCOPE, "boss")


async def send(world: World, session_id: int, text: str, idem: str = "send") -> None:
    await world.db.alone(messages.send, world.policy, session_id, idem, text, actor="boss")


# ---- send --------------------------------------------------------------------------------------------


async def test_running_child_reads_it_at_its_next_step(world: World, main: int) -> None:
    run = await world.started(main)
    await send(world, run.session_id, "look left, too")
    boundary = await run.step()
    assert [one.text for one in boundary.inputs] == ["look left, too"]
    assert await world.db.read(messages.heard, "send") is None
    await run.finish("seen")
    assert await world.db.read(messages.heard, "send") == "seen"


async def test_child_that_was_about_to_end_reads_it_first(world: World, main: int) -> None:
    run = await world.started(main)
    await send(world, run.session_id, "one more thing")
    assert await run.finish("the end")
    assert await world.phase(run.session_id) == (Phase.RUNNING, "started")
    assert (await world.inputs(run.session_id))[-1] == "one more thing"
    assert not await run.finish("the very end")
    task = await world.task(run.session_id)
    assert (task.generation, task.result) == (1, "the very end")
    await world.live()
    assert sum("the very end" in text for text in await world.inputs(main)) == 1


async def test_paused_child_that_was_about_to_end_reads_it_after_resume(world: World, main: int) -> None:
    run = await world.started(main)
    await send(world, run.session_id, "one more thing")
    await world.db.alone(control.pause, world.policy, run.session_id, "boss")
    assert not await run.finish("the end")
    assert await world.phase(run.session_id) == (Phase.PAUSED, "pause")
    await world.db.alone(control.resume, world.policy, run.session_id, "boss")
    await world.live()
    assert (await world.inputs(run.session_id))[-1] == "one more thing"
    assert (await world.task(run.session_id)).delivery is Delivery.DELIVERED


async def test_queued_child_reads_it_with_its_task_and_a_yielded_one_is_woken(
    world: World, main: int
) -> None:
    parent = await world.child(main, "parent")
    await send(world, parent, "mind the gap")
    run = await world.start(parent)
    assert len(await world.inputs(parent)) == 2
    await world.child(parent, "child")
    await run.yields()
    await send(world, parent, "still there?", "second")
    again = await world.start(parent)
    assert (await world.inputs(parent))[-1] == "still there?"
    await again.finish("yes")
    assert (await world.task(parent)).phase is Phase.ANNOUNCE_DEFERRED


async def test_same_message_twice_is_one_letter(world: World, main: int) -> None:
    task = await world.child(main)
    for _ in range(2):
        await send(world, task, "hello")
    assert len(await world.rows("SELECT id FROM inbox WHERE kind = 'instruction'")) == 1


async def test_finished_child_is_not_written_to_and_a_plan_is_decided_instead(
    world: World, main: int
) -> None:
    task = await world.child(main)
    await world.end(task)
    with pytest.raises(AlreadyFinished, match="use `continue`"):
        await send(world, task, "hello")
    planner = await world.started(main, plan_mode=True)
    await planner.finish("a plan")
    with pytest.raises(NotPossible, match="use `approve` or `reject`"):
        await send(world, planner.session_id, "hello")
    assert await world.rows("SELECT id FROM inbox WHERE kind = 'instruction'") == []


async def test_child_whose_files_are_being_made_is_not_started_by_a_message(world: World, main: int) -> None:
    task = await world.child(main, workspace=Workspace.ISOLATED)
    assert (await world.task(task)).phase is Phase.SPAWNING
    with pytest.raises(NotPossible, match="try again in a moment"):
        await send(world, task, "hello")
    await world.mail()
    assert await world.claim() == []
    await world.db.alone(task_files.undo, world.policy, task, "never mind")


async def test_nobody_can_be_written_to_who_is_not_there(world: World, main: int) -> None:
    with pytest.raises(NotFound):
        await send(world, 999, "hello")
    await world.db.alone(control.close_main, world.policy, main)
    with pytest.raises(AlreadyFinished, match="archived"):
        await send(world, main, "hello")


# ---- remove ------------------------------------------------------------------------------------------


async def test_only_a_told_record_leaves_the_quota(world: World, main: int) -> None:
    task = await world.child(main)
    with pytest.raises(NotPossible, match="use `kill` first"):
        await world.db.alone(control.remove, world.policy, task, "boss")
    await world.end(task)
    with pytest.raises(NotPossible):
        await world.db.alone(control.remove, world.policy, task, "boss")
    await world.live()
    await world.db.alone(control.remove, world.policy, task, "boss")
    assert await world.one("SELECT retained FROM tasks WHERE id = ?", task) == 0


async def test_dead_letter_is_not_removed_before_somebody_has_decided_about_it(
    world: World, main: int
) -> None:
    task = await world.child(main)
    await world.db.alone(control.close_main, world.policy, main)
    await world.end(task)
    await world.live()
    assert (await world.task(task)).delivery is Delivery.UNDELIVERED
    with pytest.raises(NotPossible, match="`redeliver` or `dismiss`"):
        await world.db.alone(control.remove, world.policy, task, "boss")
    await world.db.alone(control.dismiss, world.policy, task, "boss")
    await world.db.alone(control.remove, world.policy, task, "boss")
    assert await world.one("SELECT retained FROM tasks WHERE id = ?", task) == 0


# ---- stop --------------------------------------------------------------------------------------------


@pytest.mark.scenario(216)
async def test_stop_ends_the_run_and_three_levels_below_and_nothing_is_born_after_it(
    world: World, main: int
) -> None:
    await world.tell(main, "go")
    run = await world.start(main)
    (child,) = await run.spawn("child")
    await run.results()
    below = await world.started(child.task_id, "grandchild")  # type: ignore[union-attr]
    great = await world.child(below.session_id, "great-grandchild")
    await run.respond(calls("sessions_spawn"))
    report = await world.db.alone(control.stop, world.policy, main, "stop", "boss")
    assert report == StopReport(own_run=True, stopped=(child.task_id, below.session_id, great))  # type: ignore[union-attr]
    from clutch.transactions.sessions import Stale

    with pytest.raises(Stale):
        await run.repeat_spawn(task="too late")
    with pytest.raises(Stale):
        await below.spawn("too late")
    await world.live()
    assert await world.one("SELECT COUNT(*) FROM tasks") == 3
    assert await world.one("SELECT COUNT(*) FROM tasks WHERE outcome = 'killed'") == 3
    assert await world.inputs(main) == ["go"]
    assert await world.db.alone(control.stop, world.policy, main, "stop", "boss") == StopReport(False, ())


async def test_stopped_session_answers_the_next_words_and_nothing_older(world: World, main: int) -> None:
    await world.tell(main, "go")
    run = await world.start(main)
    await run.spawn("child")
    await run.results()
    await run.yields()
    await world.end((await world.rows("SELECT id FROM tasks"))[0][0], "found")
    await world.mail()
    await world.db.alone(control.stop, world.policy, main, "stop", "boss")
    assert await world.due(main) is None
    await world.tell(main, "and now?")
    again = await world.start(main)
    assert (await world.inputs(main))[1:] == ["and now?"]
    await again.finish("here I am")


@pytest.mark.parametrize("kind", [LetterKind.USER, LetterKind.INSTRUCTION, LetterKind.PEER])
async def test_words_that_were_not_read_outlive_a_stop(world: World, main: int, kind: LetterKind) -> None:
    """What its turn had read is over with it; what came meanwhile starts the next one."""
    await world.tell(main, "go")
    await world.start(main)
    body = "wait, also this"
    if kind is LetterKind.PEER:
        talk = session_tools.begins("k", (9, "agent:other:main"), (main, "agent:main:main"), body)
        assert talk is not None
        body = session_tools.dump(talk)
    await world.db.tx(main, inbox.post, main, "unread", kind, body)
    await world.db.alone(control.stop, world.policy, main, "stop", "boss")
    assert await world.one("SELECT state FROM inbox WHERE kind = 'user' AND body = 'go'") == LetterState.VOID
    await world.live()
    assert await world.one("SELECT state FROM inbox WHERE idem = 'unread'") == LetterState.ANSWERED
    first, *rest = await world.inputs(main)
    assert first == "go"
    assert len(rest) == 1
    assert "wait, also this" in rest[0]


async def test_whoever_was_due_for_results_that_a_kill_has_voided_sleeps_on(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    child = await world.started(parent.session_id, "child")
    await parent.finish("my part")
    world.clock.advance(1801)
    await world.ring()
    await world.live()
    await child.finish("late finding")
    await world.mail()
    assert (await world.letter(child.session_id)).session_id == main
    assert await world.due(main) is not None
    await world.db.alone(control.kill, world.policy, parent.session_id, "enough", "boss")
    await world.mail()
    assert await world.due(main) is None


async def test_stop_of_a_child_is_its_kill(world: World, main: int) -> None:
    run = await world.started(main)
    report = await world.db.alone(control.stop, world.policy, run.session_id, "stop", "boss")
    assert report == StopReport(own_run=True, stopped=())
    assert (await world.task(run.session_id)).outcome is Outcome.KILLED


# ---- steer -------------------------------------------------------------------------------------------


@pytest.mark.scenario(124)
async def test_second_steer_within_two_seconds_is_refused_and_changes_nothing(
    world: World, main: int
) -> None:
    run = await world.started(main)
    await world.db.alone(messages.steer, world.policy, run.session_id, "a", "left", actor="boss")
    world.clock.advance(1.5)
    with pytest.raises(RateLimited) as refused:
        await world.db.alone(messages.steer, world.policy, run.session_id, "b", "right", actor="boss")
    assert refused.value.retry_after_s == pytest.approx(0.5)
    assert len(await world.rows("SELECT id FROM inbox WHERE kind = 'instruction'")) == 1
    await world.db.alone(
        messages.steer, world.policy, run.session_id, "a", "left", actor="boss"
    )  # the same one
    world.clock.advance(0.5)
    await world.db.alone(messages.steer, world.policy, run.session_id, "b", "right", actor="boss")


async def test_next_run_waits_for_running_tools_and_reads_what_they_gave(world: World, main: int) -> None:
    run = await world.started(main)
    await run.respond(calls("dig"))
    await world.db.alone(messages.steer, world.policy, run.session_id, "s", "stop", actor="boss")
    assert await world.due(run.session_id) == world.clock.now() + 5
    world.clock.advance(1)
    left = Results((Result(0, "dig", "a bone"),))
    assert await world.db.tx(run.session_id, turn.leave, run.lost, left)
    assert await world.due(run.session_id) == world.clock.now()
    await world.start(run.session_id)
    assert (await world.transcript(run.session_id))[-2:] == [left, Input("stop", "instruction")]


async def test_tools_that_come_too_late_are_unknown(world: World, main: int) -> None:
    run = await world.started(main)
    await run.respond(calls("dig"))
    await world.db.alone(messages.steer, world.policy, run.session_id, "s", "stop", actor="boss")
    world.clock.advance(5)
    await world.start(run.session_id)
    left = Results((Result(0, "dig", "a bone"),))
    assert not await world.db.tx(run.session_id, turn.leave, run.lost, left)
    assert "a bone" not in str(await world.transcript(run.session_id))


# ---- kill --------------------------------------------------------------------------------------------


@pytest.mark.scenario(119)
@pytest.mark.parametrize("late", LateResult)
async def test_late_words_of_a_killed_task_are_kept_and_told_if_asked_for(
    world: World, main: int, late: LateResult
) -> None:
    world.policy = replace(world.policy, control=Control(late_result=late))
    run = await world.started(main)
    await world.db.alone(control.kill, world.policy, run.session_id, "enough", "boss", nonce=world.nonce())
    await world.db.tx(run.session_id, turn.late, world.policy, run.session_id, "I had it!", world.nonce())
    result = await world.db.read(lists.result, run.session_id)
    assert result is not None
    assert (result.outcome, result.late) == (Outcome.KILLED, ("I had it!", world.clock.now()))
    await world.live()
    told = [text for text in await world.inputs(main) if "I had it!" in text]
    assert len(told) == (late is LateResult.DELIVER)


async def test_told_kill_of_a_child_whose_parent_is_gone_goes_further_up(world: World, main: int) -> None:
    world.policy = replace(world.policy, control=Control(announces_kill=True))
    parent = await world.started(main, "parent")
    child = await world.child(parent.session_id, "child")
    await parent.finish("my part")
    world.clock.advance(1801)
    await world.ring()
    report = await world.db.alone(control.kill, world.policy, child, "enough", "boss", nonce=world.nonce())
    assert report == KillReport((child,))
    await world.live()
    assert sum('"child" killed' in text for text in await world.inputs(main)) == 1


# ---- the guard ---------------------------------------------------------------------------------------


def agent(session_id: int, role: Role = Role.ORCHESTRATOR, **more: Any) -> AgentCaller:
    return AgentCaller(session_id, "main", role, session_key="agent:x", **more)


def where(now: float, session_id: int) -> Any:
    return (yield from authority.target(session_id))


async def test_target_stands_where_the_store_says_also_without_its_session(world: World, main: int) -> None:
    parent = await world.child(main, "parent")
    child = await world.child(parent, "child")
    assert (await world.db.read(where, child)).ancestors == (parent, main)
    assert (await world.db.read(where, main)).ancestors == ()
    await world.db.alone(_delete_session, child)
    assert (await world.db.read(where, child)).ancestors == (parent, main)
    with pytest.raises(NotFound):
        await world.db.read(where, 999)
    await world.db.alone(_restore_session, child)


def _delete_session(now: float, session_id: int) -> Any:
    yield "UPDATE sessions SET id = ?, key = 'gone' WHERE id = ?", (-session_id, session_id)


def _restore_session(now: float, session_id: int) -> Any:
    yield "UPDATE sessions SET id = ? WHERE id = ?", (session_id, -session_id)


async def test_chain_that_bites_its_tail_ends(world: World, main: int) -> None:
    task = await world.child(main)
    await world.db.alone(_bite, main, task)
    assert (await world.db.read(where, task)).ancestors == (main,)
    await world.db.alone(_bite, main, None)


async def test_whoever_looks_down_such_a_chain_comes_to_an_end(world: World, main: int) -> None:
    top = await world.started(main, "top")
    low = await world.child(top.session_id, "low")
    await world.db.alone(_bite, top.session_id, low)
    await world.db.alone(_asks_below, top.session_id, low)
    report = await world.db.alone(
        control.kill, world.policy, top.session_id, "enough", "boss", nonce=world.nonce()
    )
    assert report == KillReport((top.session_id, low))
    await world.db.alone(_asks_below, top.session_id, main)
    await world.db.alone(_bite, top.session_id, main)


def _asks_below(now: float, task_id: int, requester_id: int) -> Any:
    """Whatever is asked of those below, with the task's requester below itself."""
    yield "UPDATE tasks SET requester_id = ? WHERE id = ?", (requester_id, task_id)
    yield from turn_begin.progress_below(task_id)
    yield from turn_begin.person_waits(task_id)
    yield from status.alive(now, task_id)


def _bite(now: float, session_id: int, parent_id: int | None) -> Any:
    yield "UPDATE sessions SET parent_id = ? WHERE id = ?", (parent_id, session_id)


async def test_plan_of_a_requester_that_is_gone_rises_and_is_decided_there(world: World, main: int) -> None:
    """The requester has waited long enough and finished; then its child has a plan."""
    parent = await world.started(main, "parent")
    planner = await world.started(parent.session_id, "planner", plan_mode=True)
    await parent.finish("my part")
    world.clock.advance(1801)
    await world.ring()
    await planner.finish("look, then leap")
    await world.live()
    assert (await world.session(parent.session_id)).closed
    (read,) = [said for said in await world.inputs(main) if "[PLAN READY]" in said]
    assert plan_hash("look, then leap") in read
    assert (await world.db.read(where, planner.session_id)).controller_id == main
    child = planner.session_id
    known = (world.policy, child, PlanVerdict.APPROVE, plan_hash("look, then leap"))
    decide = partial(messages.decide, text="", actor="main")
    await act(world, agent(main, Role.MAIN), Verb.APPROVE, child, decide, *known)
    await world.live()
    assert (await world.task(planner.session_id)).outcome is Outcome.OK


async def test_plan_waits_for_a_main_session_that_comes_back(world: World, main: int) -> None:
    planner = await world.started(main, "planner", plan_mode=True)
    await world.db.alone(control.close_main, world.policy, main)
    await planner.finish("look, then leap")
    await world.live()
    await world.db.alone(control.open_main, world.policy, main)
    await world.live()
    assert any("[PLAN READY]" in said for said in await world.inputs(main))


async def act(
    world: World,
    caller: AgentCaller,
    verb: Verb,
    session_id: int,
    fn: TxFunction[P, T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    return await world.db.alone(guarded, caller, verb, session_id, fn, *args, **kwargs)


async def test_denied_verb_writes_nothing_and_a_lost_run_has_no_say(world: World, main: int) -> None:
    from clutch.transactions.sessions import Stale

    one, two = await world.started(main, "one"), await world.child(main, "two")
    known = (world.policy, two, "enough", "agent:x")
    with pytest.raises(Forbidden):
        await act(world, agent(one.session_id), Verb.KILL, two, control.kill, *known)
    with pytest.raises(Stale):
        await act(world, agent(main, Role.MAIN, fence=77), Verb.KILL, two, control.kill, *known)
    assert (await world.task(two)).outcome is None
    await act(world, agent(main, Role.MAIN), Verb.KILL, two, control.kill, *known)
    assert (await world.task(two)).outcome is Outcome.KILLED


@pytest.mark.scenario(215)
async def test_approval_of_a_session_that_is_not_the_requester_is_refused(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    planner = await world.started(parent.session_id, "planner", plan_mode=True)
    await planner.finish("the plan")
    child = planner.session_id
    known = (world.policy, child, PlanVerdict.APPROVE, plan_hash("the plan"))
    decide = partial(messages.decide, text="", actor="x")
    with pytest.raises(Forbidden):
        await act(world, agent(main, Role.MAIN), Verb.APPROVE, child, decide, *known)
    assert (await world.task(planner.session_id)).phase is Phase.AWAITING_APPROVAL
    await act(world, agent(parent.session_id), Verb.APPROVE, child, decide, *known)
    assert (await world.task(planner.session_id)).phase is Phase.QUEUED


async def test_letters_of_a_stopped_session_are_void(world: World, main: int) -> None:
    child = await world.child(main)
    await world.end(child, "found")
    await world.db.alone(control.stop, world.policy, main, "stop", "boss")
    assert (await world.letter(child)).state == LetterState.VOID
    assert (await world.task(child)).delivery is Delivery.SKIPPED
