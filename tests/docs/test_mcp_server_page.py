"""The page about MCP clients is true: it names every tool, its configurations parse, and its program runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clutch.surfaces.mcp import TOOLS
from tests.surfaces.served import FAST, served

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "mcp-server.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_every_tool_has_its_place() -> None:
    table = PAGE.partition("## The tools")[2].partition("Parameters")[0]
    assert set(re.findall(r"`(\w+)`", table)) == set(TOOLS)


def test_the_configurations_are_those_of_clients() -> None:
    stdio, http = (json.loads(block)["mcpServers"]["clutch"] for block in blocks("json"))
    assert stdio["args"][0] == "mcp"
    assert http["url"].endswith("/mcp")


@pytest.mark.slow
def test_the_program_runs_as_it_stands(tmp_path: Path) -> None:
    (program,) = blocks("python")
    with served(tmp_path / "state", policy=FAST) as db:
        done = subprocess.run(
            [sys.executable, "-c", program, str(db.home)],
            capture_output=True,
            check=False,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    assert "Look through the logs for errors" in done.stdout
