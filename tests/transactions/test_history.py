"""The session tools read: transcripts from their newest end, sessions that the caller may see, all about a task."""

from __future__ import annotations

import pytest

from clutch.core import ids
from clutch.core.authority import AgentCaller, OperatorCaller, Role, Scope
from clutch.core.ids import KeyKind
from clutch.core.messages import Answer, Call, Usage
from clutch.core.redaction import MARK
from clutch.core.text.tasks import info_text, log_text
from clutch.core.views import HistoryLimits
from clutch.errors import InvalidInput
from clutch.transactions.read import tasks, transcripts
from tests.transactions.world import World, calls

pytestmark = pytest.mark.anyio

RULES = HistoryLimits()
PERSON = OperatorCaller(frozenset({Scope.READ}))


@pytest.mark.scenario(142)
async def test_history_is_redacted_and_a_huge_message_is_a_placeholder(world: World, main: int) -> None:
    run = await world.started(main, task="use sk-abcdefghijklmnop0123456789 for it")
    await run.respond(calls("read", text="reading"))
    await run.results("x" * 5 * 2**20)
    found = await world.db.read(transcripts.history, run.session_id, RULES, with_tools=True)
    assert (found.is_redacted, found.is_cut, found.is_dropped) == (True, True, False)
    assert MARK in found.entries[0].text
    assert "sk-abc" not in found.entries[0].text
    assert found.entries[-1].text == "[results of 5 MiB: too long to be shown]"
    assert sum(said.bytes for said in found.entries) <= RULES.bytes_max


async def test_history_pages_from_the_newest_to_the_oldest(world: World, main: int) -> None:
    run = await world.started(main)
    for _ in range(3):
        await run.step()
    newest = await world.db.read(transcripts.history, run.session_id, RULES, limit=3, with_tools=True)
    older = await world.db.read(
        transcripts.history, run.session_id, RULES, limit=10, before=newest.before, with_tools=True
    )
    assert [said.seq for said in newest.entries] == [5, 6, 7]
    assert ([said.seq for said in older.entries], older.before) == ([1, 2, 3, 4], None)


@pytest.mark.scenario(159)
async def test_a_log_has_twenty_lines_unless_asked_for_more_and_tools_only_when_asked_for(
    world: World, main: int
) -> None:
    run = await world.started(main)
    for number in range(30):
        said = Answer(f"step {number}", (Call("read", {"path": "a"}),), Usage(1, 1), "scripted", "tools")
        await run.respond(said)
        await run.results("contents")
    short = await world.db.read(transcripts.history, run.session_id, RULES, limit=RULES.log)
    assert len(log_text(short).splitlines()) == 20 + 1
    assert "contents" not in log_text(short)
    full = await world.db.read(transcripts.history, run.session_id, RULES, limit=200, with_tools=True)
    assert "read: contents" in log_text(full)
    assert "assistant calls read(a)" in log_text(full)
    with pytest.raises(InvalidInput, match="from 1 to 200"):
        await world.db.read(transcripts.history, run.session_id, RULES, limit=201)


@pytest.mark.scenario(44)
async def test_a_leaf_lists_itself_and_no_sibling(world: World, main: int) -> None:
    leaf, _ = await world.children(main, "leaf", "sibling")
    caller = AgentCaller(leaf, "main", Role.LEAF)
    assert [line.session_id for line in await world.db.read(transcripts.sessions, caller, RULES)] == [leaf]
    parent = AgentCaller(main, "main", Role.MAIN)
    assert len(await world.db.read(transcripts.sessions, parent, RULES)) == 3


async def test_sessions_are_listed_by_kind_and_life_with_their_last_words(world: World, main: int) -> None:
    old = await world.child(main, "old")
    await world.end(old, "what I found")
    world.clock.advance(600)
    run = await world.started(main, "new")
    lines = await world.db.read(
        transcripts.sessions,
        PERSON,
        RULES,
        kinds=[KeyKind.SUBAGENT],
        message_limit=1,
    )
    assert [line.session_id for line in lines] == [run.session_id, old]
    assert (lines[0].task and lines[0].task.label, lines[0].kind) == ("new", KeyKind.SUBAGENT)
    assert [said.text for said in lines[1].last] == ["what I found"]
    lately = await world.db.read(transcripts.sessions, PERSON, RULES, active_s=60.0)
    assert {line.session_id for line in lately} == {main, run.session_id}
    mains = await world.db.read(transcripts.sessions, PERSON, RULES, kinds=[KeyKind.MAIN])
    assert [(line.key, line.task) for line in mains] == [("agent:main:main", None)]
    with pytest.raises(InvalidInput, match="messageLimit"):
        await world.db.read(transcripts.sessions, PERSON, RULES, message_limit=21)


@pytest.mark.scenario(159)
async def test_info_of_a_child_of_a_child_names_its_requester(world: World, main: int) -> None:
    top = await world.child(main, "top")
    low = await world.child(top, "low", task="look closely")
    await world.end(low, "seen")
    found = await world.db.read(tasks.info, low)
    assert found is not None
    lines = dict(line.split(": ", 1) for line in info_text(found.view, found.contract).splitlines())
    assert lines["Parent"] == f"top ({ids.task_id(top)})"
    assert (lines["Task"], lines["Cleanup"], lines["Mode"]) == ("look closely", "keep", "run")
    assert lines["Result"].startswith("4 B, sha256 ")
    assert lines["Archive"] == "n/a"
    assert await world.db.read(tasks.info, 77) is None


async def test_info_tells_when_what_was_told_is_archived(world: World, main: int) -> None:
    task = await world.child(main)
    assert await archive_at(world, task) is None
    await world.end(task)
    assert await archive_at(world, task) is None
    await world.live()
    ended_at = (await world.task(task)).ended_at or 0.0
    assert await archive_at(world, task) == ended_at + 3600
    assert await archive_at(world, task, 0.0) is None


async def archive_at(world: World, task_id: int, after_s: float = 3600.0) -> float | None:
    found = await world.db.read(tasks.info, task_id, after_s)
    assert found is not None
    return found.contract.archive_at
