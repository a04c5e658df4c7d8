"""What was typed, and the one session it means: found among what the caller may see, and nowhere else."""

from __future__ import annotations

import pytest

from clutch.core import ids
from clutch.core.authority import AgentCaller, OperatorCaller, Peers, Role, Scope, Visibility
from clutch.errors import AmbiguousTarget, NotFound
from clutch.transactions import idempotency
from clutch.transactions.read import targets
from clutch.transactions.read.targets import Standpoint
from tests.transactions.world import World

pytestmark = pytest.mark.anyio

PERSON = Standpoint(OperatorCaller(frozenset({Scope.READ})), "terminal")


async def meant(world: World, text: str, who: Standpoint = PERSON) -> int:
    return (await world.db.read(targets.resolve, text, who)).session_id


async def key_of(world: World, session_id: int) -> str:
    return str(await world.one("SELECT key FROM sessions WHERE id = ?", session_id))


def agent(session_id: int, role: Role = Role.MAIN, **more: object) -> Standpoint:
    return targets.of_agent(AgentCaller(session_id, "main", role, **more))  # type: ignore[arg-type]


@pytest.mark.scenario(158)
async def test_index_last_label_prefix_run_prefix_and_session_key_resolve(world: World, main: int) -> None:
    survey, report = await world.children(main, "survey the folder", "report")
    run = await world.start(survey)
    await world.db.alone(idempotency.remember, PERSON.viewer, [report, survey])
    for text in ("#1", "1"):
        assert await meant(world, text) == report
    assert await meant(world, "2") == survey
    assert await meant(world, "last") == report
    assert await meant(world, "surv") == survey
    assert await meant(world, "survey the folder") == survey
    assert await meant(world, ids.run_id(run.run_id)) == survey
    assert await meant(world, ids.run_id(run.run_id)[:-1]) == survey
    assert await meant(world, await key_of(world, report)) == report
    assert await meant(world, ids.task_id(report)) == report
    assert await meant(world, "main") == main
    assert await meant(world, "agent:main:main") == main


async def test_a_unique_beginning_of_an_id_or_key_is_enough(world: World, main: int) -> None:
    first, second = await world.children(main, "a", "b")
    # The least significant digit comes first, so neighbours differ at once.
    assert await meant(world, ids.task_id(first)[:3]) == first
    assert await meant(world, ids.task_id(second)[:3]) == second
    assert await meant(world, "agent:main:ma") == main
    with pytest.raises(AmbiguousTarget):
        await meant(world, "agent:main:sub")


async def test_ambiguous_and_unknown_are_different_and_both_propose(world: World, main: int) -> None:
    north, south = await world.children(main, "pole north", "pole south")
    with pytest.raises(AmbiguousTarget, match="'pole' fits 2") as several:
        await meant(world, "pole")
    assert sorted(several.value.candidates) == sorted(
        f"{ids.task_id(one)} ({label})" for one, label in ((north, "pole north"), (south, "pole south"))
    )
    with pytest.raises(NotFound, match="no session or task 'west'") as none:
        await meant(world, "west")
    assert set(none.value.candidates) == set(several.value.candidates)


async def test_an_exact_label_wins_over_longer_ones(world: World, main: int) -> None:
    short, _ = await world.children(main, "build", "build docs")
    assert await meant(world, "build") == short


async def test_a_label_cannot_catch_a_word_or_a_number(world: World, main: int) -> None:
    child, _, _ = await world.children(main, "main", "last", "1")
    await world.db.alone(idempotency.remember, PERSON.viewer, [child])
    assert await meant(world, "main") == main
    assert await meant(world, "1") == child


async def test_numbers_belong_to_whoever_was_shown_them_and_the_last_list_counts(
    world: World, main: int
) -> None:
    one, two = await world.children(main, "one", "two")
    await world.db.alone(idempotency.remember, "terminal", [one, two])
    await world.db.alone(idempotency.remember, "web", [two])
    assert await meant(world, "1") == one
    assert await meant(world, "#1", Standpoint(PERSON.caller, "web")) == two
    await world.db.alone(idempotency.remember, "terminal", [two])
    assert await meant(world, "1") == two
    with pytest.raises(NotFound):
        await meant(world, "2")
    await world.db.alone(idempotency.remember, "terminal", [])
    with pytest.raises(NotFound):
        await meant(world, "1")


