"""`clutch spawn` and `clutch run`: start a task, and wait for its result."""

from __future__ import annotations

import base64
import dataclasses
import inspect
import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from clutch.cli import output
from clutch.cli.options import AsJson, State
from clutch.cli.output import (
    OF_OUTCOME,
    Exit,
    answering,
    command_for,
    gateway,
    print_object,
    print_text,
    say,
    say_folder,
)
from clutch.cli.source import GatewayConnection, resumable
from clutch.core.checks import typed
from clutch.errors import InvalidInput
from clutch.surfaces.http_client import Declined, GatewayClient, session_path, task_path

WAIT_STEP_S = 50.0  #: one request; a wait consists of several
SLACK_S = 45.0  #: beyond the wait of a request: a busy gateway answers late

spawns = typer.Typer()


# --------------------------------------------------------------------------------------------------
# The parameters of a spawn on the command line, each once, with its `--help` text.
#
# The gateway validates them; only files are read here.


def _option(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help)


@dataclass(frozen=True, slots=True)
class SpawnCommandOptions:
    task: Annotated[str, typer.Argument(metavar="TASK", help="What to do, in plain language.")]
    label: Annotated[str | None, _option("Name to show in lists.")] = None
    agent: Annotated[str | None, _option("Agent that does it. Default: main.")] = None
    model: Annotated[str | None, _option("provider:model, e.g. openai:gpt-5-mini.")] = None
    thinking: Annotated[str | None, _option("Reasoning effort: off, minimal, low, medium, high or max.")] = (
        None
    )
    run_timeout: Annotated[
        float | None, typer.Option(min=0, help="Timeout of one run in seconds; 0 = none.")
    ] = None
    plan: Annotated[bool, _option("Write a plan first and wait for approval.", "--plan")] = False
    tool: Annotated[list[str] | None, _option("Allow only this tool; may be repeated.")] = None
    attach: Annotated[
        list[Path] | None,
        typer.Option(exists=True, dir_okay=False, help="File to pass to it; may be repeated."),
    ] = None
    workspace: Annotated[
        Literal["inherit", "isolated"] | None, _option("Share the session's directory, or use a copy.")
    ] = None
    cwd: Annotated[str | None, _option("Directory inside the workspace.")] = None
    budget_usd: Annotated[str | None, _option("Budget in US dollars, for it and its subagents.")] = None
    budget_tokens: Annotated[int | None, _option("Budget in tokens, for it and its subagents.")] = None
    schema: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="File with a JSON schema: structured output."),
    ] = None
    check: Annotated[
        list[str] | None,
        _option("file:PATH, command:COMMAND, calls:TOOL>=N or agent:ID; must pass before done. Repeatable."),
    ] = None
    context: Annotated[
        Literal["isolated", "fork"] | None, _option("fork: begin with a copy of the session's transcript.")
    ] = None
    sandbox: Annotated[
        Literal["inherit", "require"] | None, _option("require: refuse to run without the sandbox.")
    ] = None
    runtime: Annotated[
        str | None, _option("Runtime instead of the built-in agent loop, e.g. acp:claude.")
    ] = None
    share: Annotated[
        str | None, _option("Key of a tenant or project that its slot belongs to, e.g. tenant-a.")
    ] = None
    priority: Annotated[
        Literal["low", "normal", "high"] | None,
        _option("Which tasks of a share start first. Default: normal."),
    ] = None
    cleanup: Annotated[
        Literal["keep", "delete"] | None,
        _option("delete: delete its transcript when its result is delivered or not requested."),
    ] = None
    thread: Annotated[bool, _option("Open a thread in the session's chat for follow-ups.", "--thread")] = (
        False
    )
    mode: Annotated[
        Literal["run", "session"] | None,
        _option("run: its thread ends with its first result. session: it stays."),
    ] = None
    notify_parent: Annotated[
        bool,
        _option("Give the parent agent a turn with the result; it costs a model call.", "--notify-parent"),
    ] = False
    session: Annotated[str | None, _option("Parent session. Default: agent:main:main.")] = None
    key: Annotated[str | None, _option("Idempotency key: the same key gives the same task.")] = None
    on_full: Annotated[
        Literal["queue", "reject"] | None,
        _option("At a limit: wait (queue) or fail (reject). Default: as configured (onFull)."),
    ] = None

    def to_json(self) -> dict[str, Any]:
        """Return the body of the HTTP request, without options that were not given. Raises InvalidInput."""
        # Checked before a gateway is started for it.
        if not self.task.strip():
            raise InvalidInput("task", "must not be blank: say what to do")
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
            "checks": [typed(one) for one in self.check or ()] or None,
            "context": self.context,
            "sandbox": self.sandbox,
            "runtime": self.runtime,
            "share": self.share,
            "priority": self.priority,
            "cleanup": self.cleanup,
            "thread": self.thread or None,
            "mode": self.mode,
            "notifyParent": True if self.notify_parent else None,
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
        command(SpawnCommandOptions(**{one.name: said.pop(one.name) for one in given}), **said)

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
        raise InvalidInput(
            "--attach", f"{path} cannot be read: {error.strerror}; name a file you can read"
        ) from error
    return {"name": path.name, "content": content, "encoding": "base64"}


