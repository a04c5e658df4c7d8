"""What everybody is shown of a task: read from the rows, in one form, in a stable order."""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

import pytest

from clutch.core.events import PlanVerdict
from clutch.core.messages import Answer, Call, Usage
from clutch.core.model import Delivery, Outcome, Path, Phase, Reason, TaskStatus
from clutch.core.spawn import BudgetRequest
from clutch.core.status import doing_now, task_status
from clutch.core.views import DeliveryView, TaskView
from clutch.errors import InvalidInput
from clutch.store.transaction import ManyRows, Tx
from clutch.transactions import control, messages, turn
from clutch.transactions.read import lists, status, tasks, why
from clutch.transactions.read.lists import TaskFilter
from tests.transactions.trees import reserve
from tests.transactions.world import Run, World, calls, write

pytestmark = pytest.mark.anyio


async def shown(world: World, task_id: int) -> TaskView:
    view = await world.db.read(tasks.one, task_id)
    assert view is not None
    return view


async def ids(world: World, **wanted: object) -> list[int]:
    page = await world.db.read(lists.task_page, TaskFilter(**wanted))  # type: ignore[arg-type]
    return [view.task_id for view in page.tasks]


async def priced(run: Run, text: str, usd: str) -> None:
    await run.finish(text, usage=Usage(10, 5, 3, 2), model="small-2", usd=usd)


async def test_a_new_task_is_queued_and_nothing_is_claimed_about_the_rest(world: World, main: int) -> None:
    task = await world.child(main, "survey")
    view = await shown(world, task)
    assert (view.task_id, view.label, view.phase, view.outcome) == (task, "survey", Phase.QUEUED, None)
    assert (view.requester_key, view.root_key, view.parent_task_id) == (
        "agent:main:main",
        "agent:main:main",
        None,
    )
    assert (view.depth, view.role, view.agent_id) == (1, "orchestrator", "main")
    assert (view.run_id, view.attempt, view.worker_id, view.model) == (None, 0, None, None)
    assert (view.started_at, view.ended_at, view.deadline_at, view.budget, view.plan) == (None,) * 5
    assert view.delivery == DeliveryView(Delivery.NONE)
    assert (view.own.calls, view.own.usd, view.current_tool, view.evidence) == (0, None, None, None)


async def test_an_unknown_task_is_none(world: World, main: int) -> None:
    assert await world.db.read(tasks.one, 77) is None


async def test_a_running_task_shows_its_run_its_worker_its_deadline_and_the_call_it_waits_for(
    world: World, main: int
) -> None:
    run = await world.started(main, run_timeout_s=60.0)
    began = world.clock.now()
    world.clock.advance(2)
    fetch = Call("web_fetch", {"url": "https://user:secret@example.com/a?token=1"})
    await run.respond(Answer("", (fetch, Call("read", {"path": "x"})), Usage(10, 5), "small-2", "tools"))
    view = await shown(world, run.session_id)
    assert (view.run_id, view.attempt, view.worker_id) == (run.run_id, 1, world.worker)
    assert (view.started_at, view.progress_at, view.deadline_at) == (began, began + 2, began + 60)
    assert view.current_tool is not None
    assert (view.current_tool.name, view.current_tool.arg, view.current_tool.since) == (
        "web_fetch", "example.com", began + 2,
    )  # fmt: skip
    assert (view.step, view.model) == (2, "small-2")
    await run.results()
    assert (await shown(world, run.session_id)).current_tool is None


async def test_use_is_told_apart_by_own_and_subtree_and_adds_up_to_the_last_digit(
    world: World, main: int
) -> None:
    parent = await world.started(main, "parent")
    await parent.respond(calls("read"))
    low = await world.child(parent.session_id, "low")
    await priced(await world.start(low), "found", "0.000000037")
    view, below = await shown(world, parent.session_id), await shown(world, low)
    assert (below.own.input, below.own.cache_read, below.own.calls, below.own.usd) == (
        10, 3, 1, Decimal("0.000000037"),
    )  # fmt: skip
    assert (view.own.tokens, view.own.calls, view.own.usd, view.own.unpriced) == (15, 1, None, 1)
    assert (view.subtree.tokens, view.subtree.calls) == (30, 2)
    assert (view.subtree.usd, view.subtree.unpriced) == (Decimal("0.000000037"), 1)
    assert (view.children_active, view.children_total) == (0, 1)


