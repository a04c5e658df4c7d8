"""Letters, holds and waits in every order: nobody sleeps through what was written to it.

In every order nothing is told twice, no lock is waited for for ever, the limits hold; and left alone afterwards,
with the worker dead, everything finishes (`Stage.every_order` looks).
"""

from __future__ import annotations

import pytest

from clutch.core.model import Outcome, Phase
from tests.transactions.interleavings.parts import (
    beginning,
    claiming,
    fan_out,
    finishing,
    heard_once,
    held,
    is_woken,
    killing,
    posting,
    ringing,
    told,
    waking,
    yielding,
)
from tests.transactions.interleavings.two_connections import Ended, Stage
from tests.transactions.world import Run, World, calls

pytestmark = pytest.mark.anyio


# ---- 1. a letter commits, its receiver is released ---------------------------------------------------


async def test_letter_is_not_slept_through_by_a_release(stage: Stage, world: World, main: int) -> None:
    await world.tell(main, "go")
    run = await world.start(main)

    async def check(*_: Ended) -> None:
        await is_woken(world, main)

    await stage.every_order(posting(world, main), finishing(run), check)


async def test_letter_and_its_mailman_are_not_slept_through_by_a_release(
    stage: Stage, world: World, main: int
) -> None:
    """The mailman comes while the release has already looked into the inbox, and never comes again."""
    await world.tell(main, "go")
    run = await world.start(main)

    async def check(*_: Ended) -> None:
        await is_woken(world, main)

    await stage.every_order([posting(world, main), waking(world, main)], finishing(run), check)


async def test_finding_is_not_slept_through_by_a_release(stage: Stage, world: World, main: int) -> None:
    run, (child,) = await fan_out(world, main, "child")

    async def check(*_: Ended) -> None:
        await is_woken(world, main)

    await stage.every_order([finishing(child), waking(world, main)], finishing(run), check)


async def test_letter_is_not_slept_through_by_the_mailman_himself(
    stage: Stage, world: World, main: int
) -> None:
    await world.tell(main, "first")

    async def check(*_: Ended) -> None:
        await is_woken(world, main)

    await stage.every_order(posting(world, main, "second"), waking(world, main), check)


async def test_letter_is_not_slept_through_by_a_yield(stage: Stage, world: World, main: int) -> None:
    run, (child,) = await fan_out(world, main, "child")
    await run.respond(calls("sessions_yield"))

    async def check(a: Ended, b: Ended) -> None:
        assert await world.due(main) == world.clock.now()

    await stage.every_order([finishing(child), waking(world, main)], yielding(run), check)


# ---- 2. the last two children settle at once ---------------------------------------------------------


async def test_last_two_children_wake_their_parent_once(stage: Stage, world: World, main: int) -> None:
    first, second = await held(world, main, "first", "second")

    async def check(*_: Ended) -> None:
        assert await world.due(main) == world.clock.now()
        await (await world.start(main)).finish("both")
        assert (await world.inputs(main))[-1].startswith("[2 background tasks completed]")

    await stage.every_order(
        [finishing(first), waking(world, main)], [finishing(second), waking(world, main)], check
    )


async def test_last_child_settles_while_the_mailman_looks(stage: Stage, world: World, main: int) -> None:
    first, second = await held(world, main, "first", "second")
    await first.finish()

    async def check(*_: Ended) -> None:
        assert await world.due(main) == world.clock.now()

    await stage.every_order(finishing(second), waking(world, main), check)


# ---- 3. the last child ends after the parent's last words --------------------------------------------


@pytest.mark.scenario(102)
async def test_child_that_ends_during_the_parents_last_words_is_heard_first(
    stage: Stage, world: World, main: int
) -> None:
    parent = await world.started(main, "parent")
    child = await world.started(parent.session_id, "child")

    async def check(*_: Ended) -> None:
        assert (await world.task(parent.session_id)).phase is Phase.ANNOUNCE_DEFERRED
        await is_woken(world, parent.session_id)
        await world.live()
        assert await told(world, parent.session_id, "deep finding") == 1
        assert await told(world, main, '"parent"') == 1

    ends = [finishing(child, "deep finding"), waking(world, parent.session_id)]
    await stage.every_order(ends, finishing(parent), check)


