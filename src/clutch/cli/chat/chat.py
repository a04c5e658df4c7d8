"""`clutch chat` at a terminal: one loop that hears keys and news, and shows both in one window.

Words are sent by a thread of their own, in the order they were typed, so that a slow gateway never holds up a key.
Leaving ends the talk and nothing else: agents and children go on."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from uuid import uuid4

import typer

from clutch.cli import output
from clutch.cli.chat import stream as ears
from clutch.cli.chat.stream import AGAIN_S, SLACK_S, ChatEvent, EventListener, Notices, Pieces, session_path
from clutch.cli.chat.terminal import (
    Candidates,
    Editor,
    Key,
    Submitted,
    Terminal,
    TypedText,
    Window,
    leave_on_hangup,
    raw_terminal,
)
from clutch.cli.output import Exit, answering, command_for, gateway, home_of, print_object, print_text, say
from clutch.cli.source import GatewayConnection
from clutch.core.text.format import counted, visible
from clutch.errors import ClutchError, InvalidInput, NoGateway
from clutch.surfaces.http_client import GatewayClient

# --------------------------------------------------------------------------------------------------
# `clutch chat`: finds the gateway or starts one, opens the session, and gives the talk to whoever is there.

MAIN_SESSION = "agent:main:main"


def chat(state: Path | None, session: str | None, agent: str | None, *, as_json: bool) -> None:
    with answering("chat", as_json=as_json):
        key = session or (f"agent:{agent}:main" if agent else MAIN_SESSION)
        client = gateway(state, is_new_work=True)
        if as_json or not _is_terminal():
            inbox = command_for(state, "inbox")
            raise typer.Exit(
                chat_through_pipe(GatewayConnection(state, client), key, Path.cwd(), inbox, as_json=as_json)
            )

        client.post(session_path(key, "replies"), {"waitSeconds": 0})  # opens it
        say(f"Talking to {key}. /help tells the keys; Ctrl-D leaves, work goes on.")
        talk = Chatting(home_of(state), key, Path.cwd(), _notices(state))
        talk.run()


def attach(state: Path | None, target: str) -> None:
    """Without a terminal: what `clutch logs -f` prints."""
    if not _is_terminal():
        from clutch.cli import show

        return show.logs(state, target, follows=True, as_json=False)
    with answering("attach", as_json=False):
        from clutch.cli.chat.attach import Attaching

        Attaching(home_of(state), gateway(state), target, _notices(state)).run()


def _notices(state: Path | None) -> Notices:
    """As the config has it. One that cannot be read is the gateway's to complain about."""
    from clutch.config import load

    command = partial(command_for, state)
    try:
        return Notices(command, load.load(home_of(state)).settings.policy.notify)
    except ClutchError:
        return Notices(command)


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


# --------------------------------------------------------------------------------------------------
# Commands of the chat itself, which no agent and no gateway sees as words: the same at a terminal and from a pipe.

CHAT_COMMANDS = ("attach", "answer", "help", "quit")
USAGE = {
    "/attach": "Usage: /attach TASK (an id, a number of the last list, or a label; quotes around it are allowed)",
    "/answer": "Usage: /answer ID your answer, /answer ID approve [comment] or /answer ID reject [reason]",
}
COMMANDS_HELP = (
    "/attach TASK watches a child; /answer ID words|approve|reject decides; "
    "also: /subagents help, /status, /stop …"
)


def target(words: str) -> str:
    """What `/attach` names: quotes around a label are no part of it."""
    text = words.strip()
    return text[1:-1].strip() if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def usage_of(word: str, rest: str) -> str | None:
    """How a command is written that was typed without what it needs; None: nothing is missing."""
    needed = {"/attach": 1, "/answer": 2}.get(word, 0)
    return USAGE[word] if len(rest.split(maxsplit=1)) < needed else None


def answer(words: str) -> Callable[[GatewayClient], None]:
    """`ID words`, `ID approve …` or `ID reject …`, about what waits in the inbox now.

    Harmless to do twice: what the first try saw and the second does not find as it was, was answered by the first."""
    item, _, rest = words.partition(" ")
    verdict, _, reason = rest.strip().partition(" ")
    decision = verdict if verdict in ("approve", "reject") else "answer"
    text = rest.strip() if decision == "answer" else reason
    seen: list[str] = []

    def decide(client: GatewayClient) -> None:
        found = [one["hash"] for one in client.get("/v1/inbox")["items"] if one["id"] == item]
        if seen and found != seen:
            return
        if not found:
            raise ClutchError(f"nothing in the inbox is called {item[:40]}")
        seen[:] = found
        client.post(f"/v1/inbox/{item}", {"decision": decision, "text": text, "hash": found[0]})

    return decide


# --------------------------------------------------------------------------------------------------
# Files in a talk: `@path` in a message brings the file's text along; what was typed is kept in a private file.

