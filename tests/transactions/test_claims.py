"""Which sessions a claim gives to a worker: shares by weight, priorities, roots; and that none stays hidden."""

from __future__ import annotations

from collections import Counter

import pytest

from clutch.core.fair_share import NORMAL, PASSED_MAX, DueSession, Positions, Priority, Queue, Weights
from clutch.core.model import Lane
from clutch.core.spawn import SpawnRefusal
from clutch.store.transaction import ManyRows, Tx
from clutch.transactions import claims
from clutch.transactions.claims import ROOTS_MAX, SHARES_MAX, Slots
from clutch.transactions.read import why
from tests.transactions.world import World, write

pytestmark = pytest.mark.anyio

LANE = Lane.SUBAGENT.value


def lay(now: float, waiting: list[DueSession]) -> Tx[None]:
    """Sessions that are due and nothing more: what a claim reads of them is all that this is about."""
    del now
    yield (
        "INSERT INTO sessions(id, key, agent_id, root_id, depth, lane, role, is_task, rights, due, created_at, share,"
        " priority) VALUES(?, ?, 'main', ?, 1, 'subagent', 'leaf', 0, '{}', ?, 1, ?, ?)",
        ManyRows((one.id, f"k{one.id}", one.root_id, one.due, one.share, one.rank) for one in waiting),
    )


async def claimed(world: World, cap: int, rounds: int, weights: Weights = claims.NO_WEIGHTS) -> list[int]:
    """The sessions that get a slot of a lane where the first that started ends whenever all slots are taken."""
    await world.db.alone(claims.set_lanes, {Lane.SUBAGENT: cap})
    served: list[int] = []
    for _ in range(rounds):
        got = await world.db.alone(claims.claim, world.worker, 1, (Lane.SUBAGENT,), weights=weights)
        served += [one.session_id for one in got]
        if len(served) >= cap:
            ended = served[len(served) - cap]
            await world.db.alone(
                write, "UPDATE sessions SET owner = NULL, due = NULL, closed = 1 WHERE id = ?", ended
            )
    await world.db.alone(write, "UPDATE sessions SET owner = NULL, due = NULL, closed = 1 WHERE depth = 1")
    return served


async def test_slots_are_divided_by_weight(world: World) -> None:
    """The backlog of the other share is older and longer than what a claim reads."""
    old = [DueSession(1.0, number, 1, "b") for number in range(1, 101)]
    await world.db.alone(lay, [*old, *(DueSession(2.0, 1000 + number, 2, "a") for number in range(100))])
    served = await claimed(world, 4, 44, {"a": 3, "*": 1})
    assert Counter(number >= 1000 for number in served[4:]) == {True: 30, False: 10}


async def test_high_priority_goes_first_and_low_priority_does_not_starve(world: World) -> None:
    low = DueSession(1.0, 1, 1, "a", 2)
    await world.db.alone(lay, [low, *(DueSession(2.0, 10 + number, 2, "a", 0) for number in range(60))])
    served = await claimed(world, 1, PASSED_MAX + 1)
    assert served == [*range(10, 10 + PASSED_MAX), low.id], (
        "the lane's row remembers how often it was passed over"
    )


async def test_no_root_stays_hidden(world: World) -> None:
    """Roots behind the first ones that a claim compares; in front of all stands a backlog of one root at work."""
    hidden, backlog = range(1000, 1000 + 3 * ROOTS_MAX), range(1, 300)
    await world.db.alone(
        lay,
        [DueSession(1.0, number, 1) for number in backlog]
        + [DueSession(2.0, number, number) for number in hidden],
    )
    for first in (1, 2):
        await world.db.alone(
            write, "UPDATE sessions SET owner = ?, due = NULL WHERE id = ?", world.worker, first
        )
    await world.db.alone(claims.set_lanes, {Lane.SUBAGENT: 3})
    served: list[int] = []
    for _ in range(12):
        (got,) = await world.db.alone(claims.claim, world.worker, 1, (Lane.SUBAGENT,))
        served.append(got.session_id)
        await world.db.alone(
            write, "UPDATE sessions SET owner = NULL, due = NULL WHERE id = ?", got.session_id
        )
    seen = {(number - hidden[0]) // ROOTS_MAX for number in served if number in hidden}
    assert seen == {0, 1, 2}, "each claim goes on where the last one stopped reading"
    await world.db.alone(write, "UPDATE sessions SET owner = NULL, due = NULL, closed = 1 WHERE depth = 1")


async def test_no_share_stays_hidden(world: World) -> None:
    shares = [f"s{number:03}" for number in range(SHARES_MAX + 10)]
    await world.db.alone(lay, [DueSession(1.0, 1 + place, 1, share) for place, share in enumerate(shares)])
    slots = Slots(LANE, {}, {}, 0, Positions())
    first = await world.db.read(claims.queues_due, slots)
    assert [queue.share for queue in first] == shares[:SHARES_MAX]
    rest = await world.db.read(claims.queues_due, slots)
    assert [queue.share for queue in rest] == shares[SHARES_MAX:]
    assert await world.db.read(claims.queues_due, slots) == first
    await world.db.alone(write, "UPDATE sessions SET due = NULL, closed = 1 WHERE depth = 1")


async def test_a_share_that_is_due_later_hides_none(world: World) -> None:
    await world.db.alone(
        lay,
        [
            DueSession(world.clock.now() + 99, 1, 1, "a", 0),
            DueSession(1.0, 2, 2, "b"),
            DueSession(1.0, 3, 2, "b"),
        ],
    )
    slots = Slots(LANE, {}, {}, 0, Positions())
    assert await world.db.read(claims.queues_due, slots) == {Queue(NORMAL, "b"): 1.0}
    assert await claimed(world, 1, 1) == [2]


async def test_children_inherit_share_and_priority(world: World, main: int) -> None:
    run = await world.started(main, share="tenant-a", priority=Priority.HIGH)
    await run.spawn("grandchild")
    rows = await world.rows("SELECT share, priority FROM sessions WHERE depth = 2")
    assert set(rows) == {("tenant-a", 0)}


@pytest.mark.parametrize(
    ("asked", "key"), [({"share": "tenant-b"}, "share"), ({"priority": Priority.HIGH}, "priority")]
)
async def test_an_agent_takes_no_slots_of_others(
    world: World, main: int, asked: dict[str, object], key: str
) -> None:
    run = await world.started(main, share="tenant-a")
    (refused,) = await run.spawn("grandchild", **asked)
    assert isinstance(refused, SpawnRefusal)
    assert refused.limit == {"key": key}
    (low,) = await run.spawn("other", share="tenant-a", priority=Priority.LOW)
    assert not isinstance(low, SpawnRefusal)


async def test_why_says_what_else_goes_first(world: World, main: int) -> None:
    await world.db.alone(claims.set_lanes, {Lane.SUBAGENT: 1})
    await world.started(main, share="tenant-a")
    waits = await world.child(main, "waits", share="tenant-a", priority=Priority.LOW)
    await world.child(main, "urgent", share="tenant-a")
    await world.child(main, "other", share="tenant-b")
    told = await world.db.read(why.why, waits)
    assert told is not None
    assert told.stuck is not None
    line = told.stuck.line
    assert line is not None
    assert (line.share, line.working, line.urgent, line.shares) == ("tenant-a", 1, 1, ("tenant-b",))
