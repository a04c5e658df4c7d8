"""What has been over for a while leaves lists and quotas; nothing that works or was not told ever does."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from clutch.core import ids
from clutch.core.costs import BarUnit, LedgerPlace
from clutch.core.messages import Usage
from clutch.core.model import Delivery, Outcome, Phase, RemovalReason
from clutch.core.policy import Policy
from clutch.core.spawn import CleanupPolicy, Mode, SpawnRefusal
from clutch.core.text.why import TRIMMED, happening, why_lines
from clutch.transactions import control, idempotency, outbox, retention, sessions, usage
from clutch.transactions.control import NotPossible
from clutch.transactions.read import costs, lists, status, transcripts
from clutch.transactions.read.why import TaskExplanation, timeline, why
from clutch.transactions.spawn import Accepted
from clutch.transactions.transcript import Verbatim
from tests.transactions.test_dead_letters import given_up
from tests.transactions.world import A_DAY_S, World, write

pytestmark = pytest.mark.anyio

HOUR_S = 3600


def keeping(world: World, **changes: Any) -> None:
    world.policy = replace(world.policy, keeping=replace(world.policy.keeping, **changes))


async def told(world: World, main: int, label: str = "child", **asked: Any) -> int:
    task = await world.child(main, label, **asked)
    await world.end(task, "the finding")
    world.clock.advance(2)
    await (await world.start(main)).finish("heard")
    return task


async def sweep(world: World) -> list[int]:
    """As the sweeper does it: look, then archive what was found."""
    archived = []
    while found := await world.db.read(retention.due, world.policy):
        archived += await world.db.alone(retention.archive, world.policy, found)
    while fading := await world.db.read(retention.fading, world.policy, 0.0):
        await world.db.alone(retention.fade, world.policy, fading)
    return archived


async def words(world: World, task_id: int) -> int:
    return int(await world.one("SELECT COUNT(*) FROM messages WHERE session_id = ?", task_id))


async def test_a_task_is_archived_an_hour_after_it_was_told_and_leaves_the_quota(
    world: World, main: int
) -> None:
    task = await told(world, main)
    world.clock.advance(HOUR_S - 1)
    assert await sweep(world) == []
    world.clock.advance(1)
    assert await sweep(world) == [task]
    assert await sweep(world) == [], "once"
    ((archived_at, retained),) = await world.rows(
        "SELECT archived_at, retained FROM tasks WHERE id = ?", task
    )
    assert (archived_at, retained) == (world.clock.now(), 0)
    assert await words(world, task) > 0, "its transcript stays"
    assert (await world.task(task)).result == "the finding"


@pytest.mark.scenario(128)
async def test_with_zero_minutes_nothing_is_ever_archived(world: World, main: int) -> None:
    keeping(world, archive_after_s=0)
    await told(world, main)
    world.clock.advance(1000 * HOUR_S)
    assert await sweep(world) == []


@pytest.mark.scenario(128)
async def test_a_session_that_stays_for_follow_ups_is_never_archived(world: World, main: int) -> None:
    task = await told(world, main, mode=Mode.SESSION)
    world.clock.advance(20 * HOUR_S)
    assert await sweep(world) == []
    world.clock.advance(5 * HOUR_S)
    await world.ring()
    assert not (await world.task(task)).stays, "left alone for a day it ends"
    assert await sweep(world) == []
    world.clock.advance(HOUR_S)
    assert await sweep(world) == [task]


@pytest.mark.scenario(129)
async def test_a_run_longer_than_the_archive_time_is_not_archived_while_it_works(
    world: World, main: int
) -> None:
    task = await world.child(main)
    run = await world.start(task)
    for _ in range(3):
        world.clock.advance(HOUR_S)
        await run.step()
        assert await sweep(world) == []
    await run.finish("at last")
    world.clock.advance(2 * HOUR_S)
    assert await sweep(world) == [], "not told yet"
    await (await world.start(main)).finish("heard")
    assert await sweep(world) == [], "the hour counts from the telling"
    world.clock.advance(HOUR_S)
    assert await sweep(world) == [task]


async def test_what_was_not_delivered_is_archived_only_when_it_was_let_go(world: World, main: int) -> None:
    task = await given_up(world, main)
    world.clock.advance(10 * HOUR_S)
    assert await sweep(world) == []
    await world.db.alone(control.dismiss, world.policy, task, "person")
    assert await sweep(world) == []
    world.clock.advance(HOUR_S)
    assert await sweep(world) == [task]


@pytest.mark.parametrize(("after_s", "stays_s"), [(0.0, None), (7200.0, 7199)])
async def test_words_fade_with_the_archive_or_later_and_the_rest_stays(
    world: World, main: int, after_s: float, stays_s: int | None
) -> None:
    keeping(world, transcript_after_s=after_s)
    task = await told(world, main)
    before = await world.task(task)
    world.clock.advance(HOUR_S)
    assert await sweep(world) == [task]
    if stays_s is not None:
        world.clock.advance(stays_s)
        await sweep(world)
        assert await words(world, task) > 0
        world.clock.advance(1)
        await sweep(world)
    assert await words(world, task) == 0
    assert await world.task(task) == before._replace(seq=before.seq + 1), "one line more: archived"
    assert len(await world.timeline(task)) == before.seq + 1
    assert await world.rows("SELECT input, output FROM usage WHERE session_id = ?", task) == [
        (Usage(10, 5).input, Usage(10, 5).output)
    ]
    assert len(await world.trace(task)) == 1
    with pytest.raises(NotPossible, match="was deleted"):
        await world.db.alone(control.again, world.policy, task, "retry", "retry:1", text="", actor="person")


async def test_transcripts_go_in_short_commits_between_which_others_write(world: World, main: int) -> None:
    """Two entries each: a commit deletes as many transcripts as have five together, and a long one alone."""
    keeping(world, transcript_after_s=60.0)
    children = [await told(world, main, f"child {number}") for number in range(5)]
    world.clock.advance(HOUR_S)
    await sweep(world)
    world.clock.advance(61)
    assert [await words(world, one) for one in children] == [2] * 5
    assert len(await world.db.read(retention.fading, world.policy, 0.0, 50, 1)) == 1
    assert len(await world.db.read(retention.fading, world.policy, 0.0, 4, 2**30)) == 4
    done: list[str] = []

    async def fade() -> None:
        while found := await world.db.read(retention.fading, world.policy, 0.0, 50, 5):
            assert len(found) <= 2
            await world.db.alone(retention.fade, world.policy, found)
            done.append("faded")

    async def write_meanwhile() -> None:
        await world.tell(main, "a message")
        done.append("written")

    await asyncio.gather(fade(), write_meanwhile())
    assert done.count("faded") == 3
    assert done.index("written") < len(done) - 1
    assert [await words(world, one) for one in children] == [0] * 5
    await world.live()


async def test_a_task_that_works_again_is_archived_no_more(world: World, main: int) -> None:
    task = await told(world, main)
    world.clock.advance(HOUR_S)
    await sweep(world)
    await world.db.alone(
        control.again, world.policy, task, "continue", "again:1", text="more", actor="person"
    )
    ((archived_at, retained),) = await world.rows(
        "SELECT archived_at, retained FROM tasks WHERE id = ?", task
    )
    assert (archived_at, retained) == (None, 1)
    assert await world.db.alone(retention.fade, world.policy, [task]) == [], "what was seen before has no say"
    await world.live()


async def test_a_record_that_was_evicted_from_the_quota_can_still_be_removed(world: World, main: int) -> None:
    task = await told(world, main)
    await world.db.alone(write, "UPDATE tasks SET retained = 0 WHERE id = ?", task)
    await world.db.alone(control.remove, world.policy, task, "person")
    assert await world.one("SELECT archived_at FROM tasks WHERE id = ?", task) == world.clock.now()


@pytest.mark.scenario(32)
@pytest.mark.scenario(34)
async def test_fifteen_records_fill_the_quota_also_after_a_restart_until_one_is_told_and_removed(
    world: World, main: int
) -> None:
    limits = replace(world.policy.limits, retained_max=15, children_max=20, evicts_delivered=False)
    world.policy = replace(world.policy, limits=limits)
    tasks = [await world.child(main, f"child {number}") for number in range(15)]
    for task in tasks:
        await world.end(task)
    for _ in range(2):
        refused = await world.ask_child(main)
        assert isinstance(refused, SpawnRefusal)
        assert "15/15 (agents.defaults.subagents.maxRetained)" in refused.error
        with pytest.raises(NotPossible):
            await world.db.alone(control.remove, world.policy, tasks[0], "person")
        await world.die()
    world.clock.advance(2)
    await (await world.start(main)).finish("heard")
    await world.die()
    assert isinstance(await world.ask_child(main), SpawnRefusal), "told, but still there"
    await world.db.alone(control.remove, world.policy, tasks[0], "person")
    assert isinstance(await world.ask_child(main), Accepted)
    assert isinstance(await world.ask_child(main), SpawnRefusal)


async def test_two_sweepers_archive_once(world: World, main: int) -> None:
    task = await told(world, main)
    world.clock.advance(HOUR_S)
    seen = await world.db.read(retention.due, world.policy)
    assert await world.db.alone(retention.archive, world.policy, seen) == [task]
    assert await world.db.alone(retention.archive, world.policy, seen) == []


@pytest.mark.scenario(217)
async def lines(world: World, task_id: int) -> list[tuple[str, str, str]]:
    """The end of its timeline: who, what kind of line, and where it leaves the task."""
    shown = await world.db.read(timeline, task_id)
    task = await world.task(task_id)
    assert (shown[-1].seq, shown[-1].to_phase) == (task.seq, task.phase), (
        "the timeline ends where the task is"
    )
    return [(one.actor, happening(one)[0], f"{one.from_phase} → {one.to_phase}") for one in shown[-2:]]


@pytest.mark.parametrize("by", ["sweeper", "person", "session"])
async def test_the_timeline_says_once_that_a_task_was_archived_and_by_whom(
    world: World, main: int, by: str
) -> None:
    task = await told(world, main)
    world.clock.advance(HOUR_S)
    for _ in range(2):
        if by == "sweeper":
            await sweep(world)
        elif by == "person":
            await world.db.alone(control.remove, world.policy, task, by)
        else:
            await world.db.alone(
                retention.delete, world.policy, task, force=False, keep_transcript=True, actor=by
            )
    actor = "clutch" if by == "sweeper" else by
    assert await lines(world, task) == [
        ("clutch", "cleaned", "cleanup_pending → completed"),
        (actor, "archived", "completed → completed"),
    ]


async def test_a_task_that_worked_again_is_archived_with_a_line_of_its_own(world: World, main: int) -> None:
    task = await told(world, main)
    for again in range(2):
        world.clock.advance(HOUR_S)
        assert await sweep(world) == [task]
        assert (await lines(world, task))[-1] == ("clutch", "archived", "completed → completed")
        if not again:
            await world.db.alone(
                control.again, world.policy, task, "continue", "a:1", text="more", actor="person"
            )
            await world.end(task, "and this")
            world.clock.advance(2)
            await (await world.start(main)).finish("heard")


async def test_a_result_for_an_archived_requester_rises_to_its_requester(world: World, main: int) -> None:
    """The parent was told without it, and was archived, even its words are gone; then it comes."""
    keeping(world, transcript_after_s=0.0)
    parent = await world.child(main, "parent")
    run = await world.start(parent)
    grandchild = await world.child(parent, "grandchild")
    late = await world.start(grandchild)
    await run.finish("without it")
    world.clock.advance(world.policy.life.settle_expiry_s + 1)
    await world.ring()
    world.clock.advance(2)
    await (await world.start(main)).finish("heard")
    world.clock.advance(HOUR_S)
    assert await sweep(world) == [parent]
    assert await words(world, parent) == 0
    await late.finish("better late")
    world.clock.advance(2)
    await (await world.start(main)).finish("heard that, too")
    task = await world.task(grandchild)
    assert (task.phase, task.outcome, task.delivery) == (Phase.COMPLETED, Outcome.OK, Delivery.DELIVERED)
    assert "better late" in (await world.inputs(main))[-1]
    assert (await world.letter(grandchild)).session_id == main


@pytest.mark.scenario(217)
async def test_a_kill_reaches_below_a_deleted_requester(world: World, main: int) -> None:
    top = await world.child(main, "top")
    first = await world.start(top)
    parent = await world.child(top, "parent")
    run = await world.start(parent)
    grandchild = await world.child(parent, "grandchild")
    await world.start(grandchild)
    await run.finish("without it")
    world.clock.advance(world.policy.life.settle_expiry_s + 1)
    await world.ring()
    await first.step()
    session = await world.session(parent)
    assert session.closed
    await world.db.alone(forget, parent)
    report = await world.db.alone(control.kill, world.policy, top, "enough", "person")
    assert grandchild in report.stopped
    assert (await world.task(grandchild)).outcome is Outcome.KILLED


def forget(now: float, session_id: int) -> Any:
    session = yield from sessions.lock(session_id)
    assert session is not None
    yield from retention.forget(now, Policy(), session, RemovalReason.SWEPT)
    yield from sessions.save(now, Policy(), session)


async def test_task_in_delete_mode_leaves_lists_and_quota_once_it_is_delivered(
    world: World, main: int
) -> None:
    world.policy = replace(
        world.policy, limits=replace(world.policy.limits, retained_max=1, evicts_delivered=False)
    )
    task = await world.child(main, "fleeting", cleanup=CleanupPolicy.DELETE)
    await world.end(task, "the finding")
    world.clock.advance(2)
    await (await world.start(main)).finish("delivered")
    await world.clean(task)
    for shown in (status.children, status.tree):
        assert ids.task_id(task) not in await world.db.alone(shown, world.policy, "person", main)
    await world.child(main, "the next one has its place")
    kept = await world.db.read(lists.result, task)
    assert kept is not None
    assert kept.text == "the finding"
    assert await world.one("SELECT COUNT(*) FROM usage WHERE session_id = ?", task) == 1
    assert (await world.timeline(task))[-2:] == ["delivered: direct", "deleted"]


async def test_removed_task_is_not_in_the_tree(world: World, main: int) -> None:
    task = await world.child(main, "done")
    await world.end(task, "the finding")
    world.clock.advance(2)
    await (await world.start(main)).finish("delivered")
    await world.db.alone(control.remove, world.policy, task, "person")
    assert ids.task_id(task) not in await world.db.alone(status.tree, world.policy, "person", main)


# --------------------------------------------------------------------------------------------------
# Details: timelines, sent messages, the ledger. Nothing goes by default.


async def numbered(world: World, task_id: int) -> list[int]:
    return [line.seq for line in await world.db.read(timeline, task_id)]


def told_of(found: TaskExplanation | None) -> str:
    assert found is not None
    return "\n".join(why_lines(found.timeline, found.attempts, found.stuck, "task", now=0.0))


async def trim(world: World) -> int:
    """As the sweeper does it; returns the number of commits."""
    commits = 0
    while found := await world.db.read(retention.trimmable, world.policy, 0.0):
        await world.db.alone(retention.trim, world.policy, found)
        commits += 1
    return commits


async def test_by_default_nothing_of_a_timeline_is_deleted(world: World, main: int) -> None:
    task = await told(world, main)
    world.clock.advance(HOUR_S)
    await sweep(world)
    world.clock.advance(10_000 * HOUR_S)
    before = await numbered(world, task)
    assert await trim(world) == 0
    assert await numbered(world, task) == before == list(range(1, len(before) + 1))


async def test_a_timeline_goes_in_bounded_batches_and_says_what_is_missing(
    world: World, main: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash between two batches the timeline has a gap, and all deliveries are there."""
    keeping(world, timeline_after_s=60.0)
    task = await world.child(main, "child")
    await world.end(task, "the finding")
    world.clock.advance(2)
    await (await world.start(main)).fail("the provider is down")
    world.clock.advance(HOUR_S)
    await (await world.start(main)).finish("heard")
    deliveries = "SELECT outcome FROM deliveries WHERE task_id = ? ORDER BY id"
    tried = await world.rows(deliveries, task)
    world.clock.advance(HOUR_S)
    await sweep(world)
    assert TRIMMED not in told_of(await world.db.read(why, task))
    assert await world.db.read(retention.trimmable, world.policy, 0.0) == [], "not before its time"
    world.clock.advance(61)
    monkeypatch.setattr(retention, "ROWS_MAX", 2)
    before = await numbered(world, task)
    (found,) = await world.db.read(retention.trimmable, world.policy, 0.0)
    await world.db.alone(retention.trim, world.policy, [found])
    assert await numbered(world, task) == before[2:]
    assert await world.rows(deliveries, task) == tried
    assert TRIMMED in told_of(await world.db.read(why, task))
    assert await trim(world) == (len(before) - 1 - 2 + 1) // 2
    assert await numbered(world, task) == before[-1:], "the last line says when it was archived"
    assert await world.rows(deliveries, task) == [row for row in tried if row == ("delivered",)]
    assert len(tried) > 1
    assert (await world.task(task)).result == "the finding"