async def test_many_small_prices_lose_nothing_in_the_sum(world: World, main: int) -> None:
    for number in range(30):
        await priced(await world.start(await world.child(main, f"c{number}", idem=f"k{number}")), "x", "0.1")
        await world.live()
    total = await world.db.read(lists.summary, TaskFilter(root_id=main))
    assert total.usd == Decimal("3.0") + 0


async def test_a_delivered_result_shows_its_path_its_moment_and_one_attempt(world: World, main: int) -> None:
    task = await world.child(main)
    await world.end(task)
    waiting = await shown(world, task)
    assert (waiting.phase, waiting.delivery) == (Phase.ANNOUNCING, DeliveryView(Delivery.WAITING))
    await world.live()
    told = await shown(world, task)
    assert (told.outcome, told.phase) == (Outcome.OK, Phase.COMPLETED)
    assert told.delivery == DeliveryView(
        Delivery.DELIVERED, Path.DIRECT, Reason.NONE, 1, at=world.clock.now()
    )


async def test_a_failed_attempt_shows_when_the_next_one_is(world: World, main: int) -> None:
    task = await world.child(main)
    await world.end(task)
    world.clock.advance(2)
    await (await world.start(main)).fail()
    telling = (await shown(world, task)).delivery
    assert (telling.state, telling.attempts) == (Delivery.WAITING, 1)
    assert telling.next_at == world.clock.now() + 1


async def test_a_plan_shows_its_hash_while_it_awaits_a_decision(world: World, main: int) -> None:
    task = await world.child(main, plan_mode=True)
    drafting = (await shown(world, task)).plan
    assert drafting is not None
    assert (drafting.state, drafting.hash, drafting.round) == ("drafting", None, 0)
    await world.end(task, "1. look 2. act")
    awaiting = (await shown(world, task)).plan
    assert awaiting is not None
    assert awaiting.state == "awaiting_approval"
    assert awaiting.hash is not None
    decided = (world.policy, task, PlanVerdict.APPROVE, awaiting.hash)
    await world.db.alone(messages.decide, *decided, text="", actor="person")
    approved = (await shown(world, task)).plan
    assert approved is not None
    assert (approved.state, approved.hash) == ("approved", None)


async def test_a_budget_shows_limit_spent_and_reserved(world: World, main: int) -> None:

    run = await world.started(main, budget=BudgetRequest(tokens=1000))
    await reserve(run, 100)
    purse = (await shown(world, run.session_id)).budget
    assert purse is not None
    assert (purse.tokens_max, purse.usd_max, purse.tokens_spent, purse.tokens_reserved) == (
        1000,
        None,
        0,
        100,
    )


async def test_a_view_knows_the_open_model_call_and_then_the_tool_call(world: World, main: int) -> None:
    run = await world.started(main)
    began = world.clock.now()
    world.clock.advance(6)
    view = await shown(world, run.session_id)
    assert doing_now(view).at(view.at) == f"thinking · step {view.step} · 6 s"
    assert view.called_at == began
    await run.respond(calls("search"))
    world.clock.advance(3)
    view = await shown(world, run.session_id)
    assert doing_now(view).at(view.at).startswith("search")
    await world.die()
    await world.start(run.session_id)
    assert task_status(await shown(world, run.session_id)) is TaskStatus.RUNNING


async def test_any_number_of_tasks_costs_the_same_statements(world: World, main: int) -> None:
    (task,) = await world.children(main, "first")
    many = [task, *await clones(world, task, 1000)]
    one, all_ = [await world.db.read(_statements, made) for made in ([task], many)]
    assert (all_.tasks, all_.statements) == (1001, one.statements)
    await world.db.tx(task, write, "DELETE FROM tasks WHERE idem LIKE 'clone %'")


