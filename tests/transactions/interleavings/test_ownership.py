"""Workers, lanes and limits in every order: one owner, one slot, one admitted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from clutch.core.model import Lane, Phase
from clutch.store.dialect import Dialect, numbered, statement_text
from clutch.testing.postgres import PostgresServer
from clutch.transactions import claims, messages, outbox, turn_end, workers
from clutch.transactions.sessions import Stale
from tests.patience import PATIENCE_S
from tests.transactions.interleavings.parts import (
    beginning,
    burying,
    claiming,
    filing,
    finishing,
    of,
    spawning,
    yielding,
)
from tests.transactions.interleavings.two_connections import Ended, Stage
from tests.transactions.world import World, calls

pytestmark = pytest.mark.anyio


# ---- 7. a worker frozen past its lease ----------------------------------------------------------------


async def test_frozen_worker_and_its_burial(stage: Stage, world: World, main: int) -> None:
    run = await world.started(main)

    async def check(_: Ended, finished: Ended) -> None:
        task = await world.task(run.session_id)
        if finished.error is None:
            assert (task.phase, task.result) == (Phase.ANNOUNCING, "old words")
        else:
            assert isinstance(finished.error, Stale)
            assert (task.phase, task.seq) == (Phase.RUNNING, 2)

    await stage.every_order(burying(world.worker), finishing(run, "old words"), check)


async def written(world: World) -> list[Any]:
    tables = ("tasks", "messages", "events", "inbox")
    return [await world.rows(f"SELECT * FROM {table}") for table in tables]  # noqa: S608


@pytest.mark.parametrize("is_over", [False, True])
async def test_worker_that_wakes_after_the_takeover_writes_nothing(
    stage: Stage, world: World, main: int, is_over: bool
) -> None:
    run = await world.started(main)
    await run.respond(calls("read"))
    await world.die()
    again = await world.start(run.session_id)
    if is_over:
        await again.finish("by the successor")
    before = await written(world)
    for stale in (finishing(run), filing(run), yielding(run), of(run, turn_end.stumble, "late", True, None)):
        (outcome,) = await stage.db.together(stale)
        assert isinstance(outcome.error, Stale)
    after = [await world.rows(f"SELECT * FROM {table}") for table in ("tasks", "messages", "events", "inbox")]  # noqa: S608
    assert after == before


async def test_burial_of_a_worker_that_claims(stage: Stage, world: World, main: int) -> None:
    await world.children(main, "a", "b")
    dead = world.worker
    await world.hire()

    async def check(_: Ended, claimed: Ended) -> None:
        assert claimed.error is None or isinstance(claimed.error, Stale)
        assert await world.rows("SELECT id FROM sessions WHERE owner = ?", dead) == []

    await stage.every_order(burying(dead), claiming(world, dead), check)


async def test_burial_of_a_worker_whose_run_begins(stage: Stage, world: World, main: int) -> None:
    task = await world.child(main)
    await world.claim()
    dead = world.worker
    await world.hire()

    async def check(*_: Ended) -> None:
        session = await world.session(task)
        assert (session.owner, session.due) == (None, 0.0)

    await stage.every_order(burying(dead), beginning(world, task), check)


# ---- 10. a full lane -----------------------------------------------------------------------------------


async def test_two_workers_share_a_nearly_full_lane_and_interrupted_runs_go_first(
    stage: Stage, world: World, main: int
) -> None:
    await stage.db.alone(claims.set_lanes, {Lane.SUBAGENT: 3})
    interrupted, steered_run = await world.started(main, "interrupted"), await world.started(main, "steered")
    dead = world.worker
    world.clock.advance(1)
    new = await world.children(main, "new", "newer")
    first = await world.hire()
    second = await world.hire()
    await stage.db.alone(workers.bury, dead)
    await stage.db.alone(messages.steer, world.policy, steered_run.session_id, "s", "do this", actor="person")

    async def check(*claims: Ended) -> None:
        claimed = [one.session_id for ended in claims for one in ended.value]
        assert len(claimed) == len(set(claimed)) == 3
        assert interrupted.session_id in claimed
        assert not set(claimed) >= set(new)

    await stage.every_order(claiming(world, first), claiming(world, second), check)


async def test_a_heartbeat_waits_for_no_claim_of_its_own_worker(
    stage: Stage, world: World, postgres_server: PostgresServer
) -> None:
    connection = await asyncpg.connect(postgres_server.dsn())
    claiming_now = (claims.claim(0.0, world.worker, 1), outbox.claim(0.0, world.worker, "mail", 1))
    async with connection.transaction(), asyncio.timeout(PATIENCE_S):
        for sql, values in map(next, claiming_now):
            assert await connection.fetch(numbered(statement_text(str(sql), Dialect.POSTGRES)), *values)
        answer = await stage.db.urgent(workers.heartbeat, world.worker, 5.0)
        assert not answer.is_draining
    await connection.close()


async def test_last_slot_of_a_lane_goes_to_one_worker(stage: Stage, world: World, main: int) -> None:
    await stage.db.alone(claims.set_lanes, {Lane.SUBAGENT: 1})
    await world.children(main, "a", "b")
    first = await world.hire()
    second = await world.hire()

    async def check(*claims: Ended) -> None:
        assert sorted(len(ended.value) for ended in claims) == [0, 1]

    await stage.every_order(claiming(world, first), claiming(world, second), check)


async def test_slot_that_becomes_free_is_used_once(stage: Stage, world: World, main: int) -> None:
    await stage.db.alone(claims.set_lanes, {Lane.SUBAGENT: 1})
    run = await world.started(main, "first")
    await world.child(main, "second")

    async def check(_: Ended, claimed: Ended) -> None:
        assert len(claimed.value) <= 1

    await stage.every_order(finishing(run), claiming(world), check)


# ---- limits --------------------------------------------------------------------------------------------


async def one_accepted(first: Ended, second: Ended) -> None:
    answers = [first.value[0], second.value[0]]
    assert sorted(type(answer).__name__ for answer in answers) == ["Accepted", "SpawnRefusal"]


async def test_last_slot_of_a_parent_is_given_once(stage: Stage, world: World, main: int) -> None:
    world.policy = replace(world.policy, limits=replace(world.policy.limits, children_max=1))
    first, second = spawning(world, main, label="a"), spawning(world, main, label="b")
    await stage.every_order(first, second, one_accepted)


async def test_last_descendant_of_a_root_is_given_to_one_of_two_parents(
    stage: Stage, world: World, main: int
) -> None:
    left, right = await world.started(main, "left"), await world.started(main, "right")
    world.policy = replace(world.policy, limits=replace(world.policy.limits, descendants_max=3))
    await stage.every_order(
        spawning(world, left.session_id, left.fence, "a"),
        spawning(world, right.session_id, right.fence, "b"),
        one_accepted,
    )


async def test_repeated_spawn_never_makes_a_twin(stage: Stage, world: World, main: int) -> None:
    once, again = spawning(world, main, label="same"), spawning(world, main, label="same")

    async def check(first: Ended, second: Ended) -> None:
        assert first.value[0].task_id == second.value[0].task_id
        assert {first.value[0].is_new, second.value[0].is_new} == {True, False}

    await stage.every_order(once, again, check)
