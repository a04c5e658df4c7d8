"""Conversations at a terminal: what they have in common, and the one with a running task (`clutch attach`).

One event loop reads keys and the gateway's events and shows both on one screen. Leaving ends only the conversation:
agents and subagents continue."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clutch.cli import output
from clutch.cli.chat import stream
from clutch.cli.chat.stream import AGAIN_S, ChatEvent, EventListener, Notices, Pieces
from clutch.cli.chat.terminal import Complete, Key, Screen
from clutch.cli.source import messages
from clutch.core.model import NEEDS_USER
from clutch.errors import ClutchError
from clutch.surfaces.http_client import GatewayClient, task_path

BOLD, DIM, RED, YELLOW = "1", "2", "31", "33"  #: SGR codes


class TerminalConversation(ABC):
    """One screen and the events of one agent, whose answers are shown once, whether they arrive in pieces or whole."""

    def __init__(
        self,
        home: Path,
        notices: Notices,
        prompt: str,
        *,
        history: Sequence[str] = (),
        complete: Complete = lambda _before: (),
    ) -> None:
        self._home, self._notices, self._prompt = home, notices, prompt
        self._listener = EventListener(home)
        self._screen = Screen(prompt, self._submit, self._press, history=history, complete=complete)
        self._run_id, self._pieces = "", Pieces()
        self._is_over = False

    @abstractmethod
    def _submit(self, text: str) -> None: ...

    @abstractmethod
    def _press(self, key: Key) -> None: ...

    @abstractmethod
    def _hear(self, event: ChatEvent) -> None: ...

    def _talk(self) -> None:
        """Show the screen until it is left."""
        self._screen.run(self._listener.wakes, self._hear_all)

    def _hear_all(self) -> None:
        for event in self._listener.heard():
            self._hear(event)

    def _end(self) -> None:
        self._is_over = True
        self._screen.leave()

    def _stream(self, run_id: str, text: str) -> bool:
        """Show a piece of an answer; False where it was shown before, as part of the whole."""
        if run_id != self._run_id:
            self._screen.end_stream()
            self._run_id = run_id
            self._pieces.other_run()
        shown = self._pieces.piece(text)
        self._screen.stream(shown)
        return bool(shown)

    def _end_answer(self) -> None:
        self._screen.stream(self._pieces.end_answer())
        self._screen.end_stream()


# --------------------------------------------------------------------------------------------------
# `clutch attach TASK`: watch what a task says and does; a submitted text is a new instruction for it.
#
# Escape, Ctrl-D or Ctrl-C detaches, and the task continues. When the task ends, its result is shown and the
# conversation is over.

STEER_PROMPT = "steer> "
MESSAGE_PROMPT = "message> "
TAIL = 20  #: lines of the transcript shown at the beginning
LOOK_S = 1.0


class TaskAttachment(TerminalConversation):
    """`steers`: what is typed replaces the instruction of the task; else it is a message, read at its next step."""

    def __init__(
        self, home: Path, client: GatewayClient, target: str, notices: Notices, *, steers: bool = True
    ) -> None:
        """Raises the gateway's error for a target that does not exist."""
        self._client, self._steers = client, steers
        self._task: Mapping[str, Any] = client.get(task_path(target))
        self._id = str(self._task["taskId"])
        super().__init__(home, notices, STEER_PROMPT if steers else MESSAGE_PROMPT)
        self._screen.below = self._rows

    def run(self) -> None:
        changed = threading.Event()
        changed.set()
        with self._listener.open():
            self._show_tail()
            self._listener.listen(stream.events(self._listener, changed, task=self._id))
            self._listener.listen(self._follow(changed))
            self._talk()

    def _show_tail(self) -> None:
        lines = _transcript(self._client, self._id, 0)
        self._after = lines[-1]["seq"] if lines else 0
        if len(lines) > TAIL:
            self._screen.say(
                f"… {len(lines) - TAIL} earlier lines: `{self._notices.command('logs', self._id)}`", DIM
            )
        for line in lines[-TAIL:]:
            self._screen.say(output.log_line(line))

    def _follow(self, changed: threading.Event) -> Callable[[GatewayClient], None]:
        """Report new lines of the transcript, and the task's state."""

        def follow(client: GatewayClient) -> None:
            while not self._is_over:
                changed.wait(LOOK_S)
                changed.clear()
                task = client.get(task_path(self._id))
                for line in _transcript(client, self._id, self._after):
                    self._after = line["seq"]
                    self._listener.tell("line", line)
                self._listener.tell("task", task)
                threading.Event().wait(AGAIN_S / 5)

        return follow

    def _press(self, key: Key) -> None:
        if key is not Key.EDIT:
            self._end()

    def _submit(self, text: str) -> None:
        text = text.strip()
        if not text:
            return
        try:
            verb, body = ("steer", {}) if self._steers else ("send", {"waitSeconds": 0})
            said = self._client.post(task_path(self._id, verb), {"text": text, **body})
            self._screen.say(f"{self._prompt}{text}  ({said['status']})", BOLD)
        except ClutchError as error:
            self._screen.say(str(error), RED)

    def _hear(self, event: ChatEvent) -> None:
        match event.kind:
            case "assistant:text" if event.data["taskId"] == self._id:
                self._stream(event.data["runId"], event.data["text"])
            case "usage" | "tool:start" if event.data["taskId"] == self._id:
                self._end_answer()
            case "line":
                self._show_line(event.data)
            case "task":
                self._show_state(event.data)
            case "lost" | "trouble":
                self._screen.say(str(event.data), YELLOW)
            case _:
                pass

    def _show_line(self, line: Mapping[str, Any]) -> None:
        """Of an answer whose pieces were shown, only the tool calls are printed."""
        if line["kind"] == "answer" and line["body"]["text"].strip():
            is_begun = self._pieces.has_begun(line["body"]["text"])
            rest = self._pieces.whole(line["body"]["text"])
            if rest is None:
                self._pieces = Pieces()
            elif is_begun:
                self._screen.stream(rest)
                self._screen.end_stream()
                line = {**line, "body": {**line["body"], "text": ""}}
        if shown := output.log_line(line):
            self._screen.say(shown)

    def _rows(self) -> Sequence[str]:
        if self._task["outcome"] is not None:
            return ()
        keys = "Enter steers" if self._steers else "Enter sends a message"
        state = output.one_line(self._task, output.now(), cells=self._screen.width)
        return [output.coloured(one, DIM) for one in (state, f"{keys} · Esc returns")]

    def _show_state(self, task: Mapping[str, Any]) -> None:
        is_new_question = _asks(task) and not _asks(self._task)
        self._task = task
        if is_new_question:
            inbox = self._notices.command("inbox")
            self._screen.say(f"{task['status'].capitalize()}: {task['doingNow']}\n  -> `{inbox}`", YELLOW)
            self._screen.ring()
        if task["outcome"] is not None:
            failed = output.failure(task, self._notices.command)
            lines = (output.one_line(task, output.now()), *(() if failed is None else (failed,)))
            self._screen.say("\n".join(lines), output.style(task))
            self._screen.ring()
            self._end()
        self._screen.redraw()


def _asks(task: Mapping[str, Any]) -> bool:
    return task["status"] in NEEDS_USER


def _transcript(client: GatewayClient, task_id: str, after: int) -> list[Mapping[str, Any]]:
    return [*messages(lambda number: client.get(task_path(task_id, "transcript"), after=number), after)]
