"""What the dashboard reads, the same on every database: parts of a list, bars, what a kill would stop, receipts."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from clutch.core.ids import task_id
from clutch.core.status import Activity
from clutch.errors import NotFound
from clutch.store.transaction import Tx
from clutch.testing.clock import FakeClock
from clutch.transactions import control, messages
from clutch.transactions.messages import ReceiptState
from clutch.transactions.read import lists, tasks, timeline
from clutch.transactions.read.lists import ListState, TaskFilter
from tests.transactions.world import World, calls

pytestmark = pytest.mark.anyio


async def labels(world: World, wanted: TaskFilter) -> list[str]:
    return sorted(view.label for view in (await world.db.read(lists.task_page, wanted)).tasks)


@pytest.fixture
async def some(world: World, main: int) -> dict[str, int]:
    """One task in each part of a list."""
    done, failed = await world.started(main, "done"), await world.started(main, "failed")
    await done.finish("the albatross 100%")
    await failed.fail("no model", is_final=True)
    plan = await world.started(main, "asks", plan_mode=True)
    await plan.finish("a plan")
    works = await world.child(main, "works")
    return {"done": done.session_id, "failed": failed.session_id, "asks": plan.session_id, "works": works}


async def test_a_list_shows_the_part_that_is_asked_for(world: World, some: dict[str, int]) -> None:
    assert await labels(world, TaskFilter()) == sorted(some)
    assert await labels(world, TaskFilter(state=ListState.ATTENTION)) == ["asks"]
    assert "done" in await labels(world, TaskFilter(state=ListState.FINISHED))
    assert await labels(world, TaskFilter(state=ListState.UNDELIVERED)) == []
    active = await labels(world, TaskFilter(state=ListState.ACTIVE))
    assert {"asks", "works"} <= set(active)
    assert "done" not in active
    assert await labels(world, TaskFilter(state=ListState.FAILED)) == ["failed"]


async def test_the_counts_beside_a_part_are_those_of_the_whole_list(
    world: World, some: dict[str, int]
) -> None:
    whole = await world.db.read(lists.summary, TaskFilter())
    assert await world.db.read(lists.summary, TaskFilter(state=ListState.ATTENTION)) == whole
    assert whole.needs_you == 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ALBATROSS", ["done"]),
        ("100%", ["done"]),
        ("100_", []),
        ("aSK", ["asks"]),
        ("no such text", []),
        ("'; DROP TABLE tasks --", []),
    ],
)
async def test_a_text_is_found_as_it_is_written(
    world: World, some: dict[str, int], text: str, found: list[str]
) -> None:
    assert await labels(world, TaskFilter(text=text)) == found


async def test_a_task_is_found_by_its_id_and_by_its_agent(world: World, some: dict[str, int]) -> None:
    assert await labels(world, TaskFilter(text=task_id(some["works"]))) == ["works"]
    assert await labels(world, TaskFilter(agent="main")) == sorted(some)
    assert await labels(world, TaskFilter(agent="other")) == []


async def test_a_bar_says_what_the_time_went_into(world: World, main: int, clock: FakeClock) -> None:
    child = await world.child(main, "child")
    clock.advance(2)
    run = await world.start(child)
    clock.advance(3)
    await run.respond(calls("search"))
    clock.advance(5)
    view = await world.db.read(tasks.one, child)
    assert view is not None
    found = (await world.db.read(timeline.segments, [view]))[child]
    assert [(one.activity, round(one.start), one.end and round(one.end)) for one in found] == [
        (Activity.QUEUED, 0, 2),
        (Activity.THINKING, 2, 5),
        (Activity.TOOL, 5, None),
    ]


async def test_the_bars_of_many_tasks_are_one_statement(world: World, main: int) -> None:
    many = await world.children(main, "one", "two", "three")
    views = await world.db.read(tasks.of, many)
    assert await world.db.read(_statements, timeline.segments(world.clock.now(), views)) == 1


def _statements(now: float, transaction: Tx[object]) -> Tx[int]:
    del now
    count = 0
    try:
        statement = next(transaction)
        while True:
            count += 1
            statement = transaction.send((yield statement))
    except StopIteration:
        return count


@pytest.mark.parametrize("seed", range(8))
async def test_a_kill_stops_what_its_dry_run_listed(world: World, main: int, seed: int) -> None:
    """Trees of random form, some of whose tasks have ended."""
    choose = random.Random(seed)
    made = [(await world.started(main, "top")).session_id]
    for number in range(6):
        parent = choose.choice(made[:2])  # deeper trees are refused
        made.append((await world.started(parent, f"child {number}")).session_id)
    for ended in choose.sample(made, 2):
        await world.db.alone(control.kill, world.policy, ended, "earlier", "person")
    target = choose.choice(made)
    would = await world.db.read(control.would_stop, [target])
    did = await world.db.alone(control.kill, world.policy, target, "now", "person")
    assert (sorted(would.stopped), would.already_finished) == (sorted(did.stopped), did.already_finished)
    assert (await world.db.read(control.would_stop, [target])).stopped == ()
    assert len(set(would.stopped)) == len(would.stopped)


async def test_a_receipt_moves_from_sent_to_seen_to_acted_on(world: World, main: int) -> None:
    run = await world.started(main, "child")
    number = run.session_id
    await world.db.alone(
        messages.send, world.policy, number, f"send:{number}:key", "be brief", actor="person"
    )
    states = [(await world.db.read(messages.receipt, number, "key")).state]
    await run.respond(calls("search"))
    await run.results()
    await world.mail()
    seen = await world.db.read(messages.receipt, number, "key")
    states.append(seen.state)
    await run.finish("briefly")
    acted = await world.db.read(messages.receipt, number, "key")
    assert (*states, acted.state) == (ReceiptState.SENT, ReceiptState.SEEN, ReceiptState.ACTED)
    assert seen.text == f"seen at step {seen.step}"
    assert all(a < b for a, b in pairwise([seen.step or 0, acted.step or 0]))
    with pytest.raises(NotFound):
        await world.db.read(messages.receipt, number, "another key")


async def test_a_message_of_an_attempt_that_ended_is_not_acted_on(world: World, main: int) -> None:
    run = await world.started(main, "child")
    number = run.session_id
    for key in ("read", "unread"):
        await world.db.alone(
            messages.send, world.policy, number, f"send:{number}:{key}", f"be {key}", actor="person"
        )
        if key == "read":
            await run.respond(calls("search"))
            await run.results()
            await world.mail()
    await world.db.alone(control.kill, world.policy, number, "enough", "person")
    found = {key: await world.db.read(messages.receipt, number, key) for key in ("read", "unread")}
    assert {key: one.state for key, one in found.items()} == dict.fromkeys(found, ReceiptState.MISSED)
    await world.db.alone(control.again, world.policy, number, "retry", "again", text="", actor="person")
    await (await world.start(number)).finish("of the second attempt")
    found = {key: await world.db.read(messages.receipt, number, key) for key in ("read", "unread")}
    assert {key: one.text for key, one in found.items()} == dict.fromkeys(found, "not acted on")


async def test_an_attempt_is_a_start_for_a_result_and_has_its_own_children(world: World, main: int) -> None:
    async def shown(number: int) -> tuple[int, int, int]:
        view = await world.db.read(tasks.one, number)
        assert view is not None
        return view.attempt, view.children_active, view.children_total

    parent = await world.started(main, "parent")
    number = parent.session_id
    children = [await world.child(number, f"child {place}") for place in range(2)]
    await parent.finish("I wait for them")
    assert await shown(number) == (1, 2, 2)
    for child in children:
        await world.end(child)
    world.clock.advance(2)
    await (await world.start(number)).finish("all heard")  # woken: a new run of the same attempt
    assert await shown(number) == (1, 0, 2)
    world.clock.advance(2)
    await world.db.alone(control.again, world.policy, number, "retry", "again", text="", actor="person")
    second = await world.start(number)
    assert await shown(number) == (2, 0, 0)
    await world.child(number, "child of the second attempt")
    assert await shown(number) == (2, 1, 1)
    await second.finish("I wait again")
