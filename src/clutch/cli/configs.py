"""`clutch config …` and `clutch init`: their options and the words of their `--help`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clutch.cli.options import AsJson, Config, State

configs = typer.Typer(help="Look at the config: is it right, and what holds?", no_args_is_help=True)
beginning = typer.Typer()


@configs.command()
def check(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Default: clutch.json in the state directory.")
    ] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Say everything that is wrong with a config. Exit code 1 if anything is."""
    from clutch.cli import configuring

    configuring.check(state, file, as_json=as_json)


@configs.command()
def explain(
    key: Annotated[str, typer.Argument(metavar="KEY", help="For example announce.queue.mode, or announce.")],
    config: Config = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Show what holds for a key, its default, where it is said, what it may be, and why."""
    from clutch.cli import configuring

    configuring.explain(state, config, key, as_json=as_json)


@configs.command()
def schema() -> None:
    """Print a JSON schema of the config, for editors."""
    from clutch.cli import configuring

    configuring.schema()


@beginning.command()
def init(
    force: Annotated[bool, typer.Option("--force", help="Write over the one that is there.")] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Write a first config for this machine. Looks for provider keys and a local Ollama, and comments the rest."""
    from clutch.cli import configuring

    configuring.init(state, is_forced=force, as_json=as_json)
