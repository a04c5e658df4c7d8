"""File tools in workers of their own: one workspace each, cheap to ask, and replaceable."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clutch.ports import ToolFailed
from clutch.tools.file_process import FileProcess
from clutch.tools.sandbox import process as probing
from clutch.tools.sandbox.process import Offer
from tests.patience import PATIENCE_S
from tests.tools.escapes.witness import processes_with

pytestmark = pytest.mark.anyio


MAC = Offer(None, "this system has no /usr/bin/sandbox-exec", 0, system="darwin")


@pytest.fixture(params=["bubblewrap", "landlock", "darwin"])
async def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FileProcess]:
    if request.param != "bubblewrap":
        version = probing.probe().landlock
        offer = Offer(None, "bubblewrap is not installed", version) if request.param == "landlock" else MAC
        monkeypatch.setattr(probing, "probe", lambda: offer)
    room = FileProcess()
    yield room
    await room.close()


def workers_of(root: Path) -> list[int]:
    return processes_with(f"file_worker\0{root}")


async def test_every_tool_works_in_the_worker(room: FileProcess, tmp_path: Path) -> None:
    root = str(tmp_path)
    assert "wrote a/b.txt" in await room.run("write", {"path": "a/b.txt", "text": "one\ntwo\n"}, root, False)
    assert "1  one" in await room.run("read", {"path": "a/b.txt"}, root, True)
    assert "a" in await room.run("list", {"path": "."}, root, True)
    assert "a/b.txt:2: two" in await room.run("search", {"pattern": "^t"}, root, True)
    edits = {"path": "a/b.txt", "edits": [{"old": "one", "new": "three", "all": False}]}
    await room.run("edit", edits, root, False)
    assert (tmp_path / "a" / "b.txt").read_text() == "three\ntwo\n"
    assert (tmp_path / "a" / "b.txt").stat().st_uid == os.geteuid()


@pytest.mark.parametrize("path", ["../other/secret", "/etc/passwd", "link", "folder/secret"])
async def test_nothing_outside_is_read(room: FileProcess, tmp_path: Path, path: str) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "secret").write_text("canary")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path / "other" / "secret")
    (root / "folder").symlink_to(tmp_path / "other")
    with pytest.raises(ToolFailed):
        await room.run("read", {"path": path}, str(root), True)


async def test_box_itself_ends_at_the_workspace(tmp_path: Path) -> None:
    """Were every check of a path wrong, there still would be nothing to see: looked up in the worker's own root."""
    (tmp_path / "root").mkdir()
    (tmp_path / "secret").write_text("canary")
    room = FileProcess()
    await room.run("list", {"path": "."}, str(tmp_path / "root"), False)
    inside = [Path(f"/proc/{pid}/root") for pid in workers_of(tmp_path / "root")]
    seen = [view for view in inside if is_box(view, tmp_path / "root")]
    assert seen
    for view in seen:
        assert not (view / str(tmp_path)[1:] / "secret").exists()
        assert not (view / "etc" / "shadow").exists()
    await room.close()


def is_box(view: Path, root: Path) -> bool:
    """Bubblewrap waits outside, under the same words; the worker itself has no /sys."""
    try:
        return not (view / "sys").exists() and (view / str(root)[1:]).is_dir()
    except PermissionError:
        return False


async def test_read_only_workspace_cannot_be_written(room: FileProcess, tmp_path: Path) -> None:
    with pytest.raises(ToolFailed):
        await room.run("write", {"path": "a", "text": "x"}, str(tmp_path), True)
    assert os.listdir(tmp_path) == []


async def test_workers_die_with_the_room(tmp_path: Path) -> None:
    room = FileProcess()
    await room.run("list", {"path": "."}, str(tmp_path), True)
    assert workers_of(tmp_path)
    await room.close()
    assert workers_of(tmp_path) == []


