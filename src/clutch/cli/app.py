"""The commands and their options. Each is made when it is asked for, and loads what it needs when it runs."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any

import typer

from clutch import __version__
from clutch.cli.acts import acts
from clutch.cli.configs import beginning, configs
from clutch.cli.imports import imports
from clutch.cli.lazily import Lazily
from clutch.cli.looks import looks
from clutch.cli.upkeep import upkeep
from clutch.core.shown import plain_json
from clutch.surfaces.starting import NO_START

USAGE = 2  #: exit code
USAGE_SCHEMA = "clutch.usage/1"  #: when it is not even clear which command is meant
NO_COMMAND = "Missing command."
ALWAYS_OBJECTS = "demo"  #: the last line of its stdout is an object, whatever happens
MESSAGE_CHARS_MAX = 300  # enough to recognise what was typed, never the whole of it

demos = typer.Typer()


#: As `--help` shows them: what somebody new needs first, what looks after the whole last.
SECTIONS = {
    "Begin": ("demo", "init", "chat", "run", "spawn", "open", "mcp"),
    "Look": ("ps", "tree", "top", "attach", "logs", "why", "replay", "cost"),
    "Act on a task": ("steer", "send", "pause", "resume", "kill", "retry", "continue"),
    "What waits for you": ("inbox", "answer", "approve", "reject"),
    "Results": ("dead", "redeliver", "dismiss", "remove", "rm", "export"),
    "Upkeep": ("config", "serve", "stop", "drain", "doctor", "token", "backup", "gc", "import"),
}


class Words(Lazily):
    parts = (demos, acts, looks, upkeep, beginning)
    groups = (("config", configs), ("import", imports))
    sections = SECTIONS


app = typer.Typer(
    name="clutch",
    cls=Words,
    help="Durable background subagents: spawn them, lose the process, keep the work.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def run() -> int:
    """The exit code. What the options cannot be is said in words, and with --json as an object."""
    try:
        code = app(standalone_mode=False)
    except typer.TyperException as error:
        return _misused(error)
    except typer.Abort:
        return 1
    return int(code or 0)


def _misused(error: typer.TyperException) -> int:
    context: typer.Context | None = getattr(error, "ctx", None)
    message = error.format_message().replace("Value error, ", "")[:MESSAGE_CHARS_MAX]  # a word of pydantic's
    schema = USAGE_SCHEMA
    if context is not None:
        schema = f"clutch.{'.'.join(_names(context))}/1" if context.parent else schema
        if error.format_message() == (help_ := context.get_help()):  # a group without one of its commands
            typer.echo(help_, err=True)
            _print_object(NO_COMMAND, None, schema)
            return error.exit_code
        typer.echo(f"{context.get_usage()}\nTry '{context.command_path} --help'.", err=True)
    typer.echo(f"Error: {message}", err=True)
    _print_object(message, _option(error), schema)
    return error.exit_code


def _names(context: Any) -> list[str]:
    """Of the command, below `clutch`."""
    names: list[str] = []
    while context.parent is not None:
        names.insert(0, str(context.info_name))
        context = context.parent
    return names


def _print_object(message: str, field: str | None, schema: str) -> None:
    if "--json" not in sys.argv and sys.argv[1:2] != [ALWAYS_OBJECTS]:
        return
    said: dict[str, Any] = {"code": "invalid_input", "message": message}
    if field is not None:
        said["field"] = field
    print(plain_json(json.dumps({"schema": schema, "ok": False, "error": said}, ensure_ascii=False)))


def _option(error: typer.TyperException) -> str | None:
    parameter = getattr(error, "param", None)
    name = getattr(error, "option_name", None) or next(iter(getattr(parameter, "opts", ())), None)
    return None if name is None else str(name)[:MESSAGE_CHARS_MAX]


def _version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def clutch(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    no_start: Annotated[
        bool,
        typer.Option(
            "--no-start", envvar=NO_START, help="Start no gateway in the background; without one exit with 9."
        ),
    ] = False,
) -> None:
    del version
    if no_start:
        os.environ[NO_START] = "1"
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        _print_object(NO_COMMAND, None, USAGE_SCHEMA)
        raise typer.Exit(USAGE)


@demos.command()
def demo(
    folder: Annotated[
        str | None, typer.Option("--dir", help="The folder to survey, read-only. Default: this one.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same pace and moments of death.")] = 0,
    state: Annotated[
        str | None,
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
    """Survey a folder with a main agent and its children. Works offline, with a scripted model.

    The last line of stdout is a JSON object; everything else goes to stderr."""
    from clutch.cli.demo import command

    wishes = command.Wishes(folder, seed, state, chaos=chaos, kills=kills, resume=resume, as_json=as_json)
    raise typer.Exit(command.run(wishes))
