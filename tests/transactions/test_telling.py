"""The mailman: who is woken, where the letters of a closed session go, and who is left to hear them."""

from __future__ import annotations

import pytest

from clutch.core.model import Delivery, LetterKind, LetterState, Phase
from clutch.transactions import control, wake
from tests.transactions.world import World, write

pytestmark = pytest.mark.anyio


async def test_posting_reads_and_changes_nothing_of_the_receiver(world: World, main: int) -> None:
    before = await world.session(main)
    await world.tell(main, "hello")
    assert await world.session(main) == before
    await world.mail()
    assert await world.due(main) == world.clock.now()


async def test_same_letter_posted_twice_is_one_letter(world: World, main: int) -> None:
    from clutch.transactions.inbox import post

    for _ in range(2):
        await world.db.tx(main, post, main, "same", LetterKind.USER, "hello")
    await (await world.start(main)).finish("hi")
    assert await world.inputs(main) == ["hello"]
    await world.db.tx(main, post, main, "same", LetterKind.USER, "hello")
    await world.mail()
    assert await world.due(main) is None


@pytest.mark.scenario(86)
async def test_announce_key_is_the_child_session_and_its_generation(world: World, main: int) -> None:
    task = await world.child(main)
    await world.end(task)
    key = await world.one("SELECT key FROM sessions WHERE id = ?", task)
    assert await world.one("SELECT idem FROM inbox WHERE task_id = ?", task) == f"announce:v1:{key}:1"


async def test_owned_session_is_left_alone_and_looks_when_it_is_released(world: World, main: int) -> None:
    await world.tell(main, "one")
    run = await world.start(main)
    await world.tell(main, "two")
    await world.mail()
    assert await world.due(main) is None
    await run.finish("first")
    assert await world.due(main) == world.clock.now()


async def test_paused_session_is_not_woken_and_resume_looks_again(world: World, main: int) -> None:
    task = await world.child(main)
    await world.db.alone(control.pause, world.policy, task, "person")
    await world.tell(task, "hello")
    await world.mail()
    assert await world.due(task) is None
    await world.db.alone(control.resume, world.policy, task, "person")
    assert await world.due(task) == world.clock.now()


async def test_silent_letter_wakes_nobody_who_does_not_hold(world: World, main: int) -> None:
    task = await world.child(main)
    await world.db.alone(control.kill, world.policy, task, "no", "person")
    await world.mail()
    assert await world.due(main) is None


@pytest.mark.scenario(98)
async def test_idle_requester_whose_run_ended_is_told_itself(world: World, main: int) -> None:
    await world.tell(main, "go")
    run = await world.start(main)
    await run.spawn("child")
    await run.results()
    await run.finish("started it")
    (task,) = [row[0] for row in await world.rows("SELECT id FROM tasks")]
    await world.end(task, "found")
    world.clock.advance(1)
    await (await world.start(main)).finish("it found something")
    assert await world.trace(task) == [(1, "delivered", "direct", "direct", None)]


async def expired_parent(world: World, main: int) -> tuple[int, int]:
    """A parent that was closed while its child still works."""
    parent = await world.started(main, "parent")
    child = await world.child(parent.session_id, "slow child")
    await parent.finish("my part")
    world.clock.advance(1801)
    await world.ring()
    assert (await world.session(parent.session_id)).closed == 1
    return parent.session_id, child


@pytest.mark.scenario(99)
async def test_result_too_late_for_its_parent_goes_one_level_up_marked_late(world: World, main: int) -> None:
    parent, child = await expired_parent(world, main)
    await world.end(child, "late finding")
    assert (await world.letter(child)).session_id == parent
    await world.mail()
    letter = await world.letter(child)
    assert (letter.session_id, letter.late, letter.state) == (main, 1, LetterState.OPEN)
    await world.live()
    assert (await world.task(child)).delivery is Delivery.DELIVERED
    assert sum("late finding" in text for text in await world.inputs(main)) == 1
    late = [text for text in await world.inputs(main) if "late finding" in text]
    assert '"slow child"' in late[0]
    assert "late" in late[0].split("late finding")[0]


async def test_words_to_a_closed_session_are_void(world: World, main: int) -> None:
    task = await world.child(main)
    await world.end(task)
    await world.tell(task, "one more thing")
    await world.mail()
    assert await world.one("SELECT state FROM inbox WHERE body = 'one more thing'") == LetterState.VOID


