"""Who owns what: lanes, fences, leases, and who goes first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clutch.core.diagnosis import Gate
from clutch.core.model import Lane, Outcome, Phase
from clutch.core.workers import Sign
from clutch.transactions import claims, turn_begin, workers
from clutch.transactions.read import why
from clutch.transactions.sessions import OwnedRun, Stale
from tests.transactions.world import World, write

pytestmark = pytest.mark.anyio


async def set_cap(world: World, cap: int) -> None:
    await world.db.alone(claims.set_lanes, {Lane.SUBAGENT: cap})


@pytest.mark.scenario(29)
async def test_lane_with_one_slot_runs_one_after_the_other(world: World, main: int) -> None:
    await set_cap(world, 1)
    first, second = await world.children(main, "first", "second")
    assert await world.claim() == [first]
    assert await world.claim() == []
    assert (await world.peek()).due_at is None
    await world.end(first)
    assert await world.claim() == [second]


async def test_oldest_due_is_claimed_first(world: World, main: int) -> None:
    await set_cap(world, 1)
    first = await world.child(main, "first")
    world.clock.advance(1)
    await world.child(main, "second")
    assert await world.claim() == [first]


async def test_a_root_with_many_tasks_leaves_slots_to_others(world: World, main: int) -> None:
    """More of them than a claim reads: the other roots stand behind all that it sees."""
    limits = replace(world.policy.limits, children_max=100, descendants_max=100, retained_max=100)
    world.policy = replace(world.policy, limits=limits)
    await set_cap(world, 3)
    many = await world.children(main, *(f"many{number}" for number in range(40)))
    world.clock.advance(1)
    others = [await world.child(await world.main(name), name) for name in ("second", "third")]
    assert set(await world.claim()) == {many[0], *others}
    await world.end(many[0])
    assert set(await world.claim()) == {many[1]}
    world.clock.advance(1)
    await world.end(others[0])
    interrupted = many[2]
    await world.db.alone(write, "UPDATE sessions SET due = 0 WHERE id = ?", interrupted)
    assert await world.claim() == [interrupted]
    assert await world.claim() == [], "the cap holds"


async def test_claim_takes_no_more_than_there_is_room_for(world: World, main: int) -> None:
    children = await world.children(main, "a", "b", "c")
    assert await world.claim(room=2) == children[:2]


async def test_nothing_is_claimed_before_its_time(world: World, main: int) -> None:
    run = await world.started(main)
    await run.stumble()
    assert await world.claim() == []
    world.clock.advance(1)
    assert await world.claim() == [run.session_id]


async def test_every_claim_has_a_new_fence(world: World, main: int) -> None:
    run = await world.started(main)
    await run.hand_over()
    again = await world.start(run.session_id)
    assert again.fence > run.fence


async def test_main_sessions_have_their_own_lane(world: World, main: int) -> None:
    await set_cap(world, 1)
    await world.child(main, "one")
    await world.tell(main, "hello")
    await world.mail()
    assert len(await world.claim()) == 2


@pytest.mark.scenario(134)
async def test_two_workers_never_own_the_same_session(world: World, main: int) -> None:
    children = await world.children(main, "a", "b")
    first = world.worker
    mine = await world.claim(room=1)
    second = await world.hire()
    theirs = await world.claim()
    assert mine + theirs == children
    owners = await world.rows("SELECT owner FROM sessions WHERE owner IS NOT NULL ORDER BY id")
    assert owners == [(first,), (second,)]


@pytest.mark.scenario(38)
async def test_burying_a_worker_frees_its_sessions_and_slots(world: World, main: int) -> None:
    await set_cap(world, 1)
    run = await world.started(main)
    fence = (await world.session(run.session_id)).fence
    await world.die()
    session = await world.session(run.session_id)
    assert (session.owner, session.due) == (None, 0.0)
    assert session.fence > fence
    assert await world.claim() == [run.session_id]


async def test_interrupted_runs_go_before_new_ones(world: World, main: int) -> None:
    await set_cap(world, 1)
    interrupted = await world.started(main, "interrupted")
    await world.child(main, "new")
    world.clock.advance(10)
    await world.die()
    assert await world.claim() == [interrupted.session_id]


async def test_mail_does_not_send_an_interrupted_run_to_the_end_of_the_queue(world: World, main: int) -> None:
    await set_cap(world, 1)
    interrupted = await world.started(main, "interrupted")
    await world.child(interrupted.session_id, "its child")
    world.clock.advance(10)
    await world.die()
    world.clock.advance(10)
    await world.tell(interrupted.session_id, "are you there?")
    await world.mail()
    assert await world.claim() == [interrupted.session_id]


async def test_a_worker_that_beats_after_it_was_found_dead_is_not_buried(world: World, main: int) -> None:
    run = await world.started(main)
    beaten, other = world.worker, await world.hire()

    async def found() -> str:
        return (await world.db.urgent(workers.heartbeat, other, 5.0)).others[beaten].mark

    before = await found()
    world.clock.advance(4)
    await world.db.urgent(workers.heartbeat, beaten, 5.0, 1.5)
    assert await world.db.alone(workers.bury, beaten, before) == []
    assert (await world.session(run.session_id)).owner == beaten
    seen = await world.rows("SELECT lease_until, beats, seen_at, clock_offset FROM workers ORDER BY id")
    assert seen[0] == (world.clock.now() + 5.0, 1, world.clock.now(), 1.5)
    assert await world.db.alone(workers.bury, beaten, await found()) == [beaten]
    assert (await world.session(run.session_id)).owner is None


async def test_buried_worker_hears_it_at_its_next_heartbeat_claim_and_write(world: World, main: int) -> None:
    run = await world.started(main)
    dead = world.worker
    await world.die()
    with pytest.raises(Stale):
        await world.db.tx((), workers.heartbeat, dead, 5.0)
    with pytest.raises(Stale):
        await world.db.alone(claims.claim, dead, 10)
    with pytest.raises(Stale):
        await run.step()
    assert len(await world.transcript(run.session_id)) == 1


async def test_numbers_of_workers_are_never_used_again(world: World) -> None:
    first = world.worker
    await world.db.alone(workers.leave, first)
    second = await world.hire()
    await world.die()
    assert first < second < world.worker


async def test_owner_of_the_process_lock_buries_everybody_else(world: World, main: int) -> None:
    run = await world.started(main)
    dead = world.worker
    alive = await world.hire(lease_s=1e12)
    assert await world.db.alone(workers.bury_all_but, alive) == [dead]
    assert (await world.session(run.session_id)).owner is None
    assert await world.rows("SELECT id FROM workers") == [(alive,)]


async def test_worker_that_leaves_in_good_order_is_not_buried(world: World, main: int) -> None:
    await world.db.alone(workers.leave, world.worker)
    await world.hire()
    assert await world.rows("SELECT id FROM workers") == [(world.worker,)]


async def test_lower_cap_waits_for_runs_to_end(world: World, main: int) -> None:
    first, second, third = await world.children(main, "a", "b", "c")
    await world.claim(room=2)
    runs = [await world.begin(first), await world.begin(second)]
    await set_cap(world, 1)
    assert await world.claim() == []
    for run in runs:
        assert run is not None
        assert await world.claim() == []
        await run.finish()
    assert await world.claim() == [third]


async def test_peek_writes_nothing_and_says_what_comes_next(world: World, main: int) -> None:
    now = world.clock.now()
    task = await world.child(main, run_timeout_s=100.0)
    prospect = await world.peek()
    assert (prospect.due_at, prospect.alarms, prospect.alarm_at, prospect.unseen) == (now, (), None, ())
    await world.start(task)
    assert (await world.peek()).alarm_at == now + 80
    await world.tell(main, "hello")
    assert (await world.peek()).unseen == (main,)


async def test_a_heartbeat_brings_back_the_signs_and_leases_of_the_other_workers(world: World) -> None:
    first, second = world.worker, await world.hire(lease_s=30.0)

    async def seen() -> Sign:
        return (await world.db.urgent(workers.heartbeat, first, 5.0)).others[second]

    before = await seen()
    await world.db.urgent(workers.heartbeat, second, 7.5)
    after = await seen()
    assert (before.lease_s, after.lease_s) == (30.0, 7.5)
    assert before.mark != after.mark
    await world.db.alone(write, "UPDATE workers SET lease_s = NULL WHERE id = ?", second)
    assert await seen() == Sign(after.mark, None), "an older version does not write it"
    await world.db.alone(workers.drain, first, True)
    await world.db.alone(workers.leave, second)
    answer = await world.db.urgent(workers.heartbeat, first, 5.0)
    assert (answer.is_draining, answer.others) == (True, {})


async def test_paused_session_that_was_interrupted_is_released_again(world: World, main: int) -> None:
    run = await world.started(main)
    await world.db.alone(write, "UPDATE sessions SET paused = 1 WHERE id = ?", run.session_id)
    await world.die()
    assert await world.claim() == [run.session_id]
    assert await world.begin(run.session_id) is None
    session = await world.session(run.session_id)
    assert (session.owner, session.due) == (None, None)


async def test_session_claimed_by_a_dead_worker_before_it_began_counts_no_crash(
    world: World, main: int
) -> None:
    task = await world.child(main)
    for _ in range(5):
        assert await world.claim() == [task]
        await world.die()
    await world.end(task)
    assert (await world.task(task)).result == "all done"


async def test_begin_with_an_old_fence_is_stale(world: World, main: int) -> None:
    task = await world.child(main)
    await world.claim()
    old = world.held[task].fence
    await world.die()
    await world.claim()
    owned = OwnedRun(world.policy, task, old, world.number())
    with pytest.raises(Stale):
        await world.db.tx(task, turn_begin.begin, owned, world.nonce())


DAY_S = 86_400.0


async def test_a_run_parked_under_a_clock_that_was_ahead_goes_on_when_it_was_to(
    world: World, main: int
) -> None:
    world.clock.advance(DAY_S)
    run = await world.started(main)
    await run.stumble(retry_at=world.clock.now() + 30)
    world.clock.advance(-DAY_S)
    assert (await world.db.read(workers.misdated, world.policy)).sessions == [run.session_id]
    await world.db.alone(workers.correct, world.policy, run.session_id)
    assert await world.claim() == []
    world.clock.advance(31)
    assert run.session_id in await world.claim()
    assert await world.db.read(workers.misdated, world.policy) == ([], [])


async def test_a_task_spawned_under_a_clock_that_was_ahead_starts_once_it_is_right(
    world: World, main: int
) -> None:
    world.clock.advance(DAY_S)
    child = await world.child(main)
    world.clock.advance(-DAY_S)
    assert await world.claim() == []
    waits = await world.db.read(why.why, child)
    assert waits is not None
    assert waits.stuck is not None
    assert (waits.stuck.gate, waits.stuck.until) == (Gate.BACKOFF, await world.due(child))
    await put_right(world)
    assert child in await world.claim()


async def test_a_clock_that_is_a_little_ahead_changes_nothing(world: World, main: int) -> None:
    world.clock.advance(50)
    await world.child(main)
    world.clock.advance(-50)
    assert await world.db.read(workers.misdated, world.policy) == ([], [])


async def put_right(world: World) -> None:
    """As the sweeper does it."""
    found = await world.db.read(workers.misdated, world.policy)
    for session_id in found.sessions:
        await world.db.alone(workers.correct, world.policy, session_id)
    for task_id in found.tasks:
        await world.db.alone(workers.reset_timer, world.policy, task_id)


async def test_a_result_whose_delivery_failed_under_a_clock_that_was_ahead_is_tried_again(
    world: World, main: int
) -> None:
    child = await world.child(main)
    await world.end(child, "found")
    world.clock.advance(2)
    reader = await world.start(main)
    world.clock.advance(DAY_S)
    await reader.fail("no model")
    world.clock.advance(-DAY_S)
    await put_right(world)
    assert await world.claim() == [main]
    assert await world.db.read(workers.misdated, world.policy) == ([], [])


@pytest.mark.parametrize("ahead_s", [DAY_S, 30.0])
async def test_a_failure_under_a_clock_that_was_ahead_ends_its_task_once_the_clock_is_right(
    world: World, main: int, ahead_s: float
) -> None:
    """A clock that is a little ahead makes a wait a little longer, and nothing is corrected."""
    run = await world.started(main)
    world.clock.advance(ahead_s)
    await run.fail("no model")
    wake_at = (await world.task(run.session_id)).wake_at
    world.clock.advance(-ahead_s)
    for _ in range(2):  # a second sweep leaves it as it is
        await put_right(world)
        now, task = world.clock.now(), await world.task(run.session_id)
        is_right = wake_at if ahead_s < DAY_S else now + world.policy.life.error_grace_s
        assert (task.phase, task.wake_at) == (Phase.ENDING, is_right)
    world.clock.advance(world.policy.life.error_grace_s + ahead_s * (ahead_s < DAY_S))
    await world.ring()
    assert (await world.task(run.session_id)).outcome is Outcome.ERROR


async def test_a_right_timer_far_ahead_does_not_hide_a_wrong_one(
    world: World, main: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "FOUND_MAX", 1)
    await world.started(main, "long", run_timeout_s=1000.0)
    world.clock.advance(DAY_S)
    wrong = await world.started(main, "wrong", run_timeout_s=100.0)
    world.clock.advance(-DAY_S)
    assert (await world.db.read(workers.misdated, world.policy)).tasks == [wrong.session_id]


async def test_a_run_that_began_under_a_clock_that_was_ahead_ends_at_its_deadline(
    world: World, main: int
) -> None:
    world.clock.advance(DAY_S)
    run = await world.started(main, run_timeout_s=100.0)
    world.clock.advance(-DAY_S)
    await put_right(world)
    task = await world.task(run.session_id)
    assert (task.deadline_at, task.wake_at) == (world.clock.now() + 100, world.clock.now() + 100)
