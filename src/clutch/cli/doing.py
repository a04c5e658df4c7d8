"""Commands that make something happen: each asks the gateway once, and says what it answered."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from clutch.cli import screen
from clutch.cli.asking import (
    OF_OUTCOME,
    Exit,
    answering,
    command_for,
    gateway,
    is_interactive,
    print_object,
    print_text,
    say,
)
from clutch.cli.line import Line, resumable
from clutch.core import keys
from clutch.errors import InvalidInput
from clutch.surfaces.client import Client, Declined, session_path, task_path

WAIT_STEP_S = 50.0  #: one request; a wait is as many of them as it takes
SLACK_S = 45.0  #: beyond what was asked for: some verbs give a task a moment of their own accord


def verb(
    command: str, state: Path | None, target: str, body: Mapping[str, Any] | None = None, *, as_json: bool
) -> None:
    """Everything that is one POST to one task."""
    with answering(command, as_json=as_json):
        patience = float((body or {}).get("waitSeconds") or 0) + SLACK_S
        said = gateway(state).post(task_path(target, command), body, patience_s=patience)
        if as_json:
            print_object(command, said)
        else:
            say(words(said))
            if "reply" in said:
                print_text(said["reply"])


def words(said: Mapping[str, Any]) -> str:
    """What became of a verb, in one line or a few."""
    if "stopped" in said:
        return _killed(said)
    if "changed" in said:
        return f"changed: {', '.join(said['changed'])}" if said["changed"] else "nothing to change"
    if "status" in said:
        about = [said["status"], said.get("taskId") or ""]
        if said.get("supersedes"):
            about.append(f"(takes the place of {said['supersedes']})")
        return " ".join(part for part in about if part)
    return screen.one_line(said, screen.now())


def _killed(said: Mapping[str, Any]) -> str:
    lines = [f"stopped: {', '.join(said['stopped'])}"] if said["stopped"] else []
    lines += [f"already finished: {', '.join(said['alreadyFinished'])}"] if said["alreadyFinished"] else []
    lines += [f"not stopped: {one['taskId']}: {one['why']}" for one in said["notStopped"]]
    return "\n".join(lines) or "nothing to stop"


# ---- spawning --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was said of a child."""

    task: str
    label: str | None
    agent_id: str | None
    model: str | None
    thinking: str | None
    run_timeout_s: float | None
    is_plan: bool
    tools: list[str] | None
    session: str | None
    on_full: str | None = None

    def to_json(self) -> dict[str, Any]:
        """What was not said is left to the gateway."""
        said = {
            "task": self.task,
            "label": self.label,
            "agentId": self.agent_id,
            "model": self.model,
            "thinking": self.thinking,
            "runTimeoutSeconds": self.run_timeout_s,
            "planMode": self.is_plan or None,
            "tools": self.tools or None,
            "requester": self.session,
        }
        return {name: value for name, value in said.items() if value is not None}


def spawn(state: Path | None, wanted: Wanted, *, key: str | None, as_json: bool) -> None:
    with answering("spawn", as_json=as_json):
        said = _spawned(gateway(state, is_new_work=True), wanted, key)
        if as_json:
            print_object("spawn", said)
            return
        for warning in said["warnings"]:
            say(f"Note: {warning}")
        say(f"accepted: {said['label']}")
        print_text(said["taskId"])


def _spawned(client: Client, wanted: Wanted, key: str | None) -> Any:
    """Whoever must wait for room is told what for, at once and not after the wait."""
    key = key or uuid.uuid4().hex  # one for all tries: any of them may be cut off after its commit
    body = {**wanted.to_json(), "idempotencyKey": key, "onFull": "reject"}
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
    wanted: Wanted,
    *,
    key: str | None,
    waits: bool,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    with answering("run", as_json=as_json):
        line = Line(state, gateway(state, is_new_work=True))
        key = key or uuid.uuid4().hex
        said = line.ask(lambda client: _spawned(client, wanted, key))
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


