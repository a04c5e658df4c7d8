"""`clutch import`: what other systems left behind becomes ours. Their files are only ever read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clutch.cli.options import AsJson, State

imports = typer.Typer(help="Bring in what another system left behind.", no_args_is_help=True)


@imports.callback()
def _group() -> None:
    """Bring in what another system left behind."""


@imports.command("openclaw")
def openclaw(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="OpenClaw's state directory: ~/.openclaw")],
    state: State = None,
    database: Annotated[
        str | None, typer.Option(help="A PostgreSQL instead of SQLite: postgresql://…", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done; write nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Subagent runs, their results and transcripts. Nothing of OpenClaw's is changed.

    Finished runs keep outcome, result and label; what nobody was told of is announced to the main agent when it works
    next; what had not ended is lost. A second import changes nothing. On SQLite, stop the gateway first."""
    from clutch.cli import importing

    importing.openclaw(directory, state, database, is_rehearsal=dry_run, as_json=as_json)
