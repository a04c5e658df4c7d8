"""Options and arguments that mean the same in every command."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import inspect
import io
import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from clutch.errors import InvalidInput

COMPLETIONS_MAX = 200
HELP_CHARS_MAX = 60  #: of a completion


def _tasks(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the tasks that Tab offers, by id and by label, and nothing on an error: the user is typing a line.

    A label is offered where the shell needs no quotes around it."""
    from clutch.cli import output
    from clutch.cli.show import ListOptions
    from clutch.cli.source import source
    from clutch.core.text.format import is_plain, visible
    from clutch.errors import ClutchError

    try:
        with contextlib.redirect_stderr(io.StringIO()), source(context.params.get("state")) as here:
            found = here.tasks(**ListOptions(is_all=True, limit=COMPLETIONS_MAX).to_query())["tasks"]
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
TextArgument = Annotated[str, typer.Argument(metavar="TEXT")]
OptionalTextArgument = Annotated[str, typer.Argument(metavar="TEXT")]
All = Annotated[bool, typer.Option("--all", help="Also what ended more than 30 minutes ago.")]
Hash = Annotated[
    str | None, typer.Option("--hash", help="Of what you decide on, as it was shown.", show_default=False)
]
Sure = Annotated[bool, typer.Option("--yes", help="Decide on whatever waits now, without being asked.")]


# --------------------------------------------------------------------------------------------------
# The parameters of a spawn on the command line, each once, with its `--help` text.
#
# The gateway validates them; only files are read here.


def _option(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help, show_default=False)


@dataclass(frozen=True, slots=True)
class SpawnCommandOptions:
    task: Annotated[str, typer.Argument(metavar="TASK")]
    label: Annotated[str | None, _option("A name to show.")] = None
    agent: Annotated[str | None, _option("Another agent, if the config allows it.")] = None
    model: Annotated[str | None, _option("provider:model")] = None
    thinking: Annotated[str | None, _option("off, minimal, low, medium, high or max.")] = None
    run_timeout: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds one run may take; 0 = no limit.", show_default=False),
    ] = None
    plan: Annotated[bool, _option("It writes a plan first and waits for your decision.", "--plan")] = False
    tool: Annotated[list[str] | None, _option("Only these tools; may be repeated.")] = None
    attach: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True, dir_okay=False, help="A file it is given; may be repeated.", show_default=False
        ),
    ] = None
    workspace: Annotated[
        Literal["inherit", "isolated"] | None, _option("The session's directory, or one of its own.")
    ] = None
    cwd: Annotated[str | None, _option("A directory inside its workspace.")] = None
    budget_usd: Annotated[
        str | None, _option("The most it and everything below it may cost, in US dollars.")
    ] = None
    budget_tokens: Annotated[int | None, _option("... or in tokens.")] = None
    schema: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="A file with the JSON schema that its result must satisfy.",
            show_default=False,
        ),
    ] = None
    context: Annotated[
        Literal["isolated", "fork"] | None, _option("fork: it begins with a copy of the session's talk.")
    ] = None
    sandbox: Annotated[
        Literal["inherit", "require"] | None,
        _option("require: refused if that agent works without a sandbox."),
    ] = None
    runtime: Annotated[str | None, _option("Something else than our own loop: acp, or a name.")] = None
    cleanup: Annotated[
        Literal["keep", "delete"] | None, _option("delete: its transcript goes when its result was told.")
    ] = None
    thread: Annotated[
        bool, _option("It gets a thread in the session's chat, and stays for follow-ups.", "--thread")
    ] = False
    mode: Annotated[
        Literal["run", "session"] | None, _option("run: its thread ends with its first result.")
    ] = None
    no_hurry: Annotated[bool, _option("Nobody waits for it: tell it when convenient.", "--no-hurry")] = False
    session: Annotated[str | None, _option("The session it works for. Default: agent:main:main.")] = None
    key: Annotated[str | None, _option("The same key gives the same task, never a twin.")] = None
    on_full: Annotated[
        Literal["queue", "reject"] | None,
        _option("Where a limit is reached: wait for room, or be refused. Else as configured (onFull)."),
    ] = None

    def to_json(self) -> dict[str, Any]:
        """Return the body of the HTTP request, without options that were not given. Raises InvalidInput."""
        # Checked before a gateway is started for it.
        if not self.task.strip():
            raise InvalidInput("task", "must not be blank")
        said = {
            "task": self.task,
            "label": self.label,
            "agentId": self.agent,
            "model": self.model,
            "thinking": self.thinking,
            "runTimeoutSeconds": self.run_timeout,
            "planMode": self.plan or None,
            "tools": self.tool or None,
            "attachments": [_attached(path) for path in self.attach or ()] or None,
            "workspace": self.workspace,
            "cwd": self.cwd,
            "budget": _said(usd=self.budget_usd, tokens=self.budget_tokens) or None,
            "outputSchema": None if self.schema is None else _schema(self.schema),
            "context": self.context,
            "sandbox": self.sandbox,
            "runtime": self.runtime,
            "cleanup": self.cleanup,
            "thread": self.thread or None,
            "mode": self.mode,
            "expectsCompletion": False if self.no_hurry else None,
            "requester": self.session,
        }
        return _said(**said)


def takes_wanted(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the first parameter of a command, a `SpawnCommandOptions`, by one option for each of its fields."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    kinds = get_type_hints(SpawnCommandOptions, include_extras=True)
    given = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=kinds[field.name],
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
        )
        for field in fields(SpawnCommandOptions)
    ]

    def act(**said: Any) -> None:
        command(
            SpawnCommandOptions(**{one.name: said.pop(one.name) for one in given}),
            **said,
        )

    later = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    act.__signature__ = inspect.Signature([*given, *later])  # type: ignore[attr-defined]
    act.__name__, act.__doc__ = command.__name__, command.__doc__
    return act


def _said(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _attached(path: Path) -> dict[str, str]:
    try:
        content = base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise InvalidInput("--attach", f"{path} cannot be read: {error.strerror}") from error
    return {"name": path.name, "content": content, "encoding": "base64"}


def _schema(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidInput("--schema", f"{path} holds no JSON: {error}") from error
