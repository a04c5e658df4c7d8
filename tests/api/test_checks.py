"""Checks as programs give them and read them: real files, a real command in the sandbox."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clutch import CheckState, Clutch, InvalidInput, TaskCheck
from clutch.cli.spawn import SpawnCommandOptions
from clutch.core.messages import Answer, Call, Results
from clutch.ports import ModelRequest, OnDelta
from tests.surfaces.served import FAST

pytestmark = pytest.mark.anyio


class Writer:
    """Writes one file, says that it is done, and never repairs anything."""

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        del on_delta
        if "subagent" not in request.key or any(isinstance(one, Results) for one in request.transcript):
            return Answer("done", model="w")
        return Answer("", (Call("write", {"path": "out.md", "text": "# Report\n"}),), model="w", stop="tools")


def opened(tmp_path: Path) -> Clutch:
    place = tmp_path / "work"
    place.mkdir()
    return Clutch(state=tmp_path / "state", models=Writer(), policy=FAST, workspace=place)


async def test_a_program_spawns_with_checks_and_reads_how_they_came_out(tmp_path: Path) -> None:
    async with opened(tmp_path) as c:
        good = await c.spawn(
            "write", checks=[TaskCheck(file="out.md", matches="Report"), {"command": "grep -q Report out.md"}]
        )
        assert (await good).text == "done"
        info = await good.info()
        assert info.checks is not None
        assert (info.status, info.checks.text) == ("done", "checked 2/2")
        assert info.doing_now.startswith("checked 2/2 · result ")
        bad = await c.spawn("write", checks=[TaskCheck(command="cat out.md; exit 7", name="tests")])
        assert re.match(r"check 1: tests: # Report \(exit code 7, .*\)", (await bad).error or "")
        found = (await bad.info()).checks
        assert found is not None
        assert (found.passed, found.total, found.results[0].state) == (0, 1, CheckState.FAILED)
        assert "Result checked: checked 0/1; check 1: tests: # Report" in (await bad.why()).text
        plain = await c.spawn("write")
        await plain
        assert (await plain.info()).doing_now.startswith("unchecked · result ")


async def test_checks_are_validated_before_anything_is_spawned(tmp_path: Path) -> None:
    async with opened(tmp_path) as c:
        for given, field in (
            ({"file": "a", "command": "b"}, r"checks\[0\]"),
            ({"file": "a", "matches": "("}, r"checks\[0\]\.matches"),
            ({"agent": "No Agent"}, r"checks\[0\]\.agent"),
            ({"schema": {"type": "no type"}}, r"checks\[0\]\.schema"),
            ({"files": "a"}, "checks"),
        ):
            with pytest.raises(InvalidInput, match=field):
                await c.check_spawn("write", checks=[given])
        answer = await c.check_spawn("write", tools=["read"], checks=[TaskCheck(command="true")])
        assert answer["status"] == "forbidden"
        assert "it would have no shell" in answer["error"]
        assert not await c.tasks()


def test_the_command_line_takes_checks() -> None:
    wanted = SpawnCommandOptions("write", check=["file:out.md", "calls:shell>=2", '{"command": "true"}'])
    assert wanted.to_json()["checks"] == [
        {"file": "out.md"},
        {"calls": "shell", "minCalls": 2},
        {"command": "true"},
    ]
