"""Commands that act on a task, a session or an inbox item: each is one request to the gateway."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Annotated, Any

import typer

from clutch.cli import output
from clutch.cli.options import AsJson, Hash, ItemTarget, State, Sure, Target, text_argument
from clutch.cli.output import answering, gateway, is_interactive, print_object, print_text, say
from clutch.core.text.format import visible
from clutch.errors import ClutchError, InvalidInput
from clutch.surfaces.http_client import (
    Declined,
    GatewayClient,
    item_path,
    message_path,
    session_path,
    task_path,
)

SLACK_S = 45.0  #: beyond the wait of a request: some actions give a task a moment

acts = typer.Typer()


def verb(
    command: str, state: Path | None, target: str, body: Mapping[str, Any] | None = None, *, as_json: bool
) -> None:
    """Send an action on a task, or on an unsent message, and print its result."""
    from clutch.core import ids

    with answering(command, as_json=as_json):
        patience = float((body or {}).get("waitSeconds") or 0) + SLACK_S
        is_message = command in ("redeliver", "dismiss") and ids.parse_message_id(target) is not None
        word = PATHS.get(command, command)
        path = message_path(target, word) if is_message else task_path(target, word)
        said = gateway(state).post(path, body, patience_s=patience)
        if as_json:
            print_object(command, said)
        else:
            say(result_text(said))
            if "reply" in said:
                print_text(said["reply"])


def result_text(said: Mapping[str, Any]) -> str:
    """Return the result of an action in one line or a few."""
    if "stopped" in said:
        return _killed(said)
    if "changed" in said:
        return f"changed: {', '.join(said['changed'])}" if said["changed"] else "nothing to change"
    if "phase" in said:
        return output.one_line(said, output.now())
    if "status" in said:
        about = [said["status"], said.get("taskId") or ""]
        if said.get("supersedes"):
            about.append(f"(takes the place of {said['supersedes']})")
        return " ".join(part for part in about if part)
    raise AssertionError(f"no words for an answer with {', '.join(said)}")


def _killed(said: Mapping[str, Any]) -> str:
    lines = [f"stopped: {', '.join(said['stopped'])}"] if said["stopped"] else []
    lines += [f"still stopping: {one['taskId']}: {one['why']}" for one in said["stillStopping"]]
    lines += [f"already finished: {', '.join(said['alreadyFinished'])}"] if said["alreadyFinished"] else []
    lines += [f"not stopped: {one['taskId']}: {one['why']}" for one in said["notStopped"]]
    return "\n".join(lines) or "nothing to stop"


#: Commands that take only a task.
PLAIN = {
    "pause": "Pause a task and its subagents at their next step.\n\nExample: clutch pause last",
    "resume": "Resume a paused task and its subagents.\n\nExample: clutch resume last",
    "redeliver": "Deliver an undelivered result or message (m_…) again.\n\nExample: clutch redeliver t_7f3a",
    "dismiss": "Discard an undelivered result (it stays readable) or message.\n\nExample: clutch dismiss t_7f3a",
    "archive": "Archive a finished task: it leaves lists and limits.\n\n"
    "Its transcript, result and usage stay readable.\n\nExample: clutch archive t_7f3a",
}
PATHS = {"archive": "remove"}  #: HTTP keeps the verb of its version 1


def _plain(name: str) -> Callable[..., None]:
    def act(target: Target, state: State = None, as_json: AsJson = False) -> None:
        verb(name, state, target, {}, as_json=as_json)

    return act


for _name, _help in PLAIN.items():
    acts.command(_name, help=_help)(_plain(_name))
acts.command("remove", hidden=True)(_plain("archive"))


@acts.command()
def retry(
    target: Target,
    text: Annotated[str, text_argument("Added to the task.")] = "",
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Run a finished task again from the beginning.

    Example: clutch retry last"""
    verb("retry", state, target, {"text": text}, as_json=as_json)