async def test_no_line_of_an_undelivered_or_active_task_is_deleted(world: World, main: int) -> None:
    keeping(world, timeline_after_s=0.0)
    again = await told(world, main, "again")
    dead = await given_up(world, main)
    await world.db.alone(
        retention.delete, world.policy, dead, force=True, keep_transcript=True, actor="operator"
    )
    world.clock.advance(HOUR_S)
    await sweep(world)
    assert await world.one("SELECT archived_at FROM tasks WHERE id = ?", dead) is not None
    before = await numbered(world, again)
    found = await world.db.read(retention.trimmable, world.policy, 0.0)
    assert found == [again]
    await world.db.alone(control.again, world.policy, again, "retry", "retry:1", text="", actor="person")
    await world.db.alone(retention.trim, world.policy, [*found, dead])
    assert (await numbered(world, again))[: len(before)] == before, "it works again since it was found"
    assert await numbered(world, dead) == list(range(1, 1 + len(await numbered(world, dead))))
    await world.live()


async def test_a_task_that_works_again_after_its_timeline_went_continues_it(world: World, main: int) -> None:
    keeping(world, timeline_after_s=0.0)
    task = await told(world, main)
    world.clock.advance(HOUR_S)
    await sweep(world)
    await trim(world)
    (last,) = await numbered(world, task)
    await world.db.alone(control.again, world.policy, task, "retry", "retry:1", text="", actor="person")
    await world.live()
    lines = await numbered(world, task)
    assert lines == list(range(last, last + len(lines)))
    assert len(lines) > 3


