"""What Tab offers in a shell: tasks by id and label, as they are in the state directory at that moment.

Whatever goes wrong offers nothing and says nothing: somebody is in the middle of a line."""

from __future__ import annotations

import contextlib
import io
import shlex

import typer

from clutch.cli import output
from clutch.core.text.format import is_plain, visible

COUNT_MAX = 200
HELP_CHARS_MAX = 60


def tasks(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """A label only where a shell would take it as it stands."""
    from clutch.cli.show import ListOptions
    from clutch.cli.source import source
    from clutch.errors import ClutchError

    try:
        with contextlib.redirect_stderr(io.StringIO()), source(context.params.get("state")) as here:
            found = here.tasks(**ListOptions(is_all=True, limit=COUNT_MAX).to_query())["tasks"]
    except ClutchError:
        return []
    now = output.now()
    ids = [
        (task["taskId"], visible(f"{output.state(task, now)}: {task['label']}", HELP_CHARS_MAX))
        for task in found
    ]
    labels = [
        (task["label"], task["taskId"])
        for task in found
        if is_plain(task["label"]) and shlex.quote(task["label"]) == task["label"]
    ]
    return [(word, about) for word, about in (*ids, *labels) if word.startswith(incomplete)]
