"""A child with a thread: people talk to it there, in session mode also after its task, until somebody ends that."""

from __future__ import annotations

from typing import Any

import pytest

from clutch.core import delivery
from clutch.core.messages import Input
from clutch.core.model import Phase, Route
from clutch.core.spawn import Mode
from clutch.errors import IdempotencyConflict, NotFound
from clutch.transactions import control, messages, sessions, task_files
from clutch.transactions.sessions import ThreadTaken
from tests.transactions.world import World

pytestmark = pytest.mark.anyio

THREAD = Route("web", "bot", None, "7")
DAY = 86_400.0


async def bound(
    world: World, parent: int, label: str = "talker", thread: Route = THREAD, **asked: Any
) -> int:
    child = await world.child(parent, label, thread=True, **({"mode": Mode.SESSION} | asked))
    known = (task_files.ready, world.policy, child, None, thread)
    assert await world.db.tx(child, *known)  # type: ignore[arg-type, call-arg]
    return child


async def say(world: World, text: str, thread: str = "7", key: str | None = None) -> int:
    known = (world.policy, ("web", "bot", thread), key or world.key("heard"), text)
    return await world.db.alone(messages.heard_in_thread, *known)


async def posted(world: World) -> list[tuple[str, str, str]]:
    rows = await world.rows("SELECT channel, target, body FROM outbox ORDER BY id")
    return [(channel, target, body) for channel, target, body in rows]


async def is_bound(world: World, session_id: int) -> bool:
    rows = await world.rows("SELECT 1 FROM bindings WHERE session_id = ?", session_id)
    assert bool(rows) == bool(await world.one("SELECT bound FROM sessions WHERE id = ?", session_id))
    return bool(rows)


@pytest.fixture
async def talker(world: World, main: int) -> int:
    """In session mode; its task is done and told."""
    child = await bound(world, main)
    await world.end(child, "first findings")
    await world.mail()
    world.clock.advance(2)
    await world.end(main, "it has found something")
    return child


@pytest.mark.scenario(156)
async def test_the_first_end_is_announced_and_later_words_are_answered_in_the_thread(
    world: World, main: int, talker: int
) -> None:
    assert (await world.task(talker)).phase is Phase.COMPLETED
    assert (await world.session(talker)).closed == 0
    before = await world.rows("SELECT id FROM inbox WHERE kind = 'announce'")
    assert await say(world, "and the second?") == talker
    await (await world.start(talker)).finish("second findings")
    await say(world, "and the third?")
    await (await world.start(talker)).finish("third findings")
    answers = [(channel, body) for channel, _, body in await posted(world) if body.endswith("findings")]
    assert answers == [("web", "second findings"), ("web", "third findings")]
    assert await world.rows("SELECT id FROM inbox WHERE kind = 'announce'") == before
    task = await world.task(talker)
    assert (task.phase, task.result, task.generation) == (Phase.COMPLETED, "first findings", 1)


async def test_a_child_says_nothing_in_a_channel_before_its_task_has_ended(world: World, main: int) -> None:
    child = await bound(world, main)
    await world.end(child, "first findings")
    assert await posted(world) == []


async def test_two_messages_in_a_row_are_both_answered(world: World, talker: int) -> None:
    await say(world, "one")
    run = await world.start(talker)
    await say(world, "two")
    await run.finish("to one")
    await (await world.start(talker)).finish("to two")
    assert [body for _, _, body in await posted(world)][-2:] == ["to one", "to two"]


async def test_words_in_the_thread_of_a_working_child_reach_it(world: World, main: int) -> None:
    child = await bound(world, main, mode=Mode.RUN)
    run = await world.start(child)
    await say(world, "look at the cellar, too")
    await run.step()
    said = [one.text for one in await world.transcript(child) if isinstance(one, Input)]
    assert said[-1] == "look at the cellar, too"


@pytest.mark.scenario(96)
@pytest.mark.parametrize("mode", list(Mode))
async def test_the_reply_to_a_result_goes_to_the_thread_of_the_child(
    world: World, main: int, mode: Mode
) -> None:
    child = await bound(world, main, mode=mode)
    plain = await world.child(main, "plain")
    for one in (child, plain):
        await world.end(one)
    await world.mail()
    world.clock.advance(2)
    await (await world.start(main)).finish("the first has found something")
    await (await world.start(main)).finish("the other, too")
    assert [(channel, body) for channel, _, body in await posted(world)] == [
        ("web", "the first has found something"),
        ("terminal", "the other, too"),
    ]


async def test_in_run_mode_the_thread_is_free_when_the_task_has_ended(world: World, main: int) -> None:
    child = await bound(world, main, mode=Mode.RUN)
    assert await is_bound(world, child)
    await world.end(child)
    with pytest.raises(NotFound, match="thread"):
        await say(world, "hello?")
    assert await world.db.read(sessions.session_of, THREAD.channel, "bot", "7") is None
    other = await bound(world, main, "other")
    assert await say(world, "hello?") == other


async def test_a_killed_childs_thread_is_free_at_once(world: World, main: int) -> None:
    child = await bound(world, main)
    await world.db.alone(control.kill, world.policy, child, "enough", "person")
    assert not await is_bound(world, child)


