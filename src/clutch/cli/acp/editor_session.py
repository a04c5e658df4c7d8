"""One conversation of the editor with a main agent: what happens in it at the gateway, as session updates.

The transcript at the gateway is the record: messages, tool calls and results are read from it in order, behind the last
one that was shown, so that a lost gateway loses nothing and repeats nothing. Live events only say when to look, and
bring the pieces of the answer that is being written. A turn that begins by itself, because a background subagent has
ended, is shown like any other."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import uuid4

import acp

from clutch.cli.acp.editor_decisions import EditorDecisions
from clutch.cli.acp.editor_updates import SubagentCalls, ToolCalls, Update, answer_text, user_text
from clutch.cli.chat import stream
from clutch.cli.chat.stream import AGAIN_S, LOOK_S, ChatEvent, EventListener, Pieces
from clutch.cli.output import say
from clutch.contain import BackgroundTasks
from clutch.errors import ClutchError, NoGateway
from clutch.surfaces.http_client import Declined, GatewayClient, session_path, task_path

T = TypeVar("T")
AWAY_S: Final = 60.0  #: as for every command: a restart takes seconds
PAGE: Final = 200  #: messages of one request
HISTORY_PAGES: Final = 5  #: of a conversation that is opened again
TASKS_MAX: Final = 200
PAUSE_S: Final = (
    0.2  #: between two looks: each is a few requests, of which a gateway takes only so many in a second
)
ANSWERS_KEPT: Final = 50  #: with which a reply is compared, so that it is not shown twice
FINAL_DELIVERY: Final = frozenset({"delivered", "skipped", "undelivered", None})


@dataclass(frozen=True, slots=True)
class EditorPage:
    """What the gateway has of a conversation at one moment, behind a message."""

    messages: Sequence[Mapping[str, Any]]
    delivered: Mapping[int, Sequence[Mapping[str, Any]]]  #: results that a message brought, by its number
    is_earlier: bool  #: there are messages before these
    chat: Mapping[str, Any]
    letters: frozenset[str]  #: messages of the user that the agent has not read
    tasks: Sequence[Mapping[str, Any]]
    items: Sequence[Mapping[str, Any]]  #: of the inbox
    replies: Sequence[Mapping[str, Any]]  #: to the user, which no client has confirmed

    def is_idle(self, letter: str) -> bool:
        """Whether the agent has read this message, and no turn is open or about to begin for a user."""
        return letter not in self.letters and self.chat["since"] is None and not self.chat["waiting"]


class EditorSession:
    """Opened, it follows its conversation until it is closed. `editor`: the other side of the protocol."""

    def __init__(self, editor: Any, home: Path, key: str, *, has_forms: bool) -> None:
        self.key = key
        self._editor = editor
        self._listener = EventListener(home)
        self._tasks, self._stack = BackgroundTasks(), ExitStack()
        self._decisions = EditorDecisions(editor, key, self.ask, has_forms=has_forms)
        self._calls, self._subagents, self._pieces = ToolCalls(), SubagentCalls(), Pieces()
        self._seq = self._reply = 0  #: of the last message, and of the last reply, that was shown
        self._run = ""  #: whose pieces came last
        self._needs_break = False  #: a further message would run into the text of the last one
        self._answers: deque[str] = deque(maxlen=ANSWERS_KEPT)
        self._mine: list[str] = []  #: prompts of this editor, which it shows itself
        self._events: deque[ChatEvent] = deque()
        self._wake, self._is_due = asyncio.Event(), True
        self._looks, self._looked = 0, asyncio.Event()
        self._found: tuple[int, EditorPage | ClutchError] = (0, NoGateway("not asked yet"))
        self._is_cancelled = False

    # ---- opening and closing -------------------------------------------------------------------------

    async def open(self, *, replays: bool, notices: Iterable[Update]) -> None:
        """Begin to follow. `replays`: show first what was said. `notices`: of a conversation that the editor knows."""
        page = await self.ask(lambda client: _history(client, self.key))
        if replays and page.is_earlier:
            await self._message(f"Earlier messages: `clutch logs {self.key}`.")
        for message in page.messages:
            self._seq = message["seq"]
            if replays:
                await self._replay(message, page.delivered.get(self._seq, ()))
        for task in page.tasks:
            if task["outcome"] is not None and task["delivery"]["status"] in FINAL_DELIVERY:
                self._subagents.hide(task)
        self._stack.enter_context(self._listener.open())
        loop = asyncio.get_running_loop()
        loop.add_reader(self._listener.wakes, self._hear)
        self._stack.callback(loop.remove_reader, self._listener.wakes)
        self._listener.listen(stream.replies(self._listener, self.key))
        self._listener.listen(stream.events(self._listener, threading.Event(), root=self.key))
        self._tasks.start(self._follow(list(notices)), f"clutch-acp {self.key}")

    async def close(self) -> None:
        await self._decisions.close()
        await self._tasks.close()
        self._stack.close()

    async def ask(self, question: Callable[[GatewayClient], T]) -> T:
        """Ask the gateway. One that has gone is started again; raises NoGateway when none comes back."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + AWAY_S
        while True:
            try:
                return await asyncio.to_thread(lambda: question(self._listener.found(is_new_work=True)))
            except NoGateway:
                if loop.time() >= deadline:
                    raise
            except Declined as error:
                if error.code != "rate_limited" or loop.time() >= deadline:
                    raise
            await asyncio.sleep(AGAIN_S)

    # ---- the editor's requests -----------------------------------------------------------------------

    async def prompt(self, text: str) -> str:
        """Send a message of the user, and return the stop reason when the turn that reads it has ended.

        Subagents may still work: what comes of them is shown later, outside of any prompt."""
        self._is_cancelled, key = False, uuid4().hex
        self._mine.append(text)
        letter = (await self.ask(lambda client: self._post(client, "messages", {"text": text}, key)))[
            "letterId"
        ]
        page = await self._look_again()
        while not page.is_idle(letter):
            if self._is_cancelled:  # the first halt came before the turn had begun
                await self._halt()
                self._look_soon()
            page = await self._next_look()
        await self._look_again()  # a reply that is not in the transcript, such as the error of the turn
        return "cancelled" if self._is_cancelled else "end_turn"

    async def command(self, call: Callable[[GatewayClient], object]) -> str:
        """Carry out a slash command and show its answer."""
        if said := await self.ask(call):
            await self._message(str(said))
        self._look_soon()
        return "end_turn"

    async def cancel(self) -> None:
        """Stop the turn, as `/stop` does; subagents keep running."""
        self._is_cancelled = True
        await self._halt()
        self._look_soon()

    async def _halt(self) -> None:
        await self.ask(lambda client: self._post(client, "halt", {}))

    def _post(self, client: GatewayClient, verb: str, body: Mapping[str, Any], key: str | None = None) -> Any:
        return client.post(session_path(self.key, verb), body, key=key)

    # ---- following -----------------------------------------------------------------------------------

    def _hear(self) -> None:
        self._events.extend(self._listener.heard())
        self._wake.set()

    def _look_soon(self) -> None:
        self._is_due = True
        self._wake.set()

    async def _look_again(self) -> EditorPage:
        """Return what a look finds that begins after this call. Raises ClutchError."""
        self._look_soon()
        return await self._next_look()

    async def _next_look(self) -> EditorPage:
        """Return what the next look finds that begins after this call, when there is a reason for one."""
        before = self._looks
        while self._found[0] <= before:
            await self._looked.wait()
        page = self._found[1]
        if isinstance(page, ClutchError):
            raise page
        return page

    async def _follow(self, notices: Sequence[Update]) -> None:
        for update in notices:
            await self._send(update)
        while True:
            self._wake.clear()
            while self._events:
                await self._take(self._events.popleft())
            if self._is_due:
                await self._look()
                await asyncio.sleep(PAUSE_S)
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()
            except TimeoutError:
                self._is_due = True  # a lost hint, or a question of the main agent, which is in no timeline

    async def _look(self) -> None:
        self._is_due = False
        self._looks += 1
        number = self._looks
        found: EditorPage | ClutchError | None = None
        try:
            found = page = await self.ask(lambda client: _page(client, self.key, self._seq, self._reply))
            await self._show(page)
        except ClutchError as error:
            if str(error) != str(self._found[1]):
                say(f"clutch acp: {error}")
            found = error
        finally:
            if found is not None:
                self._found = (number, found)
                self._looked.set()
                self._looked = asyncio.Event()

    async def _take(self, event: ChatEvent) -> None:
        match event.kind:
            case "reply":
                await self._look()
                if isinstance(self._found[1], ClutchError):  # it is not shown
                    self._events.appendleft(event)
                    return await asyncio.sleep(AGAIN_S)
                event.data.shown.set()
            case "lost":
                self._pieces = Pieces()  # the answer that was being written is asked for again
                self._needs_break = True
            case "trouble":
                say(f"clutch acp: {event.data}")
            case "assistant:text" | "assistant:thinking" | "usage":
                if event.data["sessionKey"] == self.key:
                    await self._take_piece(event)
            case _:
                self._is_due = True

    async def _take_piece(self, event: ChatEvent) -> None:
        if event.data["runId"] != self._run:
            self._run = event.data["runId"]
            self._pieces.other_run()
        match event.kind:
            case "assistant:text":
                await self._text(self._pieces.piece(event.data["text"]))
            case "assistant:thinking":
                await self._send(acp.update_agent_thought_text(event.data["text"]))
            case _:
                await self._text(self._pieces.end_answer())
                self._is_due = True

    # ---- showing -------------------------------------------------------------------------------------

    async def _show(self, page: EditorPage) -> None:
        for message in page.messages:
            self._seq = message["seq"]
            if text := user_text(message):
                await self._show_user(text)
            if text := answer_text(message).strip():
                await self._show_answer(text)
            for update in self._calls.updates(message):
                await self._send(update)
        for reply in page.replies:
            await self._show_reply(reply)
        for task in page.tasks:
            if self._subagents.is_news(task):
                await self._send(self._subagents.update(task, await self._result(task)))
        await self._decisions.show(page.items)

    async def _replay(self, message: Mapping[str, Any], delivered: Iterable[Mapping[str, Any]]) -> None:
        if text := user_text(message):
            await self._send(acp.update_user_message_text(text))
        if text := answer_text(message).strip():
            self._answers.append(text)
            await self._message(text)
        for update in self._calls.updates(message):
            await self._send(update)
        for one in delivered:
            await self._send(self._subagents.delivered(one))

    async def _show_user(self, text: str) -> None:
        """Show a message that was written elsewhere, such as on the page."""
        mine = [one for one in self._mine if one.strip() in text]
        self._mine = [one for one in self._mine if one not in mine]
        if not mine:
            await self._send(acp.update_user_message_text(text))

    async def _show_answer(self, text: str) -> None:
        """Show what is missing of an answer whose pieces have arrived, or all of it."""
        self._answers.append(text)
        is_begun = self._pieces.has_begun(text)
        rest = self._pieces.whole(text)
        if rest is None or not is_begun:
            return await self._message(text)
        await self._text(rest)
        self._needs_break = True

    async def _show_reply(self, reply: Mapping[str, Any]) -> None:
        """Show a reply that is not in the transcript: the error of a turn, a notice."""
        self._reply = reply["id"]
        if (text := reply["reply"].strip()) in self._answers:
            self._answers.remove(text)
        else:
            await self._message(text)

    async def _message(self, text: str) -> None:
        self._needs_break |= bool(self._pieces.came.strip())
        await self._text(text)
        self._needs_break = True

    async def _text(self, text: str) -> None:
        if not text:
            return
        gap, self._needs_break = ("\n\n" if self._needs_break else ""), False
        await self._editor.session_update(self.key, acp.update_agent_message_text(gap + text))

    async def _send(self, update: Update) -> None:
        self._needs_break = False
        await self._editor.session_update(self.key, update)

    async def _result(self, task: Mapping[str, Any]) -> str:
        if task["outcome"] is None:
            return ""
        try:
            said = await self.ask(lambda client: client.get(task_path(task["taskId"], "result")))
        except ClutchError:
            return ""  # a task that is deleted has none
        return str(said["text"] or "")


