"""Options and arguments that mean the same in every command."""

from __future__ import annotations

import contextlib
import io
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

COMPLETIONS_MAX = 200
HELP_CHARS_MAX = 60  #: of a completion


def _tasks(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the tasks that Tab offers, by id and by label, and nothing on an error: the user is typing a line.

    A label is offered where the shell needs no quotes around it."""
    from clutch.cli.show import ListOptions
    from clutch.cli.source import source
    from clutch.core.text.format import is_plain, visible
    from clutch.errors import ClutchError

    try:
        with contextlib.redirect_stderr(io.StringIO()), source(context.params.get("state")) as here:
            found = here.tasks(**ListOptions(is_all=True, limit=COMPLETIONS_MAX).to_query())["tasks"]
    except ClutchError:
        return []
    ids = [(task["taskId"], visible(f"{task['status']}: {task['label']}", HELP_CHARS_MAX)) for task in found]
    labels = [
        (task["label"], task["taskId"])
        for task in found
        if is_plain(task["label"]) and shlex.quote(task["label"]) == task["label"]
    ]
    return [(word, about) for word, about in (*ids, *labels) if word.startswith(incomplete)]


def text_argument(help: str) -> Any:
    return typer.Argument(metavar="TEXT", help=help)


State = Annotated[
    Path | None, typer.Option(help="State directory. Default: $CLUTCH_HOME, else ~/.local/state/clutch.")
]
Config = Annotated[
    Path | None, typer.Option(help="Config file. Default: clutch.json in the state directory.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
Target = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="Task id or label, the beginning of either, session key, #n of a list, or `last`.",
        autocompletion=_tasks,
    ),
]
ItemTarget = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="Question id (q_…), or the task that asks: id, label, #n of a list, or `last`.",
        autocompletion=_tasks,
    ),
]
All = Annotated[bool, typer.Option("--all", help="Also tasks that ended more than 30 minutes ago.")]
Hash = Annotated[
    str | None, typer.Option("--hash", help="Hash of the item as shown; refused if it has changed.")
]
Sure = Annotated[bool, typer.Option("--yes", help="Decide on what waits now without confirmation.")]