class Cost(NamedTuple):
    statements: int
    tasks: int


def _statements(now: float, made: list[int]) -> Tx[Cost]:
    """Run the read and count its statements."""
    transaction, count = tasks.of(now, made), 0
    try:
        statement = next(transaction)
        while True:
            count += 1
            statement = transaction.send((yield statement))
    except StopIteration as end:
        return Cost(count, len(end.value))


async def test_takeovers_are_counted(world: World, main: int) -> None:
    run = await world.started(main)
    await run.step()
    await world.die()
    await world.start(run.session_id)
    view = await shown(world, run.session_id)
    assert (view.resumes, view.attempt, view.run_id) == (1, 1, run.run_id)


# ---- many ------------------------------------------------------------------------------------------------


async def test_a_tree_has_the_task_and_everything_below_and_nothing_beside(world: World, main: int) -> None:
    top = await world.child(main, "top")
    low = await world.child(top, "low")
    lower = await world.child(low, "lower")
    beside = await world.child(main, "beside")
    assert [view.task_id for view in await world.db.read(tasks.tree, top)] == [top, low, lower]
    assert [view.task_id for view in await world.db.read(tasks.below, main)] == [top, low, lower, beside]
    assert [view.parent_task_id for view in await world.db.read(tasks.tree, top)] == [None, top, low]


async def test_a_chain_that_bites_its_tail_ends(world: World, main: int) -> None:
    """Imported sessions can have one."""
    top = await world.child(main, "top")
    low = await world.child(top, "low")
    await world.db.tx(top, write, "UPDATE tasks SET requester_id = ? WHERE id = ?", low, top)
    assert {view.task_id for view in await world.db.read(tasks.tree, top)} == {top, low}
    await world.db.tx(top, write, "UPDATE tasks SET requester_id = ? WHERE id = ?", main, top)


async def test_a_list_shows_what_needs_the_user_then_running_queued_and_the_newest_finished(
    world: World, main: int
) -> None:
    old, queued, active, plan, lost = [
        await world.child(main, label, place=place, plan_mode=label == "plan")
        for place, label in enumerate(("old", "queued", "active", "plan", "lost"))
    ]
    await world.db.alone(control.pause, world.policy, active, "person")
    await world.end(plan, "the plan")
    for task in (lost, old):
        await world.end(task)
        world.clock.advance(1)
    new = await world.child(main, "new", place=5)
    await world.end(new)
    change = "UPDATE tasks SET delivery = ? WHERE id = ?"
    before = (await shown(world, lost)).delivery.state
    await world.db.tx(lost, write, change, "undelivered", lost)
    assert await ids(world) == [plan, lost, active, queued, new, old]
    await world.db.tx(lost, write, change, before.value, lost)


async def test_nothing_active_is_cut_and_the_finished_come_in_pages_that_neither_repeat_nor_skip(
    world: World, main: int
) -> None:
    made = await world.children(main, *"abcd")
    for task in made:
        await world.end(task)
        world.clock.advance(1)
    await world.live()
    made += await world.children(main, *"efg")
    first = await world.db.read(lists.task_page, TaskFilter(), 2)
    await world.db.alone(control.kill, world.policy, made[4], "gone", "person")
    second = await world.db.read(lists.task_page, TaskFilter(), 2, first.next)
    third = await world.db.read(lists.task_page, TaskFilter(), 2, second.next)
    pages = [[view.task_id for view in page.tasks] for page in (first, second, third)]
    assert pages[0] == made[4:], "all that were active, although that is more than the limit"
    assert pages[1][0] == made[4], "it has ended meanwhile and is the newest"
    assert pages[1][1:] + pages[2] == made[3:0:-1]
    (last,) = (await world.db.read(lists.task_page, TaskFilter(), 2, third.next)).tasks
    assert last.task_id == made[0]


