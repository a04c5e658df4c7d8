"""`clutch chat` and `clutch attach`: find or start the gateway, then talk at the terminal or through a pipe.

Through a pipe, each line of stdin is a message and the replies are printed. Modules that load prompt_toolkit are
imported for a terminal only."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import typer

from clutch.cli.chat.message import PIPED_HELP, answer, usage_of, with_files
from clutch.cli.chat.stream import SLACK_S, Notices
from clutch.cli.output import (
    Exit,
    answering,
    command_for,
    gateway,
    home_of,
    is_terminal,
    print_object,
    print_text,
    say,
    say_folder,
)
from clutch.cli.source import MAIN_SESSION, GatewayConnection
from clutch.errors import ClutchError
from clutch.surfaces.http_client import GatewayClient, session_path

WAIT_S = 2.0  #: for a reply; then the inbox is read


def chat(state: Path | None, session: str | None, agent: str | None, *, as_json: bool) -> None:
    with answering("chat", as_json=as_json):
        key = session or (f"agent:{agent}:main" if agent else MAIN_SESSION)
        client = gateway(state, is_new_work=True)
        say_folder(client)
        if as_json or not is_terminal():
            inbox = command_for(state, "inbox")
            raise typer.Exit(
                chat_through_pipe(GatewayConnection(state, client), key, Path.cwd(), inbox, as_json=as_json)
            )
        from clutch.cli.chat import session as sessions
        from clutch.cli.chat import terminal

        # A request for replies creates the session.
        client.post(session_path(key, "replies"), {"waitSeconds": 0})
        say(f"Talking to {key}. /help shows the keys; Ctrl-D leaves.")
        with terminal.opened():
            chat_ = sessions.SessionChat(home_of(state), key, Path.cwd(), _notices(state))
            chat_.show_tail(client)
            chat_.run()


def attach(state: Path | None, target: str) -> None:
    """Watch and steer a task; without a terminal, print what `clutch logs -f` prints."""
    if not is_terminal():
        from clutch.cli import show

        return show.logs(target, follow=True, state=state)
    with answering("attach", as_json=False):
        from clutch.cli.chat import conversation, terminal

        with terminal.opened():
            conversation.TaskAttachment(home_of(state), gateway(state), target, _notices(state)).run()


def _notices(state: Path | None) -> Notices:
    """Return the notices that the config asks for. The gateway reports a config that cannot be read."""
    from clutch.config import load

    command = partial(command_for, state)
    try:
        return Notices(command, load.load(home_of(state)).settings.policy.notify)
    except ClutchError:
        return Notices(command)


# --------------------------------------------------------------------------------------------------
# Through a pipe. The next line is sent when the session is quiet: the agent has answered, its subagents have ended and
# their results are delivered.


def chat_through_pipe(
    gateway: GatewayConnection, session: str, base: Path, inbox: str, *, as_json: bool
) -> Exit:
    """Send each line of stdin; NEEDS_YOU if the session waits for a decision, which the command `inbox` shows."""
    is_needed = False
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if (usage := usage_of(word, rest)) is not None:
            say(usage)
            continue
        match word:
            case "":
                continue
            case "/quit" | "/exit":
                break
            case "/help":
                say(PIPED_HELP)
                continue
            case "/answer":
                gateway.ask(answer(rest.strip()))
            case _ if is_needed and not word.startswith("/"):
                # A further message would wait behind the open question.
                break
            case _:
                _send(gateway, session, base, line.strip())
        is_needed = not _is_quiet(gateway, session, as_json=as_json)
    if is_needed:
        say(f"Waiting for a decision: `{inbox}`.")
    return Exit.NEEDS_YOU if is_needed else Exit.OK


def _send(gateway: GatewayConnection, session: str, base: Path, line: str) -> None:
    text = line if line.startswith("/") else with_files(line, base, say)
    key = uuid4().hex
    gateway.ask(lambda client: client.post(session_path(session, "messages"), {"text": text}, key=key))


def _is_quiet(gateway: GatewayConnection, session: str, *, as_json: bool) -> bool:
    """Print the replies until the session is quiet. False: it waits for the user."""
    heard: int | None = None

    def listen(client: GatewayClient) -> dict[str, Any]:
        body = {"waitSeconds": WAIT_S, "untilQuiet": True, "heard": heard}
        said: dict[str, Any] = client.post(
            session_path(session, "replies"), body, patience_s=WAIT_S + SLACK_S
        )
        return said

    while True:
        said = gateway.ask(listen)
        heard = said["id"]
        if said["reply"] is not None:
            print_object("chat", {"reply": said["reply"]}) if as_json else print_text(said["reply"])
        elif asked := gateway.ask(lambda client: _questions(client, session)):
            for item in asked:
                say(f"{item['id']}  {item['status']}: {item['text']}")
            return False
        elif said["quiet"]:
            return True


def _questions(client: GatewayClient, session: str) -> list[dict[str, Any]]:
    """Return the inbox items of the agent itself and of its subagents."""
    items = client.get("/v1/inbox")["items"]
    if not items:
        return []
    below = {task["taskId"] for task in client.get("/v1/tasks", root=session, limit=200)["tasks"]}
    return [item for item in items if item["sessionKey"] == session or item["taskId"] in below]