async def test_a_long_transcript_goes_in_bounded_batches_and_is_not_shown_between_them(
    world: World, main: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeping(world, transcript_after_s=60.0)
    monkeypatch.setattr(retention, "ENTRIES_MAX", 3)
    task = await world.child(main)
    run = await world.start(task)
    for _ in range(4):
        await run.step()
    await run.finish("at last")
    world.clock.advance(2)
    await (await world.start(main)).finish("heard")
    assert await words(world, task) == 10
    world.clock.advance(HOUR_S)
    while found := await world.db.read(retention.due, world.policy):
        await world.db.alone(retention.archive, world.policy, found)
    world.clock.advance(61)
    await world.db.alone(retention.fade, world.policy, [task])
    left = []
    while await words(world, task):
        left.append(await words(world, task))
        shown = await world.db.read(transcripts.history, task, world.policy.history)
        assert [entry.text for entry in shown.entries] == ["at last"], "its result, as when all is deleted"
        assert await world.db.read(retention.leftover) == task
        await world.db.alone(retention.shorten, world.policy, task)
    assert left == [7, 4, 1]
    assert await world.db.read(retention.leftover) is None


async def test_sent_messages_go_after_their_time_and_results_and_unsent_ones_stay(
    world: World, main: int
) -> None:
    await world.db.tx(main, write, "UPDATE sessions SET route = 'chat:1' WHERE id = ?", main)
    for number in range(5):
        await world.db.tx(main, outbox.post, main, f"note:{number}", "chat:1", "a note")
    await world.db.tx(
        main, outbox.post_result, main, "chat:1", Verbatim(7, 1, "agent:main:subagent:x", "the result")
    )
    await world.db.tx(main, outbox.cancelled, main, "a message that stays cancelled")
    await world.db.tx(main, write, "UPDATE outbox SET done_at = ?, due = NULL WHERE idem <> 'note:4'", 1000.0)
    rows = await world.rows("SELECT id, idem FROM outbox ORDER BY id")
    assert await world.db.read(outbox.sent_before, 999.0, 0, 10) == []
    first = await world.db.read(outbox.sent_before, 1000.0, 0, 3)
    rest = await world.db.read(outbox.sent_before, 1000.0, first[-1], 3)
    assert [first, rest] == [[row[0] for row in rows[:3]], [rows[3][0]]]
    await world.db.alone(outbox.delete_sent, [row[0] for row in rows[:5]])
    assert await world.rows("SELECT id, idem FROM outbox ORDER BY id") == rows[4:]
    await world.db.tx(main, write, "DELETE FROM outbox")


async def ledger(world: World) -> list[Any]:
    """Without the order of the rows, which PostgreSQL chooses."""
    return [
        sorted(await world.db.read(costs.ledger, 0.0, unit, offset_s, by_tree=True), key=repr)
        for unit in (BarUnit.DAY, BarUnit.HOUR)
        for offset_s in (0.0, 5.75 * 3600)
    ]


@pytest.mark.parametrize("batch", [2, 5, 1000])
async def test_old_calls_are_added_up_and_every_cost_stays_right(world: World, main: int, batch: int) -> None:
    keeping(world, usage_after_s=A_DAY_S)
    await world.tell(main, "a message")
    run = await world.start(main)
    for number in range(30):
        await run.step()
        world.clock.advance(100 if number % 10 else HOUR_S)
    await run.finish("done", usd="0.25")
    await world.db.tx(
        main,
        write,
        "UPDATE usage SET usd = CASE WHEN call_no % 7 = 0 THEN NULL ELSE '0.000000000001' END, effective ="
        " CASE WHEN call_no % 11 = 0 THEN 'dated' ELSE effective END WHERE session_id = ? AND call_no < 31",
        main,
    )
    before, calls = await ledger(world), await world.rows("SELECT * FROM usage")
    assert await world.db.read(usage.summable, 0.0, LedgerPlace(0, 0), batch) == (None, False), "none is old"
    place: LedgerPlace | None = LedgerPlace(0, 0)
    while place is not None:
        found = await world.db.read(usage.summable, world.clock.now(), place, batch)
        for _ in range(2):  # of two gateways that find the same, the second changes nothing
            await world.db.alone(usage.sum_up, world.clock.now(), place, batch)
        place = found.next
    assert await ledger(world) == before
    left = await world.rows("SELECT call_no, calls FROM usage ORDER BY call_no")
    assert len(left) < len(calls)
    assert sum(row[1] for row in left) == len(calls)
    assert left[-1][0] == len(calls), "the next call has the next number"


async def test_old_answers_to_repeated_requests_leave_a_few_at_a_time(
    world: World, main: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "LEAVING_MAX", 3)
    for number in range(8):
        await world.db.tx((), idempotency.keep, f"key {number}", "request", 200, "body")
    world.clock.advance(25 * HOUR_S)
    kept = await world.db.tx((), idempotency.keep, "key 7", "request", 200, "another")
    assert kept.body == "another", "an old answer is none, even if it is not deleted yet"
    assert await world.one("SELECT COUNT(*) FROM replies") == 8 - 1 - 3 + 1