async def test_killed_worker_is_replaced(room: FileProcess, tmp_path: Path) -> None:
    await room.run("write", {"path": "a", "text": "x"}, str(tmp_path), False)
    for pid in workers_of(tmp_path):
        with contextlib.suppress(
            ProcessLookupError
        ):  # the first process of a sandbox takes the others with it
            os.kill(pid, signal.SIGKILL)
    assert "1  x" in await room.run("read", {"path": "a"}, str(tmp_path), False)


async def test_closing_waits_for_the_pipes_of_a_worker_that_ended_by_itself(tmp_path: Path) -> None:
    room = FileProcess()
    await room.run("write", {"path": "a", "text": "x"}, str(tmp_path), False)
    (pool,) = room._pools.values()
    dead = await pool.idle.get()
    assert dead is not None
    dead.kill()
    await dead.wait()
    pool.idle.put_nowait(dead)
    await room.run("read", {"path": "a"}, str(tmp_path), False)
    await room.close()
    assert dead.stdout is not None
    assert dead.stdout.at_eof()


async def test_hung_call_is_killed_and_hurts_no_other(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text("a" * 1500 + "\n")
    hangs = ("search", {"pattern": "(a+)+$x"}, str(tmp_path), True)
    patient, hasty = FileProcess(answer_s=PATIENCE_S), FileProcess(answer_s=1.0)
    hung = asyncio.ensure_future(patient.run(*hangs))
    await asyncio.sleep(0.2)
    await asyncio.gather(*(patient.run("read", {"path": "1.txt"}, str(tmp_path), True) for _ in range(20)))
    assert not hung.done()
    with pytest.raises(ToolFailed, match="no answer within 1 s"):
        await hasty.run(*hangs)
    hung.cancel()
    await asyncio.wait([hung])  # `close` is for when calls have ended
    await hasty.close()
    await patient.close()


async def test_idle_worker_ends_by_itself(tmp_path: Path) -> None:
    room = FileProcess(idle_s=0.1)
    await room.run("list", {"path": "."}, str(tmp_path), True)
    async with asyncio.timeout(PATIENCE_S):
        while workers_of(tmp_path):  # noqa: ASYNC110 - another process ends, and tells nobody
            await asyncio.sleep(0.02)
    await room.close()


async def test_burst_of_quick_calls_shares_few_workers(room: FileProcess, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    await asyncio.gather(*(room.run("read", {"path": "a"}, str(tmp_path), True) for _ in range(200)))
    assert sum(pool.workers for pool in room._pools.values()) <= 4


async def test_neither_wall_is_refused_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "probe", lambda: Offer(None, "bubblewrap is not installed", 0))
    with pytest.raises(ToolFailed, match=r'file tools refused.*apt install bubblewrap.*sandbox: "off"'):
        await FileProcess().run("list", {"path": "."}, str(tmp_path), True)


@pytest.mark.parametrize(
    "call", [("read", {"path": "state/db"}), ("write", {"path": "state/db", "text": "x"})]
)
@pytest.mark.parametrize(
    ("mechanism", "remedy"),
    [
        ("bubblewrap", "read-only|no such file"),
        ("landlock", "state directory outside.*install bubblewrap"),
        ("darwin", "state directory outside the workspace$"),
    ],
)
async def test_state_in_the_workspace_is_out_of_reach(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mechanism: str,
    remedy: str,
    call: tuple[str, dict[str, str]],
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "db").write_text("secret")
    if mechanism != "bubblewrap":
        landlock = Offer(None, "bubblewrap is not installed", probing.probe().landlock)
        offer = landlock if mechanism == "landlock" else MAC
        monkeypatch.setattr(probing, "probe", lambda: offer)
    room = FileProcess(hidden=(str(tmp_path / "state"),))
    with pytest.raises(ToolFailed, match=remedy):
        await room.run(*call, str(tmp_path), call[0] == "read")
    assert (tmp_path / "state" / "db").read_text() == "secret"
    await room.close()
