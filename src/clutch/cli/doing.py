"""Commands that make something happen: each asks the gateway once, and says what it answered."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from clutch.cli import screen
from clutch.cli.asking import (
    answering,
    command_for,
    gateway,
    is_interactive,
    print_object,
    print_text,
    say,
)
from clutch.core import keys
from clutch.errors import InvalidInput
from clutch.surfaces.client import Client, session_path, task_path

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
