"""Files given at spawn: on disk before the child starts, in nobody's transcript, and gone with a spawn that failed."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from clutch.core.attachments import Attachment, AttachmentRules, FileVersion
from clutch.core.messages import Answer, Call, Results, Usage
from clutch.core.model import Outcome, Phase
from clutch.ports import FilesFailed, ModelRequest, ToolContext
from clutch.tools.task_files import LocalTaskFiles
from clutch.transactions import control, messages
from tests.engine.conftest import Build
from tests.engine.house import POLICY, Anything, House, opening, step
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

SECRET = "the password is tulip"
FILE = {"name": "notes.txt", "content": SECRET}


class SlowFiles(LocalTaskFiles):
    """On a real disk, by somebody who may be held up, before it begins or after it has done it."""

    def __init__(self, root: Path, *, fails: bool = False) -> None:
        super().__init__(root)
        self.fails = fails
        self.waits_before = self.waits_after = False
        self.puts = 0
        self.is_waiting, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def put(self, shelf: FileVersion, files: Sequence[Attachment]) -> None:
        self.puts += 1
        if self.waits_before:
            await self._wait()
        await super().put(shelf, files)
        if self.fails:
            raise FilesFailed("files: No space left on device")
        if self.waits_after:
            await self._wait()

    async def _wait(self) -> None:
        self.is_waiting.set()
        await self.may_go_on.wait()


def gives(*files: dict[str, Any], then: str = "heard", **more: Any) -> Callable[[ModelRequest], Any]:
    """A main agent that gives these files to one child, which looks at them."""

    async def says(request: ModelRequest) -> Answer | str:
        if opening(request) != "go":
            return Answer("", (Call("look", {}),), Usage(1, 1), "m", "tools") if not step(request) else "done"
        if not step(request):
            args = {"task": "do child", "label": "child", "attachments": list(files), **more}
            return Answer("", (Call("sessions_spawn", args),), Usage(10, 5), "m", "tools")
        return then

    return says


Seen: TypeAlias = list[dict[str, bytes]]


async def house_with(build: Build, files: LocalTaskFiles, says: Any, **limits: Any) -> tuple[House, Seen]:
    """And what the child saw of its files."""
    house = await build(says, replace(POLICY, limits=replace(POLICY.limits, **limits)))
    house.more["files"] = files
    seen: Seen = []

    async def look(arguments: Anything, context: ToolContext) -> str:
        seen.append(contents(files))
        return "looked"

    house.tools.add(look, arguments=Anything, name="look", description="look")
    return house, seen


def contents(files: LocalTaskFiles) -> dict[str, bytes]:
    root = Path(files.path(FileVersion(0))).parent
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def answer_of_spawn(request: ModelRequest) -> dict[str, Any]:
    (results,) = [entry for entry in request.transcript if isinstance(entry, Results)]
    told: dict[str, Any] = json.loads(results.results[0].text)
    return told


async def stored(house: House) -> str:
    return "\n".join(row[0] for row in await house.rows("SELECT body FROM messages"))


@pytest.mark.scenario(49)
async def test_files_are_there_when_the_child_starts_and_in_no_transcript(
    build: Build, tmp_path: Path
) -> None:
    files = LocalTaskFiles(tmp_path)
    house, seen = await house_with(
        build, files, gives(FILE, {"name": "b", "content": "aGk=", "encoding": "base64"})
    )
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    (found,) = seen
    (number,) = {path.split("/")[0] for path in found}
    assert found[f"{number}/in/notes.txt"] == SECRET.encode()
    assert found[f"{number}/in/b"] == b"hi"
    told = answer_of_spawn(house.model.of("go")[1])
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    assert told["status"] == "accepted"
    assert told["attachments"]["files"][0] == {"name": "notes.txt", "bytes": len(SECRET), "sha256": digest}
    assert SECRET not in await stored(house)
    assert SECRET not in repr([request.transcript for request in house.model.requests])
    (first,) = (await house.inputs(int(number)))[:1]
    assert '/task/in/NAME: "notes.txt", "b"' in first


@pytest.mark.scenario(48)
async def test_files_over_the_total_limit_make_an_error_and_leave_nothing(
    build: Build, tmp_path: Path
) -> None:
    files = LocalTaskFiles(tmp_path)
    rules = AttachmentRules(total_bytes_max=len(SECRET))
    house, _ = await house_with(build, files, gives(FILE, {"name": "b", "content": "!"}), attachments=rules)
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    told = answer_of_spawn(house.model.of("go")[1])
    assert told["status"] == "error"
    assert "attachments_total_bytes_exceeded" in told["error"]
    assert contents(files) == {}
    assert await house.rows("SELECT 1 FROM tasks UNION ALL SELECT 1 FROM events") == []
    assert SECRET not in await stored(house), "also what was refused is not kept"


@pytest.mark.scenario(45)
async def test_where_files_are_off_the_spawn_is_forbidden(build: Build, tmp_path: Path) -> None:
    files = LocalTaskFiles(tmp_path)
    house, _ = await house_with(build, files, gives(FILE), attachments=AttachmentRules(enabled=False))
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    told = answer_of_spawn(house.model.of("go")[1])
    assert (told["status"], told["limit"]) == (
        "forbidden", {"key": "tools.sessions_spawn.attachments.enabled"},
    )  # fmt: skip
    assert contents(files) == {}
    assert SECRET not in await stored(house)


@pytest.mark.scenario(15)
@pytest.mark.scenario(211)
async def test_a_spawn_whose_files_fail_leaves_no_session_no_files_no_slot(
    build: Build, tmp_path: Path
) -> None:
    files = SlowFiles(tmp_path, fails=True)
    house, _ = await house_with(build, files, gives(FILE))
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    told = answer_of_spawn(house.model.of("go")[1])
    assert (told["status"], told["error"]) == ("error", "files: No space left on device")
    assert contents(files) == {}
    assert await house.rows("SELECT id FROM sessions WHERE is_task = 1 UNION SELECT id FROM tasks") == []
    assert await house.rows("SELECT reason, detail FROM events") == [
        ("spawn-failed", "files: No space left on device")
    ]


@pytest.mark.scenario(31)
@pytest.mark.scenario(211)
async def test_a_spawn_whose_files_hang_is_undone_after_thirty_seconds(build: Build, tmp_path: Path) -> None:
    files = SlowFiles(tmp_path)
    files.waits_after = True
    house, _ = await house_with(build, files, gives(FILE), children_max=1)
    worker = await house.hire()
    await house.say("go")
    async with asyncio.timeout(PATIENCE_S):
        await files.is_waiting.wait()
    assert len(contents(files)) == 2
    house.clock.jump(31)
    worker.hear([("look",)])

    async def is_undone() -> bool:
        return not await house.rows("SELECT 1 FROM tasks")

    await house.until(is_undone)
    assert await house.rows("SELECT reason, detail FROM events") == [
        ("spawn-failed", "not ready within 30 s")
    ]
    files.may_go_on.set()
    await house.until_quiet()
    assert contents(files) == {}
    assert answer_of_spawn(house.model.of("go")[1])["status"] == "error"


@pytest.mark.parametrize("when", ["before", "after"])
async def test_contents_survive_a_crash_between_the_spawn_and_its_files(
    build: Build, tmp_path: Path, when: str
) -> None:
    """Until they are on disk they live in the parent's call, and whoever goes on with it writes them again."""
    files = SlowFiles(tmp_path)
    files.waits_before, files.waits_after = when == "before", when == "after"
    house, seen = await house_with(build, files, gives(FILE))
    first = await house.hire()
    await house.say("go")
    async with asyncio.timeout(PATIENCE_S):
        await files.is_waiting.wait()
    await house.crash(first)
    files.waits_before = files.waits_after = False
    await house.hire()
    await house.until_quiet()
    (found,) = seen
    assert SECRET.encode() in found.values()
    assert files.puts == 2
    assert SECRET not in await stored(house)
    assert await house.rows("SELECT COUNT(*) FROM tasks") == [(1,)]


