"""The command `clutch`: its groups, its errors and `clutch demo`. A command is built when it is used."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info, get_command_name, get_group_from_info
from typer.models import TyperInfo

from clutch import __version__
from clutch.cli.acp.commands import editors
from clutch.cli.agents import roles
from clutch.cli.maintenance import beginning, configs, imports, upkeep
from clutch.cli.move import moves
from clutch.cli.options import AsJson, Config, JsonLines, State, Target
from clutch.cli.schedule import schedules
from clutch.cli.show import looks
from clutch.cli.spawn import spawns
from clutch.cli.status import statuses
from clutch.cli.tasks import acts
from clutch.core.text.format import plain_json
from clutch.surfaces.discovery import NO_START

# --------------------------------------------------------------------------------------------------
# Lazy commands: one of sixty is used, and building all of them takes longer than most of them run. The converters of
# option values are loaded when there is a value to convert.

_PLAIN: Any = {"pretty_exceptions_short": True, "rich_markup_mode": None}  #: as in `app`
FLAGS = {"1": True, "0": False}  #: as in environment variables
MAKES = "get_runtime_param"  #: typer's method that makes the converter of a value


@dataclass(frozen=True, slots=True)
class Converting:
    """Converts text, paths and flags itself; other values need typer and pydantic, which are slow to load."""

    otherwise: Callable[[], Any]

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        wanted = param.type_descriptor.annotation
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if type(value) is wanted:
            return value
        if wanted is Path and (not os.path.exists(value) or os.access(value, os.R_OK)):
            return Path(value)
        if wanted is bool and value in FLAGS:
            return FLAGS[value]
        return self.otherwise().coerce(value, param=param, ctx=ctx)


class LateConversion:
    """A command whose parameters build their converters when there is a value to convert.

    typer has no option for that, so the method is replaced on each parameter, not on typer's classes. With a typer that
    lacks the method, commands only start slower."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of the typer class beside this one
        for one in parameters:
            makes = getattr(one, MAKES, None)
            if makes is not None and MAKES not in vars(one):
                setattr(one, MAKES, partial(Converting, makes))
        return parameters


class LateCommand(LateConversion, TyperCommand):
    pass


class LateGroup(LateConversion, TyperGroup):
    pass


class LazyGroup(LateGroup):
    """Has the commands of `parts`, and `groups` of further commands."""

    parts: tuple[typer.Typer, ...] = ()
    groups: tuple[tuple[str, typer.Typer], ...] = ()
    sections: Mapping[str, tuple[str, ...]] = {}  #: all commands, by heading of `--help`

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        makers: dict[str, Callable[[], Any]] = {}
        for one in (one for part in self.parts for one in part.registered_commands):
            one.cls = LateCommand
            make = partial(get_command_from_info, one, **_PLAIN)
            makers[one.name or get_command_name(getattr(one.callback, "__name__", ""))] = make
        for name, group in self.groups:
            for one in group.registered_commands:
                one.cls = LateCommand
            info = TyperInfo(group, cls=LateGroup)
            makers[name] = partial(get_group_from_info, info, suggest_commands=True, **_PLAIN)
        self.commands = Commands(makers)  # type: ignore[assignment]  # no command is added later

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        del ctx
        widest = max(map(len, self.commands))
        for heading, names in self.sections.items():
            with formatter.section(heading):
                made = [(name, self.commands[name]) for name in names]
                words = formatter.width - widest - 6
                formatter.write_dl(
                    [(name.ljust(widest), one.get_short_help_str(words)) for name, one in made]
                )


class Commands(Mapping[str, Any]):
    def __init__(self, makers: Mapping[str, Callable[[], Any]]) -> None:
        self._makers = makers
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


USAGE = 2  #: exit code
USAGE_SCHEMA = "clutch.usage/1"  #: for errors before a command is known
NO_COMMAND = "Missing command."
OBJECTS_IN_PIPES = "demo"  #: the last line of its stdout is an object wherever no user reads it
MESSAGE_CHARS_MAX = 300  #: enough to recognise the input

commands = typer.Typer()


#: As `--help` shows them: commands for new users first, operation last.
SECTIONS = {
    "Begin": ("demo", "init", "chat", "run", "spawn", "open", "mcp", "acp"),
    "Look": ("status", "ps", "tree", "top", "attach", "logs", "why", "replay", "cost"),
    "Act on a task": ("steer", "send", "pause", "resume", "kill", "retry", "continue"),
    "Decide": ("inbox", "answer", "approve", "reject"),
    "Schedules": ("schedule",),
    "Results": ("dead", "redeliver", "dismiss", "archive", "delete", "export"),
    "Upkeep": (
        "config",
        "agents",
        "serve",
        "stop",
        "drain",
        "nodes",
        "doctor",
        "token",
        "devices",
        "backup",
        "restore",
        "move",
        "gc",
        "import",
    ),
}