@pytest.mark.parametrize("wanted", [TaskFilter(), TaskFilter(ended_after=0.0)])
async def test_hundreds_of_running_tasks_are_all_listed(world: World, main: int, wanted: TaskFilter) -> None:
    (task,) = await world.children(main, "first")
    await world.end(await world.child(main, "done", place=1))
    copies = await clones(world, task, 300)
    for limit in (1, 50, lists.LIMIT_MAX):
        page = await world.db.read(lists.task_page, wanted, limit)
        assert {view.task_id for view in page.tasks} >= {task, *copies}
        assert len(page.tasks) == 301
        rest = await world.db.read(lists.task_page, wanted, limit, page.next)
        assert [view.label for view in rest.tasks] == ["done"]
    await world.db.tx(task, write, "DELETE FROM tasks WHERE idem LIKE 'clone %'")


async def clones(world: World, task_id: int, count: int) -> list[int]:
    """Tasks like that one, made at once by the database."""
    made = [world.number() for _ in range(count)]
    same = (
        "requester_id, root_id, depth, spawn_order, label, task, spec, timeout_s, expects_completion, has_cleanup,"
        " seq, phase, reason, generation, delivery, delivery_reason, attempts, plan, plan_round, created_at"
    )
    insert = (
        f"INSERT INTO tasks(id, idem, {same})"  # noqa: S608 (constant words)
        f" SELECT CAST(? AS {{big}}), CAST(? AS {{text}}), {same} FROM tasks WHERE id = ?"
    )
    rows = ManyRows((number, f"clone {number}", task_id) for number in made)
    await world.db.tx(task_id, write_many, insert, rows)
    return made


def write_many(now: float, sql: str, rows: ManyRows) -> Tx[None]:
    yield sql, rows


async def test_each_filter_finds_its_own(world: World, main: int) -> None:
    done, alive = await world.children(main, "done", "alive")
    await world.end(done)
    low = await world.child(alive, "low")
    other = await world.main("other")
    theirs = await world.child(other, "theirs")
    assert await ids(world, root_id=main) == [alive, low, done]
    assert await ids(world, requester_id=alive) == [low]
    assert await ids(world, requester_id=other) == [theirs]
    assert await ids(world, phase=Phase.QUEUED) == [alive, low, theirs]
    assert await ids(world, phase=Phase.COMPLETED) == []
    assert await ids(world, outcome=Outcome.OK) == [done]
    assert await ids(world, label="low") == [low]
    assert await ids(world, is_undelivered=True) == []
    assert await ids(world, root_id=main, phase=Phase.QUEUED, label="alive") == [alive]


async def test_old_told_work_leaves_the_list_and_a_dead_letter_does_not(world: World, main: int) -> None:
    told, lost, alive = await world.children(main, "told", "lost", "alive")
    await world.db.alone(control.pause, world.policy, alive, "person")
    await world.end(told)
    await world.live()
    await world.end(lost)
    await world.db.alone(control.close_main, world.policy, main)
    await world.live()
    await world.db.alone(control.open_main, world.policy, main)
    assert await ids(world, is_undelivered=True) == [lost]
    ended = (await shown(world, told)).ended_at or 0.0
    assert await ids(world, ended_after=ended) == [lost, alive, told]
    assert await ids(world, ended_after=ended + 10**6) == [lost, alive]
    counted = await world.db.read(lists.summary, TaskFilter(ended_after=ended))
    assert (counted.done, counted.undelivered, counted.waiting) == (2, 1, 1)


async def test_a_summary_counts_where_tasks_stand(world: World, main: int) -> None:
    run, queued, paused, plan = [
        await world.child(main, label, place=place, plan_mode=label == "plan")
        for place, label in enumerate(("run", "queued", "paused", "plan"))
    ]
    await world.db.alone(control.pause, world.policy, paused, "person")
    await world.end(plan, "the plan")
    await world.start(run)
    counted = await world.db.read(lists.summary, TaskFilter(root_id=main))
    assert (await shown(world, queued)).phase is Phase.QUEUED
    assert (counted.running, counted.queued, counted.waiting, counted.needs_you) == (1, 1, 1, 1)
    assert (counted.done, counted.usd) == (0, None)


