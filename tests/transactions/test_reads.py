"""What the control API reads and keeps, the same on every database: health, answers, the inbox, the stream, use."""

from __future__ import annotations

import pytest

from clutch.core import ids
from clutch.core.questions import QuestionKind
from clutch.errors import InvalidInput
from clutch.store.transaction import Tx
from clutch.testing.clock import FakeClock
from clutch.transactions import idempotency, workers
from clutch.transactions.questions import NewQuestion, call_body
from clutch.transactions.read import costs, timeline
from clutch.transactions.read.costs import By
from clutch.transactions.read.inbox import is_asking, waiting_items
from clutch.transactions.read.timeline import BEGINNING, Cursor
from clutch.transactions.turn_end import ask
from tests.transactions.world import World

pytestmark = pytest.mark.anyio


async def test_health_counts_what_works_and_what_waits(world: World, main: int) -> None:
    await world.started(main, "works")
    await world.child(main, "waits")
    found = await world.db.read(workers.health)
    assert (found.schema >= 2, found.workers, found.running, found.queued) == (True, 1, 1, 1)
    assert found.undelivered == 0


async def test_the_first_answer_stays_and_old_ones_leave(world: World, main: int, clock: FakeClock) -> None:
    db = world.db
    await db.alone(idempotency.keep, "k", "asked", 201, "first")
    await db.alone(idempotency.keep, "k", "asked", 200, "second")
    assert await db.read(idempotency.kept_reply, "k") == idempotency.Kept("asked", 201, "first")
    clock.advance(idempotency.KEPT_S + 1)
    assert await db.read(idempotency.kept_reply, "k") is None
    await db.alone(idempotency.keep, "other", "asked", 200, "new")
    assert await world.rows("SELECT key FROM replies") == [("other",)]


async def test_questions_and_plans_wait_in_one_inbox_oldest_first(
    world: World, main: int, clock: FakeClock
) -> None:
    asking = await world.started(main, "asks")
    question = NewQuestion(world.number(), 0, QuestionKind.QUESTION, '{"question": "Which?", "choices": []}')
    await asking._tx(ask, 1, [question], world.nonce())
    clock.advance(1)
    planning = await world.started(main, "plans", plan_mode=True)
    await planning.finish("the plan")
    first, second = await world.db.read(waiting_items)
    assert (first.id, first.kind, first.label, first.text) == (
        ids.question_id(question.id), "question", "asks", "Which?",
    )  # fmt: skip
    assert (second.id, second.kind, second.text) == (ids.task_id(planning.session_id), "plan", "the plan")
    assert second.asked_at > first.asked_at
    for session, expected in ((asking.session_id, True), (planning.session_id, True), (main, False)):
        assert await world.db.read(is_asking, [session]) is expected


async def test_what_is_to_be_approved_is_shown_with_its_invisible_characters(world: World, main: int) -> None:
    """S27: what a person approves is what will run."""
    asking = await world.started(main, "asks")
    body = call_body("shell", {"command": "rm \u202etxt.\u200bgpj\x1b[8m"})
    await asking._tx(ask, 1, [NewQuestion(world.number(), 0, QuestionKind.APPROVAL, body)], world.nonce())
    (item,) = await world.db.read(waiting_items)
    assert item.text == 'shell {"command": "rm \\u202etxt.\\u200bgpj\\u001b[8m"}'


async def test_the_stream_has_every_line_once_in_pages_from_any_place(world: World, main: int) -> None:
    for label in ("one", "two"):
        await world.end(await world.child(main, label))
    await world.live()
    everything = await world.db.read(timeline.after, BEGINNING, 1000)
    assert len(everything) == await world.one("SELECT COUNT(*) FROM events")
    place, paged = BEGINNING, []
    while page := await world.db.read(timeline.after, place, 3):
        paged += page
        place = page[-1].cursor
    assert paged == everything
    assert await world.db.read(timeline.newest) == everything[-1].cursor
    assert {moment.root_id for moment in everything} == {main}
    assert {"lifecycle:start", "lifecycle:end", "announce", "phase"} == {moment.name for moment in everything}


async def test_a_parent_that_waits_for_its_children_has_ended_without_an_error(
    world: World, main: int
) -> None:
    parent = await world.started(main, "parent")
    await world.child(parent.session_id, "child")
    await parent.finish("they still work")
    names = [one.name for one in await world.db.read(timeline.after, BEGINNING) if one.to_phase == "ending"]
    assert names == ["lifecycle:end"]


def test_a_cursor_is_read_as_it_was_written() -> None:
    for cursor in (Cursor(1.5, 7, 3), Cursor(1792000000.123456, 2**40, 999), BEGINNING, Cursor(1e-07, 1, 1)):
        assert timeline.parse(str(cursor)) == cursor
    for text in ("", "1", "1:t_1", "x:t_1:1", "1:t_l:1", "1:t_1:-1", "1e999:t_1:1x"):
        with pytest.raises(InvalidInput, match="after"):
            timeline.parse(text)


@pytest.mark.parametrize(
    ("by", "name"), [(By.ROOT, "agent:main:main"), (By.AGENT, "main"), (By.DAY, None), (By.MODEL, None)]
)
async def test_use_is_added_up_and_nothing_is_counted_twice(
    world: World, main: int, by: By, name: str | None
) -> None:
    await world.end(await world.child(main, "one"))
    await world.live()
    rows = await world.db.read(costs.spending, by)
    calls = await world.one("SELECT COUNT(*) FROM usage WHERE state > 0")
    assert sum(used.calls for _, used in rows) == calls > 0
    if name is not None:
        assert [row[0] for row in rows] == [name]


async def test_a_call_nobody_answered_is_counted_with_the_model_that_answers_to_its_name(
    world: World, main: int
) -> None:
    await world.end(await world.child(main, "one"))

    def cut_off(now: float) -> Tx[None]:
        yield "UPDATE usage SET effective = 'the-model-2026', model = 'the-model'", ()
        yield (
            "INSERT INTO usage(session_id, call_no, run_id, at, state, model) VALUES(?, 99, 1, ?, 2, 'the-model')",
            (main, now),
        )

    await world.db.alone(cut_off)
    ((name, used),) = await world.db.read(costs.spending, By.MODEL)
    assert (name, used.calls) == ("the-model-2026", 2)