def _history(client: GatewayClient, key: str) -> EditorPage:
    """The newest messages of a conversation, in order."""
    pages = [client.get(session_path(key, "conversation"), limit=PAGE)]
    while pages[0]["earlier"] is not None and len(pages) < HISTORY_PAGES:
        before = pages[0]["earlier"]
        pages.insert(0, client.get(session_path(key, "conversation"), limit=PAGE, before=before))
    return _put_together(client, key, pages)


def _page(client: GatewayClient, key: str, after: int, reply: int) -> EditorPage:
    """The messages behind a number. The last request has read the state of the conversation with its messages."""
    # Before the messages: a reply that is an answer of the transcript must be known as one.
    replies = _replies(client, key, reply)
    pages = [client.get(session_path(key, "conversation"), limit=PAGE, after=after)]
    while pages[-1]["more"]:
        after = pages[-1]["messages"][-1]["seq"]
        pages.append(client.get(session_path(key, "conversation"), limit=PAGE, after=after))
    return _put_together(client, key, pages, replies)


def _replies(client: GatewayClient, key: str, after: int) -> list[Mapping[str, Any]]:
    """The replies behind one that no client has confirmed."""
    found: list[Mapping[str, Any]] = []
    while True:
        said = client.post(session_path(key, "replies"), {"waitSeconds": 0, "after": after})
        if said["id"] is None:
            return found
        found.append(said)
        after = said["id"]


def _put_together(
    client: GatewayClient,
    key: str,
    pages: Sequence[Mapping[str, Any]],
    replies: Sequence[Mapping[str, Any]] = (),
) -> EditorPage:
    delivered: dict[int, list[Mapping[str, Any]]] = {}
    for one in (one for page in pages for one in page["delivered"]):
        delivered.setdefault(one["seq"], []).append(one)
    items = client.get("/v1/inbox")["items"]
    return EditorPage(
        messages=[message for page in pages for message in page["messages"]],
        delivered=delivered,
        is_earlier=pages[0]["earlier"] is not None,
        chat=pages[-1]["chat"],
        letters=frozenset(one["letterId"] for one in pages[-1]["waiting"]),
        tasks=client.get("/v1/tasks", root=key, limit=TASKS_MAX)["tasks"],
        items=[item for item in items if any(step["sessionKey"] == key for step in item["path"])],
        replies=replies,
    )
