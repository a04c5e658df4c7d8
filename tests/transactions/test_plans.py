"""Plans on their way to whoever decides: asked for in any case, told again after a failed turn, never too long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clutch.core.authority import AgentGrant, ToolFilter, root_rights
from clutch.core.authority import to_text as rights_text
from clutch.core.events import PlanVerdict
from clutch.core.ids import plan_hash
from clutch.core.model import LetterKind, LetterState, Outcome, Phase
from clutch.core.policy import Control
from clutch.core.text.tasks import parse_fences
from clutch.transactions import control, messages
from clutch.transactions.read import transcripts
from tests.transactions.world import World, write

pytestmark = pytest.mark.anyio


async def test_plan_is_decided_even_if_the_child_of_the_planner_never_settles(
    world: World, main: int
) -> None:
    """And once more when that child settles after all: the new plan is another one to decide."""
    planner = await world.started(main, "planner", plan_mode=True)
    helper = await world.started(planner.session_id, "helper")
    await planner.finish("look, then leap")
    world.clock.advance(1801)
    await world.ring()
    asked = await world.task(planner.session_id)
    assert (asked.phase, asked.result, asked.outcome) == (
        Phase.AWAITING_APPROVAL,
        "look, then leap",
        None,
    )
    await (await world.start(main)).finish("I will think about it")
    assert plan_hash("look, then leap") in (await world.inputs(main))[-1]
    await helper.finish("there is a bridge")
    await (await world.start(planner.session_id)).finish("cross the bridge")
    old = (PlanVerdict.APPROVE, plan_hash("look, then leap"))
    with pytest.raises(control.PlanChanged):
        await world.db.alone(messages.decide, world.policy, planner.session_id, *old, text="", actor="person")
    await (await world.start(main)).finish("better")
    assert plan_hash("cross the bridge") in (await world.inputs(main))[-1]
    new = (PlanVerdict.APPROVE, plan_hash("cross the bridge"))
    await world.db.alone(messages.decide, world.policy, planner.session_id, *new, text="", actor="person")
    await world.live()
    done = await world.task(planner.session_id)
    assert (done.outcome, done.phase) == (Outcome.OK, Phase.COMPLETED)


@pytest.mark.parametrize("kind", [LetterKind.PLAN, LetterKind.NEWS])
async def test_what_a_failed_turn_read_of_a_child_is_read_again(
    world: World, main: int, kind: LetterKind
) -> None:
    world.policy = replace(world.policy, control=Control(announces_kill=True))
    child = await world.started(main, "child", plan_mode=True)
    if kind is LetterKind.PLAN:
        await child.finish("look, then leap")
    else:
        known = (world.policy, child.session_id, "enough", "person")
        await world.db.alone(control.kill, *known, nonce=world.nonce())
    waits = []
    for _ in range(3):
        await (await world.start(main)).fail("no model")
        due = await world.due(main)
        assert due is not None
        waits.append(due - world.clock.now())
        world.clock.set(due)
    assert waits[:2] == [1, 2]
    assert 12 <= waits[2] <= 18
    assert await world.rows("SELECT body FROM outbox") == [], "nobody needs to know before it is given up"
    await (await world.start(main)).finish("heard")
    assert len(await world.inputs(main)) == 1, "it stands in the transcript once"
    state = "SELECT state FROM inbox WHERE session_id = ? AND kind = ?"
    assert await world.one(state, main, kind.value) == LetterState.ANSWERED


async def test_plan_that_nobody_could_be_told_of_waits_for_a_person_who_hears_why(
    world: World, main: int
) -> None:
    rules = replace(world.policy.announcing, fast_tries=1, slow=False)
    world.policy = replace(world.policy, announcing=rules)
    planner = await world.started(main, "planner", plan_mode=True)
    await planner.finish("look, then leap")
    await (await world.start(main)).fail("no model")
    assert await world.due(main) is None
    assert await world.rows("SELECT body FROM outbox") == [("(this turn failed: no model)",)]
    assert (await world.task(planner.session_id)).phase is Phase.AWAITING_APPROVAL


async def test_failed_plan_is_told_as_one_and_asks_for_nothing(world: World, main: int) -> None:
    planner = await world.started(main, "planner", plan_mode=True)
    await planner.fail("no disk", is_final=True)
    world.clock.advance(2)
    await (await world.start(main)).finish("a pity")
    text = (await world.inputs(main))[-1]
    assert text.startswith('[PLAN FAILED] "planner": no disk\n')
    assert "NO_REPLY" not in text


async def test_long_plan_comes_as_a_summary_and_all_of_it_can_be_read(world: World, main: int) -> None:
    plan = "".join(f"{number}. step\n" for number in range(2000)) + "\nSUMMARY: two thousand steps"
    planner = await world.started(main, "planner", plan_mode=True)
    await planner.finish(plan)
    await (await world.start(main)).finish("hm")
    text = (await world.inputs(main))[-1]
    assert [fenced.text for fenced in parse_fences(text)] == ["two thousand steps"]
    assert plan_hash(plan) in text, "the decision is about the whole of it"
    assert len(text) < 2000
    read, known = "", (planner.session_id, world.policy.history)
    (piece,) = (await world.db.read(transcripts.result, *known)).entries
    while piece.next_offset is not None:
        read += piece.text.partition("… [")[0]
        (piece,) = (await world.db.read(transcripts.result, *known, piece.next_offset)).entries
    read += piece.text
    assert read == plan


async def test_send_lines_are_shown_to_a_reader_that_has_the_tool(world: World, main: int) -> None:
    async def read() -> str:
        planner = await world.started(main, "planner", plan_mode=True)
        await planner.finish("look, then leap")
        await (await world.start(main)).finish("hm")
        return (await world.inputs(main))[-1]

    assert "sessions_send" in await read()
    denied = AgentGrant(depth_max=2, tools=ToolFilter(deny=frozenset({"sessions_send"})))
    await world.db.alone(
        write, "UPDATE sessions SET rights = ? WHERE id = ?", rights_text(root_rights(denied)), main
    )
    text = await read()
    assert "sessions_send" not in text
    assert "subagents action=approve" in text


async def test_children_of_one_moment_are_told_in_the_order_they_were_spawned(
    world: World, main: int
) -> None:
    """Spawned for it while its transcript stands still: they end the other way round."""
    tasks = [await world.child(main, f"job {number}") for number in range(4)]
    for task in reversed(tasks):
        await world.end(task)
    world.clock.advance(2)
    await (await world.start(main)).finish("thanks")
    lines = (await world.inputs(main))[-1].splitlines()
    shown = [line for line in lines if line.startswith("--- Task")]
    assert [f'"job {number}"' in line for number, line in enumerate(shown)] == [True] * 4
