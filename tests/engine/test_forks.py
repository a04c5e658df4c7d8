"""Children with a directory of their own and children that know their caller's talk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from clutch.core.compaction import ContextLimits
from clutch.core.messages import Answer, Call, Input, Results, Usage
from clutch.core.model import Outcome, Phase
from clutch.core.text import prompts
from clutch.engine.worker import Worker
from clutch.ports import ModelRequest, ToolContext, WorkspaceFailed
from clutch.transactions import control, tasks
from clutch.transactions.spawn import NOT_FORKED
from tests.engine.conftest import Build
from tests.engine.house import POLICY, Anything, House, opening, step
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


class Directories:
    """Makes directories in name only; may be held up or fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.made: list[int] = []
        self.removed: list[int] = []
        self.sources: list[str] = []
        self.log: list[str] = []
        self.is_making, self.may_end = asyncio.Event(), asyncio.Event()
        self.may_end.set()
        self.error = error

    async def make(self, task_id: int, source: str) -> str:
        self.sources.append(source)
        self.is_making.set()
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        self.made.append(task_id)
        self.log.append(f"made {task_id}")
        return f"own/{task_id}"

    async def remove(self, task_id: int) -> None:
        self.removed.append(task_id)
        self.log.append(f"removed {task_id}")

    async def kept(self) -> list[int]:
        return sorted(set(self.made).difference(self.removed))


def spawns(*children: dict[str, Any]) -> Answer:
    wanted = tuple(Call("sessions_spawn", {"task": f"do {one['label']}", **one}) for one in children)
    return Answer("", wanted, Usage(10, 5), "scripted", "tools")


ISOLATED = {"label": "child", "workspace": "isolated"}


def script(*children: dict[str, Any]) -> Callable[[ModelRequest], Any]:
    async def says(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return (spawns(*children), "sent", "heard", "heard")[step(request)]
        return "done"

    return says


async def house_with(build: Build, directories: Directories | None, says: Any, **policy: Any) -> House:
    house = await build(says, replace(POLICY, **policy))
    house.more["workspaces"] = directories
    return house


async def told(house: House) -> list[dict[str, Any]]:
    """What the spawn calls of the main agent gave."""
    (results,) = [entry for entry in house.model.of("go")[1].transcript if isinstance(entry, Results)]
    return [json.loads(result.text) for result in results.results]


async def making(house: House, directories: Directories) -> Worker:
    worker = await house.hire()
    await house.say("go")
    async with asyncio.timeout(PATIENCE_S):
        await directories.is_making.wait()
    return worker


# ---- a directory of its own --------------------------------------------------------------------------------


async def test_isolated_child_works_in_the_directory_that_was_made_for_it(build: Build) -> None:
    directories, seen = Directories(), []

    async def says(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return (spawns(ISOLATED), "sent", "heard")[step(request)]
        return Answer("", (Call("where", {}),), Usage(1, 1), "m", "tools") if not step(request) else "done"

    house = await house_with(build, directories, says)

    async def where(arguments: Anything, context: ToolContext) -> str:
        seen.append(context.workspace)
        return context.workspace

    house.tools.add(where, arguments=Anything, name="where", description="where")
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    task = await house.task("child")
    assert (directories.made, directories.sources) == ([task.id], ["."])
    assert seen == [f"own/{task.id}"]
    (answer,) = await told(house)
    assert answer["status"] == "accepted"
    assert task.outcome is Outcome.OK


async def test_child_is_not_queued_before_its_directory_is_there(build: Build) -> None:
    directories = Directories()
    directories.may_end.clear()
    house = await house_with(build, directories, script(ISOLATED))
    await making(house, directories)
    assert (await house.task("child")).phase is Phase.SPAWNING
    assert house.model.of("do child") == []
    directories.may_end.set()
    await house.until_quiet()
    assert (await house.task("child")).outcome is Outcome.OK


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (WorkspaceFailed("no space left"), "no space left"),
        (RuntimeError("a defect"), "side work: RuntimeError: a defect"),
    ],
)
async def test_failure_rolls_the_spawn_back_and_the_model_hears_it(
    build: Build, error: Exception, words: str
) -> None:
    house = await house_with(build, Directories(error), script(ISOLATED, {"label": "other"}))
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    failed, accepted = await told(house)
    assert failed == {"status": "error", "error": words}
    assert accepted["status"] == "accepted"
    assert await house.rows("SELECT label FROM tasks") == [("other",)]
    assert await house.rows("SELECT COUNT(*) FROM sessions") == [(2,)]
    lines = await house.rows("SELECT detail FROM events WHERE reason = 'spawn-failed'")
    assert lines == [(words,)]


async def test_without_a_place_for_directories_the_spawn_fails(build: Build) -> None:
    house = await house_with(build, None, script(ISOLATED))
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    (answer,) = await told(house)
    assert (answer["status"], await house.rows("SELECT id FROM tasks")) == ("error", [])


