"""`clutch chat`: a conversation with a main agent, its subagents in a panel under the prompt, and decisions by key.

A thread sends what is typed and decided in this order: a slow gateway delays no key."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from uuid import uuid4

from clutch.cli import output
from clutch.cli.chat import message, stream
from clutch.cli.chat.activity import ChatActivity, SubagentLines, tool_line
from clutch.cli.chat.conversation import BOLD, DIM, RED, YELLOW, TaskAttachment, TerminalConversation
from clutch.cli.chat.panel import Call, Confirm, Item, Panel
from clutch.cli.chat.stream import AGAIN_S, ChatEvent, Notices, Pieces
from clutch.cli.chat.terminal import Key
from clutch.core.text.format import counted, visible
from clutch.errors import ClutchError, NoGateway
from clutch.surfaces.http_client import GatewayClient, session_path

PROMPT = "> "
TAIL = 6  #: messages shown when a chat is opened again


class SessionChat(TerminalConversation):
    def __init__(self, home: Path, session: str, base: Path, notices: Notices) -> None:
        super().__init__(home, notices, PROMPT, history=message.read_history(home), complete=self._candidates)
        self._session, self._base = session, base
        self._to_send: SimpleQueue[Callable[[GatewayClient], object]] = SimpleQueue()
        self._tasks: Sequence[dict[str, Any]] = ()
        self._is_warned = False
        self._attach_to: tuple[str, bool] | None = None  #: a task, and whether what is typed steers it
        self._instead: Callable[[str], None] | None = None  #: takes the next text instead of the agent
        self._activity = ChatActivity()
        self._subagents = SubagentLines(notices.command)
        self._panel = Panel(self, session)
        screen = self._screen
        screen.take = self._take
        screen.above = lambda: [output.coloured(row, DIM) for row in self._activity.rows(output.now())]
        screen.below = self._below

    def run(self) -> None:
        changed = threading.Event()
        changed.set()
        listener = self._listener
        with listener.open():
            listener.listen(stream.replies(listener, self._session))
            listener.listen(stream.events(listener, changed, root=self._session))
            listener.listen(stream.counts(listener, changed, self._session))
            threading.Thread(target=self._send_all, daemon=True).start()
            while not self._is_over:
                self._talk()
                if self._attach_to is not None:
                    self._attach(*self._attach_to)
        message.write_history(self._home, self._screen.history)

    def _attach(self, target: str, steers: bool) -> None:
        """Give the terminal to a conversation with a task, until that is left."""
        self._attach_to = None
        try:
            client = self._listener.found()
            TaskAttachment(self._home, client, target, self._notices, steers=steers).run()
        except ClutchError as error:
            self._listener.tell("trouble", str(error))

    def show_tail(self, client: GatewayClient) -> None:
        """Print the last messages, so that the user knows where the conversation is. Unread replies follow by
        themselves, and are left out here."""
        unread = set(stream.unread(client, self._session))
        last = stream.said_last(client, self._session)
        read = (one for one in last if one["kind"] == "input" or one["body"]["text"].strip() not in unread)
        shown = [*islice(read, TAIL + 1)][::-1]
        if len(shown) > TAIL:
            self._screen.say(f"… earlier messages: `{self._notices.command('logs', self._session)}`", DIM)
        for one in shown[-TAIL:]:
            text = one["body"]["text"].strip()
            if one["kind"] == "input":
                self._screen.say(f"\n{PROMPT}{text}", BOLD)
            else:
                self._screen.answer(text)
        if shown:
            self._screen.say(f"── {output.clock(shown[-1]['at'])} ──", DIM)

    # ---- keys ----------------------------------------------------------------------------------------

    def _take(self, key: str) -> bool:
        """Offer a key to the panel. The first letter of an answer or a reason is none."""
        return not self._is_answering and self._panel.take(key)

    def _below(self) -> list[str]:
        if self._is_answering:
            return [output.coloured("Enter sends · Esc returns", DIM)]
        return self._panel.rows(self._screen.width, is_empty=self._screen.is_empty)

    @property
    def _is_answering(self) -> bool:
        return self._instead is not None and self._panel.confirm is None

    def _press(self, key: Key) -> None:
        match key:
            case Key.EDIT:
                self._is_warned = False
                self._panel.edited_at = output.now()
            case Key.INTERRUPT:
                self._interrupt()
            case Key.END_OF_FILE:
                self._end()
            case Key.ESCAPE:
                self._type_to_agent()

    def _interrupt(self) -> None:
        """The first Ctrl-C stops the current turn, if there is one; the second leaves."""
        if self._is_warned:
            return self._end()
        self._is_warned = True
        if self._activity.is_busy:
            self._stop_turn()
            self._screen.say("Press Ctrl-C again to leave.", DIM)
        else:
            self._screen.say("Press Ctrl-C again to leave; tasks keep running.", DIM)

    def _stop_turn(self) -> None:
        self._pieces = Pieces()
        self._activity.end()
        self._to_send.put(lambda client: self._post(client, "halt", {}))
        self._screen.say("Stopping this turn; subagents keep running.", YELLOW)

    def _submit(self, text: str) -> None:
        text = text.strip()
        self._is_warned = False
        if self._instead is not None:
            instead = self._instead
            self._type_to_agent()
            return instead(text) if text else self._screen.say("Nothing was done.", DIM)
        if not text:
            return
        self._screen.say(f"\n{PROMPT}{text}", BOLD)
        word, _, rest = text.partition(" ")
        if (usage := message.usage_of(word, rest)) is not None:
            return self._screen.say(usage, YELLOW)
        match word:
            case "/quit" | "/exit":
                self._end()
            case "/help":
                self._screen.say(message.HELP, DIM)
            case "/attach":
                self._attach_to = (message.target(rest), True)
                self._screen.leave()
            case "/answer":
                self._to_send.put(message.answer(rest.strip()))
            case "/stop" if rest.strip() in ("", "all"):
                self._stop(is_all=bool(rest.strip()))
            case _:
                self._say(text)

    def _stop(self, *, is_all: bool) -> None:
        """`/stop` stops the turn; `/stop all` also every subagent, after it has shown which."""
        working = self._panel.active
        if not is_all or not working:
            return (
                self._stop_turn() if self._activity.is_busy else self._screen.say("No turn is running.", DIM)
            )
        lines = "\n".join(f"  {output.one_line(task, output.now())}" for task in working)
        self._screen.say(f"These stop for good, with the present turn:\n{lines}", YELLOW)
        question = f"Stop this turn and {counted(len(working), 'subagent')}?"
        self._panel.confirm = Confirm(
            question, "y stops them · any other key: no", lambda: self._command("/stop all")
        )

    def _say(self, text: str) -> None:
        if message.is_command(text):
            return self._command(text)
        try:
            whole = message.with_files(text, self._base, lambda line: self._screen.say(line, DIM))
        except (ClutchError, OSError) as error:
            return self._screen.say(str(error), RED)
        self._activity.begin(output.now())
        key = uuid4().hex
        self._to_send.put(lambda client: self._post(client, "messages", {"text": whole}, key))

    def _command(self, line: str) -> None:
        key = uuid4().hex
        self.send(lambda client: str(self._post(client, "command", {"line": line}, key)["text"]))

    def _type_to_agent(self) -> None:
        self._instead, self._screen.prompt = None, PROMPT

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

    # ---- what the panel asks for ---------------------------------------------------------------------

    def open_task(self, task_id: str) -> None:
        self._attach_to = (task_id, False)
        self._screen.leave()

    def send(self, call: Call) -> None:
        self._to_send.put(lambda client: self._listener.tell("done", call(client)))

    def show_item(self, item: Item) -> None:
        who = visible(item["label"] or item["sessionKey"] or "", 60)
        self._screen.say(f"\n{item['status'].capitalize()}: {who} ({item['id']})", YELLOW)
        detail = item["detail"]
        if item["kind"] == "plan":
            self._screen.answer(item["text"])
        elif "tool" in detail:
            self._screen.say("\n".join([f"  {detail['tool']}", *_arguments(detail.get("args"))]))
        else:
            choices = [f"  {n}  {one}" for n, one in enumerate(detail.get("choices", ()), start=1)]
            self._screen.say("\n".join([f"  {item['text']}", *choices]))

    def type_text(self, prompt: str, then: Callable[[str], None]) -> None:
        self._instead, self._screen.prompt = then, prompt

    def say(self, text: str, style: str = "") -> None:
        self._screen.say(text, style)

    # ---- sending -------------------------------------------------------------------------------------

    def _send_all(self) -> None:
        while True:
            send = self._to_send.get()
            while not self._is_sent(send):
                time.sleep(AGAIN_S)

    def _is_sent(self, send: Callable[[GatewayClient], object]) -> bool:
        """False: no gateway is running. The message is kept until there is one."""
        try:
            send(self._listener.found(is_new_work=True))
        except NoGateway:
            return False
        except ClutchError as error:
            self._listener.tell("trouble", str(error))
        return True

    def _post(self, client: GatewayClient, verb: str, body: Mapping[str, Any], key: str | None = None) -> Any:
        return client.post(session_path(self._session, verb), body, key=key)

    # ---- events --------------------------------------------------------------------------------------

    def _hear(self, event: ChatEvent) -> None:
        match event.kind:
            case "reply":
                self._show_reply(event.data.text)
                event.data.shown.set()
            case "page":
                self._show_counts(event.data)
            case "inbox":
                self._show_inbox(event.data)
            case "done":
                self._screen.say(event.data)
            case "lost":
                self._screen.say(
                    "Gateway not running. Reconnecting; messages are kept and sent then.", YELLOW
                )
            case "found":
                self._screen.say("Connected to the gateway again.", DIM)
            case "trouble":
                self._screen.say(str(event.data), RED)
            case _ if "task" in event.data:
                for line in self._subagents.of_event(event.data):
                    self._screen.say(*line)
            case _ if event.data.get("sessionKey") == self._session:
                self._hear_agent(event.kind, event.data)
            case _:
                pass
        self._screen.redraw()

    def _hear_agent(self, name: str, data: Mapping[str, Any]) -> None:
        """Show what the agent itself does."""
        now = output.now()
        match name:
            case "assistant:text":
                if self._stream(data["runId"], data["text"]):
                    self._activity.write()
            case "usage":
                self._end_answer()
                self._activity.begin(now) if self._activity.is_busy else None
            case "tool:start":
                self._stream(data["runId"], "")
                self._end_answer()
                self._activity.begin_tool(data, now)
            case "tool:end":
                self._activity.end_tool(data, now)
                self._screen.say(*tool_line(data))
            case "turn:start":
                self._activity.begin(now)
            case "turn:end":
                self._activity.end()
            case _:
                pass

    def _show_reply(self, text: str) -> None:
        is_begun = self._pieces.has_begun(text)
        rest = self._pieces.whole(text)
        if rest is not None and is_begun:
            self._screen.stream(rest)
            self._screen.end_stream()
        else:
            # The reply to something else while the turn continues, or an answer of which no piece has arrived.
            self._screen.answer(text)
        if rest is not None:
            self._activity.end()

    def _show_counts(self, page: Mapping[str, Any]) -> None:
        self._tasks = page["tasks"]
        self._panel.show_tasks(page["tasks"], output.summary(page["summary"]))
        for notice in self._notices.of_summary(page["summary"]):
            self._screen.say(notice.text, DIM)
            self._screen.ring()

    def _show_inbox(self, items: Sequence[Item]) -> None:
        self._panel.show_items(items, self._tasks)
        for notice in self._notices.of_inbox(items):
            if not self._panel.offers(notice.about):
                self._screen.say(notice.text, YELLOW)
            self._screen.ring()


def _arguments(args: object) -> list[str]:
    """Return every argument of a call whole: what is approved is what was shown."""
    if not isinstance(args, dict):
        return [f"  {json.dumps(args, ensure_ascii=False)}"]
    texts = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in args.items()
    }
    return [f"  {name}: {text.replace(chr(10), f'{chr(10)}    ')}" for name, text in texts.items()]
