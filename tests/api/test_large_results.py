"""Large tool results lie outside the workspace: one directory per session, readable by that session only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clutch import Clutch
from clutch.core.messages import Answer, Call, Results, Usage
from clutch.ports import ModelRequest
from clutch.testing.models import ScriptedModel

pytestmark = pytest.mark.anyio

LONG = "begin" + "x\n" * 25_000 + "SECRET-MIDDLE\n" + "x\n" * 25_000 + "end"


def call(name: str, **args: object) -> Answer:
    return Answer("", (Call(name, args),), usage=Usage(1, 1))


def results(request: ModelRequest) -> list[str]:
    return [result.text for one in request.transcript if isinstance(one, Results) for result in one.results]


async def test_a_large_result_is_read_by_its_own_session_and_by_no_sibling(tmp_path: Path) -> None:
    kept: dict[str, str] = {}

    def script(request: ModelRequest) -> Answer | str:
        said, task = results(request), str(request.transcript[0])
        if "owner" in task:
            if not said:
                return call("big")
            kept["path"] = re.findall(r"the whole is in (\S+): read it", said[0])[0]
            steps = [
                call("search", pattern="SECRET-[A-Z]+", path=kept["path"]),
                call("write", path=kept["path"], text="x"),
            ]
            return steps[len(said) - 1] if len(said) <= len(steps) else "owner is done"
        if "sibling" in task:
            steps = [
                call("read", path=kept["path"]),
                call("search", pattern="SECRET", ignored=True),
                call("shell", command=f"cat {kept['path']} .clutch/results/* 2>&1; ls -a"),
                call("write", path=kept["path"], text="forged"),
            ]
            return steps[len(said)] if len(said) < len(steps) else "sibling is done"
        return "noted"

    model, workspace = ScriptedModel(script), tmp_path / "workspace"
    workspace.mkdir()
    async with Clutch(state=tmp_path / "state", workspace=workspace, models=model, serve=False) as c:

        @c.tool
        def big() -> str:
            """Return a large text."""
            return LONG

        owner = await (await c.spawn("owner"))
        assert owner.text == "owner is done", owner
        sibling = await (await c.spawn("sibling"))
        assert sibling.text == "sibling is done", sibling
    owned = max((results(one) for one in model.requests if "owner" in str(one.transcript[0])), key=len)
    read = max((results(one) for one in model.requests if "sibling" in str(one.transcript[0])), key=len)
    assert "SECRET" not in "".join(read)
    assert kept["path"].startswith("/results/")
    assert "1 matching line in 1 file" in owned[1]
    assert "read-only" in owned[2]
    assert len(read) == 4
    assert list(workspace.iterdir()) == []
    file = next((tmp_path / "state" / "results").glob("*/*.txt"))
    assert file.read_text() == LONG
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
