"""`clutch chat` without a person at a terminal: each line of stdin is a message, and what is answered is printed.

The next line is sent when all is quiet after the last: the agent has answered, its children have ended and were heard.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

from clutch.cli.asking import Exit, print_object, print_text, say
from clutch.cli.line import Line
from clutch.cli.talk import files, own
from clutch.cli.talk.ear import SLACK_S, session_path
from clutch.surfaces.client import Client

WAIT_S = 2.0  #: then it looks whether somebody is needed
HELP = f"Each line is a message; @file brings a file along; /quit ends.\n{own.HELP}"


def chat(gateway: Line, session: str, base: Path, inbox: str, *, as_json: bool) -> Exit:
    """Needs you: something waits for a person, and nobody is here; `inbox` is the command that shows it."""
    is_needed = False
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        match word:
            case "":
                continue
            case "/quit" | "/exit":
                break
            case "/help":
                say(HELP)
                continue
            case "/answer" if rest.strip():
                gateway.ask(own.answer(rest.strip()))
            case _ if is_needed and not word.startswith("/"):
                break  # the next line would wait behind what nobody has answered
            case _:
                _send(gateway, session, base, line.strip())
        is_needed = not _heard_out(gateway, session, as_json=as_json)
    if is_needed:
        say(f"It needs you: `{inbox}`.")
    return Exit.NEEDS_YOU if is_needed else Exit.OK


def _send(gateway: Line, session: str, base: Path, line: str) -> None:
    text = line if line.startswith("/") else files.with_files(line, base)
    key = uuid4().hex
    gateway.ask(lambda client: client.post(session_path(session, "messages"), {"text": text}, key=key))


def _heard_out(gateway: Line, session: str, *, as_json: bool) -> bool:
    """Everything that is said until all is quiet. False: it waits for a person."""
    heard: int | None = None

    def listen(client: Client) -> dict[str, Any]:
        body = {"waitSeconds": WAIT_S, "untilQuiet": True, "heard": heard}
        words: dict[str, Any] = client.post(
            session_path(session, "replies"), body, patience_s=WAIT_S + SLACK_S
        )
        return words

    while True:
        said = gateway.ask(listen)
        heard = said["id"]
        if said["reply"] is not None:
            print_object("chat", {"reply": said["reply"]}) if as_json else print_text(said["reply"])
        elif asked := gateway.ask(lambda client: _asked(client, session)):
            for item in asked:
                say(f"{item['id']}  {item['kind']}: {item['text']}")
            return False
        elif said["quiet"]:
            return True


def _asked(client: Client, session: str) -> list[dict[str, Any]]:
    """By the agent itself, or by somebody below it."""
    items = client.get("/v1/inbox")["items"]
    below = (
        {task["taskId"] for task in client.get("/v1/tasks", root=session, limit=200)["tasks"]}
        if items
        else ()
    )
    return [item for item in items if item["sessionKey"] == session or item["taskId"] in below]
