"""Commands that make something happen: each asks the gateway once, and says what it answered."""

from __future__ import annotations

import sys
import termios
from collections.abc import Mapping
from enum import Enum, auto
from pathlib import Path
from typing import Any

import typer

from clutch.cli import output
from clutch.cli.output import answering, command_for, gateway, is_interactive, print_object, print_text, say
from clutch.core import ids
from clutch.core.questions import Decision, OpenItem, QuestionKind, check
from clutch.errors import ClutchError, InvalidInput
from clutch.surfaces.http_client import GatewayClient, message_path, session_path, task_path

SLACK_S = 45.0  #: beyond what was asked for: some verbs give a task a moment of their own accord


def verb(
    command: str, state: Path | None, target: str, body: Mapping[str, Any] | None = None, *, as_json: bool
) -> None:
    """Everything that is one POST to one task, or to a message that was not sent."""
    with answering(command, as_json=as_json):
        patience = float((body or {}).get("waitSeconds") or 0) + SLACK_S
        is_message = command in ("redeliver", "dismiss") and ids.parse_message_id(target) is not None
        path = message_path(target, command) if is_message else task_path(target, command)
        said = gateway(state).post(path, body, patience_s=patience)
        if as_json:
            print_object(command, said)
        else:
            say(result_text(said))
            if "reply" in said:
                print_text(said["reply"])


def result_text(said: Mapping[str, Any]) -> str:
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
    return output.one_line(said, output.now())


def _killed(said: Mapping[str, Any]) -> str:
    lines = [f"stopped: {', '.join(said['stopped'])}"] if said["stopped"] else []
    lines += [f"still stopping: {one['taskId']}: {one['why']}" for one in said["stillStopping"]]
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
    if ids.parse_question_id(target) is not None:
        text = str(body.get("reason") or body.get("text") or "")
        return answer(state, target, command, text, seen_hash=seen_hash, as_json=as_json)
    with answering(command, as_json=as_json):
        client = gateway(state)
        seen = seen_hash or _shown(client, target, is_sure=is_sure)
        said = client.post(task_path(target, command), {**body, "planHash": seen})
        print_object(command, said) if as_json else say(result_text(said))


def _shown(client: GatewayClient, target: str, *, is_sure: bool) -> str:
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
        print_object("answer", said) if as_json else say(result_text(said))


def remove_session(state: Path | None, target: str, options: Mapping[str, bool], *, as_json: bool) -> None:
    with answering("rm", as_json=as_json):
        said = gateway(state).delete(session_path(target), **options)
        print_object("rm", said) if as_json else say(f"{said['status']}: {said['sessionKey']}")


# --------------------------------------------------------------------------------------------------
# `clutch inbox` at a terminal: one item after the other, decided with a key, as it was shown.

LEAVE = ("q", "escape", "c-c", "c-d")


class Next(Enum):
    """What the user is asked next."""

    SAME = auto()  #: the same item again
    ITEM = auto()
    LEAVE = auto()


def decide_with_keys(client: GatewayClient, items: list[Mapping[str, Any]], shown: list[str]) -> None:
    for item, text in zip(items, shown, strict=True):
        say(f"\n{text}")
        step = Next.SAME
        while step is Next.SAME:
            step = _decide(client, item)
        if step is Next.LEAVE:
            return


def _decide(client: GatewayClient, item: Mapping[str, Any]) -> Next:
    is_question = item["kind"] == "question"
    match _key("  [a]nswer  [s]kip  [q]uit" if is_question else "  [a]pprove  [r]eject  [s]kip  [q]uit"):
        case "a":
            text = _typed_text("Your answer") if is_question else ""
            return _send(client, item, Decision.ANSWER if is_question else Decision.APPROVE, text)
        case "r" if not is_question:
            return _send(client, item, Decision.REJECT, _typed_text("Why"))
        case key if key in LEAVE:
            return Next.LEAVE
        case _:
            say("  skipped")
            return Next.ITEM


def _key(choices: str) -> str:
    """Return a key that was pressed after the choices were shown; keys typed earlier are discarded."""
    from clutch.cli.chat.terminal import Keyboard

    keyboard = Keyboard()
    with keyboard.opened():
        # Discard before the choices are printed: a user who answers as soon as they appear must not lose the key.
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        say(choices)
        while True:
            for key in keyboard.wait():
                return key


def _typed_text(about: str) -> str:
    return str(typer.prompt(f"  {about}", err=True, default="", show_default=False))


def _send(client: GatewayClient, item: Mapping[str, Any], decision: Decision, text: str) -> Next:
    """Send the decision with the hash of what was shown. What the rule refuses is asked again."""
    shown = OpenItem(QuestionKind(item["kind"]), item["hash"], tuple(item["detail"].get("choices", ())))
    try:
        check(shown, decision, text, item["hash"])
    except InvalidInput as error:
        say(f"  {error}")
        return Next.SAME
    try:
        said = client.post(
            f"/v1/inbox/{item['id']}", {"decision": decision.value, "text": text, "hash": item["hash"]}
        )
    except ClutchError as error:
        say(f"  {error}")
    else:
        say(f"  {said['status']}")
    return Next.ITEM
