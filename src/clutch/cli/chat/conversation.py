"""Conversations at a terminal: with a session (`clutch chat`) and with a running task (`clutch attach`).

One event loop reads keys and the gateway's events and shows both on one screen. Leaving ends only the conversation:
agents and subagents continue."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from uuid import uuid4

from clutch.cli import output
from clutch.cli.chat import message, stream
from clutch.cli.chat.stream import AGAIN_S, ChatEvent, EventListener, Notices, Pieces
from clutch.cli.chat.terminal import Complete, Key, Screen
from clutch.cli.source import messages
from clutch.core.model import NEEDS_USER
from clutch.core.text.format import counted, visible
from clutch.errors import ClutchError, NoGateway
from clutch.surfaces.http_client import GatewayClient, session_path, task_path

PROMPT = "> "
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


class SessionChat(TerminalConversation):
    """`clutch chat`. A thread sends the messages in the order they were typed: a slow gateway delays no key."""

    def __init__(self, home: Path, session: str, base: Path, notices: Notices) -> None:
        super().__init__(home, notices, PROMPT, history=message.read_history(home), complete=self._candidates)
        self._session, self._base = session, base
        self._to_send: SimpleQueue[Callable[[GatewayClient], None]] = SimpleQueue()
        self._tasks: Sequence[Mapping[str, Any]] = ()
        self._is_busy = self._is_warned = False
        self._attach_to: str | None = None
        self._has_asked_to_stop = False  #: the first `/stop` named the subagents that a second one stops

    def run(self) -> None:
        changed = threading.Event()
        listener = self._listener
        with listener.open():
            listener.listen(stream.replies(listener, self._session))
            listener.listen(stream.events(listener, changed, root=self._session))
            listener.listen(stream.counts(listener, changed, self._session))
            threading.Thread(target=self._send_all, daemon=True).start()
            while not self._is_over:
                self._talk()
                if self._attach_to is not None:
                    self._attach(self._attach_to)
        message.write_history(self._home, self._screen.history)

    def _attach(self, target: str) -> None:
        """Give the terminal to a conversation with a task, until that is left."""
        self._attach_to = None
        try:
            TaskAttachment(self._home, self._listener.found(), target, self._notices).run()
        except ClutchError as error:
            self._listener.tell("trouble", str(error))

    # ---- keys ----------------------------------------------------------------------------------------

    def _press(self, key: Key) -> None:
        match key:
            case Key.EDIT:
                self._is_warned = False
            case Key.INTERRUPT:
                self._interrupt()
            case Key.END_OF_FILE:
                self._end()
            case Key.ESCAPE:
                pass

    def _interrupt(self) -> None:
        """The first Ctrl-C stops the current turn, if there is one; the second leaves."""
        if self._is_warned:
            return self._end()
        self._is_warned = True
        if self._is_busy:
            self._is_busy, self._pieces = False, Pieces()
            self._to_send.put(lambda client: self._post(client, "halt", {}))
            self._screen.say(
                "Stopping this turn; subagents keep running. Press Ctrl-C again to leave.", YELLOW
            )
        else:
            self._screen.say("Press Ctrl-C again to leave; tasks keep running.", DIM)

    def _submit(self, text: str) -> None:
        text = text.strip()
        self._is_warned = False
        if not text:
            return
        self._screen.say(self._prompt + text, BOLD)
        word, _, rest = text.partition(" ")
        self._has_asked_to_stop = self._has_asked_to_stop and word == "/stop"
        if (usage := message.usage_of(word, rest)) is not None:
            return self._screen.say(usage, YELLOW)
        match word:
            case "/quit" | "/exit":
                self._end()
            case "/help":
                self._screen.say(message.HELP, DIM)
            case "/attach":
                self._attach_to = message.target(rest)
                self._screen.leave()
            case "/answer":
                self._to_send.put(message.answer(rest.strip()))
            case "/stop" if not rest.strip() and not self._is_stop_confirmed():
                pass
            case _:
                self._say(text)

    def _is_stop_confirmed(self) -> bool:
        """Running subagents are stopped by a second `/stop`, or by `/stop all`."""
        working = [
            task for task in self._tasks if task["outcome"] is None and task["rootKey"] == self._session
        ]
        if not working or self._has_asked_to_stop:
            self._has_asked_to_stop = False
            return True
        self._has_asked_to_stop = True
        running = f"{counted(len(working), 'subagent')} {'is' if len(working) == 1 else 'are'} running"
        self._screen.say(
            f"{running}: /stop again stops this turn and all of them; Ctrl-C stops only the turn.", YELLOW
        )
        return False

    def _say(self, text: str) -> None:
        try:
            whole = text if text.startswith("/") else message.with_files(text, self._base)
        except (ClutchError, OSError) as error:
            return self._screen.say(str(error), RED)
        self._is_busy = not text.startswith("/")
        key = uuid4().hex
        self._to_send.put(lambda client: self._post(client, "messages", {"text": whole}, key))

    def _candidates(self, before: str) -> Sequence[str]:
        """Return what may complete the last word: files after @, slash commands, then tasks and their labels."""
        word = "" if not before.split() or before[-1].isspace() else before.split()[-1]
        if word.startswith("@"):
            return list(message.completions(word, self._base))
        if not before.startswith("/"):
            return ()
        if " " not in before:
            from clutch.api.slash import COMMANDS

            known = sorted({*COMMANDS, *message.CHAT_COMMANDS})
            return [f"/{name}" for name in known if f"/{name}".startswith(before)]
        return [task["taskId"] for task in self._tasks if task["taskId"].startswith(word)] or [
            task["label"]
            for task in self._tasks
            if task["label"].startswith(word) and " " not in task["label"]
        ]

    # ---- sending -------------------------------------------------------------------------------------

    def _send_all(self) -> None:
        while True:
            send = self._to_send.get()
            while not self._is_sent(send):
                time.sleep(AGAIN_S)

    def _is_sent(self, send: Callable[[GatewayClient], None]) -> bool:
        """False: no gateway is running. The message is kept until there is one."""
        try:
            send(self._listener.found(is_new_work=True))
        except NoGateway:
            return False
        except ClutchError as error:
            self._listener.tell("trouble", str(error))
        return True

    def _post(
        self, client: GatewayClient, verb: str, body: Mapping[str, Any], key: str | None = None
    ) -> None:
        client.post(session_path(self._session, verb), body, key=key)

    # ---- events --------------------------------------------------------------------------------------

    def _hear(self, event: ChatEvent) -> None:
        match event.kind:
            case "reply":
                self._show_reply(event.data.text)
                event.data.shown.set()
            case "assistant:text" if event.data["sessionKey"] == self._session:
                self._is_busy |= self._stream(event.data["runId"], event.data["text"])
            case "usage" if event.data["sessionKey"] == self._session:
                self._end_answer()
            case "tool:start" if event.data["sessionKey"] == self._session:
                self._stream(event.data["runId"], "")
                self._end_answer()
                self._screen.say(f"* {visible(event.data['text'], 60)}", DIM)
                self._is_busy = True
            case "page":
                self._show_counts(event.data)
            case "inbox":
                for notice in self._notices.of_inbox(event.data):
                    self._notify(notice.text, YELLOW)
            case "lost":
                self._screen.say(
                    "Gateway not running. Reconnecting; messages are kept and sent then.", YELLOW
                )
            case "found":
                self._screen.say("Connected to the gateway again.", DIM)
            case "trouble":
                self._screen.say(str(event.data), RED)
            case _:
                pass

    def _show_reply(self, text: str) -> None:
        is_begun = self._pieces.has_begun(text)
        rest = self._pieces.whole(text)
        if rest is not None and is_begun:
            self._screen.stream(rest)
            self._screen.end_stream()
        else:
            # The answer to a command while the turn continues, or an answer of which no piece has arrived.
            self._screen.say(text)
        self._is_busy = self._is_busy and rest is None

    def _show_counts(self, page: Mapping[str, Any]) -> None:
        self._tasks = page["tasks"]
        summary = page["summary"]
        self._screen.status = output.summary(summary) if page["tasks"] else ""
        self._screen.redraw()
        for notice in self._notices.of_summary(summary):
            self._notify(notice.text, DIM)

    def _notify(self, text: str, style: str) -> None:
        self._screen.say(text, style)
        self._screen.ring()


# --------------------------------------------------------------------------------------------------
# `clutch attach TASK`: watch what a task says and does; a submitted text is a new instruction for it.
#
# Escape, Ctrl-D or Ctrl-C detaches, and the task continues. When the task ends, its result is shown and the
# conversation is over.

STEER_PROMPT = "steer> "
TAIL = 20  #: lines of the transcript shown at the beginning
LOOK_S = 1.0


class TaskAttachment(TerminalConversation):
    def __init__(self, home: Path, client: GatewayClient, target: str, notices: Notices) -> None:
        """Raises the gateway's error for a target that does not exist."""
        self._client = client
        self._task: Mapping[str, Any] = client.get(task_path(target))
        self._id = str(self._task["taskId"])
        super().__init__(home, notices, STEER_PROMPT)

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
            said = self._client.post(task_path(self._id, "steer"), {"text": text})
            self._screen.say(f"{STEER_PROMPT}{text}  ({said['status']})", BOLD)
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
                line = {**line, "body": {**line["body"], "text": ""}}
        if shown := output.log_line(line):
            self._screen.say(shown)

    def _show_state(self, task: Mapping[str, Any]) -> None:
        is_new_question = _asks(task) and not _asks(self._task)
        self._task = task
        self._screen.status = output.one_line(task, output.now())
        if is_new_question:
            inbox = self._notices.command("inbox")
            self._screen.say(f"{task['status'].capitalize()}: {task['doingNow']}\n  -> `{inbox}`", YELLOW)
            self._screen.ring()
        if task["outcome"] is not None:
            self._screen.status = ""
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
