"""Tools of MCP servers that changed: asked once in the one inbox, decided by its hash, remembered by all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clutch.core import ids
from clutch.core.model import NO_SESSION, ToolOffer
from clutch.core.questions import Decision, QuestionChanged
from clutch.errors import InvalidInput
from clutch.transactions import mcp_tools
from clutch.transactions.questions import UnknownQuestion
from clutch.transactions.read.inbox import InboxItem, waiting_items
from tests.transactions.world import World, write

pytestmark = pytest.mark.anyio


def tool(words: str) -> dict[str, Any]:
    return {"name": "say", "description": words, "inputSchema": {"type": "object"}}


def offer(after: str, before: str | None = "v1", name: str = "say") -> ToolOffer:
    return ToolOffer(name, None if before is None else tool(before), tool(after), f"{name} is {after}")


async def asked(world: World, *offers: ToolOffer, server: str = "web") -> dict[str, tuple[int, str]]:
    ids = [world.number() for _ in offers]
    return await world.db.alone(mcp_tools.ask_pin, world.policy, server, offers, ids)


async def inbox(world: World) -> list[InboxItem]:
    return await world.db.read(waiting_items)


def _number(item: InboxItem) -> int:
    number = ids.parse_question_id(item.id)
    assert number is not None
    return number


async def decide(
    world: World, item: InboxItem, decision: Decision = Decision.APPROVE, seen: str = ""
) -> None:
    said = (_number(item), decision, "because", seen or item.hash)
    assert await world.db.alone(mcp_tools.answer_pin, *said, actor="person") == NO_SESSION


async def approved(world: World) -> dict[str, Any]:
    found = await world.db.read(mcp_tools.approved)
    return {name: one["description"] for name, one in found["web"].items()}


@pytest.fixture(autouse=True)
async def known(world: World) -> None:
    await world.db.alone(mcp_tools.see, "web", {"say": tool("v1")})


async def test_first_sight_approves_everything_and_no_later_one_does(world: World) -> None:
    await world.db.alone(mcp_tools.see, "web", {"say": tool("v2"), "other": tool("x")})
    assert await approved(world) == {"say": "v1"}
    await world.db.alone(mcp_tools.see, "empty", {})
    await world.db.alone(mcp_tools.see, "empty", {"late": tool("x")})
    assert (await world.db.read(mcp_tools.approved))["empty"] == {}


async def test_changed_tool_is_one_item_that_belongs_to_no_session_until_it_is_approved(world: World) -> None:
    before = await world.db.read(mcp_tools.stamp)
    await asked(world, offer("v2"))
    await asked(world, offer("v2"))
    [item] = await inbox(world)
    assert (item.kind, item.task_id, item.session_key, item.label) == (
        "approval",
        None,
        None,
        "MCP server web",
    )
    assert (item.text, item.detail["before"]["description"], item.detail["after"]["description"]) == (
        "say is v2",
        "v1",
        "v2",
    )
    with pytest.raises(QuestionChanged):
        await decide(world, item, seen="0" * 64)
    with pytest.raises(InvalidInput, match="must be one of: approve, reject"):
        await decide(world, item, Decision.ANSWER)
    assert await approved(world) == {"say": "v1"}
    await decide(world, item)
    assert (await approved(world), await inbox(world)) == ({"say": "v2"}, [])
    assert await world.db.read(mcp_tools.stamp) > before
    with pytest.raises(UnknownQuestion):
        await decide(world, item)


async def test_rejected_change_stays_withheld_and_is_asked_again_only_when_it_changes_again(
    world: World,
) -> None:
    await asked(world, offer("v2"))
    [item] = await inbox(world)
    await decide(world, item, Decision.REJECT)
    assert await asked(world, offer("v2")) == {"say": (_number(item), item.hash)}
    assert await inbox(world) == []
    await asked(world, offer("v3"))
    assert [one.text for one in await inbox(world)] == ["say is v3"]
    await decide(world, item)  # on second thoughts
    assert await approved(world) == {"say": "v2"}


async def test_what_is_offered_no_longer_is_asked_no_longer(world: World) -> None:
    await asked(world, offer("v2"), offer("new", None, "other"))
    await asked(world, offer("x", None, "theirs"), server="another")
    assert [one.text for one in await inbox(world)] == ["say is v2", "other is new", "theirs is x"]
    [stale, *_] = await inbox(world)
    await asked(world, offer("v3"))
    assert [one.text for one in await inbox(world)] == ["theirs is x", "say is v3"]
    with pytest.raises(UnknownQuestion):
        await decide(world, stale)
    await asked(world)
    assert [one.text for one in await inbox(world)] == ["theirs is x"]


async def test_nobody_is_asked_about_a_change_from_something_that_is_approved_no_longer(world: World) -> None:
    await asked(world, offer("v3", before="v2"))
    assert await inbox(world) == []


async def test_two_processes_that_see_the_same_change_ask_once(world: World) -> None:
    await asyncio.gather(*(asked(world, offer("v2")) for _ in range(5)))
    assert len(await inbox(world)) == 1


async def test_only_a_whole_inbox_shows_it(world: World, main: int) -> None:
    await asked(world, offer("v2"))
    assert await world.db.read(waiting_items, main) == []


async def test_a_question_whose_session_is_gone_does_not_hide_the_others(world: World) -> None:
    await asked(world, offer("v2"))
    await world.db.alone(
        write,
        "INSERT INTO questions(id, session_id, seq, idx, kind, body, hash, asked_at)"
        " VALUES(99, 555, 1, 0, 'question', '{\"question\": \"which one\"}', 'h', 1.0)",
    )
    assert {(one.text, one.label) for one in await inbox(world)} == {
        ("say is v2", "MCP server web"),
        ("which one", None),
    }
