"""The page about commands is true: it shows every action as it is written, and every command there is."""

from __future__ import annotations

import re
from pathlib import Path

from clutch.api.slash import ACTIONS, COMMANDS
from clutch.core.session_tools import TOOLS

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "manage-tasks.md").read_text()


def test_every_action_is_shown_as_its_usage_tells_it() -> None:
    shown = re.findall(r"(?m)^    (/subagents .*)$", PAGE)
    assert shown == list(dict.fromkeys(command.usage for command in ACTIONS.values()))


def test_every_command_and_every_tool_is_named() -> None:
    assert set(re.findall(r"`/([a-z]+)", PAGE)) >= set(COMMANDS)
    assert {name for name in TOOLS if f"`{name}`" in PAGE} == TOOLS
