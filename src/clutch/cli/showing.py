"""Commands that show: lists, trees, the inbox, what a task said and did. Nothing here changes anything."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from clutch.cli import screen
from clutch.cli.asking import answering, command_for, gateway, print_object, print_text, say
from clutch.cli.line import Line, resumable
from clutch.cli.reading import Followed, Gateway, source
from clutch.core.shown import visible
from clutch.surfaces.client import Client, session_path

FOLLOW_S = 0.5
RECENT_MINUTES = 30
PAGE = 200
MAIN_SESSION = "agent:main:main"
MAIN = ("main", MAIN_SESSION)
REPLIES_SHOWN_MAX = 3


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a list is asked for."""

    is_all: bool = False
    root: str | None = None
    phase: str | None = None
    is_undelivered: bool = False
    limit: int = PAGE

    def to_query(self) -> dict[str, Any]:
        """What ended long ago is shown only to whoever asks for it."""
        recent = None if self.is_all or self.phase or self.is_undelivered else RECENT_MINUTES
        wanted = {"root": self.root, "phase": self.phase, "limit": self.limit, "recentMinutes": recent}
        return {**wanted, "undelivered": self.is_undelivered}


def ps(state: Path | None, wanted: Wanted, *, as_json: bool, command: str = "ps") -> None:
    with answering(command, as_json=as_json), source(state) as here:
        page = here.tasks(**wanted.to_query(), numbered=not as_json)
        if as_json:
            print_object(command, {"at": screen.moment_now(), **page})
            return
        if page["tasks"]:
            print(screen.table(page["tasks"], screen.now(), page.get("stalledAfterSeconds")))
        say(screen.summary(page["summary"]) + (" · more: --limit" if page["next"] else ""))
        _point_to_replies(state, page["summary"])


def tree(state: Path | None, target: str | None, *, as_json: bool, is_all: bool) -> None:
    with answering("tree", as_json=as_json), source(state) as here:
        page = here.tasks(**Wanted(is_all=is_all or target is not None, root=target).to_query())
        tops = nested(page["tasks"])
        if as_json:
            print_object("tree", {"at": screen.moment_now(), **page, "tasks": tops})
            return
        if tops:
            print(screen.forest(tops, screen.now(), page.get("stalledAfterSeconds")))
        say(screen.summary(page["summary"]) + (f" · only the first {PAGE} are shown" if page["next"] else ""))


def inbox(state: Path | None, *, as_json: bool) -> None:
    with answering("inbox", as_json=as_json), source(state) as here:
        said = here.inbox()
        if as_json:
            print_object("inbox", said)
            return
        shown = [_item(state, item) for item in said["items"]]
        if shown and here.client is not None and sys.stdin.isatty() and sys.stdout.isatty():
            from clutch.cli import deciding

            return deciding.decide(here.client, said["items"], shown)
        for text in shown:
            print_text(text)
        count = len(shown)
        say(f"{count} {'waits' if count == 1 else 'wait'} for you" if count else "nothing waits for you")
        _point_to_replies(state, said)


def _point_to_replies(state: Path | None, counted: Mapping[str, Any]) -> None:
    count = counted["replies"]
    ways = [
        ("logs", "main") if key == MAIN_SESSION else ("chat", "--session", key)
        for key in counted["repliesIn"]
    ]
    if count:
        shown = ", ".join(f"`{command_for(state, *words)}`" for words in ways[:REPLIES_SHOWN_MAX])
        say(f"{count} {'reply' if count == 1 else 'replies'} to read: {shown}")


def _item(state: Path | None, item: dict[str, Any]) -> str:
    """Who, why, what exactly, and the commands that answer it."""
    who, seen = item["label"] or item["sessionKey"], ("--hash", str(item["hash"]))
    answers = {
        "plan": (("approve", item["id"], *seen), ("reject", item["id"], "your reason", *seen)),
        "question": (("answer", item["id"], "your words"),),
    }.get(item["kind"], (("answer", item["id"], "--approve"), ("answer", item["id"], "--reject")))
    ways = "".join(f"\n  -> {command_for(state, *words)}" for words in answers)
    return f"{item['id']}  {item['kind']}  {visible(who, 60)}\n  {item['text']}{ways}"


def logs(state: Path | None, target: str, *, follows: bool, as_json: bool) -> None:
    """The transcript in order; with `-f` until the task has ended, of a main session until Ctrl-C."""
    with answering("logs", as_json=as_json):
        with source(state) as here:
            meant = here.followed(target) if follows else Followed(target, is_over=True)
            printed: set[str] = set()
            after = _print_lines(partial(here.transcript, meant.name), 0, printed, as_json=as_json)
            if target in MAIN and here.client is not None:
                _hear_all(here.client, printed, as_json=as_json)
        if not meant.is_over:
            with resumable(state, "logs", "-f", meant.name):
                _follow(Line(state, gateway(state)), meant.name, after, as_json=as_json)


def _hear_all(client: Client, printed: Container[str], *, as_json: bool) -> None:
    """What waits to be read is heard once it is printed: what no model said (a failed turn, the answer of a command)
    stands in no transcript."""
    heard = None
    while True:
        said = client.post(session_path(MAIN_SESSION, "replies"), {"waitSeconds": 0, "heard": heard})
        if (heard := said["id"]) is None:
            return
        if said["reply"] not in printed:
            when, body = screen.moment_now(), {"text": said["reply"]}
            line = {"seq": None, "at": when, "runId": None, "kind": "reply", "body": body}
            print_object("log", line) if as_json else print_text(said["reply"])


def _follow(line: Line, target: str, after: int, *, as_json: bool) -> None:
    def page_after(number: int) -> dict[str, Any]:
        return line.ask(lambda client: Gateway(client).transcript(target, number))

    is_over = False
    while not is_over:
        is_over = line.ask(lambda client: Gateway(client).followed(target)).is_over
        after = _print_lines(page_after, after, set(), as_json=as_json)
        if not is_over:
            time.sleep(FOLLOW_S)


def _print_lines(
    page_after: Callable[[int], dict[str, Any]], after: int, answers: set[str], *, as_json: bool
) -> int:
    """Everything there is after that number; the last number printed. `answers` gets those that were among it."""
    page: dict[str, Any] = {"next": after}
    while page["next"] is not None:
        page = page_after(after)
        for line in page["messages"]:
            after = line["seq"]
            if line["kind"] == "answer":
                answers.add(line["body"]["text"])
            if as_json:
                print_object("log", line)
            else:
                print_text(screen.log_line(line))
    return after


def why(state: Path | None, target: str, *, as_json: bool) -> None:
    with answering("why", as_json=as_json), source(state) as here:
        found = here.why(target)
        if as_json:
            print_object("why", found)
        else:
            print_text(found["text"])


def replay(state: Path | None, target: str, *, as_json: bool) -> None:
    """The journal from its beginning, step by step."""
    with answering("replay", as_json=as_json), source(state) as here:
        page: dict[str, Any] = {"next": 0}
        while page["next"] is not None:
            page = here.replay(target, page["next"])
            for step in page["steps"]:
                if as_json:
                    print_object("replay", step)
                else:
                    print_text(screen.step_line(step))


def nested(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tasks with their children in `nodes`; on top those whose parent is not among them."""
    shown = {task["taskId"]: {**task, "nodes": []} for task in tasks}
    tops: list[dict[str, Any]] = []
    for task in shown.values():
        above = shown.get(task["parentTaskId"])
        (tops if above is None else above["nodes"]).append(task)
    return tops
