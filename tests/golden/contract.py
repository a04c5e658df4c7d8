"""The golden files and how each of them is made: what users of every surface rely on, as text that can be compared."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from clutch.cli.app import app
from clutch.config.explain import schema
from clutch.store.dialect import META, SCHEMA, Dialect, load
from clutch.surfaces.http.app import ENTRIES
from clutch.surfaces.http.routes import document
from clutch.surfaces.mcp import TOOLS
from tests.golden.api import api
from tests.golden.observed import events, exported_tree
from tests.golden.worlds import worlds

FOLDER = Path(__file__).parent
REMEDY = "python -m tests.golden"


def pretty(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def openapi() -> str:
    made = document(ENTRIES)
    del made["info"]["version"]
    return pretty(made)


def mcp_tools() -> str:
    return pretty(
        {
            name: {
                "description": tool.about,
                "readOnly": tool.is_read_only,
                "destructive": tool.is_destructive,
                "input": tool.input_schema(),
                "output": tool.output_schema(),
            }
            for name, tool in TOOLS.items()
        }
    )


def config_schema() -> str:
    return pretty(schema())


def commands_help() -> str:
    return "\n".join(_help(typer.main.get_command(app), ()))


def _help(command: Any, words: tuple[str, ...]) -> Iterator[str]:
    terminal = {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}
    said = CliRunner().invoke(app, [*words, "--help"], prog_name="clutch", env=terminal)
    yield f"$ {' '.join(('clutch', *words, '--help'))}\n{said.stdout}"
    for word, below in sorted(getattr(command, "commands", {}).items()):
        if below.hidden:
            continue
        yield from _help(below, (*words, word))


def tables() -> str:
    """The schema that all migrations together make; SQLite keeps each statement as it was written."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute(META)
        for migration in load(SCHEMA, Dialect.SQLITE):
            for statement in migration.statements:
                database.execute(statement)
        rows = database.execute(
            "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type DESC, name"
        )
        return "".join(f"{sql};\n" for (sql,) in rows)


FILES: Mapping[str, Callable[[], str]] = {
    "api.txt": api,
    "openapi.json": openapi,
    "mcp_tools.json": mcp_tools,
    "config_schema.json": config_schema,
    "help.txt": commands_help,
    "tables.sql": tables,
    "seeds.txt": worlds,
    "events.txt": events,
    "exported_tree.json": exported_tree,
}
