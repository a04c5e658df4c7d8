"""What Tab offers, what fits on 80 columns, and what is never loaded for it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from clutch.cli import output
from clutch.core.text import format
from clutch.surfaces.http_client import task_path
from tests.surfaces.served import FAST, Served, served
from tests.surfaces.test_cli import NASTY
from tests.surfaces.test_http_tasks import ended, seen, spawned
from tests.surfaces.typed import typed

EDITOR = "prompt_toolkit"
HEAVY = ("pydantic_ai", "mcp", "openai", "anthropic", "aiohttp", "starlette", "uvicorn")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("first") / "state", policy=FAST) as here:
        yield here


def offered(first: Served, line: str) -> list[str]:
    """As bash asks for it."""
    env = {
        **os.environ,
        "_CLUTCH_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "CLUTCH_HOME": str(first.home),
    }
    env["COMP_CWORD"] = str(len(line.split(" ")) - 1)
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['clutch']; from clutch.cli import main; main()"],
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.slow
def test_tab_offers_commands_tasks_and_labels(first: Served) -> None:
    task = spawned(first.client, "quick one", label="survey")
    ended(first.client, task)
    assert {"chat", "cost"} <= set(offered(first, "clutch c"))
    assert task in offered(first, "clutch kill t_")
    assert offered(first, "clutch kill surv") == ["survey"]


def test_no_line_is_wider_than_80_columns_and_none_moves_the_cursor(first: Served) -> None:
    wide = "字" * 90
    task = spawned(first.client, f"slow {NASTY} {wide}", label=wide)
    seen(first.client, task, lambda one: one["phase"] == "running")
    planned = spawned(first.client, f"think {wide}", planMode=True, label=wide)
    seen(first.client, planned, lambda one: one["phase"] == "awaiting_approval")
    for words in (("ps", "--all"), ("tree", "--all"), ("cost",)):
        said = typed(*words, state=first.home)
        assert said.code == 0
        assert said.out
        assert max(map(output.columns, said.out.splitlines())) <= 80, words
    for words in (("ps", "--all"), ("tree", "--all"), ("inbox",), ("why", task), ("logs", task), ("cost",)):
        said = typed(*words, state=first.home)
        assert all(one.isprintable() or one in "\n\t" for one in said.out + said.err), words
    first.client.post(task_path(task, "kill"), {})


def test_a_narrow_terminal_has_its_list_and_its_tree(first: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    task = spawned(first.client, "slow one", label="a label of more than a few letters")
    seen(first.client, task, lambda one: one["phase"] == "running")
    tasks = [{**first.client.get(task_path(task)), "nodes": []}]
    for width in (80, 60, 10):
        monkeypatch.setattr(output, "width", lambda: width)  # noqa: B023 (used in this round only)
        lines = output.table(tasks, output.now(), format.typed).splitlines()
        assert len(lines) == 2
        assert width == 10 or max(map(output.columns, lines)) <= width
        assert output.forest(tasks, output.now(), format.typed).count("\n") == 1
    assert [output.fitted("ab", cells) for cells in (-1, 0, 1, 2, 3)] == ["", "", "…", "ab", "ab "]
    first.client.post(task_path(task, "kill"), {})


def test_colour_is_for_terminals_and_not_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert output.coloured("word", "31") == "\x1b[31mword\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert output.coloured("word", "31") == "word"
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert output.coloured("word", "31") == "word"


@pytest.mark.slow
def test_no_command_that_looks_or_talks_loads_a_provider_or_a_server(first: Served) -> None:
    """In one process: what one of them loaded would be seen by the next. The line editor is for a terminal only."""
    program = (
        "import io, sys\nfrom clutch.cli.app import run\nimport typer\n"
        "for words in ('ps', 'tree', 'inbox', 'cost', 'doctor', 'gc --dry-run', 'top', 'chat'):\n"
        "    sys.argv = ['clutch', *words.split()]\n"
        "    sys.stdin = io.StringIO('/status\\n')\n"
        "    try:\n        run()\n    except typer.Exit:\n        pass\n"
        "import clutch.cli.chat.chat, clutch.cli.show, clutch.cli.tasks\n"
        f"print('LOADED', [name for name in {(*HEAVY, EDITOR)!r} if name in sys.modules])\n"
        "import clutch.cli.chat.conversation\n"
        f"print('LOADED', [name for name in {(*HEAVY, EDITOR)!r} if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "CLUTCH_HOME": str(first.home)},
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines()[-2:] == ["LOADED []", f"LOADED ['{EDITOR}']"], done.stderr
