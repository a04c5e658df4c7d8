"""What a session wrote is stored, and its machine known, before it waits for its children."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clutch.blobs import DirectoryBlobs
from clutch.core.messages import Answer, Call, Usage
from clutch.engine import open_run
from clutch.ports import Blobs, ModelRequest
from clutch.tools.child_workspaces import LocalWorkspaces
from clutch.tools.shared_files import SharedSessionFiles
from clutch.tools.task_files import LocalResultFiles, LocalTaskFiles
from tests.engine.conftest import Build
from tests.engine.house import opening, step, use

pytestmark = pytest.mark.anyio

SPAWN, YIELD = Call("sessions_spawn", {"task": "do child", "label": "child"}), Call("sessions_yield", {})
RESULT = "0123456789abcdef.txt"


def calls(*wanted: Call) -> Answer:
    return Answer("", wanted, Usage(10, 5), "scripted", "tools")


def session_files(root: Path, blobs: Blobs) -> tuple[SharedSessionFiles, LocalResultFiles]:
    results = LocalResultFiles(root / "results")
    local = LocalWorkspaces(root / "work", is_sandboxed=True), results, LocalTaskFiles(root / "tasks")
    return SharedSessionFiles("here", local, blobs, bytes_max=99, file_bytes_max=99), results


@pytest.mark.parametrize(
    ("answers", "is_saved"),
    [
        ((calls(SPAWN, YIELD),), True),
        ((calls(SPAWN), calls(YIELD)), True),
        ((calls(SPAWN), calls(Call("write", {"path": "notes"}), YIELD)), False),
    ],
    ids=["spawn and wait", "wait", "write and wait"],
)
async def test_session_that_waits_is_stored_and_has_a_place(
    build: Build, tmp_path: Path, answers: tuple[Answer, ...], is_saved: bool
) -> None:
    go = asyncio.Event()

    async def script(request: ModelRequest) -> Answer | str:
        if "do child" in opening(request):
            await go.wait()
            return "found"
        said = step(request)
        return answers[said] if said < len(answers) else "heard"

    house = await build(script)
    files, results = session_files(tmp_path, DirectoryBlobs(tmp_path / "shared"))
    house.more["session_files"] = files

    async def write() -> str:
        return "written"

    house.tool("write", write)
    if is_saved:
        await results.keep(house.main, RESULT, "a large result")
    await house.hire()
    await house.say("delegate")

    async def waits() -> bool:
        return bool(await house.rows("SELECT 1 FROM sessions WHERE id = 1 AND hold = 1 AND owner IS NULL"))

    await house.until(waits)
    ((place, saved),) = await house.rows("SELECT place, saved FROM sessions WHERE id = 1")
    assert (place, saved is not None) == ("here", is_saved)
    go.set()
    await house.until_quiet()
    assert await house.replies() == ["heard"]


class MeetingBlobs(DirectoryBlobs):
    """A store that answers when two sessions are being stored."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.waiting, self.met = 0, asyncio.Event()

    async def put(self, key: str, content: bytes) -> None:
        self.waiting += 1
        if self.waiting == 2:
            self.met.set()
        await self.met.wait()
        await super().put(key, content)


async def test_stop_stores_the_files_of_all_cut_turns_at_once(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a slow store a stop takes as long as one session, not as all of them."""
    monkeypatch.setattr(open_run, "SAVE_S", 5.0)
    at_work = asyncio.Barrier(3)

    async def script(request: ModelRequest) -> Answer | str:
        return use("hold")

    async def hold() -> str:
        await at_work.wait()
        await asyncio.Event().wait()
        return "never"

    house, blobs = await build(script), MeetingBlobs(tmp_path / "shared")
    house.tool("hold", hold)
    house.more["session_files"], results = session_files(tmp_path, blobs)
    await house.spawn(2)
    for (number,) in await house.rows("SELECT id FROM tasks"):
        await results.keep(number, RESULT, "a large result")
    worker = await house.hire()
    await at_work.wait()
    await house.dismiss(worker)
    assert await house.rows("SELECT COUNT(saved) FROM sessions") == [(2,)]
