"""What the Health view reads, the same on every database: workers, queues, size, and how invariants are reported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clutch.core.views import is_late
from clutch.core.workers import NO_LEASE_S
from clutch.store.postgres import PostgresStore
from clutch.transactions import invariants
from clutch.transactions.read import status
from tests.transactions.world import World, write

pytestmark = pytest.mark.anyio


async def test_workers_queues_and_size_are_counted(world: World, main: int) -> None:
    run = await world.started(main, "works")
    await world.child(main, "waits")
    await world.mail()
    is_sqlite = not isinstance(world.db, PostgresStore)
    found = await world.db.read(status.state, is_sqlite)
    assert [(one.id, one.host, one.pid, one.sessions) for one in found.workers] == [
        (world.worker, "host", 1, 1)
    ]
    lanes = {one.name: (one.running, one.queued) for one in found.lanes}
    assert lanes["subagent"] == (1, 1)
    assert lanes["main"] == (0, 0)
    assert (found.deferred, found.undelivered, found.outbox, found.unsent) == (0, 0, 0, 0)
    assert found.database_bytes > 4096
    await run.finish()


async def test_a_worker_is_stale_when_its_lease_is_over(world: World, main: int) -> None:
    await world.hire(lease_s=5.0)
    (_, one) = (await world.db.read(status.state, not isinstance(world.db, PostgresStore))).workers
    now = world.clock.now()
    assert not one.is_stale(one.id, now)
    assert one.is_stale(one.id, now + 6)
    unlimited = replace(one, lease_until=now + NO_LEASE_S)
    assert not unlimited.is_stale(one.id, now + 6)
    assert unlimited.is_stale(one.id + 1, now)


async def test_the_age_of_the_queue_and_leases_that_ran_out_are_counted(world: World, main: int) -> None:
    async def told() -> tuple[int, float]:
        found = await world.db.read(status.counts)
        return found.leases_expired, found.oldest_queued_s

    await world.hire(lease_s=5.0)
    assert await told() == (0, 0.0)
    await world.child(main, "waits")
    world.clock.advance(3)
    await world.child(main, "waits less")
    assert await told() == (0, 3.0)
    world.clock.advance(3)
    assert await told() == (1, 6.0)


async def test_a_violation_is_shown_without_secrets_and_what_took_too_long_is_not_ok(
    world: World, main: int
) -> None:
    task = await world.child(main)
    key = "sk-ant-api03-" + "a" * 40
    await world.db.alone(
        write, "UPDATE tasks SET error = ? WHERE id = ?", f"Authorization: Bearer {key}", task
    )
    (query,) = [one for one in invariants.standing(is_served=True) if one.invariant == "N5"]
    found = invariants.checked(query, await world.db.read(invariants.broken, query))
    assert found.state == "violated"
    assert str(task) in found.examples[0]
    assert key not in found.examples[0]
    await world.db.alone(write, "UPDATE tasks SET error = NULL WHERE id = ?", task)
    assert invariants.checked(query, await world.db.read(invariants.broken, query)).state == "ok"
    assert invariants.checked(query, None).state == "not checked"


def test_a_loop_is_late_after_three_periods() -> None:
    assert not is_late(100.0, 10.0, 130.0)
    assert is_late(100.0, 10.0, 130.1)
