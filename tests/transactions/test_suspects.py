"""Runs that were executing at several deaths of their process: each is tried alone, and only the guilty one ends."""

from __future__ import annotations

import pytest

from clutch.core.diagnosis import Gate
from clutch.core.model import Outcome
from clutch.core.run import TRIAL_S
from clutch.transactions import claims, workers
from clutch.transactions.claims import Claimed, Trial
from clutch.transactions.read import why
from tests.transactions.world import Run, World, calls

pytestmark = pytest.mark.anyio


async def executing(world: World, main: int, *labels: str) -> list[Run]:
    """Tasks with a tool under way that have seen two deaths of their process."""
    running = [await world.started(main, label) for label in labels]
    for run in running:
        await run.respond(calls("tool"))
    await world.die()
    for session_id in await world.claim():
        await world.begin(session_id)
    await world.die()
    return running


async def claim(world: World, trial: Trial) -> list[Claimed]:
    claimed = await world.db.alone(claims.claim, world.worker, 100, claims.LANES, trial)
    world.held |= {one.session_id: one for one in claimed}
    return claimed


async def test_only_the_guilty_run_of_two_that_were_executing_ends(world: World, main: int) -> None:
    neighbour, poison = await executing(world, main, "neighbour", "poison")
    assert await world.claim() == [neighbour.session_id]
    tried = await world.begin(neighbour.session_id)
    assert tried is not None
    await tried.results("done")
    assert await world.claim() == []  # that turn has not ended
    await tried.finish("fine")
    assert await world.claim() == [poison.session_id]
    await world.begin(poison.session_id)
    await world.die()
    await world.claim()
    assert await world.begin(poison.session_id) is None
    assert (await world.task(neighbour.session_id)).outcome is Outcome.OK
    assert (await world.task(poison.session_id)).error == "crash loop"


async def test_a_suspect_that_commits_is_no_suspect_any_more(world: World, main: int) -> None:
    first, second = await executing(world, main, "first", "second")
    await world.claim()
    run = await world.begin(first.session_id)
    assert run is not None
    assert {one.session_id for one in (await world.peek()).suspects} == {first.session_id, second.session_id}
    await run.results("done")
    assert {one.session_id for one in (await world.peek()).suspects} == {second.session_id}


async def test_nothing_else_is_claimed_while_a_suspect_is_tried_and_only_for_a_while(
    world: World, main: int
) -> None:
    await executing(world, main, "first", "second")
    fresh = await world.child(main, "fresh")
    (tried,) = await claim(world, Trial())
    await world.begin(tried.session_id)
    assert await claim(world, Trial(tried=tried)) == []
    world.clock.advance(TRIAL_S)
    assert [one.session_id for one in await claim(world, Trial(tried=tried))] == [fresh]


async def test_a_suspect_waits_for_the_turns_of_its_process_and_only_for_a_while(
    world: World, main: int
) -> None:
    (suspect,) = await executing(world, main, "suspect")
    dead = world.worker
    await world.claim()
    await world.hire()
    busy = await world.started(main, "busy")
    await world.db.alone(workers.bury, dead)
    waits = Trial(waits_since=world.clock.now())
    fresh = await world.child(main, "fresh")
    assert await claim(world, waits) == []
    world.clock.advance(TRIAL_S)
    assert [one.session_id for one in await claim(world, waits)] == [suspect.session_id]
    await busy.finish("fine")
    assert fresh not in world.held


async def test_why_says_that_it_waits_to_be_tried_alone(world: World, main: int) -> None:
    first, second = await executing(world, main, "first", "second")
    await world.claim()
    tried, waits = [await world.db.read(why.why, run.session_id) for run in (first, second)]
    assert tried is not None
    assert tried.stuck is None
    assert waits is not None
    assert waits.stuck is not None
    assert (waits.stuck.gate, waits.stuck.crashes) == (Gate.CRASHES, 2)


async def test_each_worker_tries_a_suspect_of_its_own(world: World, main: int) -> None:
    first, second = await executing(world, main, "first", "second")
    assert await world.claim() == [first.session_id]
    await world.hire()
    assert await world.claim() == [second.session_id]