def _schema(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidInput(
            "--schema", f"{path} is not JSON: {error}; give a file with a JSON schema"
        ) from error


# --------------------------------------------------------------------------------------------------
# The commands.


@spawns.command()
@takes_wanted
def spawn(
    wanted: SpawnCommandOptions,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check whether it would be accepted and what it costs; start nothing."
        ),
    ] = False,
    count: Annotated[
        int, typer.Option(min=1, help="With --dry-run: the cost of so many tasks like this one.")
    ] = 1,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Start a task in the background and print its id.

    Example: clutch spawn 'List the open TODOs' --label todos"""
    with answering("spawn", as_json=as_json):
        if count > 1 and not dry_run:
            raise InvalidInput("--count", "is for --dry-run only: start each task on its own")
        body = wanted.to_json()
        client = gateway(state, is_new_work=True)
        say_folder(client)
        said = (
            client.post("/v1/tasks", {**body, "dryRun": True, "count": count})
            if dry_run
            else _spawned(client, wanted, body)
        )
        if as_json:
            print_object("spawn", said)
            return
        for warning in said["warnings"]:
            say(f"Note: {warning}")
        if dry_run:
            print_text(f"would be accepted: model {said['model']}, {said['mode']} mode; nothing was started")
            print_text(said["forecast"]["text"])
            return
        say(f"accepted: {said['label']}")
        print_text(said["taskId"])


def _spawned(client: GatewayClient, wanted: SpawnCommandOptions, said: Mapping[str, Any]) -> Any:
    """Spawn the task. At a limit, say what it waits for before the wait."""
    # One key for all attempts: each of them may be cut off after its commit.
    key = wanted.key or uuid.uuid4().hex
    body = {**said, "idempotencyKey": key, "onFull": "reject"}
    while True:
        try:
            return client.post("/v1/tasks", body)
        except Declined as error:
            limit = error.said.get("limit", {})
            if not limit.get("hasRoomLater") or (wanted.on_full or limit["onFull"]) != "queue":
                raise
            if body["onFull"] == "reject":
                say(f"Waiting at a limit: {error}. Ctrl-C cancels; nothing was started.")
            body["onFull"] = "queue"


@spawns.command()
@takes_wanted
def run(
    wanted: SpawnCommandOptions,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it ends and print its result.")] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds to wait; the task itself continues.")
    ] = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Start a task; with --wait, print its result.

    Exit code: 0 ok, 1 error, 3 timeout, 4 killed, 5 needs a decision, 6 undelivered, 7 lost, 8 forbidden.

    Example: clutch run --wait 'Say hello'"""
    with answering("run", as_json=as_json):
        wanted = replace(wanted, key=wanted.key or uuid.uuid4().hex)
        body = wanted.to_json()
        line = GatewayConnection(state, gateway(state, is_new_work=True))
        line.ask(say_folder)
        said = line.ask(lambda client: _spawned(client, wanted, body))
        if not wait:
            task = line.ask(lambda client: client.get(task_path(said["taskId"])))
            told = {"task": task, "result": None, "exitCode": Exit.OK}
            print_object("run", told) if as_json else print_text(said["taskId"])
            return
        say(f"accepted: {said['label']} ({said['taskId']})")
        with resumable(state, "logs", "-f", said["taskId"]):
            ended = wait_for(line, said["taskId"], timeout)
        if ended["status"] == "done":
            line.ask(lambda client: _known(client, ended["task"]))
        code = exit_code(ended)
        if as_json:
            told = {"task": ended["task"], "result": ended["result"], "exitCode": code}
            print_object("run", told, is_ok=code is Exit.OK)
        else:
            _tell(state, ended, code)
        raise typer.Exit(code)


def wait_for(line: GatewayConnection, target: str, timeout_s: float | None) -> dict[str, Any]:
    """Wait until the task has ended or needs the user, or for `timeout_s`. An interrupt changes nothing.

    The wait does not include delivery to the parent, which may be retried for half an hour and changes neither outcome
    nor result."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def look(client: GatewayClient) -> dict[str, Any]:
        step = WAIT_STEP_S if deadline is None else max(0.0, min(WAIT_STEP_S, deadline - time.monotonic()))
        seen: dict[str, Any] = client.get(
            task_path(target, "wait"), timeoutSeconds=step, until="ended", patience_s=step + SLACK_S
        )
        return seen

    while True:
        ended = line.ask(look)
        if ended["status"] != "pending" or (deadline is not None and time.monotonic() >= deadline):
            return ended


def _known(client: GatewayClient, task: Mapping[str, Any]) -> None:
    """Mark the agent's reply about this result as read: the result itself is about to be printed."""
    body = {"waitSeconds": 0, "known": task["taskId"]}
    if task["depth"] == 1:
        client.post(session_path(task["requesterKey"], "replies"), body)


def exit_code(ended: Mapping[str, Any]) -> Exit:
    """Return the exit code: a needed decision or an undelivered result precedes ok; pending delivery does not."""
    if ended["status"] == "needs_you":
        return Exit.NEEDS_YOU
    task = ended["task"]
    if task["outcome"] is None:
        return Exit.TIMEOUT
    code = OF_OUTCOME.get(task["outcome"], Exit.ERROR)
    is_undelivered = task["delivery"]["state"] == "undelivered"
    return Exit.UNDELIVERED if code is Exit.OK and is_undelivered else code


def _tell(state: Path | None, ended: Mapping[str, Any], code: Exit) -> None:
    task = ended["task"]
    say(output.one_line(task, output.now()))
    if (failed := output.failure(task, partial(command_for, state))) is not None:
        say(failed)
    if code is Exit.NEEDS_YOU:
        say(f"Needs a decision: `{command_for(state, 'inbox')}`.")
    elif ended["status"] == "pending":
        say(f"Still {task['status']}: `{command_for(state, 'logs', '-f', task['taskId'])}`.")
    if ended["result"] is not None and ended["result"]["text"]:
        print_text(ended["result"]["text"])
