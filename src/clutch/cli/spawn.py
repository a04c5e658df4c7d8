"""`clutch spawn` and `clutch run`: start a task, and wait for its result."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from clutch.cli import output
from clutch.cli.options import SpawnCommandOptions
from clutch.cli.output import OF_OUTCOME, Exit, answering, command_for, gateway, print_object, print_text, say
from clutch.cli.source import GatewayConnection, resumable
from clutch.surfaces.http_client import Declined, GatewayClient, session_path, task_path

WAIT_STEP_S = 50.0  #: one request; a wait consists of several
SLACK_S = 45.0  #: beyond the wait of a request: a busy gateway answers late


def spawn(state: Path | None, wanted: SpawnCommandOptions, *, is_dry: bool, as_json: bool) -> None:
    with answering("spawn", as_json=as_json):
        body = wanted.to_json()
        client = gateway(state, is_new_work=True)
        said = (
            client.post("/v1/tasks", {**body, "dryRun": True}) if is_dry else _spawned(client, wanted, body)
        )
        if as_json:
            print_object("spawn", said)
            return
        for warning in said["warnings"]:
            say(f"Note: {warning}")
        if is_dry:
            say(f"would be accepted: model {said['model']}, {said['mode']} mode; nothing was started")
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
                say(f"Waits for room: {error}. Ctrl-C gives up; nothing was started.")
            body["onFull"] = "queue"


def run(
    state: Path | None,
    wanted: SpawnCommandOptions,
    *,
    waits: bool,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    with answering("run", as_json=as_json):
        wanted = replace(wanted, key=wanted.key or uuid.uuid4().hex)
        body = wanted.to_json()
        line = GatewayConnection(state, gateway(state, is_new_work=True))
        said = line.ask(lambda client: _spawned(client, wanted, body))
        if not waits:
            task = line.ask(lambda client: client.get(task_path(said["taskId"])))
            told = {"task": task, "result": None, "exitCode": Exit.OK}
            print_object("run", told) if as_json else print_text(said["taskId"])
            return
        say(f"accepted: {said['label']} ({said['taskId']})")
        with resumable(state, "logs", "-f", said["taskId"]):
            ended = wait(line, said["taskId"], timeout_s)
        if ended["status"] == "done":
            line.ask(lambda client: _known(client, ended["task"]))
        code = exit_code(ended)
        if as_json:
            told = {"task": ended["task"], "result": ended["result"], "exitCode": code}
            print_object("run", told, is_ok=code is Exit.OK)
        else:
            _tell(state, ended, code)
        raise typer.Exit(code)


def wait(line: GatewayConnection, target: str, timeout_s: float | None) -> dict[str, Any]:
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
    if code is Exit.NEEDS_YOU:
        say(f"It needs you: `{command_for(state, 'inbox')}`.")
    elif ended["status"] == "pending":
        say(f"Not ended yet; it goes on: `{command_for(state, 'logs', '-f', task['taskId'])}`.")
    if ended["result"] is not None and ended["result"]["text"]:
        print_text(ended["result"]["text"])
