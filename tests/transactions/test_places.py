"""Which worker gets a session with files: one of the machine where they lie, while it can."""

from __future__ import annotations

import pytest

from clutch.core.messages import Input
from clutch.core.model import Reason
from clutch.core.workers import HOME_WAIT_S, NO_LEASE_S
from clutch.transactions import claims, sessions, task_files, turn, turn_begin, workers
from clutch.transactions.read import transcripts
from clutch.transactions.turn_begin import FileArrival
from tests.transactions.world import World, calls, select

pytestmark = pytest.mark.anyio


async def hire(world: World, place: str | None, lease_s: float = NO_LEASE_S) -> int:
    number = await world.db.alone(workers.next_number)
    await world.db.alone(workers.register, number, lease_s, "host", 1, version="0", place=place)
    return number


async def placed(world: World, main: int, place: str | None) -> int:
    task = await world.child(main)
    if place is not None:
        await world.db.alone(_place, task, place)
    return task


def _place(now: float, session_id: int, place: str):  # type: ignore[no-untyped-def]
    del now
    yield from sessions.set_column(session_id, "place", place)


async def claims_of(world: World, worker: int) -> list[int]:
    return [one.session_id for one in await world.db.alone(claims.claim, worker, 100)]


async def test_session_with_files_is_left_to_its_machine(world: World, main: int) -> None:
    home, other = await hire(world, "home"), await hire(world, "other")
    task, free = await placed(world, main, "home"), await placed(world, main, None)
    assert await claims_of(world, other) == [free]
    assert await claims_of(world, home) == [task]


async def test_other_process_of_the_same_machine_is_at_home(world: World, main: int) -> None:
    await hire(world, "home")
    again = await hire(world, "home")
    task = await placed(world, main, "home")
    assert await claims_of(world, again) == [task]


@pytest.mark.parametrize("why", ["dead", "drained", "gone"])
async def test_session_whose_machine_cannot_work_goes_to_any(world: World, main: int, why: str) -> None:
    home, other = await hire(world, "home", 10.0), await hire(world, "other")
    task = await placed(world, main, "home")
    assert await claims_of(world, other) == []
    match why:
        case "dead":
            world.clock.advance(11.0)
        case "drained":
            await world.db.alone(workers.drain, home, True)
        case _:
            await world.db.alone(workers.leave, home)
    assert await claims_of(world, other) == [task]


async def test_full_machine_delays_its_sessions_up_to_a_bound(world: World, main: int) -> None:
    await hire(world, "home")
    other = await hire(world, "other")
    task = await placed(world, main, "home")
    world.clock.advance(HOME_WAIT_S - 1)
    assert await claims_of(world, other) == []
    world.clock.advance(1.0)
    assert await claims_of(world, other) == [task]


async def test_interrupted_run_waits_for_its_machine_as_well(world: World, main: int) -> None:
    """Its due time is 0: the wait counts from its last progress."""
    world.worker = first = await hire(world, "home")
    task = await placed(world, main, "home")
    await world.start(task)
    again, other = await hire(world, "home"), await hire(world, "other")
    await world.db.alone(workers.bury, first)
    assert await claims_of(world, other) == []
    assert await claims_of(world, again) == [task]


async def test_suspect_is_left_to_its_machine_and_holds_up_no_other_work(world: World, main: int) -> None:
    world.worker = await hire(world, "home")
    task = await placed(world, main, "home")
    run = await world.start(task)
    await run.respond(calls("tool"))
    for _ in range(2):
        dead, world.worker = world.worker, await hire(world, "home")
        await world.db.alone(workers.bury, dead)
        assert await claims_of(world, world.worker) == [task]
        fence = (await world.db.read(transcripts.briefing, task)).fence
        await world.db.alone(turn_begin.begin, run.owned.__class__(world.policy, task, fence, 1), "n")
    home, other = await hire(world, "home"), await hire(world, "other")
    await world.db.alone(workers.bury, world.worker)
    free = await placed(world, main, None)
    assert await claims_of(world, other) == [free]
    assert await claims_of(world, home) == [task]


async def test_note_about_files_is_read_once_with_the_next_request(world: World, main: int) -> None:
    run = await world.started(main)
    arrival = FileArrival("there", "/there/7", "[files are missing]", "late.txt")
    told = await world.db.tx(run.session_id, turn_begin.arrive, run.owned, arrival)
    known = await world.db.read(transcripts.briefing, run.session_id)
    assert told == known.transcript[-1] == Input("[files are missing]", "note")
    assert (known.place, known.workspace) == ("there", "/there/7")
    lines = await world.db.read(select, "SELECT detail FROM events WHERE reason = ?", Reason.FILES_MISSING)
    assert lines == [("late.txt",)]


async def test_note_waits_for_the_results_of_open_calls(world: World, main: int) -> None:
    run = await world.started(main)
    await run.respond(calls("tool"))
    arrival = FileArrival("there", None, "[files are missing]", "late.txt")
    assert await world.db.tx(run.session_id, turn_begin.arrive, run.owned, arrival) is None
    boundary = await run.results("done")
    assert [entry.text for entry in boundary.inputs] == ["[files are missing]"]
    assert (await run.step("tool")).inputs == ()


async def test_list_of_files_is_current_only_by_its_owner(world: World, main: int) -> None:
    run = await world.started(main)
    await world.db.tx(run.session_id, turn.saved, run.owned, "here", "first")
    await world.die()
    with pytest.raises(sessions.Stale):
        await world.db.tx(run.session_id, turn.saved, run.owned, "here", "second")
    known = await world.db.read(transcripts.briefing, run.session_id)
    assert (known.place, known.saved) == ("here", "first")


async def test_stored_files_of_a_deleted_session_are_not_wanted(world: World, main: int) -> None:
    run = await world.started(main)
    await world.db.tx(run.session_id, turn.saved, run.owned, "here", "list")
    assert await world.db.read(task_files.unwanted_saved) == []
    await world.db.alone(_delete, run.session_id)
    assert await world.db.read(task_files.unwanted_saved) == [run.session_id]
    await world.db.tx(run.session_id, task_files.forget_saved, run.session_id)
    assert await world.db.read(task_files.unwanted_saved) == []


def _delete(now: float, session_id: int):  # type: ignore[no-untyped-def]
    yield from sessions.mark_deleted(now, session_id)
