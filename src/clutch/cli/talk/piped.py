"""`clutch chat` without a person at a terminal: each line of stdin is a message, and what is answered is printed.

The next line is sent when all is quiet after the last: the agent has answered, its children have ended and were heard.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

from clutch.cli.asking import Exit, print_object, print_text, say
from clutch.cli.talk import files
from clutch.cli.talk.ear import SLACK_S, session_path
from clutch.surfaces.client import Client

WAIT_S = 2.0  #: then it looks whether somebody is needed


def chat(client: Client, session: str, base: Path, inbox: str, *, as_json: bool) -> Exit:
    """Needs you: something waits for a person, and nobody is here; `inbox` is the command that shows it."""
    for line in sys.stdin:
        if not line.strip():
            continue
        text = line.strip() if line.startswith("/") else files.with_files(line.strip(), base)
        client.post(session_path(session, "messages"), {"text": text}, key=uuid4().hex)
        if not _heard_out(client, session, as_json=as_json):
            say(f"It needs you: `{inbox}`.")
            return Exit.NEEDS_YOU
    return Exit.OK


def _heard_out(client: Client, session: str, *, as_json: bool) -> bool:
    """Everything that is said until all is quiet. False: it waits for a person."""
    heard: int | None = None
    while True:
        body = {"waitSeconds": WAIT_S, "untilQuiet": True, "heard": heard}
        said: dict[str, Any] = client.post(
            session_path(session, "replies"), body, patience_s=WAIT_S + SLACK_S
        )
        heard = said["id"]
        if said["reply"] is not None:
            print_object("chat", {"reply": said["reply"]}) if as_json else print_text(said["reply"])
        elif said["quiet"]:
            return True
        elif _is_asking(client, session):
            return False


def _is_asking(client: Client, session: str) -> bool:
    """The agent itself, or somebody below it."""
    items = client.get("/v1/inbox")["items"]
    below = (
        {task["taskId"] for task in client.get("/v1/tasks", root=session, limit=200)["tasks"]}
        if items
        else ()
    )
    return any(item["sessionKey"] == session or item["taskId"] in below for item in items)