def wait(line: Line, target: str, timeout_s: float | None) -> dict[str, Any]:
    """Until it was told, needs somebody, or the time is over. Interrupting it changes nothing."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def look(client: Client) -> dict[str, Any]:
        step = WAIT_STEP_S if deadline is None else max(0.0, min(WAIT_STEP_S, deadline - time.monotonic()))
        seen: dict[str, Any] = client.get(
            task_path(target, "wait"), timeoutSeconds=step, until="delivered", patience_s=step + SLACK_S
        )
        return seen

    while True:
        ended = line.ask(look)
        if ended["status"] != "pending" or (deadline is not None and time.monotonic() >= deadline):
            return ended


def _known(client: Client, task: Mapping[str, Any]) -> None:
    """The result is about to be printed: what the agent said of it need not be read, too."""
    body = {"waitSeconds": 0, "known": task["taskId"]}
    if task["depth"] == 1:
        client.post(session_path(task["requesterKey"], "replies"), body)


def exit_code(ended: Mapping[str, Any]) -> Exit:
    """That somebody is needed, or that it could not be told, wins over a good end. Not to be told yet does not."""
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
    say(screen.one_line(task, screen.now()))
    if code is Exit.NEEDS_YOU:
        say(f"It needs you: `{command_for(state, 'inbox')}`.")
    elif ended["status"] == "pending" and task["outcome"] is None:
        say(f"Not ended yet; it goes on: `{command_for(state, 'logs', '-f', task['taskId'])}`.")
    elif ended["status"] == "pending":
        told = command_for(state, "why", task["taskId"])
        say(f"It has ended; {task['requesterKey']} has not read the result yet: `{told}`.")
    if ended["result"] is not None and ended["result"]["text"]:
        print_text(ended["result"]["text"])


# ---- deciding --------------------------------------------------------------------------------------------


def decide(
    command: str,
    state: Path | None,
    target: str,
    body: Mapping[str, Any],
    *,
    seen_hash: str | None,
    is_sure: bool,
    as_json: bool,
) -> None:
    """About a plan, as it was shown: by its hash, or shown here and now. What else is in the inbox goes by its id."""
    if keys.parse_question_id(target) is not None:
        text = str(body.get("reason") or body.get("text") or "")
        return answer(state, target, command, text, seen_hash=seen_hash, as_json=as_json)
    with answering(command, as_json=as_json):
        client = gateway(state)
        seen = seen_hash or _shown(client, target, is_sure=is_sure)
        said = client.post(task_path(target, command), {**body, "planHash": seen})
        print_object(command, said) if as_json else say(words(said))


def _shown(client: Client, target: str, *, is_sure: bool) -> str:
    """The hash of the plan that waits now."""
    task = client.get(task_path(target))
    plans = [item for item in client.get("/v1/inbox")["items"] if item["id"] == task["taskId"]]
    if not plans:
        raise InvalidInput(
            "TASK", f"{task['taskId']} has no plan that awaits approval; it is {task['phase']}"
        )
    (plan,) = plans
    if not is_sure:
        if not is_interactive():
            raise InvalidInput("--hash", f"name the plan you decide on ({plan['hash']}), or say --yes")
        say(f"Plan of {plan['label']} ({plan['id']}):\n\n{plan['text']}\n")
        typer.confirm("Decide on this plan?", abort=True, err=True)
    return str(plan["hash"])


def answer(
    state: Path | None, item: str, decision: str, text: str, *, seen_hash: str | None, as_json: bool
) -> None:
    with answering("answer", as_json=as_json):
        client = gateway(state)
        found = [one for one in client.get("/v1/inbox")["items"] if one["id"] == item]
        if not found and seen_hash is None:
            raise InvalidInput(
                "ID", f"nothing in the inbox is called {item[:40]}; see `{command_for(state, 'inbox')}`"
            )
        body = {"decision": decision, "text": text, "hash": seen_hash or found[0]["hash"]}
        said = client.post(f"/v1/inbox/{item}", body)
        print_object("answer", said) if as_json else say(words(said))


def remove_session(state: Path | None, target: str, options: Mapping[str, bool], *, as_json: bool) -> None:
    with answering("rm", as_json=as_json):
        said = gateway(state).delete(session_path(target), **options)
        print_object("rm", said) if as_json else say(f"{said['status']}: {said['sessionKey']}")
