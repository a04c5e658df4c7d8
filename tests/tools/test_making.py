"""A gateway that was taken for dead and goes on does not remove what another one has made in its place."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clutch.core.attachments import Attachment, FileVersion
from clutch.ports import FilesFailed, WorkspaceFailed
from clutch.tools import child_workspaces, directories
from clutch.tools.child_workspaces import LocalWorkspaces
from clutch.tools.child_workspaces import isolated_workspace as make_workspace
from clutch.tools.task_files import LocalTaskFiles

pytestmark = pytest.mark.anyio


async def test_of_two_who_make_one_workspace_the_second_waits_and_keeps_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, may_go_on, times = threading.Event(), threading.Event(), []

    def slow(source: str, target: str) -> None:
        make_workspace(source, target)
        times.append(target)
        made.set()
        assert may_go_on.wait(20)

    monkeypatch.setattr(child_workspaces, "isolated_workspace", slow)
    source = tmp_path / "source"
    source.mkdir()
    frozen, other = (LocalWorkspaces(tmp_path / "own", is_sandboxed=True) for _ in range(2))
    first = asyncio.ensure_future(frozen.make(7, str(source)))
    await asyncio.to_thread(made.wait, 20)
    second = asyncio.ensure_future(other.make(7, str(source)))
    await asyncio.sleep(0.1)
    assert not second.done()
    (tmp_path / "own" / "7" / "work.txt").write_text("of the child")
    may_go_on.set()
    assert await first == await second == str(tmp_path / "own" / "7")
    assert await frozen.make(7, str(source)) == str(tmp_path / "own" / "7")
    assert len(times) == 1
    assert (tmp_path / "own" / "7" / "work.txt").read_text() == "of the child"
    await other.remove(7)
    assert list((tmp_path / "own").iterdir()) == []


async def test_whoever_waits_for_one_that_stands_still_gives_up_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories, "PATIENCE_S", 0.1)
    spaces, files = LocalWorkspaces(tmp_path / "own", is_sandboxed=True), LocalTaskFiles(tmp_path / "tasks")
    await files.put(FileVersion(7), [Attachment("a.txt", b"one")])
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "7.making").touch()
    with (
        standing_still(tmp_path / "own" / "7.making"),
        pytest.raises(WorkspaceFailed, match="does not continue"),
    ):
        await spaces.make(7, str(tmp_path))
    with standing_still(tmp_path / "tasks" / "7"), pytest.raises(FilesFailed, match="does not continue"):
        await files.put(FileVersion(7), [Attachment("a.txt", b"two")])
    await files.put(FileVersion(7), [Attachment("a.txt", b"two")])
    assert (tmp_path / "tasks" / "7" / "in" / "a.txt").read_bytes() == b"two"


@contextmanager
def standing_still(place: Path) -> Iterator[None]:
    file = os.open(place, os.O_RDONLY)
    with directories.alone(file):
        yield
    os.close(file)
