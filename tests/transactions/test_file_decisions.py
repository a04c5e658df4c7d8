"""Agent files and skills of workspaces: asked once by content, decided by hash, remembered by all processes."""

from __future__ import annotations

import pytest

from clutch.core import ids
from clutch.core.definitions import Decisions, DefinitionKind, Proposal
from clutch.core.questions import Decision, QuestionChanged
from clutch.transactions import definitions, mcp_tools
from clutch.transactions.read.inbox import InboxItem, waiting_items
from tests.transactions.world import World

pytestmark = pytest.mark.anyio


def file(content: str, path: str = "/w/.agents/a.md") -> Proposal:
    return Proposal(DefinitionKind.AGENT, "a", path, content, f"{path} says {content}")


async def propose(world: World, *proposals: Proposal) -> None:
    numbers = [world.number() for _ in proposals]
    await world.db.alone(definitions.propose, world.policy, proposals, numbers)


async def inbox(world: World) -> list[InboxItem]:
    return await world.db.read(waiting_items)


async def decide(world: World, item: InboxItem, decision: Decision, seen: str = "") -> None:
    number = ids.parse_question_id(item.id)
    assert number is not None
    said = (number, decision, "because", seen or item.hash)
    await world.db.alone(mcp_tools.answer_pin, *said, actor="person")


async def decisions(world: World) -> Decisions:
    return await world.db.read(definitions.decisions)


async def test_a_content_is_asked_about_once_and_approved_by_its_hash(world: World) -> None:
    await propose(world, file("one"))
    await propose(world, file("one"))
    [item] = await inbox(world)
    assert (item.label, item.text, item.kind) == ("agent a", "/w/.agents/a.md says one", "approval")
    assert (await decisions(world)).approved == frozenset()
    with pytest.raises(QuestionChanged):
        await decide(world, item, Decision.APPROVE, "0" * 64)
    await decide(world, item, Decision.APPROVE)
    known = await decisions(world)
    assert known == Decisions(frozenset({"one"}), frozenset(), {"one": item.id})
    await propose(world, file("one", "/other/a.md"))
    assert await inbox(world) == []


async def test_a_change_replaces_the_open_question_and_leaves_those_of_other_files(world: World) -> None:
    await propose(world, file("one"), file("other", "/w/.agents/b.md"))
    await propose(world, file("two"))
    assert [item.detail["hash"] for item in await inbox(world)] == ["other", "two"]
    assert (await decisions(world)).approved == frozenset()
    await propose(world, file("one"))
    assert sorted(item.detail["hash"] for item in await inbox(world)) == ["one", "other"]


async def test_a_rejected_content_is_not_asked_about_again_and_may_still_be_approved(world: World) -> None:
    await propose(world, file("one"))
    [item] = await inbox(world)
    await decide(world, item, Decision.REJECT)
    await propose(world, file("one"))
    assert await inbox(world) == []
    assert (await decisions(world)).rejected == {"one"}
    await decide(world, item, Decision.APPROVE)
    known = await decisions(world)
    assert (known.approved, known.rejected) == (frozenset({"one"}), frozenset())


async def test_tools_of_servers_and_files_share_the_inbox(world: World) -> None:
    await world.db.alone(mcp_tools.see, "web", {})
    await propose(world, file("one"))
    assert await world.db.alone(mcp_tools.ask_pin, world.policy, "web", [], []) == {}
    assert [item.label for item in await inbox(world)] == ["agent a"]
