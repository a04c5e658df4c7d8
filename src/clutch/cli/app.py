"""The commands and their options. Each loads what it needs when it runs, so that `--help` is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clutch import __version__

app = typer.Typer(
    name="clutch",
    help="Durable background subagents: spawn them, lose the process, keep the work.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def clutch(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


@app.command()
def demo(
    folder: Annotated[
        Path | None, typer.Option("--dir", help="The folder to survey, read-only. Default: this one.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same pace and moments of death.")] = 0,
    state: Annotated[
        Path | None,
        typer.Option(help="Where the run is kept: a new or empty directory. Default: a fresh one."),
    ] = None,
    chaos: Annotated[
        bool, typer.Option("--chaos", help="Kill the worker (SIGKILL) about every second.")
    ] = False,
    kills: Annotated[
        int | None, typer.Option(min=5, max=1000, help="With --chaos: stop killing after this many.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Finish an interrupted demo.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print nothing but the JSON line.")] = False,
) -> None:
    """A main agent surveys a folder with children of its own; works offline, with a scripted model.

    The last line of stdout is a JSON object; everything else goes to stderr."""
    from clutch.cli.demo.command import Wishes, run

    wishes = Wishes(folder, seed, state, chaos=chaos, kills=kills, resume=resume, as_json=as_json)
    raise typer.Exit(run(wishes))