async def test_letters_of_two_closed_levels_reach_the_first_that_lives(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    child = await world.started(parent.session_id, "child")
    grandchild = await world.child(child.session_id, "grandchild")
    await child.finish("c")
    await parent.finish("p")
    for _ in range(3):
        world.clock.advance(1801)
        await world.ring()
        await world.mail()
    assert [(await world.session(run.session_id)).closed for run in (parent, child)] == [1, 1]
    await world.end(grandchild, "from the depth")
    await world.mail()
    letter = await world.letter(grandchild)
    assert (letter.session_id, letter.late) == (main, 1)
    origin = await world.one("SELECT bubbled_from FROM inbox WHERE task_id = ?", grandchild)
    assert origin == child.session_id


async def gone(world: World, main: int) -> int:
    """A result whose requester was archived, with nobody above."""
    task = await world.child(main)
    await world.end(task, "for nobody")
    await world.db.alone(control.close_main, world.policy, main)
    await world.mail()
    return task


async def test_result_without_a_reader_is_deferred_and_costs_no_attempt(world: World, main: int) -> None:
    task = await gone(world, main)
    state = await world.task(task)
    assert (state.phase, state.reason) == (Phase.ANNOUNCE_DEFERRED, "missing-requester")
    assert (state.delivery, state.attempts) == (Delivery.DEFERRED, 0)
    assert (await world.letter(task)).state == LetterState.OPEN


async def test_reader_that_comes_back_hears_it(world: World, main: int) -> None:
    task = await gone(world, main)
    world.clock.advance(600)
    await world.db.alone(control.open_main, world.policy, main)
    assert (await world.task(task)).phase is Phase.ANNOUNCING
    await world.live()
    assert (await world.task(task)).delivery is Delivery.DELIVERED
    assert sum("for nobody" in text for text in await world.inputs(main)) == 1


async def test_nobody_came_back_for_half_an_hour_it_is_a_dead_letter(world: World, main: int) -> None:
    task = await gone(world, main)
    world.clock.advance(1799)
    await world.ring()
    assert (await world.task(task)).phase is Phase.ANNOUNCE_DEFERRED
    world.clock.advance(2)
    await world.ring()
    state = await world.task(task)
    assert (state.phase, state.delivery, state.delivery_reason) == (
        Phase.COMPLETED_GIVEUP,
        Delivery.UNDELIVERED,
        "no-requester",
    )
    assert (await world.letter(task)).state == LetterState.DEAD
    assert state.result == "for nobody"


async def test_dead_letter_can_be_redelivered_when_the_reader_is_back(world: World, main: int) -> None:
    task = await gone(world, main)
    world.clock.advance(1801)
    await world.ring()
    await world.db.alone(control.open_main, world.policy, main)
    assert await world.claim() == []
    await world.db.alone(control.redeliver, world.policy, task, "person")
    await world.live()
    assert (await world.task(task)).delivery is Delivery.DELIVERED


async def test_child_of_an_archived_session_ends_for_nobody_too(world: World, main: int) -> None:
    task = await world.child(main)
    await world.db.alone(control.close_main, world.policy, main)
    await world.end(task)
    await world.mail()
    assert (await world.task(task)).reason == "missing-requester"


async def test_closing_a_main_session_ends_its_run_and_returns_what_it_took(world: World, main: int) -> None:
    task = await world.child(main)
    await world.end(task)
    world.clock.advance(2)
    run = await world.start(main)
    await world.db.alone(control.close_main, world.policy, main)
    await world.db.alone(control.open_main, world.policy, main)
    assert (await world.session(main)).fence > run.fence
    await world.live()
    assert (await world.task(task)).delivery is Delivery.DELIVERED
    assert len(await world.inputs(main)) == 1


async def test_orphan_does_nothing_for_a_session_that_is_open(world: World, main: int) -> None:
    task = await world.child(main)
    await world.end(task)
    await world.db.alone(wake.orphan, world.policy, main)
    assert (await world.task(task)).phase is Phase.ANNOUNCING


@pytest.mark.scenario(132)
async def test_letter_to_a_session_that_is_gone_waits_for_somebody(world: World, main: int) -> None:
    task = await world.child(main)
    await world.end(task, "kept")
    await world.db.alone(write, "DELETE FROM sessions WHERE id = ?", main)
    await world.mail()
    state = await world.task(task)
    assert (state.phase, state.reason, state.result) == (
        Phase.ANNOUNCE_DEFERRED,
        "missing-requester",
        "kept",
    )


@pytest.mark.scenario(89)
async def test_letters_for_different_routes_never_share_a_turn(world: World, main: int) -> None:
    first = await world.child(main, "first")
    await world.db.alone(write, "UPDATE sessions SET route = 'web:other' WHERE id = ?", first)
    second = await world.child(main, "second")
    await world.end(first)
    await world.end(second)
    world.clock.advance(2)
    for label in ("first", "second"):
        await (await world.start(main)).finish("ok")
        assert f'[Subagent] "{label}"' in (await world.inputs(main))[-1]


async def test_a_plan_wakes_a_held_parent_at_once(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    planner = await world.started(parent.session_id, "planner", plan_mode=True)
    await parent.yields()
    await planner.finish("1. look 2. leap")
    await world.start(parent.session_id)
    assert "[PLAN READY]" in (await world.inputs(parent.session_id))[-1]


async def test_of_a_fan_out_only_the_last_letter_is_worth_a_wake(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    first, second = await world.children(parent.session_id, "first", "second")
    await parent.yields()
    known = [main, parent.session_id]
    await world.end(first)
    assert await world.db.read(wake.worth_waking, known) == [main]
    await world.end(second)
    assert await world.db.read(wake.worth_waking, known) == known


async def test_words_to_a_held_parent_are_worth_a_wake_while_a_child_works(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    await world.child(parent.session_id, "child")
    await parent.yields()
    await world.tell(parent.session_id, "hurry", LetterKind.INSTRUCTION)
    assert await world.db.read(wake.worth_waking, [parent.session_id]) == [parent.session_id]


async def test_retry_reads_again_what_stands_before_its_new_beginning(world: World, main: int) -> None:
    """The letter of a grandchild was read by a run that failed; the empty transcript must hold it again."""
    parent = await world.started(main, "parent")
    child = await world.child(parent.session_id, "child")
    await parent.yields()
    await world.end(child, "a bone")
    await (await world.start(parent.session_id)).fail("broken", is_final=True)
    assert (await world.letter(child)).taken_seq is not None
    await world.db.tx(main, wake.wake, world.policy, main)  # nobody has looked at the parent's letters yet
    world.clock.advance(1)
    await world.claim()
    run = await world.begin(main)
    assert run is not None
    await run.finish("heard")
    assert (await world.task(parent.session_id)).phase is Phase.COMPLETED
    await world.db.alone(control.again, world.policy, parent.session_id, "retry", "r", text="", actor="boss")
    await world.live()
    assert [("a bone" in said) for said in await world.inputs(parent.session_id)] == [
        False,
        True,
        False,
        True,
    ]
    assert (await world.task(child)).delivery is Delivery.DELIVERED
