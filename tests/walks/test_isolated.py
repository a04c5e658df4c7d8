"""Children with a directory of their own: what they leave there, and who may see it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from clutch import Clutch, Sandbox, SpawnRefused, ToolSettings
from clutch.testing.providers import Reply, Text, ToolCall, WireRequest
from tests.walks.test_real_models import is_child, said, story

pytestmark = pytest.mark.anyio


def writes_a_file(request: WireRequest) -> Reply:
    if is_child(request) and not said(request):
        return Reply([ToolCall("write", (json.dumps({"path": "found.txt", "text": "mine"}),))])
    return Reply([Text("done")])


@pytest.mark.parametrize(("cleanup", "stays"), [("keep", True), ("delete", False)])
async def test_what_an_isolated_child_wrote_stays_unless_it_was_to_be_deleted(
    tmp_path: Path, cleanup: str, stays: bool
) -> None:
    async with story(tmp_path, "direct", writes_a_file) as (clutch, _):
        task = await clutch.spawn("write", workspace="isolated", cleanup=cleanup)  # type: ignore[arg-type]
        assert (await task).text == "done"
        await clutch.wait_idle()
    found = list((tmp_path / "state/workspaces").glob("*/found.txt"))
    assert len(found) == (1 if stays else 0)
    assert not (tmp_path / "work/found.txt").exists()


def commit(work: Path) -> None:
    who = ("-c", "user.email=a@b", "-c", "user.name=a")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "x")):
        subprocess.run(["git", *words], cwd=work, check=True)  # noqa: S607 - the git of the machine


async def test_an_isolated_child_of_a_repository_works_on_a_copy_of_its_last_commit(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "notes.txt").write_text("water the plants\n")
    commit(work)

    def behave(request: WireRequest) -> Reply:
        if is_child(request) and not said(request):
            edit = {"path": "notes.txt", "edits": [{"old": "plants", "new": "dog"}]}
            return Reply([ToolCall("edit", (json.dumps(edit),))])
        return Reply([Text("done")])

    async with story(tmp_path, "direct", behave) as (clutch, _):
        assert (await (await clutch.spawn("edit", workspace="isolated"))).text == "done"
    (copy,) = (tmp_path / "state/workspaces").glob("*/notes.txt")
    assert (copy.read_text(), (work / "notes.txt").read_text()) == ("water the dog\n", "water the plants\n")


async def test_without_a_sandbox_nobody_is_isolated(tmp_path: Path) -> None:
    settings = ToolSettings(sandbox=Sandbox.OFF)
    async with Clutch(state=tmp_path / "state", workspace=tmp_path, settings=settings) as clutch:
        with pytest.raises(SpawnRefused, match="needs the sandbox"):
            _ = await clutch.spawn("x", workspace="isolated")
