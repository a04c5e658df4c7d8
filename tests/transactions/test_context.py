"""What surrounds a conversation is read from the rows, and a summary or a fork's copy leaves no gap in it."""

from __future__ import annotations

import pytest

from clutch.core.compaction import ContextLimits, cut, forked, summary, view
from clutch.core.messages import Answer, Call, Input, Summary
from clutch.core.model import LetterKind, Outcome, Phase, Plan
from clutch.store.transaction import Tx
from clutch.transactions import transcript, wake
from clutch.transactions.read import transcripts
from clutch.transactions.read.transcripts import Around
from clutch.transactions.sessions import Stale
from tests.transactions.world import Run, World, write

pytestmark = pytest.mark.anyio

RULES = ContextLimits()
TINY = ContextLimits(window_tokens=2000, keep_tokens=300)


async def around(world: World, session_id: int, rules: ContextLimits = RULES) -> Around:
    return await world.db.read(transcripts.around, session_id, rules)


async def happened(world: World, session_id: int, *bodies: str) -> None:
    for body in bodies:
        await world.db.tx(
            session_id,
            write,
            "INSERT INTO system_events(session_id, body, at) VALUES(?, ?, ?)",
            session_id,
            body,
            world.clock.now(),
        )


async def spent(world: World, parent: int, label: str) -> int:
    """A child that has ended and whose result was told."""
    child = await world.child(parent, label)
    await world.end(child)
    await world.live()
    return child


# ---- children --------------------------------------------------------------------------------------------


async def test_children_are_shown_with_phase_label_and_age(world: World, main: int) -> None:
    run = await world.started(main, "AI research")
    world.clock.advance(150)
    waiting = await world.child(main, "later", plan_mode=True)
    shown = await around(world, main)
    assert [(child.label, child.phase, child.plan, child.outcome) for child in shown.active] == [
        ("AI research", Phase.RUNNING, Plan.NONE, None),
        ("later", Phase.QUEUED, Plan.DRAFTING, None),
    ]
    assert [round(child.age_s) for child in shown.active] == [150, 0]
    assert not shown.recent
    assert not shown.is_more
    assert (await around(world, run.session_id)) == Around()
    assert waiting != run.session_id


async def test_a_told_child_is_recent_for_half_an_hour(world: World, main: int) -> None:
    await spent(world, main, "over")
    world.clock.advance(600)
    (child,) = (await around(world, main)).recent
    assert (child.label, child.outcome) == ("over", Outcome.OK)
    assert child.age_s >= 600
    assert not (await around(world, main)).active
    world.clock.advance(1300)
    assert not (await around(world, main)).recent


async def test_never_more_than_so_many_and_the_newest_of_the_ended(world: World, main: int) -> None:
    for number in range(4):
        await spent(world, main, f"ended {number}")
        world.clock.advance(1)
    for number in range(4):
        await world.child(main, f"active {number}")
    shown = await around(world, main, ContextLimits(active_children_max=3, recent_children_max=2))
    assert [child.label for child in shown.active] == ["active 0", "active 1", "active 2"]
    assert shown.is_more
    assert [child.label for child in shown.recent] == ["ended 3", "ended 2"]
    whole = await around(world, main, ContextLimits(active_children_max=4))
    assert not whole.is_more


async def test_grandchildren_and_strangers_are_not_shown(world: World, main: int) -> None:
    child = await world.child(main, "mine")
    await world.child(child, "grandchild")
    assert [one.label for one in (await around(world, main)).active] == ["mine"]
    assert [one.label for one in (await around(world, child)).active] == ["grandchild"]


# ---- events ----------------------------------------------------------------------------------------------


def consume(now: float, session_id: int, run_id: int, upto: int) -> Tx[None]:
    yield from wake.consume_events(session_id, run_id, upto)


async def test_the_newest_events_are_shown_once_oldest_first(world: World, main: int) -> None:
    await happened(world, main, *(f"event {number}" for number in range(25)))
    shown = await around(world, main)
    assert shown.events == tuple(f"event {number}" for number in range(5, 25))
    await happened(world, main, "meanwhile")
    await world.db.tx(main, consume, main, 77, shown.events_upto)
    assert (await around(world, main)).events == ("meanwhile",)


