"""Two main sessions that write to each other: every turn of the talk is a letter, and it comes to an end."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest

from clutch.core.authority import AgentCaller, Peers, Role, Verb, Visibility
from clutch.core.messages import Input
from clutch.errors import Forbidden
from clutch.store.transaction import Tx
from clutch.transactions import authority, control, messages
from tests.transactions.world import Run, World

pytestmark = pytest.mark.anyio

CONNECTED = Peers(enabled=True, allow=frozenset({"*"}))


async def send(
    world: World, sender: int, target: int, text: str, *, given: Peers = CONNECTED, idem: str = ""
) -> None:
    """As the tool does it: the guard is asked in the same transaction."""
    agent_id = str(await world.one("SELECT agent_id FROM sessions WHERE id = ?", sender))
    caller = AgentCaller(sender, agent_id, Role.MAIN, Visibility.ALL, peers=given)
    key = idem or world.key("send")
    sent = partial(messages.send_to_session, policy=world.policy, target_id=target, idem=key, text=text)
    said = partial(sent, sender_id=sender, actor="agent")
    await world.db.alone(authority.guarded, caller, Verb.SEND, target, said)


async def talk(world: World, *replies: tuple[int, str]) -> None:
    for session_id, words in replies:
        await (await world.start(session_id)).finish(words)


async def outbox(world: World) -> list[tuple[str, str, str]]:
    rows = await world.rows("SELECT channel, target, body FROM outbox ORDER BY id")
    return [(channel, target, body) for channel, target, body in rows]


async def titles(world: World, session_id: int) -> list[str]:
    said = await world.transcript(session_id)
    return [one.text.splitlines()[0] for one in said if isinstance(one, Input)]


@pytest.fixture
async def other(world: World, main: int) -> int:
    return await world.main("other")


@pytest.fixture
async def busy(world: World, main: int) -> Run:
    """The first one in a turn that a person started."""
    await world.tell(main, "ask the other one")
    return await world.start(main)


@pytest.mark.scenario(145)
@pytest.mark.scenario(146)
async def test_a_talk_goes_to_and_fro_ends_and_is_told_in_the_channel_of_the_target(
    world: World, main: int, other: int, busy: Run
) -> None:
    await send(world, main, other, "how are you?")
    await talk(world, (other, "fine, and you?"))
    await busy.finish("I asked")
    await talk(world, (main, "very well"), (other, "REPLY_SKIP"), (other, "we had a chat"))
    assert await titles(world, other) == [
        "[Message from agent:main:main]",
        "[Reply from agent:main:main, 2 of at most 5]",
        "[Exchange with agent:main:main is over]",
    ]
    assert await titles(world, main) == ["ask the other one", "[Reply from agent:other:main, 1 of at most 5]"]
    assert await outbox(world) == [("terminal", "main", "I asked"), ("terminal", "other", "we had a chat")]
    await world.live()
    assert len(await outbox(world)) == 2


@pytest.mark.scenario(145)
@pytest.mark.parametrize(("turns_max", "runs"), [(0, 2), (1, 3), (5, 7)])
async def test_a_talk_never_takes_more_turns_than_allowed(
    world: World, main: int, other: int, turns_max: int, runs: int
) -> None:
    world.policy = replace(world.policy, peers=Peers(True, frozenset({"*"}), turns_max))
    await send(world, main, other, "how are you?")
    await world.live(lambda session_id, transcript: f"{session_id} talks on")
    assert await world.one("SELECT COUNT(*) FROM runs") == runs
    assert await outbox(world) == [("terminal", "other", f"{other} talks on")]


@pytest.mark.scenario(146)
@pytest.mark.parametrize("said", ["ANNOUNCE_SKIP", "", "NO_REPLY"])
async def test_nothing_of_a_talk_is_told_when_the_target_says_so(
    world: World, main: int, other: int, said: str
) -> None:
    await send(world, main, other, "how are you?")
    await talk(world, (other, "REPLY_SKIP"), (other, said))
    assert await outbox(world) == []
    await world.live()
    assert await outbox(world) == []


@pytest.mark.scenario(146)
async def test_what_is_told_of_a_talk_goes_to_the_thread_of_the_target(
    world: World, main: int, other: int
) -> None:
    await world.db.alone(_routed, other, "web:bot/42#7")
    await send(world, main, other, "how are you?")
    await talk(world, (other, "REPLY_SKIP"), (other, "we had a chat"))
    assert await outbox(world) == [("web", "bot/42#7", "we had a chat")]


def _routed(now: float, session_id: int, route: str) -> Tx[None]:
    yield "UPDATE sessions SET route = ? WHERE id = ?", (route, session_id)


@pytest.mark.scenario(144)
@pytest.mark.parametrize(
    "given", [Peers(), Peers(True), Peers(True, frozenset({"main"})), Peers(False, frozenset({"*"}))]
)
async def test_agents_that_are_not_connected_on_both_sides_do_not_talk(
    world: World, main: int, other: int, given: Peers
) -> None:
    with pytest.raises(Forbidden, match="agentToAgent") as error:
        await send(world, main, other, "psst", given=given)
    assert error.value.rule == "agent-to-agent"
    assert await world.rows("SELECT id FROM inbox") == []


@pytest.mark.scenario(145)
async def test_a_session_does_not_write_to_itself(world: World, main: int) -> None:
    with pytest.raises(Forbidden, match="itself"):
        await send(world, main, main, "psst")


async def test_a_message_that_would_come_back_is_refused_in_any_shape(
    world: World, main: int, other: int
) -> None:
    third = await world.main("third")
    await send(world, main, other, "one")
    await world.start(other)
    with pytest.raises(Forbidden, match="circle"):
        await send(world, other, main, "two")
    await send(world, other, third, "two")
    run = await world.start(third)
    for target in (main, other):
        with pytest.raises(Forbidden, match="circle"):
            await send(world, third, target, "three")
    await run.finish("REPLY_SKIP")
    assert await world.one("SELECT COUNT(*) FROM inbox WHERE kind = 'peer'") == 3


async def test_between_relatives_it_is_a_follow_up_and_no_talk(world: World, main: int) -> None:
    child = await world.child(main)
    await world.start(child)
    await send(world, main, child, "faster")
    kinds = await world.rows("SELECT kind FROM inbox WHERE session_id = ? ORDER BY id", child)
    assert kinds == [("task",), ("instruction",)]


async def test_the_same_message_sent_again_is_one_letter(world: World, main: int, other: int) -> None:
    for _ in range(2):
        await send(world, main, other, "how are you?", idem="send:1")
    assert await world.one("SELECT COUNT(*) FROM inbox") == 1


async def test_two_talks_at_once_have_a_turn_each_and_answer_the_right_one(
    world: World, main: int, other: int
) -> None:
    third = await world.main("third")
    await send(world, main, other, "from main")
    await send(world, third, other, "from third")
    await talk(world, (other, "to main"), (other, "to third"))
    await world.start(main)
    await world.start(third)
    for session_id, words in ((main, "to main"), (third, "to third")):
        (said,) = [one.text for one in await world.transcript(session_id) if isinstance(one, Input)]
        assert words in said


async def test_a_worker_that_dies_in_a_talk_costs_no_turn_of_it(world: World, main: int, other: int) -> None:
    await send(world, main, other, "how are you?")
    await world.start(other)
    await world.die()
    await talk(world, (other, "fine"))
    await world.start(main)
    await world.die()
    await talk(world, (main, "REPLY_SKIP"), (other, "we had a chat"))
    assert await outbox(world) == [("terminal", "other", "we had a chat")]
    assert await world.one("SELECT COUNT(*) FROM inbox WHERE kind = 'peer'") == 3


async def test_a_turn_that_fails_ends_the_talk_and_tells_no_person(
    world: World, main: int, other: int
) -> None:
    await send(world, main, other, "how are you?")
    await (await world.start(other)).fail("no model", is_final=True)
    await world.live()
    assert await outbox(world) == []
    assert await world.one("SELECT COUNT(*) FROM runs") == 1


async def test_a_child_on_the_way_does_not_hide_a_circle(world: World, main: int, other: int) -> None:
    """Asked by the other one, it sends a child, and wants to write back when the child has reported."""
    world.policy = replace(world.policy, peers=CONNECTED)
    await send(world, other, main, "how many are there?")
    asked = await world.start(main)
    child = await world.child(main, "counter")
    below = await world.child(child, "helper")
    specs = await world.rows("SELECT spec FROM tasks")
    assert [json.loads(spec)["hops"] for (spec,) in specs] == [[other]] * 2
    await world.db.alone(control.kill, world.policy, below, "enough", "boss")
    await asked.finish("REPLY_SKIP")
    await talk(world, (main, "ANNOUNCE_SKIP"))
    await world.end(child, "seven")
    world.clock.advance(2)
    run = await world.start(main)
    assert "seven" in (await world.inputs(main))[-1]
    with pytest.raises(Forbidden, match="circle"):
        await send(world, main, other, "seven")
    await run.finish("seven")
    await world.live()
    await world.tell(main, "ask the other one again")
    await world.start(main)
    await send(world, main, other, "a person wants to know")
