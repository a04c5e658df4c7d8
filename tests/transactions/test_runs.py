"""A run from begin to finish: what it takes, what it says, when its letters count as delivered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clutch.core.checks import CheckReport, CheckResult, CheckState, TaskCheck
from clutch.core.messages import Answer, Call, Input, Results, Usage
from clutch.core.model import Delivery, LetterState, Outcome, Phase
from clutch.core.policy import Drop, QueueMode
from clutch.core.text.prompts import OUTCOME_UNKNOWN
from clutch.transactions import checks, control, messages, turn, turn_begin, turn_end
from clutch.transactions.turn import NO_CHILD, ModelAnswer
from clutch.transactions.turn_begin import FileArrival
from tests.transactions.world import World, calls

pytestmark = pytest.mark.anyio


def announcing(world: World, **rules: object) -> None:
    changed = replace(world.policy.announcing, **rules)  # type: ignore[arg-type]
    world.policy = replace(world.policy, announcing=changed)


# ---- begin -------------------------------------------------------------------------------------------


async def test_begin_takes_the_task_and_starts_it(world: World, main: int) -> None:
    run = await world.started(main)
    assert not run.begun.is_resumed
    assert run.begun.is_unanswered
    assert await world.phase(run.session_id) == (Phase.RUNNING, "started")
    assert (await world.session(run.session_id)).run_id == run.run_id


async def test_begin_with_nothing_to_take_releases_the_session(world: World, main: int) -> None:
    """A letter that was overtaken while its reader was claimed."""
    task = await world.child(main)
    await world.end(task)
    world.clock.advance(2)
    await world.mail()
    assert await world.claim() == [main]
    await world.db.alone(messages.steer, world.policy, task, "s", "do more", actor="person")
    assert await world.begin(main) is None
    session = await world.session(main)
    assert (session.owner, session.due, session.run_id) == (None, None, None)
    assert (await world.letter(task)).state == LetterState.VOID


@pytest.mark.scenario(134)
async def test_takeover_resumes_the_same_run_and_adds_no_message(world: World, main: int) -> None:
    run = await world.started(main)
    await run.step()
    before = await world.transcript(run.session_id)
    await world.die()
    again = await world.start(run.session_id)
    assert (again.run_id, again.begun.is_resumed) == (run.run_id, True)
    assert await world.transcript(run.session_id) == before
    assert "resumed @step 3" in await world.timeline(run.session_id)
    assert (await world.task(run.session_id)).generation == 1


async def test_a_task_of_another_server_is_awaited_while_its_run_is_open_in_any_worker(
    world: World, main: int
) -> None:
    run = await world.started(main)
    await run.respond(calls("far"))

    async def is_awaited() -> bool:
        return await world.db.read(turn.awaits_remote, run.session_id, run.run_id, "remote 1")

    assert not await is_awaited()
    await world.db.tx((run.session_id,), turn.went_remote, run.owned, 0, "remote 1")
    assert await is_awaited()
    await world.die()
    again = await world.start(run.session_id)
    assert again.begun.remote_tasks == {0: "remote 1"}
    assert await is_awaited()
    await world.db.alone(control.kill, world.policy, run.session_id, "enough", "person")
    assert not await is_awaited()


async def test_crash_loop_is_quarantined_after_three_takeovers_without_a_commit(
    world: World, main: int
) -> None:
    run = await world.started(main)
    await run.respond(calls("poison"))
    for _ in range(2):
        await world.die()
        assert (await world.start(run.session_id)).begun.is_resumed
    await world.die()
    await world.claim()
    assert await world.begin(run.session_id) is None
    task = await world.task(run.session_id)
    assert (task.phase, task.outcome, task.error) == (Phase.ANNOUNCING, Outcome.ERROR, "crash loop")
    assert "1 tool call" in (task.result or "")


@pytest.mark.parametrize("has_note", [False, True])
@pytest.mark.parametrize("check", [TaskCheck(command="poison"), TaskCheck(agent="main")])
async def test_a_check_that_ends_its_process_is_a_crash_loop_unless_it_is_a_model_call(
    world: World, main: int, check: TaskCheck, has_note: bool
) -> None:
    run = await world.started(main, checks=(check,))
    said = ModelAnswer(Answer("done"), run.is_unanswered)
    head = await run._tx(turn_end.keep_final, said, nonce="n", arrived_at=world.clock.now())
    report = CheckReport(1, head, 1, (CheckResult(check.title, CheckState.RUNNING),))
    await run._tx(checks.record_check, report, Call("check", {}), None)
    if has_note:  # the worker that takes over is on another machine
        await world.die()
        run = await world.start(run.session_id)
        await run._tx(turn_begin.arrive, FileArrival("there", None, "[files are missing]", "late.txt"))
    for _ in range(3):
        await world.die()
        await world.claim()
        await world.begin(run.session_id)
    assert (await world.task(run.session_id)).error == (None if check.agent else "crash loop")


async def test_checks_of_an_earlier_answer_say_nothing_about_one_that_waits_for_children(
    world: World, main: int
) -> None:
    run = await world.started(main, checks=(TaskCheck(command="true"),))
    said = ModelAnswer(Answer("first"), run.is_unanswered)
    head = await run._tx(turn_end.keep_final, said, nonce="n", arrived_at=world.clock.now())
    passed = CheckReport(1, head, 1, (CheckResult("true", CheckState.PASSED),))
    await run._tx(checks.record_check, passed, None, None)
    await run.spawn("grandchild")
    await run._tx(turn_end.conclude, turn_end.CheckedResult("second", None, None), "n")
    assert (await world.phase(run.session_id))[0] is Phase.ANNOUNCE_DEFERRED
    assert await world.one("SELECT checks FROM tasks WHERE id = ?", run.session_id) is None


async def test_a_run_that_waited_for_its_model_is_not_blamed_for_the_deaths_of_its_process(
    world: World, main: int
) -> None:
    """A task whose tool ends the process takes no neighbour along."""
    poison, bystander = await world.started(main, "poison"), await world.started(main, "bystander")
    await poison.respond(calls("poison"))
    for _ in range(4):
        await world.die()
        for session_id in await world.claim():
            await world.begin(session_id)
    assert (await world.task(poison.session_id)).error == "crash loop"
    assert await world.phase(bystander.session_id) == (Phase.RUNNING, "started")
    assert await world.one("SELECT crashes FROM runs WHERE id = ?", bystander.run_id) == 0


async def test_a_runtime_is_counted_although_it_has_no_open_calls(world: World, main: int) -> None:
    run = await world.started(main, "foreign", runtime="mine")
    for _ in range(3):
        await world.die()
        await world.claim()
        await world.begin(run.session_id)
    assert (await world.task(run.session_id)).error == "crash loop"


async def test_commits_between_crashes_are_no_crash_loop(world: World, main: int) -> None:
    run = await world.started(main)
    for _ in range(6):
        await world.die()
        run = await world.start(run.session_id)
        await run.step()
    await run.finish()
    assert (await world.task(run.session_id)).outcome is Outcome.OK


async def test_transcript_of_many_megabytes_goes_on_where_it_ended(world: World, main: int) -> None:
    run = await world.started(main)
    await run.respond(calls("read"))
    await run.results("word " * 1_200_000)
    await world.die()
    run = await world.start(run.session_id)
    assert run.begun.is_resumed
    assert len(str((await world.transcript(run.session_id))[-1])) > 6_000_000
    await run.finish("read it all")
    assert (await world.task(run.session_id)).result == "read it all"


async def test_parked_run_that_goes_on_is_no_crash(world: World, main: int) -> None:
    run = await world.started(main)
    for _ in range(5):
        await run.hand_over()
        assert await world.phase(run.session_id) == (Phase.PAUSED, "restart")
        run = await world.start(run.session_id)
    assert await world.one("SELECT crashes FROM runs WHERE id = ?", run.run_id) == 0
    await run.finish()
    assert (await world.task(run.session_id)).outcome is Outcome.OK


async def test_main_session_in_a_crash_loop_says_so_to_its_person(world: World, main: int) -> None:
    await world.tell(main, "go")
    run = await world.start(main)
    await run.respond(calls("poison"))
    for _ in range(3):
        await world.die()
        await world.claim()
        await world.begin(main)
    assert (await world.session(main)).run_id is None
    assert await world.rows("SELECT idem, body FROM outbox") == [
        (f"reply:{run.run_id}", "(this turn failed: crash loop)")
    ]


async def test_calls_a_superseded_run_left_open_get_a_result_before_anything_else(
    world: World, main: int
) -> None:
    run = await world.started(main)
    await run.respond(calls("write", "shell"))
    await world.db.alone(messages.steer, world.policy, run.session_id, "s", "stop that", actor="person")
    world.clock.advance(world.policy.work.tool_grace_s)  # they had their moment to end
    await world.start(run.session_id)
    *_, asked, unknown, instruction = await world.transcript(run.session_id)
    assert isinstance(asked, Answer)
    assert isinstance(unknown, Results)
    assert [(result.index, result.name, result.text) for result in unknown.results] == [
        (0, "write", OUTCOME_UNKNOWN),
        (1, "shell", OUTCOME_UNKNOWN),
    ]
    assert instruction == Input("stop that", "instruction")


# ---- respond and results -----------------------------------------------------------------------------


async def settled_child(world: World, parent: int, label: str = "child", **asked: object) -> int:
    task = await world.child(parent, label, **asked)
    await world.end(task, f"found by {label}")
    world.clock.advance(2)
    return task


async def test_letter_is_delivered_by_the_first_response_and_not_before(world: World, main: int) -> None:
    task = await settled_child(world, main)
    run = await world.start(main)
    assert (await world.task(task)).phase is Phase.ANNOUNCING
    assert (await world.letter(task)).state == LetterState.OPEN
    assert await world.trace(task) == []
    await run.respond(calls("read"))
    told = await world.task(task)
    assert (told.phase, told.delivery, told.delivery_reason) == (
        Phase.COMPLETED,
        Delivery.DELIVERED,
        "direct",
    )
    assert (await world.letter(task)).state == LetterState.ANSWERED
    assert await world.trace(task) == [(1, "delivered", "direct", "direct", None)]


async def test_trace_names_the_run_and_the_place_in_the_transcript(world: World, main: int) -> None:
    task = await settled_child(world, main)
    run = await world.start(main)
    await run.finish("thanks")
    (row,) = await world.rows("SELECT to_session, run_id, transcript_seq, letter FROM deliveries")
    assert row[:3] == (main, run.run_id, 1)
    assert row[3].startswith("announce:v1:agent:main:subagent:")
    assert row[3].endswith(":1")
    assert "found by child" in (await world.inputs(main))[0]
    assert (await world.letter(task)).taken_seq == 1


async def test_letter_that_came_during_a_turn_is_queued_for_the_next(world: World, main: int) -> None:
    task = await world.child(main)
    await world.tell(main, "hello")
    run = await world.start(main)
    await world.end(task, "found")
    await world.mail()
    await run.step()
    assert len(await world.inputs(main)) == 1
    world.clock.advance(1)
    await run.finish("hi")
    await (await world.start(main)).finish("found it")
    assert await world.trace(task) == [(1, "delivered", "queued", "queued", None)]


@pytest.mark.scenario(84)
async def test_steer_mode_injects_between_two_steps(world: World, main: int) -> None:
    announcing(world, mode=QueueMode.STEER)
    task = await world.child(main)
    await world.tell(main, "hello")
    run = await world.start(main)
    await world.end(task, "found")
    boundary = await run.step()
    (injected,) = boundary.inputs
    assert injected.text.startswith("[INTERRUPT]")
    assert boundary.senders == (task,)
    assert (await world.task(task)).phase is Phase.ANNOUNCING
    await run.finish("told")
    assert await world.trace(task) == [(1, "delivered", "steered", "steered", None)]


@pytest.mark.scenario(81)
async def test_result_nobody_waits_for_is_injected_without_an_extra_turn(world: World, main: int) -> None:
    task = await world.child(main, expects_completion=False)
    await world.tell(main, "hello")
    run = await world.start(main)
    await world.end(task, "found")
    assert len((await run.step()).inputs) == 1
    await run.finish("told")
    await world.mail()
    assert await world.due(main) is None


async def test_injected_letter_survives_a_crash_before_the_answer(world: World, main: int) -> None:
    announcing(world, mode=QueueMode.STEER)
    task = await world.child(main)
    await world.tell(main, "hello")
    run = await world.start(main)
    await world.end(task, "found")
    await run.step()
    await world.die()
    again = await world.start(main)
    assert (again.is_unanswered, again.begun.senders) == (True, (task,))
    await again.finish("told")
    assert (await world.task(task)).delivery is Delivery.DELIVERED


async def test_paused_run_stops_at_its_next_boundary(world: World, main: int) -> None:
    run = await world.started(main)
    await world.db.alone(control.pause, world.policy, run.session_id, "person")
    assert (await world.task(run.session_id)).phase is Phase.RUNNING
    boundary = await run.step()
    assert not boundary.goes_on
    assert await world.phase(run.session_id) == (Phase.PAUSED, "pause")
    session = await world.session(run.session_id)
    assert (session.owner, session.due, session.run_id) == (None, None, run.run_id)


@pytest.mark.scenario(88)
async def test_results_within_the_debounce_are_one_turn(world: World, main: int) -> None:
    labels = ["one", "two", "three"]
    for place, label in enumerate(labels):
        task = await world.child(main, label, place=place)
        await world.end(task, f"found by {label}")
        world.clock.advance(0.5)
    await world.mail()
    assert await world.claim() == []
    world.clock.advance(0.5)
    await (await world.start(main)).finish("all three")
    (text,) = await world.inputs(main)
    assert text.startswith("[3 background tasks completed]")
    assert [text.index(f"found by {label}") for label in labels] == sorted(
        text.index(f"found by {label}") for label in labels
    )


async def test_steady_trickle_cannot_postpone_the_turn_for_ever(world: World, main: int) -> None:
    world.policy = replace(world.policy, limits=replace(world.policy.limits, children_max=99))
    started = world.clock.now()
    while (await world.due(main) or world.clock.now() + 1) > world.clock.now():
        await world.end(await world.child(main))
        await world.mail()
        world.clock.advance(0.9)
    assert 10 <= world.clock.now() - started < 12


@pytest.mark.scenario(206)
async def test_person_comes_first_and_alone_while_letters_wait(world: World, main: int) -> None:
    for place in range(5):
        await world.end(await world.child(main, f"c{place}", place=place), "found")
    world.clock.advance(2)
    await world.tell(main, "what time is it?")
    run = await world.start(main)
    assert await world.inputs(main) == ["what time is it?"]
    await run.finish("noon")
    await (await world.start(main)).finish("and five results")
    assert (await world.inputs(main))[1].startswith("[5 background tasks completed]")


async def test_followup_mode_gives_one_turn_per_letter(world: World, main: int) -> None:
    announcing(world, mode=QueueMode.FOLLOWUP)
    for label in ("one", "two"):
        await world.end(await world.child(main, label), label)
    world.clock.advance(2)
    for label in ("one", "two"):
        await (await world.start(main)).finish("ok")
        assert f'[Subagent] "{label}"' in (await world.inputs(main))[-1]


async def test_over_the_cap_older_results_are_one_line_each_and_delivered(world: World, main: int) -> None:
    announcing(world, cap=2)
    tasks = [await world.child(main, f"c{place}", place=place) for place in range(4)]
    for task in tasks:
        await world.end(task, f"found {task}")
    world.clock.advance(2)
    await (await world.start(main)).finish("ok")
    (text,) = await world.inputs(main)
    assert text.startswith("[4 background tasks completed]")
    assert text.count("--- Task") == 2
    assert [(await world.task(task)).delivery for task in tasks] == [Delivery.DELIVERED] * 4


@pytest.mark.scenario(82)
async def test_dropped_letters_become_dead_letters(world: World, main: int) -> None:
    announcing(world, cap=1, drop=Drop.NEW)
    first, second = await world.children(main, "first", "second")
    await world.end(first)
    await world.end(second)
    world.clock.advance(2)
    await (await world.start(main)).finish("ok")
    assert (await world.task(first)).delivery is Delivery.DELIVERED
    dropped = await world.task(second)
    assert (dropped.phase, dropped.delivery, dropped.delivery_reason) == (
        Phase.COMPLETED_GIVEUP,
        Delivery.UNDELIVERED,
        "dropped",
    )
    assert (await world.letter(second)).state == LetterState.DEAD


# ---- finish ------------------------------------------------------------------------------------------


async def test_finish_closes_the_child_and_posts_one_letter(world: World, main: int) -> None:
    run = await world.started(main)
    await run.finish("forty-two")
    task = await world.task(run.session_id)
    assert (task.phase, task.outcome, task.result) == (Phase.ANNOUNCING, Outcome.OK, "forty-two")
    session = await world.session(run.session_id)
    assert (session.owner, session.run_id, session.closed) == (None, None, 1)
    letter = await world.letter(run.session_id)
    assert (letter.session_id, letter.state, letter.silent) == (main, LetterState.OPEN, 0)


async def test_reply_of_a_main_session_goes_to_its_channel(world: World, main: int) -> None:
    await world.tell(main, "hello")
    run = await world.start(main)
    await run.finish("hi there")
    assert await world.rows("SELECT idem, channel, target, body, due FROM outbox") == [
        (f"reply:{run.run_id}", "terminal", "main", "hi there", world.clock.now())
    ]


@pytest.mark.parametrize("word", ["NO_REPLY", " no_reply \n", "ANNOUNCE_SKIP", "  "])
async def test_silent_reply_is_not_sent(world: World, main: int, word: str) -> None:
    await world.tell(main, "hello")
    await (await world.start(main)).finish(word)
    assert await world.rows("SELECT id FROM outbox") == []


@pytest.mark.scenario(78)
async def test_announce_skip_tells_nobody_and_is_cleaned(world: World, main: int) -> None:
    run = await world.started(main)
    await run.finish(" ANNOUNCE_SKIP ")
    task = await world.task(run.session_id)
    assert (task.phase, task.delivery, task.delivery_reason) == (
        Phase.COMPLETED,
        Delivery.SKIPPED,
        "announce-skip",
    )
    await world.mail()
    assert await world.due(main) is None


@pytest.mark.scenario(66)
async def test_tool_output_is_never_the_result(world: World, main: int) -> None:
    run = await world.started(main)
    await run.step("read")
    await run.finish("  ")
    assert (await world.task(run.session_id)).result is None


@pytest.mark.scenario(101)
@pytest.mark.scenario(207)
async def test_parent_with_a_working_child_is_deferred_without_an_attempt(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    await world.child(parent.session_id, "grandchild")
    await parent.finish("my own part")
    world.clock.advance(60)
    task = await world.task(parent.session_id)
    assert (task.phase, task.reason) == (Phase.ANNOUNCE_DEFERRED, "descendants-active")
    assert (task.delivery, task.attempts, task.outcome) == (Delivery.DEFERRED, 0, None)
    assert await world.rows("SELECT id FROM inbox WHERE kind = 'announce'") == []
    session = await world.session(parent.session_id)
    assert (session.hold, session.closed, session.due) == (1, 0, None)


@pytest.mark.scenario(102)
async def test_untold_child_defers_its_parent_too(world: World, main: int) -> None:
    """The child has ended, but the parent's last word did not know of it."""
    parent = await world.started(main, "parent")
    child = await world.child(parent.session_id, "grandchild")
    await world.end(child, "deep finding")
    await parent.finish("without it")
    assert (await world.task(parent.session_id)).phase is Phase.ANNOUNCE_DEFERRED
    again = await world.start(parent.session_id)
    assert "deep finding" in (await world.inputs(parent.session_id))[-1]
    await again.finish("with it")
    task = await world.task(parent.session_id)
    assert (task.phase, task.generation, task.result) == (Phase.ANNOUNCING, 2, "with it")