# ---- compaction ------------------------------------------------------------------------------------------


async def long_run(world: World, main: int, steps: int = 12) -> Run:
    run = await world.started(main, "long")
    for _ in range(steps):
        await run.respond(Answer("x" * 600, (*_reading(),), stop="tools"))
        await run.results("y" * 400)
    return run


def _reading() -> tuple[Call, ...]:
    return (Call("read", {}),)


async def compact(world: World, run: Run, made: Summary) -> int:
    return await world.db.tx(run.session_id, transcript.compact, run.owned, made)


async def test_a_summary_shortens_what_is_shown_and_nothing_is_lost(world: World, main: int) -> None:
    run = await long_run(world, main)
    before = await world.transcript(run.session_id)
    chosen = cut(before, 0, TINY)
    assert chosen is not None
    head = await compact(world, run, summary(chosen, "notes"))
    after = await world.transcript(run.session_id)
    assert (head, after[:-1]) == (len(before) + 1, before)
    known = (await world.db.read(transcripts.briefing, run.session_id)).transcript
    shown = view(known, run.begun.base)
    assert len(shown) < len(before)
    assert shown[0] == before[0]


async def test_a_run_goes_on_after_its_summary_and_after_a_crash(world: World, main: int) -> None:
    run = await long_run(world, main)
    chosen = cut(await world.transcript(run.session_id), 0, TINY)
    assert chosen is not None
    await compact(world, run, summary(chosen, "notes"))
    await run.step()
    await world.die()
    await world.live()
    assert (await world.task(run.session_id)).outcome is Outcome.OK


async def test_a_retried_task_is_shown_nothing_of_its_former_life(world: World, main: int) -> None:
    run = await long_run(world, main)
    head = len(await world.transcript(run.session_id))
    base = await compact(world, run, Summary("notes", head))
    await world.db.tx(run.session_id, write, "UPDATE sessions SET base = head WHERE id = ?", run.session_id)
    known = (await world.db.read(transcripts.briefing, run.session_id)).transcript
    assert (base, view(known, base)) == (head + 1, ())


async def test_only_the_owner_compacts(world: World, main: int) -> None:
    run = await long_run(world, main, steps=1)
    await world.die()
    with pytest.raises(Stale):
        await compact(world, run, Summary("notes", 1))


async def test_nothing_comes_between_an_answer_and_its_results(world: World, main: int) -> None:
    run = await world.started(main, "busy")
    await run.respond(Answer("", _reading(), stop="tools"))
    with pytest.raises(AssertionError, match="open calls"):
        await compact(world, run, Summary("notes", 1))
    with pytest.raises(AssertionError, match="open calls"):
        await compact(world, run, Summary("notes", 2))
    await run.results()


async def test_a_summary_covers_only_what_there_is(world: World, main: int) -> None:
    run = await long_run(world, main, steps=1)
    for upto in (0, 4):
        with pytest.raises(AssertionError, match=f"no entry {upto}"):
            await compact(world, run, Summary("notes", upto))


# ---- fork ------------------------------------------------------------------------------------------------


async def test_a_forked_child_begins_with_its_callers_words_and_then_its_task(
    world: World, main: int
) -> None:
    await world.tell(main, "please delegate")
    run = await world.start(main)
    await run.step()
    said = await world.transcript(main)
    copied = forked(said, 0, RULES.fork_bytes_max)
    assert copied is not None
    child = await world.child(main, "copy")
    await world.db.tx(child, transcript.fork, child, copied)
    forked_run = await world.start(child)
    known = await world.db.read(transcripts.briefing, child)
    *before, task = known.transcript
    assert before == copied
    assert isinstance(task, Input)
    assert (task.source, task.text.endswith("do copy")) == (LetterKind.TASK, True)
    assert known.steps == 0
    assert forked_run.begun.head == len(copied) + 1


async def test_a_forked_child_that_says_nothing_does_not_report_its_callers_words(
    world: World, main: int
) -> None:
    child = await world.child(main, "copy")
    await world.db.tx(child, transcript.fork, child, [Input("hi"), Answer("secret words")])
    run = await world.start(child)
    await run.fail("broken", is_final=True)
    assert (await world.task(child)).result in (None, "")