class ClutchCommands(LazyGroup):
    parts = (commands, spawns, acts, looks, statuses, upkeep, moves, beginning)
    groups = (
        ("acp", editors),
        ("agents", roles),
        ("config", configs),
        ("import", imports),
        ("schedule", schedules),
    )
    sections = SECTIONS


app = typer.Typer(
    name="clutch",
    cls=ClutchCommands,
    help="Durable background subagents: spawn them, lose the process, keep the work.\n\n"
    "New here? Type clutch demo, then clutch status.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def run() -> int:
    """Return the exit code. Invalid options are reported as a message, and with --json as an object."""
    try:
        code = app(standalone_mode=False)
    except typer.TyperException as error:
        return _misused(error)
    except typer.Abort:
        return 1
    return int(code or 0)


def _misused(error: typer.TyperException) -> int:
    context: typer.Context | None = getattr(error, "ctx", None)
    # The prefix is pydantic's.
    message = error.format_message().replace("Value error, ", "").replace(": Input should", ": must")
    message = message[:MESSAGE_CHARS_MAX]
    schema = USAGE_SCHEMA
    if context is not None:
        schema = f"clutch.{'.'.join(_names(context))}/1" if context.parent else schema
        # A group was called without a command.
        if error.format_message() == (help_ := context.get_help()):
            typer.echo(help_, err=True)
            _print_object(NO_COMMAND, None, schema)
            return error.exit_code
        typer.echo(f"{context.get_usage()}\nTry '{context.command_path} --help'.", err=True)
    typer.echo(f"Error: {message}", err=True)
    _print_object(message, _option(error), schema)
    return error.exit_code


def _names(context: Any) -> list[str]:
    """Return the names of the command, below `clutch`."""
    names: list[str] = []
    while context.parent is not None:
        names.insert(0, str(context.info_name))
        context = context.parent
    return names


def _print_object(message: str, field: str | None, schema: str) -> None:
    is_for_programs = sys.argv[1:2] == [OBJECTS_IN_PIPES] and not sys.stdout.isatty()
    if "--json" not in sys.argv and not is_for_programs:
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
            "--no-start",
            envvar=NO_START,
            help="Start no gateway in the background; exit with 9 where one is needed.",
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


@commands.command()
def demo(
    folder: Annotated[
        str | None, typer.Option("--dir", help="Folder to survey, read-only. Default: this one.")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="The same seed gives the same pace and the same moments of kills.")
    ] = 0,
    state: Annotated[
        str | None, typer.Option(help="State directory of the demo, new or empty. Default: a fresh one.")
    ] = None,
    chaos: Annotated[
        bool, typer.Option("--chaos", help="Kill the worker (SIGKILL) about every second, not once.")
    ] = False,
    kills: Annotated[int | None, typer.Option(min=5, max=1000, help="With --chaos: how many kills.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Finish an interrupted demo.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the JSON line.")] = False,
) -> None:
    """Survey a folder with subagents whose process is killed once.

    Needs no API key: the demo model answers. At a terminal it ends with a report; with --json or where stdout is no
    terminal, the last line of stdout is a JSON object.

    Example: clutch demo --dir ~/project"""
    from clutch.demo import command

    options = command.DemoOptions(
        folder, seed, state, chaos=chaos, kills=kills, resume=resume, as_json=as_json
    )
    raise typer.Exit(command.run(options))


# --------------------------------------------------------------------------------------------------
# Commands with much to load, which is imported when they run.


@commands.command()
def serve(
    state: State = None,
    database: Annotated[str | None, typer.Option(help="PostgreSQL instead of SQLite: postgresql://…")] = None,
    model: Annotated[
        str | None, typer.Option(help="provider:model of agents that name none. Default: the demo model.")
    ] = None,
    workspace: Annotated[
        Path | None, typer.Option(help="Workspace of new sessions. Default: the current directory.")
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help="Address to listen on. Default: 127.0.0.1; others need gateway.allowRemote."),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 = any free one.")
    ] = None,
    config: Config = None,
    no_input: Annotated[
        bool, typer.Option("--no-input", help="No user answers: deny approvals and questions at once.")
    ] = False,
    background: Annotated[bool, typer.Option("--background", hidden=True)] = False,
    as_json: AsJson = False,
) -> None:
    """Run a gateway in the foreground.

    It runs the tasks and answers the other commands, which otherwise start one in the background.

    Example: clutch serve --port 8137"""
    from clutch.cli import serve

    wishes = serve.ServeOptions(state, database, model, workspace, host, port, config, no_input, background)
    serve.serve(wishes, as_json=as_json)


