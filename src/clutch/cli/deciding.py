"""`clutch inbox` at a terminal: one thing after the other, decided with a key, as it was shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from clutch.cli.asking import say
from clutch.cli.talk.seat import Seat, raw_terminal
from clutch.cli.talk.typing import Key, Text
from clutch.errors import ClutchError
from clutch.surfaces.client import Client

LEAVE = (Text("q"), Key.ESCAPE, Key.INTERRUPT, Key.END_OF_FILE)


def decide(client: Client, items: list[Mapping[str, Any]], shown: list[str]) -> None:
    for item, text in zip(items, shown, strict=True):
        say(f"\n{text}")
        if not _decide(client, item):
            return


def _decide(client: Client, item: Mapping[str, Any]) -> bool:
    """False: enough for now."""
    is_question = item["kind"] == "question"
    say("  [a]nswer  [s]kip  [q]uit" if is_question else "  [a]pprove  [r]eject  [s]kip  [q]uit")
    match _key():
        case Text("a"):
            _send(
                client,
                item,
                "answer" if is_question else "approve",
                _words("Your answer") if is_question else "",
            )
        case Text("r") if not is_question:
            _send(client, item, "reject", _words("Why"))
        case key if key in LEAVE:
            return False
        case _:
            say("  skipped")
    return True


def _key() -> Key | Text:
    with raw_terminal():
        while True:
            for key in Seat().wait():
                return key


def _words(about: str) -> str:
    return str(typer.prompt(f"  {about}", err=True, default="", show_default=False))


def _send(client: Client, item: Mapping[str, Any], decision: str, text: str) -> None:
    body = {"decision": decision, "text": text, "hash": item["hash"]}
    try:
        said = client.post(f"/v1/inbox/{item['id']}", body)
    except ClutchError as error:
        say(f"  {error}")
    else:
        say(f"  {said['status']}")