async def test_grandchild_and_child_end_at_once_below_a_deferred_parent(
    stage: Stage, world: World, main: int
) -> None:
    parent = await world.started(main, "parent")
    child = await world.started(parent.session_id, "child")
    grandchild = await world.started(child.session_id, "grandchild")
    await parent.finish("my part")

    async def check(*_: Ended) -> None:
        assert (await world.task(parent.session_id)).phase is Phase.ANNOUNCE_DEFERRED
        await world.live()
        assert await told(world, child.session_id, "deep finding") == 1
        assert await told(world, main, '"parent"') == 1

    await stage.every_order(finishing(grandchild, "deep finding"), finishing(child), check)


# ---- 8. a hold, and what else may wake it --------------------------------------------------------------


async def test_held_session_answers_its_person_and_still_hears_its_child(
    stage: Stage, world: World, main: int
) -> None:
    (child,) = await held(world, main, "child")

    async def check(*_: Ended) -> None:
        assert await world.due(main) == world.clock.now()
        await (await world.start(main)).finish("to the person")
        assert (await world.inputs(main))[-1] == "how is it going?"
        assert (await world.session(main)).hold == 1
        await (await world.start(main)).finish("and the rest")
        assert await told(world, main, "deep finding") == 1

    await stage.every_order(
        [finishing(child, "deep finding"), waking(world, main)],
        [posting(world, main, "how is it going?"), waking(world, main)],
        check,
    )


async def test_held_session_is_woken_when_all_its_children_were_killed(
    stage: Stage, world: World, main: int
) -> None:
    first, second = await held(world, main, "first", "second")

    async def check(*_: Ended) -> None:
        assert await world.due(main) == world.clock.now()
        await (await world.start(main)).finish("nothing")
        assert (await world.inputs(main))[-1].count("Not among these") == 2

    await stage.every_order(killing(world, first.session_id), killing(world, second.session_id), check)


async def test_held_session_whose_children_end_and_are_killed(stage: Stage, world: World, main: int) -> None:
    first, second = await held(world, main, "first", "second")

    async def check(*_: Ended) -> None:
        assert await world.due(main) == world.clock.now()
        await (await world.start(main)).finish("one of them")
        text = (await world.inputs(main))[-1]
        assert "first words" in text
        assert 'Not among these: "second"' in text

    await stage.every_order(finishing(first, "first words"), killing(world, second.session_id), check)


# ---- 9. the wait expires -------------------------------------------------------------------------------


async def expiring(world: World, main: int) -> tuple[Run, Run]:
    """A deferred parent whose wait is over, and its child that is about to end."""
    parent = await world.started(main, "parent")
    child = await world.started(parent.session_id, "child")
    await parent.finish("my part")
    world.clock.advance(1801)
    return parent, child


async def test_finding_of_a_child_whose_parent_expires_is_heard_by_somebody(
    stage: Stage, world: World, main: int
) -> None:
    parent, child = await expiring(world, main)

    async def check(*_: Ended) -> None:
        await heard_once(world, "deep finding")
        assert await told(world, main, '"parent"') == 1

    await stage.every_order(ringing(world, parent.session_id), finishing(child, "deep finding"), check)


@pytest.mark.parametrize("what", ["wake", "claim", "begin"])
async def test_parent_that_expires_while_it_is_woken(
    stage: Stage, world: World, main: int, what: str
) -> None:
    parent, child = await expiring(world, main)
    await child.finish("deep finding")
    world.clock.advance(1801)
    if what != "wake":
        await world.mail()
    if what == "begin":
        await world.claim()
        other = beginning(world, parent.session_id)
    else:
        other = waking(world, parent.session_id) if what == "wake" else claiming(world)

    async def check(*_: Ended) -> None:
        await heard_once(world, "deep finding")

    await stage.every_order(ringing(world, parent.session_id), other, check)


async def test_deadline_and_finish_make_one_outcome(stage: Stage, world: World, main: int) -> None:
    run = await world.started(main, run_timeout_s=100.0)
    world.clock.advance(100)

    async def check(_: Ended, finished: Ended) -> None:
        outcome = (await world.task(run.session_id)).outcome
        assert outcome is (Outcome.TIMEOUT if finished.error else Outcome.OK)

    await stage.every_order(ringing(world, run.session_id), finishing(run), check)
