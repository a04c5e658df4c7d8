"""Which walls a call runs behind: those of the tools, unless its session has others."""

from __future__ import annotations

from pathlib import Path

import pytest

from clutch.core.policy import Limits
from clutch.ports import ToolContext, ToolFailed
from clutch.tools.registry import AllTools, ToolSettings
from clutch.tools.sandbox.policy import Sandbox

pytestmark = pytest.mark.anyio


async def sees_beyond(rooms: AllTools, workspace: Path, is_sandboxed: bool | None) -> tuple[bool, bool]:
    """Does a command read a file beside the workspace, and is the workspace still there for the file tools?"""
    context = ToolContext(str(workspace), "agent:main:main", "k", is_sandboxed=is_sandboxed)
    said = await rooms.run("shell", {"command": f"cat {workspace.parent}/secret 2>/dev/null; true"}, context)
    listed = await rooms.run("list", {}, context)
    with pytest.raises(ToolFailed):
        await rooms.run("read", {"path": "../secret"}, context)
    return "swordfish" in said, "here.txt" in listed


@pytest.mark.scenario(39)
@pytest.mark.parametrize(
    ("setting", "is_sandboxed", "sees"),
    [
        (Sandbox.ON, None, False),
        (Sandbox.ON, True, False),
        (Sandbox.ON, False, True),
        (Sandbox.OFF, None, True),
        (Sandbox.OFF, True, False),
    ],
)
async def test_a_session_has_the_walls_it_was_given(
    tmp_path: Path, setting: Sandbox, is_sandboxed: bool | None, sees: bool
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "here.txt").write_text("x")
    (tmp_path / "secret").write_text("swordfish")
    rooms = AllTools(Limits(), ToolSettings(sandbox=setting), None)
    try:
        assert await sees_beyond(rooms, work, is_sandboxed) == (sees, True)
    finally:
        await rooms.close()