async def test_replies_that_nobody_was_there_to_hear_are_counted(world: World, main: int) -> None:
    await world.tell(main, "hello")
    await (await world.start(main)).finish("hello yourself")
    other = await world.main("other")
    assert (await world.db.read(lists.summary)).replies == 1
    assert (await world.db.read(lists.summary, TaskFilter(root_id=main))).replies == 1
    assert (await world.db.read(lists.summary, TaskFilter(root_id=other))).replies == 0


async def test_every_view_shows_the_same_task(world: World, main: int) -> None:
    parent = await world.started(main, "parent")
    await parent.spawn("a", "b")
    await parent.results()
    await parent.finish("waiting for them")
    await world.live()
    listed = (await world.db.read(lists.task_page, TaskFilter(root_id=main))).tasks
    page = sorted(listed, key=lambda view: (view.created_at, view.task_id))
    assert page == await world.db.read(tasks.below, main)
    assert page == await world.db.read(tasks.tree, parent.session_id)
    assert page == [await shown(world, view.task_id) for view in page]
    found = await world.db.read(why.why, parent.session_id)
    assert found is not None
    assert found.task == page[0]
    last = found.timeline[-1]
    assert (last.to_phase, last.outcome) == (page[0].phase, page[0].outcome)


@pytest.mark.parametrize("limit", [0, 201])
async def test_a_page_has_bounds(world: World, main: int, limit: int) -> None:
    with pytest.raises(InvalidInput, match="limit"):
        await world.db.read(lists.task_page, TaskFilter(), limit)


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "x:1.0:t_1",
        "finished:1.0:",
        "finished:nan:t_1",
        "finished:1:t_u",
        "finished:1:t_1:t_1",
        "undelivered:1e999999:t_1",
        "1.0:t_1",
    ],
)
async def test_a_cursor_nobody_gave_is_refused(world: World, main: int, cursor: str) -> None:
    with pytest.raises(InvalidInput, match="cursor"):
        await world.db.read(lists.task_page, TaskFilter(), 10, cursor)


# ---- in full ---------------------------------------------------------------------------------------------


async def test_a_result_is_what_was_frozen_and_a_late_word_stands_beside_it(world: World, main: int) -> None:
    run = await world.started(main)
    assert (await world.db.read(lists.result, 77)) is None
    early = await world.db.read(lists.result, run.session_id)
    assert early is not None
    assert (early.outcome, early.text) == (None, None)
    await world.db.alone(control.kill, world.policy, run.session_id, "enough", "person")
    await world.db.tx(run.session_id, turn.late, world.policy, run.session_id, "but I found it")
    found = await world.db.read(lists.result, run.session_id)
    assert found is not None
    assert (found.outcome, found.text, found.late) == (
        Outcome.KILLED, None, ("but I found it", world.clock.now()),
    )  # fmt: skip


async def test_a_transcript_comes_in_pages(world: World, main: int) -> None:
    run = await world.started(main)
    await run.step()
    first = await world.db.read(lists.transcript, run.session_id, 0, 2)
    rest = await world.db.read(lists.transcript, run.session_id, first.next or 0, 2)
    assert [line.kind for line in first.lines] == ["input", "answer"]
    assert ([line.kind for line in rest.lines], rest.next) == (["results"], None)
    assert first.lines[0].run_id == run.run_id


async def test_letter_of_a_killed_child_is_not_counted_as_waiting(world: World, main: int) -> None:
    task = await world.child(main)
    await world.start(task)
    await world.db.alone(control.kill, world.policy, task, "no", "person")
    await world.mail()
    assert (await world.db.read(status.status, main)).waiting == 0
    await world.tell(main, "hello")
    assert (await world.db.read(status.status, main)).waiting == 1
