"""Where the reply to an announce is posted: the route of the day it was asked for, whatever happened since."""

from __future__ import annotations

import pytest

from clutch.core.model import LetterKind
from clutch.transactions import inbox, wake
from tests.transactions.world import World, write

pytestmark = pytest.mark.anyio


async def says(world: World, session_id: int, text: str, route: str) -> None:
    """A person, somewhere."""
    known = (world.policy, session_id, world.key("said"), LetterKind.USER)
    await world.db.tx(session_id, wake.say, *known, body=text, route=route)


async def replies(world: World) -> list[tuple[str, str, str]]:
    rows = await world.rows("SELECT channel, target, body FROM outbox ORDER BY id")
    return [(str(channel), str(target), str(body)) for channel, target, body in rows]


async def asked_at(world: World, main: int, route: str, label: str) -> int:
    """A child that the main agent spawned for somebody who wrote there."""
    await says(world, main, f"please {label}", route)
    run = await world.start(main)
    await run.spawn(label)
    await run.results()
    await run.finish("I am on it")
    return int(await world.one("SELECT id FROM tasks WHERE label = ?", label))


async def told(world: World, main: int, task: int) -> None:
    await world.end(task, "found")
    world.clock.advance(1)
    await (await world.start(main)).finish("here you are")


@pytest.mark.scenario(201)
async def test_reply_to_an_announce_goes_where_it_was_asked_for_though_the_talk_went_on_elsewhere(
    world: World, main: int
) -> None:
    task = await asked_at(world, main, "web:room", "look it up")
    await says(world, main, "hello", "mail:ada")
    await (await world.start(main)).finish("hello ada")
    await told(world, main, task)
    assert await replies(world) == [
        ("web", "room", "I am on it"),
        ("mail", "ada", "hello ada"),
        ("web", "room", "here you are"),
    ]


async def test_person_is_answered_where_they_wrote_and_without_a_place_where_the_session_speaks(
    world: World, main: int
) -> None:
    await says(world, main, "hello", "web:room")
    await (await world.start(main)).finish("hello room")
    await world.tell(main, "are you there?")
    await (await world.start(main)).finish("yes")
    assert [row[:2] for row in await replies(world)] == [("web", "room"), ("web", "room")]


async def test_child_of_an_announced_turn_keeps_the_route_of_that_turn(world: World, main: int) -> None:
    first = await asked_at(world, main, "web:room", "first")
    await says(world, main, "hello", "mail:ada")
    await (await world.start(main)).finish("hello")
    await world.end(first)
    world.clock.advance(1)
    run = await world.start(main)
    await run.spawn("second")
    await run.results()
    await run.finish("one more thing to look up")
    second = int(await world.one("SELECT id FROM tasks WHERE label = 'second'"))
    await told(world, main, second)
    assert (await replies(world))[-1] == ("web", "room", "here you are")


@pytest.mark.scenario(95)
@pytest.mark.parametrize(
    ("current", "target"),
    [
        ("web:hall", "hall"),
        ("mail:ada", ""),
        ('web:{"account": "work", "to": "hall"}', '{"account": "work", "to": "hall"}'),
    ],
)
async def test_missing_part_is_filled_only_from_the_same_channel(
    world: World, main: int, current: str, target: str
) -> None:
    task = await asked_at(world, main, "web:", "look")
    await says(world, main, "hello", current)
    await (await world.start(main)).finish("hello")
    await told(world, main, task)
    assert (await replies(world))[-1] == ("web", target, "here you are")