async def test_a_further_page_is_numbered_where_it_begins_whatever_list_came_in_between(
    world: World, main: int
) -> None:
    one, two, three = await world.children(main, "one", "two", "three")
    await world.db.alone(idempotency.remember, PERSON.viewer, [one, two])
    await world.db.alone(idempotency.remember, PERSON.viewer, [one])  # another terminal lists
    await world.db.alone(idempotency.remember, PERSON.viewer, [three], after=2)
    assert (await meant(world, "1"), await meant(world, "3")) == (one, three)
    with pytest.raises(NotFound):
        await meant(world, "2")
    await world.db.alone(idempotency.remember, PERSON.viewer, [two], after=1)
    assert await meant(world, "2") == two
    with pytest.raises(NotFound):
        await meant(world, "3")
    await world.db.alone(idempotency.remember, PERSON.viewer, [three], after=idempotency.NUMBERED_MAX + 1)


async def test_current_and_last_are_about_the_callers_own_session(world: World, main: int) -> None:
    mine = await world.child(main, "mine")
    other = await world.main("other")
    await world.child(other, "theirs")
    here = Standpoint(PERSON.caller, "chat", main)
    assert await meant(world, "current", here) == main
    assert await meant(world, "last", here) == mine
    with pytest.raises(NotFound):
        await meant(world, "current")


@pytest.mark.parametrize(
    "text", ["", " ", "#", "t_", "r_", "t_u", "agent:", "x" * 5000, "%", "_", "'; DROP TABLE"]
)
async def test_what_means_nothing_is_unknown(world: World, main: int, text: str) -> None:
    await world.child(main, "something")
    with pytest.raises((NotFound, AmbiguousTarget)):
        await meant(world, text)


async def test_a_main_session_is_no_task(world: World, main: int) -> None:
    with pytest.raises(NotFound, match="not a task"):
        await world.db.read(targets.task, "main", PERSON)


@pytest.mark.scenario(44)
async def test_an_agent_finds_nothing_that_is_not_below_it(world: World, main: int) -> None:
    child, sibling = await world.children(main, "child", "sibling")
    below = await world.child(child, "below")
    as_child = agent(child, Role.ORCHESTRATOR)
    assert await meant(world, "below", as_child) == below
    assert await meant(world, ids.task_id(below), as_child) == below
    assert await meant(world, "current", as_child) == child
    for text in (
        "sibling",
        "sib",
        ids.task_id(sibling),
        await key_of(world, sibling),
        "main",
        "last sibling",
    ):
        with pytest.raises(NotFound) as unknown:
            await meant(world, text, as_child)
        assert not any("sibling" in proposal for proposal in unknown.value.candidates)
    leaf = agent(sibling, Role.LEAF)
    with pytest.raises(NotFound) as nothing:
        await meant(world, "child", leaf)
    assert nothing.value.candidates == (f"{ids.task_id(sibling)} (sibling)",)


async def test_sight_follows_the_configured_visibility(world: World, main: int) -> None:
    mine = await world.child(main, "mine")
    other = await world.main("other")
    theirs = await world.child(other, "theirs")
    with pytest.raises(NotFound):
        await meant(world, "mine", agent(main, visibility=Visibility.SELF))
    assert await meant(world, "mine", agent(main, visibility=Visibility.AGENT)) == mine
    for unconnected in (Visibility.AGENT, Visibility.ALL):
        with pytest.raises(NotFound):
            await meant(world, "theirs", agent(main, visibility=unconnected))
    peers = Peers(enabled=True, allow=frozenset({"*"}))
    everybody = agent(main, visibility=Visibility.ALL, peers=peers)
    assert await meant(world, "theirs", everybody) == theirs
    boxed = agent(main, visibility=Visibility.ALL, peers=peers, is_sandboxed=True)
    with pytest.raises(NotFound):
        await meant(world, "theirs", boxed)


async def test_a_run_of_before_still_finds_its_task(world: World, main: int) -> None:
    run = await world.started(main, "twice")
    await run.finish("first")
    await world.live()
    assert await meant(world, ids.run_id(run.run_id)) == run.session_id