@commands.command()
def stop(state: State = None, as_json: AsJson = False) -> None:
    """Stop the gateway; work resumes at the next start.

    Model calls are cancelled and repeated at the next start, like tools that may run twice; other tools get
    `worker.stop` seconds.

    Example: clutch stop"""
    from clutch.cli import serve

    serve.stop(state, as_json=as_json)


@commands.command()
def drain(
    node: Annotated[
        str | None,
        typer.Argument(
            metavar="[NODE]",
            help="Take this node of `clutch nodes` out of service; it keeps running.",
            show_default=False,
        ),
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Put the node back into service.")] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds to wait; then it stops as `stop` does.")
    ] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Let the gateway finish its work, then stop it.

    It accepts no new work, and shows what it waits for. With NODE that gateway of a fleet claims nothing from now on
    and hands what it runs to the others; it still answers requests.

    Example: clutch drain --timeout 60"""
    from clutch.cli import serve

    if node is not None:
        return serve.drain_node(state, node, undo=undo, as_json=as_json)
    if undo:
        raise typer.BadParameter("needs a NODE: `clutch nodes` lists them", param_hint="'--undo'")
    serve.drain(state, timeout_s=timeout, as_json=as_json)


@commands.command()
def mcp(
    state: State = None,
    session: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name under which this client finds its tasks again. Default: the client's name.",
        ),
    ] = None,
    agent: Annotated[str, typer.Option(help="Agent of that session.")] = "main",
) -> None:
    """Serve background tasks to an MCP client on stdin and stdout.

    The tasks outlive the client.

    Example: clutch mcp --session editor"""
    from clutch.cli import serve as command

    command.serve_mcp(state, agent_id=agent, session=session)


@commands.command()
def chat(
    session: Annotated[
        str | None, typer.Option(help="Main session to talk to. Default: agent:main:main.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Talk to the main session of this agent.")] = None,
    state: State = None,
    as_json: JsonLines = False,
) -> None:
    """Chat with the main agent while its subagents work.

    With a pipe on stdin: one message per line.

    Example: clutch chat"""
    from clutch.cli.chat import chat

    chat.chat(state, session, agent, as_json=as_json)


@commands.command()
def attach(target: Target, state: State = None, as_json: JsonLines = False) -> None:
    """Watch a task live and type to steer it.

    Escape or Ctrl-D detaches; the task continues. With --json it only watches.

    Example: clutch attach last"""
    if as_json:
        from clutch.cli import show

        return show.logs(target, follow=True, state=state, as_json=True)
    from clutch.cli.chat import chat

    chat.attach(state, target)


@commands.command("open")
def open_(
    prints: Annotated[bool, typer.Option("--print", help="Print the link; start no browser.")] = False,
    phone: Annotated[bool, typer.Option("--phone", help="Print a QR code that signs a phone in.")] = False,
    url: Annotated[str | None, typer.Option(help="With --phone: the public address of the gateway.")] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Open the page in a browser: tasks and inbox, live.

    Starts a gateway if none runs. Without a screen it prints a one-time link. With --phone it prints a QR code, valid
    once and for ten minutes.

    Example: clutch open --phone"""
    if phone:
        from clutch.cli import devices as paired

        return paired.open_phone(state, url=url, as_json=as_json)
    from clutch.cli import serve

    serve.open_page(state, only_prints=prints, as_json=as_json)


class DeviceAction(StrEnum):
    LIST = "list"
    REVOKE = "revoke"


@commands.command()
def devices(
    action: Annotated[
        DeviceAction,
        typer.Argument(metavar="[list|revoke]", help="List them, or sign one out.", show_default=False),
    ] = DeviceAction.LIST,
    device: Annotated[str | None, typer.Argument(metavar="[ID]", help="Device to revoke.")] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """List the signed-in browsers and phones, or sign one out.

    Example: clutch devices revoke d_1f0c22aa"""
    from clutch.cli import devices as paired

    if action is DeviceAction.REVOKE:
        return paired.revoke(state, device, as_json=as_json)
    paired.listed(state, as_json=as_json)
