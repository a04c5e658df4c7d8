"""The page about editors is true: its configurations parse, and start a command that exists."""

from __future__ import annotations

import json
import re
from pathlib import Path

from typer.testing import CliRunner

from clutch.cli.app import app

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "editors.md").read_text(encoding="utf-8")


def test_the_configurations_start_a_command_with_its_options() -> None:
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
    assert len(blocks) == 3
    for block in blocks:
        server = block["agent_servers"]["Clutch"]
        assert server["command"].rpartition("/")[2] == "clutch"
        said = CliRunner().invoke(app, [*server["args"], "--help"])
        assert (said.exit_code, "--session" in said.stdout) == (0, True)
