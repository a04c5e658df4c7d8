"""Options and arguments that mean the same in every command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def _tasks(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    from clutch.cli.completing import tasks

    return tasks(context, incomplete)


State = Annotated[
    Path | None,
    typer.Option(
        help="The state directory. Default: $CLUTCH_HOME, else ~/.local/state/clutch.", show_default=False
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(help="The config. Default: clutch.json in the state directory.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Target = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="Its id or label, a unique beginning of either, its session key, #n, or `last`.",
        autocompletion=_tasks,
    ),
]
Words = Annotated[str, typer.Argument(metavar="TEXT")]
MaybeWords = Annotated[str, typer.Argument(metavar="TEXT")]
All = Annotated[bool, typer.Option("--all", help="Also what ended more than 30 minutes ago.")]
Hash = Annotated[
    str | None, typer.Option("--hash", help="Of what you decide on, as it was shown.", show_default=False)
]
Sure = Annotated[bool, typer.Option("--yes", help="Decide on whatever waits now, without being asked.")]