@acts.command("continue")
def continue_(
    target: Target,
    text: Annotated[str, text_argument("What to do next.")] = "",
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Resume a finished task where it ended.

    Example: clutch continue last 'now write the tests'"""
    verb("continue", state, target, {"text": text}, as_json=as_json)


@acts.command()
def kill(
    target: Target,
    reason_argument: Annotated[
        str | None, typer.Argument(metavar="REASON", help="Stored with the outcome.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Same as REASON.")] = "killed",
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Stop a task and its subagents for good.

    `all` stops every running task.

    Example: clutch kill last 'wrong folder'"""
    body = {"reason": reason if reason_argument is None else reason_argument}
    verb("kill", state, target, body, as_json=as_json)


@acts.command()
def steer(
    target: Target,
    text: Annotated[str, text_argument("The new instruction.")],
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Replace what a task is doing by a new instruction.

    Example: clutch steer last 'only the Python files'"""
    verb("steer", state, target, {"text": text}, as_json=as_json)


@acts.command()
def send(
    target: Target,
    text: Annotated[str, text_argument("The message.")],
    wait: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds to wait for a reply, at most `control.sendWaitSeconds`; 0 = don't."
        ),
    ] = 30.0,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Send a message to a task and wait for its reply.

    The task reads it at its next step and keeps its instruction.

    Example: clutch send last 'how far are you?'"""
    verb("send", state, target, {"text": text, "waitSeconds": wait}, as_json=as_json)


# ---- decisions -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DecisionOptions:
    """What the user decides, and how sure the user is. `then`: what follows a rejected plan."""

    decision: str
    text: str
    seen_hash: str | None
    is_sure: bool
    then: str | None = None


def decide(command: str, state: Path | None, target: str, wanted: DecisionOptions, *, as_json: bool) -> None:
    """Decide on the item of the inbox that a target names."""
    with answering(command, as_json=as_json):
        if wanted.decision == "reject" and not wanted.text.strip():
            raise InvalidInput("reason", "must not be blank: the task reads it")
        client = gateway(state)
        item_id, seen = _item(client, target, wanted)
        if wanted.then is not None:
            body = {"planHash": seen, "reason": wanted.text, "then": wanted.then}
            said = client.post(task_path(item_id, "reject"), body)
        else:
            body = {"decision": wanted.decision, "text": wanted.text, "hash": seen}
            said = client.post(item_path(item_id), body)
        print_object(command, said) if as_json else say(result_text(said))


def _item(client: GatewayClient, target: str, wanted: DecisionOptions) -> tuple[str, str]:
    """Return a target and the hash of what it names.

    With a hash the gateway finds the item, also one that no longer waits: a rejected tool can be approved later."""
    if wanted.seen_hash is not None:
        return target, wanted.seen_hash
    item = client.get(item_path(target))
    if wanted.then is not None and item["kind"] != "plan":
        raise InvalidInput("--end/--revise", f"is for a plan; {item['id']} is a {item['kind']}")
    return item["id"], _shown(item, target, wanted)


def _shown(item: Mapping[str, Any], target: str, wanted: DecisionOptions) -> str:
    """Return the hash of the item. What is approved or rejected is shown first, and the user is asked, unless the user
    has named a question by its id: its content never changes."""
    is_named = target == item["id"] and item["kind"] != "plan"
    if not (wanted.is_sure or is_named or wanted.decision == "answer"):
        if not is_interactive():
            rule = f"is needed to decide without a terminal: --hash {item['hash']}, or --yes"
            raise InvalidInput("--hash", rule)
        say(f"{item['kind'].capitalize()} of {item['label']} ({item['id']}):\n\n{item['text']}\n")
        what = "tool call" if item["kind"] == "approval" else item["kind"]
        typer.confirm(f"{wanted.decision.capitalize()} this {what}?", abort=True, err=True)
    return str(item["hash"])


@acts.command()
def approve(
    target: ItemTarget,
    text: Annotated[str, text_argument("A comment. With a plan the task reads it.")] = "",
    seen_hash: Hash = None,
    yes: Sure = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Approve a plan, a tool call or a budget; the task resumes.

    Example: clutch approve last --yes"""
    decide("approve", state, target, DecisionOptions("approve", text, seen_hash, yes), as_json=as_json)


@acts.command()
def reject(
    target: ItemTarget,
    reason: Annotated[str, text_argument("The reason. The task reads it.")],
    end: Annotated[
        bool | None,
        typer.Option(
            "--end/--revise", help="A plan: end the task, or ask for another plan. Default: plan.onReject."
        ),
    ] = None,
    seen_hash: Hash = None,
    yes: Sure = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Reject a plan or a tool call, with a reason.

    Example: clutch reject last 'keep the old API' --yes"""
    then = None if end is None else "end" if end else "revise"
    decide("reject", state, target, DecisionOptions("reject", reason, seen_hash, yes, then), as_json=as_json)


@acts.command()
def answer(
    target: ItemTarget,
    text: Annotated[str, text_argument("The answer.")] = "",
    approves: Annotated[bool, typer.Option("--approve", help="Same as `clutch approve`.")] = False,
    rejects: Annotated[bool, typer.Option("--reject", help="Same as `clutch reject`.")] = False,
    seen_hash: Hash = None,
    yes: Sure = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Answer the question of a task.

    Example: clutch answer last 'use version 2'"""
    if approves and rejects:
        raise typer.BadParameter("--approve and --reject exclude each other; give one")
    decision = "approve" if approves else "reject" if rejects else "answer"
    decide("answer", state, target, DecisionOptions(decision, text, seen_hash, yes), as_json=as_json)


@acts.command("rm", hidden=True)
@acts.command()
def delete(
    session: Annotated[
        str, typer.Argument(metavar="SESSION", help="Session key, or the task whose session it is.")
    ],
    kill: Annotated[bool, typer.Option("--kill", help="First kill the tasks in it and below it.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Although its result is undelivered; the result stays readable.")
    ] = False,
    keep_transcript: Annotated[
        bool, typer.Option("--keep-transcript", help="Archive the session instead; its transcript stays.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete a main session without asking.")] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Delete a session and its transcript. Usage, outcome and timeline stay.

    Example: clutch delete agent:main:chat:draft"""
    options = {"kill": kill, "force": force, "keepTranscript": keep_transcript}
    with answering("delete", as_json=as_json):
        client = gateway(state)
        if not yes and is_interactive() and _is_main(client, session):
            what = "Archive" if keep_transcript else "Delete"
            ends = "" if keep_transcript else " and its transcript for good"
            typer.confirm(f"{what} the main session {visible(session, 200)}{ends}?", abort=True, err=True)
        said = client.delete(session_path(session), **options)
        print_object("delete", said) if as_json else say(f"{said['status']}: {said['sessionKey']}")


def _is_main(client: GatewayClient, session: str) -> bool:
    """Whether a target names no task: the session of one is deleted with its task, which was ended before."""
    try:
        client.get(task_path(session))
    except Declined as error:
        return error.code == "not_found"
    return False


# --------------------------------------------------------------------------------------------------
# `clutch inbox` at a terminal: the user decides on one item after the other with a key.

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
            return _send(client, item, "answer" if is_question else "approve", text)
        case "r" if not is_question:
            return _send(client, item, "reject", _typed_text("Why"))
        case key if key in LEAVE:
            return Next.LEAVE
        case _:
            say("  skipped")
            return Next.ITEM


def _key(choices: str) -> str:
    """Return a key that was pressed after the choices were shown; keys typed earlier are discarded."""
    import termios

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


def _send(client: GatewayClient, item: Mapping[str, Any], decision: str, text: str) -> Next:
    """Send the decision with the hash of the item as shown. An invalid decision is asked again."""
    from clutch.core.questions import Decision, OpenItem, QuestionKind, check

    shown = OpenItem(QuestionKind(item["kind"]), item["hash"], tuple(item["detail"].get("choices", ())))
    try:
        check(shown, Decision(decision), text, item["hash"])
    except InvalidInput as error:
        say(f"  {error}")
        return Next.SAME
    try:
        said = client.post(
            f"/v1/inbox/{item['id']}", {"decision": decision, "text": text, "hash": item["hash"]}
        )
    except ClutchError as error:
        say(f"  {error}")
    else:
        say(f"  {said['status']}")
    return Next.ITEM