@pytest.mark.scenario(104)
async def test_results_rise_one_level_at_a_time(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    child = await world.started(parent.session_id, "child")
    grandchild = await world.started(child.session_id, "grandchild")
    await parent.finish("p")
    await child.finish("c")
    await grandchild.finish("deep")
    await world.live()
    assert [len(await world.inputs(run.session_id)) for run in (grandchild, child, parent)] == [1, 2, 2]
    assert len(await world.inputs(main)) == 1


@pytest.mark.scenario(64)
async def test_silent_second_run_keeps_the_first_words(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    child = await world.child(parent.session_id)
    await parent.finish("real text")
    await world.end(child)
    await (await world.start(parent.session_id)).finish("NO_REPLY")
    task = await world.task(parent.session_id)
    assert (task.phase, task.result, task.generation) == (Phase.ANNOUNCING, "real text", 2)


@pytest.mark.scenario(64)
async def test_new_run_before_the_result_was_heard_replaces_it_and_is_told_once(
    world: World, main: int
) -> None:
    child = await world.child(main, "child")
    await world.end(child, "first words")
    await world.mail()
    await world.db.alone(messages.steer, world.policy, child, "s:1", "look again", actor="person")
    await world.end(child, "better words")
    task = await world.task(child)
    assert (task.phase, task.generation, task.result) == (Phase.ANNOUNCING, 2, "better words")
    await world.live()
    (told,) = await world.inputs(main)
    assert ("better words" in told, "first words" in told) == (True, False)
    assert (await world.task(child)).delivery is Delivery.DELIVERED
    assert await world.rows("SELECT generation FROM deliveries WHERE outcome = 'delivered'") == [(2,)]


# ---- yields ------------------------------------------------------------------------------------------


async def test_yield_without_children_goes_on_at_once(world: World, main: int) -> None:
    await world.tell(main, "go")
    run = await world.start(main)
    boundary = await run.yields()
    assert boundary.goes_on
    last = (await world.transcript(main))[-1]
    assert isinstance(last, Results)
    assert last.results[0].text == NO_CHILD
    assert (await world.session(main)).hold == 0


async def yielded(world: World, main: int, *labels: str) -> list[int]:
    await world.tell(main, "go")
    run = await world.start(main)
    await run.spawn(*labels)
    await run.results()
    tasks = [row[0] for row in await world.rows("SELECT id FROM tasks ORDER BY spawn_order")]
    assert not (await run.yields()).goes_on
    return tasks


async def test_yielded_parent_holds_no_slot_and_sleeps(world: World, main: int) -> None:
    await yielded(world, main, "a")
    session = await world.session(main)
    assert (session.owner, session.run_id, session.hold) == (None, None, 1)
    assert session.due == session.hold_until == world.clock.now() + 1800


async def test_last_child_wakes_the_yielded_parent_once_with_all_in_spawn_order(
    world: World, main: int
) -> None:
    tasks = await yielded(world, main, "a", "b", "c")
    for task in reversed(tasks):
        await world.mail()
        assert await world.due(main) != world.clock.now()
        await world.end(task, f"found by {task}")
        world.clock.advance(5)
    await world.mail()
    assert await world.due(main) == world.clock.now()
    await (await world.start(main)).finish("all")
    text = (await world.inputs(main))[-1]
    assert text.startswith("[3 background tasks completed]")
    places = [text.index(f"found by {task}") for task in tasks]
    assert places == sorted(places)
    await world.mail()
    assert await world.due(main) is None


@pytest.mark.scenario(76)
async def test_killed_and_failed_children_are_named_when_all_have_settled(world: World, main: int) -> None:
    good, bad, killed = await yielded(world, main, "good", "bad", "killed")
    await world.end(good, "fine")
    await (await world.start(bad)).fail("no luck", is_final=True)
    await world.db.alone(control.kill, world.policy, killed, "too slow", "person")
    await world.live()
    (_, text) = await world.inputs(main)
    assert '"good" (completed successfully · unchecked)' in text
    assert '"bad" (failed: no luck)' in text
    assert 'Not among these: "killed"' in text
    assert "killed: too slow" in text


async def test_yielded_task_waits_without_its_clock(world: World, main: int) -> None:
    parent = await world.started(main, "parent", run_timeout_s=100.0)
    child = await world.child(parent.session_id)
    await parent.yields()
    assert await world.phase(parent.session_id) == (Phase.PAUSED, "children")
    world.clock.advance(1000)
    await world.ring()
    await world.end(child)
    again = await world.start(parent.session_id)
    task = await world.task(again.session_id)
    assert (task.phase, task.deadline_at) == (Phase.RUNNING, world.clock.now() + 100)


@pytest.mark.parametrize("how", ["finish", "submit", "cut", "fail", "stumble", "ring"])
async def test_a_deadline_that_is_seen_late_is_recorded_when_it_was(
    world: World, main: int, how: str
) -> None:
    """The process was held up over it: what arrives afterwards is late, and changes no outcome."""
    run = await world.started(main, "child", run_timeout_s=100.0)
    await run.respond(calls("look", text="half of it"))
    await run.results()
    deadline = world.clock.now() + 100
    world.clock.advance(107)
    if how == "finish":
        await run.finish("the whole of it")
    elif how == "submit":
        await run._tx(turn_end.submit, '{"n": 1}')
    elif how == "cut":
        cut = Answer("most of", (), Usage(1, 1), "scripted", "length")
        await run._tx(turn_end.fail, "cut", False, ModelAnswer(cut, is_unanswered=False))
    elif how == "fail":
        await run.fail(is_final=True)
    elif how == "stumble":
        await run.stumble()
    else:
        await world.ring()
    task = await world.task(run.session_id)
    assert (task.outcome, task.result, task.ended_at) == (Outcome.TIMEOUT, "half of it", deadline)
    # The timeline is in the order of its commits, which those who follow it rely on.
    assert await world.one("SELECT MAX(at) FROM events WHERE task_id = ?", task.id) == world.clock.now()
    late = {"finish": "late: the whole of it", "submit": 'late: {"n": 1}', "cut": "late: most of"}.get(how)
    assert [line for line in await world.timeline(task.id) if line.startswith("late")] == (
        [late] if late else []
    )
    assert not await world.rows("SELECT 1 FROM usage WHERE session_id = ? AND state = 0", task.id)


async def test_an_answer_that_arrived_in_time_counts_although_it_is_committed_late(
    world: World, main: int
) -> None:
    run = await world.started(main, "child", run_timeout_s=100.0)
    arrived_at = world.clock.now() + 99
    world.clock.advance(107)
    answer = Answer("in time", (), Usage(1, 1), "scripted")
    said = ModelAnswer(answer, is_unanswered=True)
    await run._tx(turn_end.finish, said, nonce=world.nonce(), arrived_at=arrived_at)
    task = await world.task(run.session_id)
    assert (task.outcome, task.result, task.ended_at) == (Outcome.OK, "in time", arrived_at)


async def test_a_late_yield_does_not_stop_the_clock(world: World, main: int) -> None:
    parent = await world.started(main, "parent", run_timeout_s=100.0)
    await world.child(parent.session_id)
    deadline = world.clock.now() + 100
    world.clock.advance(107)
    assert (await parent.yields()).goes_on
    await world.ring()
    task = await world.task(parent.session_id)
    assert (task.outcome, task.ended_at) == (Outcome.TIMEOUT, deadline)


async def test_expired_wait_names_who_is_missing(world: World, main: int) -> None:
    done, stuck = await yielded(world, main, "done", "stuck")
    await world.end(done, "fine")
    world.clock.advance(1801)
    await (await world.start(main)).finish("as far as I know")
    text = (await world.inputs(main))[-1]
    assert "fine" in text
    assert 'Not among these: "stuck"' in text
    assert "still queued" in text
    assert (await world.session(main)).hold == 0
    await world.end(stuck, "late but here")
    world.clock.advance(2)
    await (await world.start(main)).finish("thanks")
    assert "late but here" in (await world.inputs(main))[-1]


async def test_progress_below_restarts_the_wait_of_a_yielded_parent(world: World, main: int) -> None:
    (busy,) = await yielded(world, main, "busy")
    run = await world.start(busy)
    world.clock.advance(1700)
    await run.step()
    progress_at = world.clock.now()
    world.clock.advance(101)
    assert await world.claim() == [main]
    assert await world.begin(main) is None
    assert await world.due(main) == progress_at + 1800


async def test_plan_that_waits_for_a_person_stops_the_wait_of_a_yielded_parent(
    world: World, main: int
) -> None:
    parent = await world.started(main, "parent")
    planner = await world.started(parent.session_id, "planner", plan_mode=True)
    await parent.yields()
    await planner.finish("my plan")
    await world.mail()
    await (await world.start(parent.session_id)).yields()
    world.clock.advance(1801)
    assert await world.claim() == [parent.session_id]
    assert await world.begin(parent.session_id) is None
    assert (await world.due(parent.session_id) or 0) > world.clock.now()


async def test_person_is_answered_while_the_session_holds_and_the_hold_goes_on(
    world: World, main: int
) -> None:
    (task,) = await yielded(world, main, "slow")
    await world.tell(main, "how is it going?")
    await (await world.start(main)).finish("still waiting")
    assert (await world.session(main)).hold == 1
    await world.end(task, "finally")
    await (await world.start(main)).finish("here it is")
    assert (await world.inputs(main))[-1].startswith('[Subagent] "slow"')
    assert (await world.session(main)).hold == 0


async def test_holding_session_that_heard_everything_meanwhile_is_not_woken_for_nothing(
    world: World, main: int
) -> None:
    announcing(world, mode=QueueMode.STEER)
    (task,) = await yielded(world, main, "slow")
    await world.tell(main, "how is it going?")
    run = await world.start(main)
    await world.end(task, "finally")
    await run.step()
    await run.finish("it is here")
    said = await world.transcript(main)
    await world.live()
    assert await world.transcript(main) == said
    assert (await world.session(main)).hold == 0
