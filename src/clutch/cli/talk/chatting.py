"""`clutch chat` at a terminal: one loop that hears keys and news, and shows both in one window.

Words are sent by a thread of their own, in the order they were typed, so that a slow gateway never holds up a key.
Leaving ends the talk and nothing else: agents and children go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from uuid import uuid4

from clutch.cli import screen
from clutch.cli.talk import ear as ears
from clutch.cli.talk import files, own
from clutch.cli.talk.ear import AGAIN_S, Ear, News, session_path
from clutch.cli.talk.editor import Candidates, Editor, Submitted
from clutch.cli.talk.notices import Notices
from clutch.cli.talk.pieces import Pieces
from clutch.cli.talk.seat import Seat, leave_on_hangup, raw_terminal
from clutch.cli.talk.typing import Key, Text
from clutch.cli.talk.window import Window
from clutch.core.shown import visible
from clutch.errors import ClutchError, NoGateway
from clutch.surfaces.client import Client

PROMPT = "> "
TOLD_MAX = 40  #: candidates shown at once
HELP = (
    "Enter sends; Alt-Enter or \\ at the end of a line begins a new one; Tab completes; @file brings a file along.\n"
    f"Ctrl-C stops the turn, twice leaves; Ctrl-D leaves. Work goes on without you.\n{own.HELP}"
)


class Chatting:
    def __init__(self, home: Path, session: str, base: Path, notices: Notices) -> None:
        self._home, self._session, self._base = home, session, base
        self._notices = notices
        self._ear = Ear(home)
        self._editor = Editor(files.read_history(home), self._complete)
        self._window = Window(self._editor, PROMPT)
        self._to_send: SimpleQueue[Callable[[Client], None]] = SimpleQueue()
        self._tasks: Sequence[Mapping[str, Any]] = ()
        self._run_id, self._pieces = "", Pieces()
        self._is_busy = self._is_warned = self._is_over = False
        self._wants_attached: str | None = None

    def run(self) -> None:
        leave_on_hangup()
        changed = threading.Event()
        with self._ear.open():
            self._ear.listen(ears.replies(self._ear, self._session))
            self._ear.listen(ears.events(self._ear, changed, root=self._session))
            self._ear.listen(ears.counts(self._ear, changed, self._session))
            threading.Thread(target=self._send_all, daemon=True).start()
            while not self._is_over:
                self._talk()
                if self._wants_attached is not None:
                    self._attach(self._wants_attached)
        files.write_history(self._home, self._editor.history)

    def _talk(self) -> None:
        """Until it is over, or somebody else gets the terminal for a while."""
        seat = Seat(self._ear.wakes)
        with raw_terminal():
            self._window.redraw()
            while not self._is_over and self._wants_attached is None:
                for news in self._ear.heard():
                    self._hear(news)
                for key in seat.wait():
                    self._press(key)
            self._window.clear()

    def _attach(self, target: str) -> None:
        from clutch.cli.talk import attaching

        self._wants_attached = None
        try:
            attaching.Attaching(self._home, self._ear.found(), target, self._notices).run()
        except ClutchError as error:
            self._ear.tell("trouble", str(error))

    # ---- keys ----------------------------------------------------------------------------------------

    def _press(self, key: Key | Text) -> None:
        match self._editor.press(key):
            case Submitted(text):
                self._submit(text.strip())
            case Candidates(words):
                self._window.say("  ".join(words[:TOLD_MAX]), "2")
            case Key.INTERRUPT:
                return self._interrupt()
            case Key.END_OF_FILE:
                self._is_over = True
            case _:
                pass
        self._is_warned = False
        self._window.redraw()

    def _interrupt(self) -> None:
        """The first stops the turn, if there is one; the second leaves."""
        if self._is_warned:
            self._is_over = True
            return
        self._is_warned = True
        if self._is_busy:
            self._is_busy, self._pieces = False, Pieces()
            self._to_send.put(lambda client: self._post(client, "halt", {}))
            self._window.say("Stopping this turn; children go on. Ctrl-C once more leaves.", "33")
        else:
            self._window.say("Ctrl-C once more leaves; work goes on without you.", "2")

    def _submit(self, text: str) -> None:
        if not text:
            return
        self._window.say(PROMPT + text, "1")
        word, _, rest = text.partition(" ")
        match word:
            case "/quit" | "/exit":
                self._is_over = True
            case "/help":
                self._window.say(HELP, "2")
            case "/attach" if rest.strip():
                self._wants_attached = rest.strip()
            case "/answer" if rest.strip():
                self._to_send.put(own.answer(rest.strip()))
            case _:
                self._say(text)

    def _say(self, text: str) -> None:
        try:
            whole = text if text.startswith("/") else files.with_files(text, self._base)
        except (ClutchError, OSError) as error:
            self._window.say(str(error), "31")
            return
        self._is_busy = not text.startswith("/")
        key = uuid4().hex
        self._to_send.put(lambda client: self._post(client, "messages", {"text": whole}, key))

    def _complete(self, before: str) -> Sequence[str]:
        word = "" if not before.split() or before[-1].isspace() else before.split()[-1]
        if word.startswith("@"):
            return list(files.completions(word, self._base))
        if not before.startswith("/"):
            return ()
        if " " not in before:
            from clutch.gateway.commands import COMMANDS

            known = sorted({*COMMANDS, *own.COMMANDS})
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

    def _is_sent(self, send: Callable[[Client], None]) -> bool:
        """False: nobody is there; what was typed is kept until somebody is."""
        try:
            send(self._ear.found(is_new_work=True))
        except NoGateway:
            return False
        except ClutchError as error:
            self._ear.tell("trouble", str(error))
        return True

    def _post(self, client: Client, verb: str, body: Mapping[str, Any], key: str | None = None) -> None:
        client.post(session_path(self._session, verb), body, key=key)

    # ---- news ----------------------------------------------------------------------------------------

    def _hear(self, news: News) -> None:
        match news.kind:
            case "reply":
                self._replied(news.data.text)
                news.data.shown.set()
            case "assistant:text" if news.data["sessionKey"] == self._session:
                self._stream(news.data["runId"], news.data["text"])
            case "tool:start" if news.data["sessionKey"] == self._session:
                self._stream(news.data["runId"], "")
                self._window.say(f"* {visible(news.data['text'], 60)}", "2")
                self._is_busy, self._pieces.came = True, ""
            case "page":
                self._count(news.data)
            case "inbox":
                for notice in self._notices.of_inbox(news.data):
                    self._window.say(notice.text, "33")
                    self._window.ring()
            case "lost":
                self._window.say(
                    "The gateway is gone; looking for it again. What you type is kept and sent then.", "33"
                )
            case "found":
                self._window.say("The gateway is back.", "2")
            case "trouble":
                self._window.say(str(news.data), "31")
            case _:
                pass

    def _replied(self, text: str) -> None:
        is_begun = bool(self._pieces.came.strip())
        rest = self._pieces.whole(text)
        if (
            rest is None or not is_begun
        ):  # the answer to a command, while the turn goes on; or all of it at once
            self._window.say(text)
        else:
            self._window.stream(rest)
            self._window.end_stream()
        self._is_busy = self._is_busy and rest is None

    def _stream(self, run_id: str, text: str) -> None:
        if run_id != self._run_id:
            self._window.end_stream()
            self._run_id = run_id
            self._pieces.other_run()
        if shown := self._pieces.piece(text):
            self._is_busy = True
            self._window.stream(shown)

    def _count(self, page: Mapping[str, Any]) -> None:
        self._tasks = page["tasks"]
        summary = page["summary"]
        self._window.status = screen.summary(summary) if page["tasks"] else ""
        self._window.redraw()
        for notice in self._notices.of_summary(summary):
            self._window.say(notice.text, "2")
            self._window.ring()
