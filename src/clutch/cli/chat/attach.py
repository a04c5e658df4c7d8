"""`clutch attach TASK`: watch what a task says and does as it happens; what is typed is a new instruction for it.

Escape, Ctrl-D or Ctrl-C detaches; the task goes on. When it ends, its result is shown and the watching is over."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clutch.cli import output, show
from clutch.cli.chat import stream as ears
from clutch.cli.chat.stream import AGAIN_S, ChatEvent, EventListener, Notices, Pieces
from clutch.cli.chat.terminal import (
    Editor,
    Key,
    Submitted,
    Terminal,
    TypedText,
    Window,
    raw_terminal,
    whole_screen,
)
from clutch.cli.output import answering
from clutch.cli.source import source
from clutch.errors import ClutchError
from clutch.surfaces.http_client import GatewayClient, task_path

PROMPT = "steer> "
TAIL = 20  #: lines of what was said before
LOOK_S = 1.0


class Attaching:
    def __init__(self, home: Path, client: GatewayClient, target: str, notices: Notices) -> None:
        """Raises what the gateway says of a target there is not."""
        self._client, self._notices = client, notices
        self._task: Mapping[str, Any] = client.get(task_path(target))
        self._id = str(self._task["taskId"])
        self._ear = EventListener(home)
        self._editor = Editor()
        self._window = Window(self._editor, PROMPT)
        self._run_id, self._pieces = "", Pieces()
        self._is_over = False

    def run(self) -> None:
        changed = threading.Event()
        changed.set()
        with self._ear.open(), raw_terminal():
            self._show_tail()
            self._ear.listen(ears.events(self._ear, changed, task=self._id))
            self._ear.listen(self._follow(changed))
            seat = Terminal(self._ear.wakes)
            self._window.redraw()
            while not self._is_over:
                for key in seat.wait():
                    self._press(key)
                for news in self._ear.heard():
                    self._hear(news)
            self._window.clear()

    def _show_tail(self) -> None:
        lines = list(_lines(self._client, self._id, 0))
        self._after = lines[-1]["seq"] if lines else 0
        if len(lines) > TAIL:
            self._window.say(
                f"… {len(lines) - TAIL} earlier lines: `{self._notices.command('logs', self._id)}`", "2"
            )
        for line in lines[-TAIL:]:
            self._window.say(output.log_line(line))

    def _follow(self, changed: threading.Event) -> Callable[[GatewayClient], None]:
        """New lines of the transcript, and how the task stands."""

        def follow(client: GatewayClient) -> None:
            while not self._is_over:
                changed.wait(LOOK_S)
                changed.clear()
                task = client.get(task_path(self._id))
                for line in _lines(client, self._id, self._after):
                    self._after = line["seq"]
                    self._ear.tell("line", line)
                self._ear.tell("task", task)
                threading.Event().wait(AGAIN_S / 5)

        return follow

    def _press(self, key: Key | TypedText) -> None:
        match self._editor.press(key):
            case Submitted(text) if text.strip():
                self._steer(text.strip())
            case Key.ESCAPE | Key.END_OF_FILE | Key.INTERRUPT:
                self._is_over = True
            case _:
                pass
        self._window.redraw()

    def _steer(self, text: str) -> None:
        try:
            said = self._client.post(task_path(self._id, "steer"), {"text": text})
            self._window.say(f"{PROMPT}{text}  ({said['status']})", "1")
        except ClutchError as error:
            self._window.say(str(error), "31")

    def _hear(self, news: ChatEvent) -> None:
        match news.kind:
            case "assistant:text" if news.data["taskId"] == self._id:
                self._stream(news.data["runId"], news.data["text"])
            case "usage" | "tool:start" if news.data["taskId"] == self._id:
                if held := self._pieces.end_answer():
                    self._window.stream(held)
                self._window.end_stream()
            case "line":
                self._line(news.data)
            case "task":
                self._stand(news.data)
            case "lost" | "trouble":
                self._window.say(str(news.data), "33")
            case _:
                pass

    def _stream(self, run_id: str, text: str) -> None:
        if run_id != self._run_id:
            self._window.end_stream()
            self._run_id = run_id
            self._pieces.other_run()
        if shown := self._pieces.piece(text):
            self._window.stream(shown)

    def _line(self, line: Mapping[str, Any]) -> None:
        """An answer that came by piece by piece is not said again, only what it asks for."""
        if line["kind"] == "answer" and line["body"]["text"].strip():
            is_begun = self._pieces.has_begun(line["body"]["text"])
            rest = self._pieces.whole(line["body"]["text"])
            if rest is None:
                self._pieces = Pieces()
            elif is_begun:
                self._window.stream(rest)
                line = {**line, "body": {**line["body"], "text": ""}}
        if shown := output.log_line(line):
            self._window.say(shown)

    def _stand(self, task: Mapping[str, Any]) -> None:
        asks = task["reason"] == "needs-you" or task["phase"] == "awaiting_approval"
        was = self._task["reason"] == "needs-you" or self._task["phase"] == "awaiting_approval"
        self._task = task
        self._window.status = output.one_line(task, output.now())
        if asks and not was:
            self._window.say(f"It needs you: `{self._notices.command('inbox')}`.", "33")
            self._window.ring()
        if task["outcome"] is not None:
            self._window.status = ""
            self._window.say(output.one_line(task, output.now()), output.style(task))
            self._window.ring()
            self._is_over = True
        self._window.redraw()


def _lines(client: GatewayClient, task_id: str, after: int) -> list[Mapping[str, Any]]:
    lines: list[Mapping[str, Any]] = []
    page: Mapping[str, Any] = {"next": after}
    while page["next"] is not None:
        page = client.get(task_path(task_id, "transcript"), after=page["next"])
        lines += page["messages"]
    return lines


# --------------------------------------------------------------------------------------------------
# `clutch top`: the list of tasks, drawn anew every second until a key says that it is enough.

EVERY_S = 1.0
ENOUGH = (TypedText("q"), Key.ESCAPE, Key.INTERRUPT, Key.END_OF_FILE)


def top(state: Path | None, *, as_json: bool) -> None:
    """Without a terminal, or for a program, it is `clutch ps`."""
    if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return show.ps(state, show.ListOptions(), as_json=as_json, command="top")
    with answering("top", as_json=False), source(state) as here:
        seat, wanted = Terminal(), show.ListOptions().to_query()
        with raw_terminal(), whole_screen():
            while True:
                _draw(here.tasks(**wanted))
                if any(key in ENOUGH for key in seat.wait(EVERY_S)):
                    return


def _draw(page: Mapping[str, Any]) -> None:
    columns, rows = shutil.get_terminal_size()
    tasks = page["tasks"]
    lines = [
        f"{output.clock(output.moment_now())}  {output.summary(page['summary'])}  (q leaves)"[:columns],
        "",
    ]
    if tasks:
        lines += output.table(tasks, output.now(), page.get("stalledAfterSeconds")).split("\n")
    sys.stdout.write("\x1b[H\x1b[J" + "\r\n".join(lines[: rows - 1]))
    sys.stdout.flush()