async def test_a_session_that_stays_and_is_idle_counts_nowhere(world: World, main: int, talker: int) -> None:
    active = await world.one(
        "SELECT COUNT(*) FROM tasks WHERE phase NOT IN ('cleanup_pending', 'completed', 'completed_giveup')"
    )
    assert active == 0
    assert (await world.session(talker)).due is None


@pytest.mark.scenario(156)
async def test_a_kill_ends_the_session_and_keeps_the_outcome(world: World, talker: int) -> None:
    await say(world, "one")
    await world.start(talker)
    report = await world.db.alone(control.kill, world.policy, talker, "enough", "person")
    assert report.stopped == (talker,)
    assert not await is_bound(world, talker)
    assert (await world.session(talker)).closed == 1
    assert (await world.task(talker)).outcome == "ok"
    again = await world.db.alone(control.kill, world.policy, talker, "enough", "person")
    assert (again.stopped, again.already_finished) == ((), (talker,))


async def test_a_kill_above_ends_it_too(world: World, main: int) -> None:
    parent = await world.child(main, "parent")
    child = await bound(world, parent)
    await world.end(child)
    await world.db.alone(control.kill, world.policy, parent, "enough", "person")
    assert not await is_bound(world, child)
    assert (await world.session(child)).closed == 1


async def test_unfocus_ends_it(world: World, talker: int) -> None:
    assert await world.db.alone(messages.unfocus, world.policy, THREAD, "person")
    assert not await is_bound(world, talker)
    assert (await world.session(talker)).closed == 1
    assert not await world.db.alone(messages.unfocus, world.policy, THREAD, "person")


async def test_whoever_has_two_threads_keeps_the_other_one(world: World, main: int, talker: int) -> None:
    """A chat that is given to a child, and then to another or taken back, is no reason to end what stays."""
    chat = delivery.local_route("agent:main:main")
    other = await bound(world, main, "other", Route("web", "bot", None, "8"))
    for child in (talker, other):
        await world.db.alone(messages.focus, world.policy, child, chat, "person")
        assert await is_bound(world, talker)
    assert await world.db.alone(messages.unfocus, world.policy, chat, "person")
    assert not await world.db.alone(messages.unfocus, world.policy, chat, "person")
    assert await is_bound(world, other)
    assert await say(world, "still there?") == talker


async def test_a_day_without_words_ends_it_and_words_keep_it(world: World, talker: int) -> None:
    world.clock.advance(DAY - 10)
    await say(world, "still there?")
    await (await world.start(talker)).finish("yes")
    world.clock.advance(11)
    await world.ring()
    assert await is_bound(world, talker)
    world.clock.advance(DAY)
    await world.ring()
    assert not await is_bound(world, talker)
    assert (await world.session(talker)).closed == 1


@pytest.mark.scenario(99)
async def test_a_late_result_goes_to_a_parent_in_session_mode_itself_and_is_answered_in_its_thread(
    world: World, main: int
) -> None:
    parent = await bound(world, main, "parent")
    run = await world.start(parent)
    (grandchild,) = await run.spawn("slow")
    await run.results()
    await run.finish("I have started somebody")
    world.clock.advance(world.policy.life.settle_expiry_s + 1)
    await world.ring()  # told without it
    assert (await world.task(parent)).outcome == "ok"
    await world.end(grandchild.task_id, "late findings")  # type: ignore[union-attr]
    await world.mail()
    letter = await world.rows(
        "SELECT session_id, late FROM inbox WHERE kind = 'announce' AND task_id = ?",
        grandchild.task_id,  # type: ignore[union-attr]
    )
    assert letter == [(parent, 0)]
    world.clock.advance(2)
    await (await world.start(parent)).finish("somebody has reported")
    assert [(channel, body) for channel, _, body in await posted(world)] == [("web", "somebody has reported")]


async def test_a_thread_belongs_to_one_session_and_may_be_given_to_another(
    world: World, main: int, talker: int
) -> None:
    other = await world.child(main, "other", thread=True)
    with pytest.raises(ThreadTaken):
        await world.db.tx(other, task_files.ready, world.policy, other, None, THREAD)
    third = await bound(world, main, "third", Route("web", "bot", None, "8"))
    await world.db.alone(messages.focus, world.policy, third, THREAD, "person")
    assert not await is_bound(world, talker)
    assert await say(world, "hello third") == third
    await world.db.alone(task_files.undo, world.policy, other, "test")


async def test_a_turn_in_the_thread_that_fails_says_so_there(world: World, talker: int) -> None:
    await say(world, "one")
    await (await world.start(talker)).fail("no model", is_final=True)
    assert [body for _, _, body in await posted(world)][-1] == "(this turn failed: no model)"
    assert (await world.task(talker)).phase is Phase.COMPLETED


async def test_other_words_under_a_used_key_are_refused_and_the_same_are_heard_once(
    world: World, main: int, talker: int
) -> None:
    await world.db.alone(messages.focus, world.policy, main, Route("web", "bot", None, "8"), "person")
    for session, thread in ((talker, "7"), (main, "8")):
        for _ in range(2):
            assert await say(world, "go on", thread, f"k{thread}") == session
        with pytest.raises(IdempotencyConflict):
            await say(world, "stop", thread, f"k{thread}")
        heard = await world.rows("SELECT body FROM inbox WHERE idem = ?", f"k{thread}")
        assert [body for (body,) in heard] == ["go on"]