HISTORY_FILE = "chat-history"
HISTORY_MAX = 1000
FILE_BYTES_MAX = 48 * 1024  #: a message may have 64 KiB, and the words need room, too
_MENTIONED = re.compile(r"(?<!\S)@([^\s@]\S*)")


def with_files(text: str, base: Path) -> str:
    """Each file that is mentioned and there, once, below the words. Raises InvalidInput for one that cannot be sent."""
    found = dict.fromkeys(
        name for name in _MENTIONED.findall(text) if (base / Path(name).expanduser()).is_file()
    )
    return "\n\n".join([text, *(_quoted(name, base / Path(name).expanduser()) for name in found)])


def _quoted(name: str, path: Path) -> str:
    with path.open("rb") as file:
        raw = file.read(FILE_BYTES_MAX + 1)
    if len(raw) > FILE_BYTES_MAX:
        raise InvalidInput(f"@{name}", f"has more than {FILE_BYTES_MAX // 1024} KiB; let an agent read it")
    try:
        body = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"@{name}", "is not a text in UTF-8") from error
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", body)), default=0))
    return f"{name}:\n{fence}\n{body}\n{fence}"


def completions(word: str, base: Path) -> Iterator[str]:
    """`word` begins with @."""
    folder, _, start = word[1:].rpartition("/")
    place = base / Path(folder).expanduser() if folder or not word.startswith("@/") else Path("/")
    try:
        names = sorted(one.name + ("/" if one.is_dir() else "") for one in place.iterdir())
    except OSError:
        return
    before = f"@{folder}/" if folder or word.startswith("@/") else "@"
    for name in names:
        if name.startswith(start) and (start or not name.startswith(".")) and " " not in name:
            yield before + name


def read_history(home: Path) -> list[str]:
    try:
        lines = (home / HISTORY_FILE).read_text(encoding="utf-8").splitlines()
        return [str(json.loads(line)) for line in lines[-HISTORY_MAX:]]
    except (OSError, ValueError):
        return []  # a comfort, never a reason not to talk


def write_history(home: Path, history: list[str]) -> None:
    fresh = home / f".{HISTORY_FILE}.{os.getpid()}"
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "w", encoding="utf-8") as out:
        out.writelines(json.dumps(one, ensure_ascii=False) + "\n" for one in history[-HISTORY_MAX:])
    fresh.replace(home / HISTORY_FILE)


PROMPT = "> "
CANDIDATES_SHOWN = 40  #: candidates shown at once
HELP = (
    "Enter sends; Alt-Enter or \\ at the end of a line begins a new one; Tab completes; @file brings a file along.\n"
    f"Ctrl-C stops the turn, twice leaves; Ctrl-D leaves. Work goes on without you.\n{COMMANDS_HELP}"
)


