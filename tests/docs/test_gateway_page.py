"""The page about the gateway is true: every command and path it names is there, and all are named."""

from __future__ import annotations

import re
from pathlib import Path

import typer

from clutch.cli.app import app
from clutch.surfaces.http.app import ENTRIES

PAGE = (Path(__file__).parents[2] / "docs" / "operate" / "gateway.md").read_text(encoding="utf-8")


def commands() -> set[str]:
    known = getattr(typer.main.get_command(app), "commands")  # noqa: B009 (a group has them, a command not)
    return {name for name, one in known.items() if not one.hidden}


def test_every_command_has_its_place() -> None:
    terminal, _, _ = PAGE.partition("## HTTP")
    table = "".join(line for line in terminal.splitlines() if line.startswith("| "))
    named = {words.split()[0] for words in re.findall(r"`([a-z][^`]*)`", table)}
    assert named == commands() - {"demo"}


def test_every_path_is_named() -> None:
    for entry in ENTRIES:
        *_, last = entry.path.split("/")
        if last.startswith("{"):
            last = entry.path.split("/")[-2]
        assert re.search(rf"\b{last}\b", PAGE), entry.path


def test_every_exit_code_is_told() -> None:
    from clutch.cli.output import Exit

    told = re.search(r"Exit codes: (.*?)\.\n", PAGE, re.DOTALL)
    assert told is not None
    assert [int(code) for code in re.findall(r"(\d) \w", told[1])] == [code.value for code in Exit]