@pytest.mark.parametrize("verb", ["steer", "kill"])
async def test_an_answer_nobody_carries_out_any_more_keeps_no_contents(
    build: Build, tmp_path: Path, verb: str
) -> None:
    """The parent is superseded or killed while the files of its child are made."""
    files = SlowFiles(tmp_path)
    files.waits_before = True
    spawn_child = Answer(
        "", (Call("sessions_spawn", {"task": "do parent", "label": "parent"}),), stop="tools"
    )

    async def says(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return spawn_child if not step(request) else "heard"
        if "do parent" in opening(request) and not step(request):
            args = {"task": "do child", "label": "child", "attachments": [FILE]}
            return Answer("", (Call("sessions_spawn", args),), Usage(10, 5), "m", "tools")
        return "done"

    house, _ = await house_with(build, files, says)
    house.policy = replace(house.policy, work=replace(house.policy.work, tool_grace_s=0.1))
    await house.hire()
    await house.say("go")
    async with asyncio.timeout(PATIENCE_S):
        await files.is_waiting.wait()
    parent = await house.task("parent")
    if verb == "steer":
        await house.db.alone(
            messages.steer, house.policy, parent.id, "steer:1", "something else", actor="person"
        )
    else:
        await house.db.alone(control.kill, house.policy, parent.id, "enough", "person")
    await house.until_phase("parent", Phase.COMPLETED, Phase.ANNOUNCE_DEFERRED)
    assert SECRET not in await stored(house)


async def test_an_answer_whose_run_is_superseded_while_a_tool_runs_keeps_no_contents(
    build: Build, tmp_path: Path
) -> None:
    slow, may_end = asyncio.Event(), asyncio.Event()

    async def says(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            call = Call("sessions_spawn", {"task": "do parent", "label": "parent"})
            return Answer("", (call,), stop="tools") if not step(request) else "heard"
        if "do parent" in opening(request) and not step(request):
            args = {"task": "do child", "label": "child", "attachments": [FILE]}
            return Answer("", (Call("sessions_spawn", args), Call("slow", {})), Usage(10, 5), "m", "tools")
        return "done"

    async def takes_its_time() -> str:
        slow.set()
        await may_end.wait()
        return "done"

    house, _ = await house_with(build, LocalTaskFiles(tmp_path), says)
    house.tool("slow", takes_its_time)
    await house.hire()
    await house.say("go")
    async with asyncio.timeout(PATIENCE_S):
        await slow.wait()
    parent = await house.task("parent")
    await house.db.alone(messages.steer, house.policy, parent.id, "steer:1", "something else", actor="person")
    may_end.set()
    await house.until_quiet()
    assert SECRET not in await stored(house)


async def test_a_child_killed_while_its_files_are_made_and_started_again_keeps_what_it_hands_over(
    build: Build, tmp_path: Path
) -> None:
    """Whoever made them learns too late that the spawn was killed: by then the task has worked and is over."""
    files = SlowFiles(tmp_path)
    files.waits_after = True

    async def says(request: ModelRequest) -> Answer | str:
        return "ANNOUNCE_SKIP" if opening(request) != "go" else await gives(FILE)(request)

    house, _ = await house_with(build, files, says)
    await house.hire()
    await house.say("go")
    async with asyncio.timeout(PATIENCE_S):
        await files.is_waiting.wait()
    task = await house.task("child")
    await house.db.alone(control.kill, house.policy, task.id, "enough", "person")
    await house.until_phase("child", Phase.COMPLETED)
    await house.db.alone(control.again, house.policy, task.id, "retry", "retry:1", text="", actor="person")

    async def has_worked() -> bool:
        return (await house.task("child")).outcome is Outcome.OK

    await house.until(has_worked)
    out = tmp_path / str(task.id) / "out"
    out.mkdir(parents=True)
    (out / "found").write_text("x")
    files.may_go_on.set()
    await house.until_quiet()
    assert (await house.task("child")).outcome is Outcome.OK
    assert (out / "found").exists()


# ---- handing over ------------------------------------------------------------------------------------------


def makes(house: House, name: str) -> None:
    """A tool that hands over a file of this name."""

    async def make(arguments: Anything, context: ToolContext) -> str:
        assert context.files is not None
        out = Path(context.files) / "out"
        out.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("found")
        return "made"

    house.tools.add(make, arguments=Anything, name="make", description="make")


@pytest.mark.scenario(203)
async def test_files_of_a_child_that_runs_out_of_time_are_listed_too(build: Build, tmp_path: Path) -> None:
    async def says(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            if not step(request):
                args = {"task": "do child", "label": "child", "runTimeoutSeconds": 30}
                return Answer("", (Call("sessions_spawn", args),), Usage(1, 1), "m", "tools")
            return "heard"
        if not step(request):
            return Answer("", (Call("make", {}),), Usage(1, 1), "m", "tools")
        await asyncio.Event().wait()
        return "never"

    house, _ = await house_with(build, LocalTaskFiles(tmp_path), says)
    makes(house, "half.txt")
    worker = await house.hire()
    await house.say("go")
    await house.until_asked("do child", 2)
    house.clock.jump(31)
    worker.hear([("look",)])
    await house.until_quiet()
    assert (await house.task("child")).outcome is Outcome.TIMEOUT
    digest = hashlib.sha256(b"found").hexdigest()
    (told,) = [text for text in await house.inputs(house.main) if text.startswith("[Subagent]")]
    assert f"Files: half.txt (5 B, sha256 {digest})" in told


async def test_a_child_without_files_costs_no_transaction(build: Build, tmp_path: Path) -> None:
    house, _ = await house_with(build, LocalTaskFiles(tmp_path), gives())
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    assert (await house.task("child")).outcome is Outcome.OK
    assert "hands_over" not in house.db.stats.by_function