class Chatting:
    def __init__(self, home: Path, session: str, base: Path, notices: Notices) -> None:
        self._home, self._session, self._base = home, session, base
        self._notices = notices
        self._ear = EventListener(home)
        self._editor = Editor(read_history(home), self._complete)
        self._window = Window(self._editor, PROMPT)
        self._to_send: SimpleQueue[Callable[[GatewayClient], None]] = SimpleQueue()
        self._tasks: Sequence[Mapping[str, Any]] = ()
        self._run_id, self._pieces = "", Pieces()
        self._is_busy = self._is_warned = self._is_over = False
        self._wants_attached: str | None = None
        self._has_asked_to_stop = False  #: `/stop` named the subagents it would stop

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
        write_history(self._home, self._editor.history)

    def _talk(self) -> None:
        """Until it is over, or somebody else gets the terminal for a while."""
        seat = Terminal(self._ear.wakes)
        with raw_terminal():
            self._window.redraw()
            while not self._is_over and self._wants_attached is None:
                for news in self._ear.heard():
                    self._hear(news)
                for key in seat.wait():
                    self._press(key)
            self._window.clear()

    def _attach(self, target: str) -> None:
        from clutch.cli.chat import attach

        self._wants_attached = None
        try:
            attach.Attaching(self._home, self._ear.found(), target, self._notices).run()
        except ClutchError as error:
            self._ear.tell("trouble", str(error))

    # ---- keys ----------------------------------------------------------------------------------------

    def _press(self, key: Key | TypedText) -> None:
        match self._editor.press(key):
            case Submitted(text):
                self._submit(text.strip())
            case Candidates(words):
                self._window.say("  ".join(words[:CANDIDATES_SHOWN]), "2")
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
        self._has_asked_to_stop = self._has_asked_to_stop and word == "/stop"
        if (usage := usage_of(word, rest)) is not None:
            return self._window.say(usage, "33")
        match word:
            case "/quit" | "/exit":
                self._is_over = True
            case "/help":
                self._window.say(HELP, "2")
            case "/attach":
                self._wants_attached = target(rest)
            case "/answer":
                self._to_send.put(answer(rest.strip()))
            case "/stop" if not rest.strip() and not self._is_stop_confirmed():
                pass
            case _:
                self._say(text)

    def _is_stop_confirmed(self) -> bool:
        """Subagents that work are stopped by a second `/stop`, or by `/stop all`."""
        working = [
            task for task in self._tasks if task["outcome"] is None and task["rootKey"] == self._session
        ]
        if not working or self._has_asked_to_stop:
            self._has_asked_to_stop = False
            return True
        self._has_asked_to_stop = True
        running = f"{counted(len(working), 'subagent')} {'is' if len(working) == 1 else 'are'} running"
        self._window.say(
            f"{running}: /stop once more stops this turn and all of them; Ctrl-C stops only the turn.", "33"
        )
        return False

    def _say(self, text: str) -> None:
        try:
            whole = text if text.startswith("/") else with_files(text, self._base)
        except (ClutchError, OSError) as error:
            self._window.say(str(error), "31")
            return
        self._is_busy = not text.startswith("/")
        key = uuid4().hex
        self._to_send.put(lambda client: self._post(client, "messages", {"text": whole}, key))

    def _complete(self, before: str) -> Sequence[str]:
        word = "" if not before.split() or before[-1].isspace() else before.split()[-1]
        if word.startswith("@"):
            return list(completions(word, self._base))
        if not before.startswith("/"):
            return ()
        if " " not in before:
            from clutch.api.slash import COMMANDS

            known = sorted({*COMMANDS, *CHAT_COMMANDS})
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
        """False: nobody is there; what was typed is kept until somebody is."""
        try:
            send(self._ear.found(is_new_work=True))
        except NoGateway:
            return False
        except ClutchError as error:
            self._ear.tell("trouble", str(error))
        return True

    def _post(
        self, client: GatewayClient, verb: str, body: Mapping[str, Any], key: str | None = None
    ) -> None:
        client.post(session_path(self._session, verb), body, key=key)

    # ---- news ----------------------------------------------------------------------------------------

    def _hear(self, news: ChatEvent) -> None:
        match news.kind:
            case "reply":
                self._replied(news.data.text)
                news.data.shown.set()
            case "assistant:text" if news.data["sessionKey"] == self._session:
                self._stream(news.data["runId"], news.data["text"])
            case "usage" if news.data["sessionKey"] == self._session:
                self._end_answer()
            case "tool:start" if news.data["sessionKey"] == self._session:
                self._stream(news.data["runId"], "")
                self._end_answer()
                self._window.say(f"* {visible(news.data['text'], 60)}", "2")
                self._is_busy = True
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
        is_begun = self._pieces.has_begun(text)
        rest = self._pieces.whole(text)
        if (
            rest is None or not is_begun
        ):  # the answer to a command, while the turn goes on; or all of it at once
            self._window.say(text)
        else:
            self._window.stream(rest)
            self._window.end_stream()
        self._is_busy = self._is_busy and rest is None

    def _end_answer(self) -> None:
        if held := self._pieces.end_answer():
            self._window.stream(held)
        self._window.end_stream()

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
        self._window.status = output.summary(summary) if page["tasks"] else ""
        self._window.redraw()
        for notice in self._notices.of_summary(summary):
            self._window.say(notice.text, "2")
            self._window.ring()


# --------------------------------------------------------------------------------------------------
# `clutch chat` without a person at a terminal: each line of stdin is a message, and what is answered is printed.
#
# The next line is sent when all is quiet after the last: the agent has answered, its children have ended and were
# heard.

WAIT_S = 2.0  #: then it looks whether somebody is needed
PIPED_HELP = f"Each line is a message; @file brings a file along; /quit ends.\n{COMMANDS_HELP}"


def chat_through_pipe(
    gateway: GatewayConnection, session: str, base: Path, inbox: str, *, as_json: bool
) -> Exit:
    """Needs you: something waits for a person, and nobody is here; `inbox` is the command that shows it."""
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
                break  # the next line would wait behind what nobody has answered
            case _:
                _send(gateway, session, base, line.strip())
        is_needed = not _heard_out(gateway, session, as_json=as_json)
    if is_needed:
        say(f"It needs you: `{inbox}`.")
    return Exit.NEEDS_YOU if is_needed else Exit.OK


def _send(gateway: GatewayConnection, session: str, base: Path, line: str) -> None:
    text = line if line.startswith("/") else with_files(line, base)
    key = uuid4().hex
    gateway.ask(lambda client: client.post(session_path(session, "messages"), {"text": text}, key=key))


def _heard_out(gateway: GatewayConnection, session: str, *, as_json: bool) -> bool:
    """Everything that is said until all is quiet. False: it waits for a person."""
    heard: int | None = None

    def listen(client: GatewayClient) -> dict[str, Any]:
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


def _asked(client: GatewayClient, session: str) -> list[dict[str, Any]]:
    """By the agent itself, or by somebody below it."""
    items = client.get("/v1/inbox")["items"]
    below = (
        {task["taskId"] for task in client.get("/v1/tasks", root=session, limit=200)["tasks"]}
        if items
        else ()
    )
    return [item for item in items if item["sessionKey"] == session or item["taskId"] in below]