@pytest.mark.scenario(89)
async def test_results_asked_for_by_two_accounts_or_in_two_threads_never_share_a_turn(
    world: World, main: int
) -> None:
    places = [f'web:{{"account": "{account}", "to": "room", "thread": "{thread}"}}' for account, thread in (
        ("a", "1"), ("a", "2"), ("b", "1"),
    )]  # fmt: skip
    asked = [await asked_at(world, main, place, f"job {at}") for at, place in enumerate(places)]
    for task in asked:
        await world.end(task, f"found by {task}")
    world.clock.advance(2)
    for place, task in zip(places, asked, strict=True):
        await (await world.start(main)).finish(f"about {task}")
        text = (await world.inputs(main))[-1]
        assert [f"found by {one}" in text for one in asked] == [one == task for one in asked]
        channel, _, target = place.partition(":")
        assert (await replies(world))[-1] == (channel, target, f"about {task}")


@pytest.mark.scenario(89)
async def test_main_session_that_sleeps_for_children_of_two_places_answers_each_place_by_itself(
    world: World, main: int
) -> None:
    first = await asked_at(world, main, "web:one", "first")
    await says(world, main, "and you?", "web:two")
    run = await world.start(main)
    await run.spawn("second")
    await run.results()
    await run.yields()
    second = int(await world.one("SELECT id FROM tasks WHERE label = 'second'"))
    await world.end(first, "found by first")
    await world.end(second, "found by second")
    world.clock.advance(2)
    for words, other, place in (("found by first", "second", "one"), ("found by second", "first", "two")):
        await (await world.start(main)).finish(f"for {place}")
        text = (await world.inputs(main))[-1]
        assert words in text
        assert other not in text
        assert (await replies(world))[-1] == ("web", place, f"for {place}")


@pytest.mark.scenario(96)
async def test_bound_thread_of_the_child_is_used_before_a_hook_and_a_hook_before_the_captured_route(
    world: World, main: int
) -> None:
    tasks = [
        await asked_at(world, main, "web:room", label) for label in ("bound", "hooked", "plain", "inside")
    ]
    bound, hooked, plain, inside = tasks
    await world.db.alone(write, "INSERT INTO bindings VALUES('web', '', 't9', ?, 1.0, 1.0)", bound)
    await world.db.alone(write, "UPDATE sessions SET bound = 1 WHERE id = ?", bound)
    for task in tasks:
        await world.end(task, f"found by {task}")
    for letter in await world.db.read(inbox.unrouted, main):
        assert letter.captured == "web:room"
        said = {bound: "mail:hook", hooked: "mail:hook", inside: "internal:x"}.get(letter.task_id, "")
        await world.db.tx(main, inbox.hooked, main, letter.letter_id, said)
    assert await world.db.read(inbox.unrouted, main) == []
    world.clock.advance(2)
    expected = {
        bound: ("web", '{"to": "room", "thread": "t9"}', "bound"),
        hooked: ("mail", "hook", "hook"),
        plain: ("web", "room", "fallback"),
        inside: ("web", "room", "fallback"),
    }
    await world.live(lambda session_id, transcript: "here you are")
    for task, (channel, target, mode) in expected.items():
        rows = await world.rows(
            "SELECT o.channel, o.target, d.route_mode FROM deliveries d JOIN outbox o ON o.idem = 'reply:' || d.run_id"
            " WHERE d.task_id = ?",
            task,
        )
        assert [tuple(row) for row in rows] == [(channel, target, mode)]


async def test_words_of_a_child_are_posted_nowhere(world: World, main: int) -> None:
    parent = await asked_at(world, main, "web:room", "parent")
    run = await world.start(parent)
    child = await world.child(parent, "child")
    await run.finish("my part")
    await world.end(child, "its part")
    await (await world.start(parent)).finish("both parts")
    assert [row[2] for row in await replies(world)] == ["I am on it"]


async def test_failed_turn_of_results_that_are_tried_again_is_not_told_to_the_person(
    world: World, main: int
) -> None:
    task = await asked_at(world, main, "web:room", "look")
    await world.end(task, "found")
    world.clock.advance(1)
    await (await world.start(main)).fail("no model")
    assert len(await replies(world)) == 1
    world.clock.advance(1)
    run = await world.start(main)
    await run.step()
    await run.fail("no model")
    assert (await replies(world))[1:] == [("web", "room", "(this turn failed: no model)")]