async def test_directory_that_takes_too_long_is_given_up_and_removed(build: Build) -> None:
    directories = Directories()
    directories.may_end.clear()
    work = replace(POLICY.work, tick_s=0.02)
    house = await house_with(build, directories, script(ISOLATED), work=work)
    await making(house, directories)
    task = await house.task("child")
    house.clock.jump(31)

    async def is_gone() -> bool:
        return await house.rows("SELECT id FROM tasks") == []

    await house.until(is_gone)
    directories.may_end.set()
    await house.until_quiet()
    assert directories.log[-2:] == [f"made {task.id}", f"removed {task.id}"]
    (answer,) = await told(house)
    assert (answer["status"], "given up" in answer["error"]) == ("error", True)


async def test_child_killed_while_its_directory_is_made_never_runs(build: Build) -> None:
    directories = Directories()
    directories.may_end.clear()
    house = await house_with(build, directories, script(ISOLATED))
    await making(house, directories)
    task = await house.task("child")
    await house.db.alone(control.kill, house.policy, task.id, "enough", "person")
    directories.may_end.set()
    await house.until_quiet()
    assert set(directories.removed) == {task.id}
    assert house.model.of("do child") == []
    assert (await house.task("child")).outcome is Outcome.KILLED


async def test_parent_that_died_meanwhile_finds_the_child_and_completes_it(build: Build) -> None:
    directories = Directories()
    directories.may_end.clear()
    house = await house_with(build, directories, script(ISOLATED))
    first = await making(house, directories)
    task = await house.task("child")
    await house.crash(first)
    directories.may_end.set()
    await house.hire()
    await house.until_quiet()
    assert await house.rows("SELECT id FROM tasks") == [(task.id,)]
    assert directories.made == [task.id]
    assert (await house.task("child")).outcome is Outcome.OK
    assert len(house.model.of("do child")) == 1


async def test_directory_that_nobody_needs_any_more_is_removed_at_the_next_start(build: Build) -> None:
    directories = Directories()
    stranger, undone = 123_456, 987_654  # somebody died before the files of an undone spawn were gone
    directories.made = [stranger, undone]
    house = await house_with(build, directories, script(ISOLATED))
    await house.db.alone(tasks.unmake, undone, "no disk")
    directories.may_end.clear()
    first = await making(house, directories)
    assert directories.removed == [undone], "what this database never heard of is not its own"
    task = await house.task("child")
    directories.made.append(task.id)
    await house.crash(first)
    directories.may_end.set()
    await house.hire()
    await house.until_quiet()
    assert directories.removed == [undone]
    assert (await house.task("child")).outcome is Outcome.OK


# ---- a copy of the talk ------------------------------------------------------------------------------------

FORK = {"label": "child", "context": "fork"}


async def talks_first(request: ModelRequest) -> Answer | str:
    """Main says something first; the second time it is spoken to it sends a child that knows the talk."""
    if prompts.FORKED in [entry.text for entry in request.transcript if isinstance(entry, Input)]:
        return "I remember"
    if "You are a subagent" in request.system:
        return "I know nothing"
    return ("the word is swordfish", spawns(FORK), "sent", "heard")[step(request)]


async def talk(house: House) -> None:
    await house.hire()
    for text in ("what is the word?", "ask somebody"):
        await house.say(text)
        await house.until_quiet()


def heard(house: House) -> dict[str, Any]:
    """What the caller was told of its spawn."""
    (results,) = [entry for entry in house.model.requests[-1].transcript if isinstance(entry, Results)]
    answer: dict[str, Any] = json.loads(results.results[0].text)
    return answer


async def test_forked_child_starts_with_what_its_caller_saw(build: Build) -> None:
    house = await build(talks_first)
    await talk(house)
    task = await house.task("child")
    assert task.result == "I remember"
    (request,) = [one for one in house.model.requests if "You are a subagent" in one.system]
    shown = [entry.text for entry in request.transcript if isinstance(entry, Input | Answer)]
    assert shown[:4] == ["what is the word?", "the word is swordfish", "ask somebody", prompts.FORKED]
    assert "do child" in shown[-1]
    accepted = heard(house)
    assert (accepted["context"], accepted["warnings"]) == ("fork", [])


async def test_talk_that_is_too_long_is_not_copied_and_the_caller_is_warned(build: Build) -> None:
    house = await build(talks_first, replace(POLICY, context=ContextLimits(fork_bytes_max=100)))
    await talk(house)
    assert (await house.task("child")).result == "I know nothing"
    accepted = heard(house)
    assert (accepted["context"], accepted["warnings"]) == ("isolated", [NOT_FORKED])


async def test_what_the_caller_spent_is_not_counted_for_the_forked_child(build: Build) -> None:
    house = await build(talks_first)
    await talk(house)
    task = await house.task("child")
    assert await house.rows("SELECT input, output FROM usage WHERE session_id = ?", task.id) == [(10, 5)]
