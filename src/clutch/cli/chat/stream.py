"""Events of the gateway, brought into one queue by threads: replies, answers in pieces, the state of subagents.

A lost gateway is looked for again, also at another address. Each event writes a byte to `EventListener.wakes`, so that
one event loop can wait for keys and events."""

from __future__ import annotations

import html
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

from clutch.core.policy import Notify
from clutch.core.text.format import visible
from clutch.errors import ClutchError, NoGateway
from clutch.surfaces import discovery
from clutch.surfaces.http_client import GatewayClient, connect, session_path

WAIT_S = 25.0
SLACK_S = 15.0
LOOK_S = 5.0  #: without an event: a question of the main agent is in no timeline
RECENT_MINUTES = 30
TAIL_PAGE = 30  #: messages, among them results of tools, in which the last ones that were said are looked for
USER_SOURCE = "user"  #: of an input that the user wrote
AGAIN_S = 0.5  #: before a lost gateway is looked for again, and between two counts of the subagents


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A reply of the agent. `shown` is set when it is on the terminal."""

    text: str
    shown: threading.Event = field(default_factory=threading.Event)


class ChatEvent(NamedTuple):
    """`kind`: reply (`ChatReply`), page (of tasks), inbox, lost, found, trouble; or the stable name of an event."""

    kind: str
    data: Any


@dataclass(slots=True)
class EventListener:
    home: Path
    wakes: int = -1
    _bell: int = -1
    _news: SimpleQueue[ChatEvent] = field(default_factory=SimpleQueue)
    _is_lost: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _starting: threading.Lock = field(default_factory=threading.Lock)  #: only one thread starts a gateway

    @contextmanager
    def open(self) -> Iterator[None]:
        self.wakes, self._bell = os.pipe()
        os.set_blocking(self.wakes, False)
        os.set_blocking(self._bell, False)
        try:
            yield
        finally:
            with self._lock:
                bell, self._bell = self._bell, -1
            os.close(bell)
            os.close(self.wakes)

    def listen(self, follow: Callable[[GatewayClient], None]) -> None:
        """Run `follow` in a daemon thread until the gateway is lost, then again."""
        threading.Thread(target=self._follow, args=(follow,), daemon=True).start()

    def tell(self, kind: str, data: Any = None) -> None:
        self._news.put(ChatEvent(kind, data))
        with self._lock:
            if self._bell >= 0:
                # A full pipe wakes the reader as well.
                with suppress(BlockingIOError):
                    os.write(self._bell, b".")

    def heard(self) -> Iterator[ChatEvent]:
        """Yield the events that arrived since the last call."""
        with suppress(BlockingIOError):
            os.read(self.wakes, 65536)
        while True:
            try:
                yield self._news.get_nowait()
            except Empty:
                return

    def found(self, *, is_new_work: bool = False) -> GatewayClient:
        """Return a client of the gateway. A crashed gateway is started again; for new work also a stopped one.

        Raises NoGateway."""
        with self._starting:
            is_wanted = is_new_work or discovery.has_died(self.home)
            if is_wanted and discovery.find(self.home) is None and discovery.may_start(self.home):
                discovery.start(self.home)
            return connect(self.home)

    def _follow(self, follow: Callable[[GatewayClient], None]) -> None:
        while self._bell >= 0:
            try:
                client = self.found()
                self._found()
                follow(client)
            except NoGateway as error:
                self._lose(str(error))
            except ClutchError as error:
                self.tell("trouble", str(error))
            time.sleep(AGAIN_S)

    def _lose(self, why: str) -> None:
        if not self._is_lost:
            self._is_lost = True
            self.tell("lost", why)

    def _found(self) -> None:
        if self._is_lost:
            self._is_lost = False
            self.tell("found")


def replies(ear: EventListener, session: str) -> Callable[[GatewayClient], None]:
    """Report replies. The gateway repeats a reply until the next request confirms that it was shown."""
    heard: list[int | None] = [None]

    def follow(client: GatewayClient) -> None:
        while True:
            body = {"waitSeconds": WAIT_S, "heard": heard[0]}
            said = client.post(session_path(session, "replies"), body, patience_s=WAIT_S + SLACK_S)
            if said["id"] is not None and said["id"] != heard[0]:
                reply = ChatReply(said["reply"])
                ear.tell("reply", reply)
                # A terminal that is closed first leaves the reply unconfirmed.
                reply.shown.wait()
            heard[0] = said["id"]

    return follow


def unread(client: GatewayClient, session: str) -> Iterator[str]:
    """Yield the replies that were not shown yet, and mark none of them."""
    after = 0
    while True:
        said = client.post(session_path(session, "replies"), {"waitSeconds": 0, "after": after})
        if said["id"] is None:
            return
        after = said["id"]
        yield said["reply"].strip()


def said_last(client: GatewayClient, session: str) -> Iterator[dict[str, Any]]:
    """Yield what the user and the agent said, newest first. Only as much is read as is taken."""
    before: int | None = None
    while True:
        page = client.get(session_path(session, "conversation"), limit=TAIL_PAGE, before=before)
        for one in reversed(page["messages"]):
            is_user = one["kind"] == "input" and one["body"]["source"] == USER_SOURCE
            if is_user or (one["kind"] == "answer" and one["body"]["text"].strip()):
                yield one
        before = page["earlier"]
        if before is None:
            return


def events(ear: EventListener, changed: threading.Event, **about: str) -> Callable[[GatewayClient], None]:
    """Report every event; set `changed` when it may have changed the state of a subagent."""

    def follow(client: GatewayClient) -> None:
        for name, data in client.events(**about):
            ear.tell(name, data)
            if "task" in data or name in ("here", "tool:start"):
                changed.set()

    return follow


def counts(ear: EventListener, changed: threading.Event, root: str) -> Callable[[GatewayClient], None]:
    """Report the subagents and the inbox after each change, and every `LOOK_S` seconds."""

    def follow(client: GatewayClient) -> None:
        while True:
            changed.wait(LOOK_S)
            changed.clear()
            ear.tell("page", client.get("/v1/tasks", root=root, recentMinutes=RECENT_MINUTES))
            ear.tell("inbox", client.get("/v1/inbox")["items"])
            time.sleep(AGAIN_S)

    return follow


# --------------------------------------------------------------------------------------------------
# An answer arrives over two connections, in pieces and whole. It is shown once, whichever arrives first.
#
# A turn with tool calls has several answers. Their pieces carry the same run id; an event of its own (`usage`, or the
# start of a tool) ends each answer.

AHEAD_MAX = 4


@dataclass(slots=True)
class Pieces:
    came: str = ""  #: the pieces of the present answer, whose whole has not arrived
    #: Complete answers of which all pieces arrived, and the whole has not.
    _ended: list[str] = field(default_factory=list)
    _ahead: list[str] = field(default_factory=list)  #: wholes that were shown; their pieces may still arrive
    _late: str = ""  #: the pieces of one of them that have arrived
    _is_other: bool = False  #: the present answer is none of those in `_ahead`

    def piece(self, text: str) -> str:
        """Return what to show for a piece, with the pieces held back before it."""
        if self._ahead and not self._is_other:
            self._late += text
            late = self._late.strip()
            if text and any(whole.startswith(late) for whole in self._ahead):
                if late in self._ahead:
                    self._ahead.remove(late)
                    self._late = ""
                return ""
            text, self._late, self._is_other = self._late, "", True
        self.came += text
        return text

    def end_answer(self) -> str:
        """End the present answer. Return its pieces that were held back."""
        held = self.piece("") if self._late else ""
        if said := self.came.strip():
            self._ended.append(said)
        self.came, self._is_other = "", False
        return held

    def has_begun(self, text: str) -> bool:
        """Whether pieces of this whole may have been shown."""
        return text.strip() in self._ended or bool(self.came.strip())

    def whole(self, text: str) -> str | None:
        """Return the part of a whole that is still to be shown. None: it is not the answer that arrives in pieces."""
        said, came = text.strip(), self.came.lstrip()
        if said in self._ended:
            del self._ended[: self._ended.index(said) + 1]
            return ""
        if said and came.startswith(said):
            # The next answer has begun.
            self.came = came[len(said) :]
            return ""
        if came.strip() and not said.startswith(came.rstrip()):
            # Perhaps a later answer of this turn.
            self._show_ahead(said)
            self._is_other = True
            return None
        self._show_ahead(said[len(came) :].strip())
        self.came, self._is_other = "", False
        return said[len(came) :]

    def _show_ahead(self, text: str) -> None:
        """Of the answer to a command, no piece comes: only the last few texts are remembered."""
        self._ahead = [*self._ahead, text][-AHEAD_MAX:] if text else []
        self._late = ""

    def other_run(self) -> None:
        """Begin another run. Its whole may have arrived before its first piece; the last run's may still arrive."""
        self._ahead = [] if self._late or self._is_other else self._ahead
        self._late = ""
        self.end_answer()
        del self._ended[:-1]


# --------------------------------------------------------------------------------------------------
# Notices for a user who may look elsewhere: an item in the inbox, the end of all work.
#
# Each notice carries the command that shows more. The terminal rings, and a desktop shows the notice too.

TEXT_CHARS_MAX = 300
ALIVE: Final = ("running", "queued", "waiting", "needsYou", "delivering")


EVERYTHING: Final = frozenset(Notify)


class Notice(NamedTuple):
    text: str
    command: str
    about: str = ""  #: the id of the item


@dataclass(slots=True)
class Notices:
    """Remembers what was shown, so that each notice appears once. `command` writes a command line to copy."""

    command: Callable[..., str]
    wishes: frozenset[Notify] = EVERYTHING
    _asked: set[str] = field(default_factory=set)
    _were_alive: int = 0

    def of_inbox(self, items: Sequence[Mapping[str, Any]]) -> Iterator[Notice]:
        new = [item for item in items if item["id"] not in self._asked]
        self._asked = {item["id"] for item in items}
        for item in new if Notify.ATTENTION_REQUIRED in self.wishes else ():
            who, what = (
                item["label"] or item["sessionKey"],
                visible(" ".join(item["text"].split()), TEXT_CHARS_MAX),
            )
            how = "your answer" if item["kind"] == "question" else "approve|reject"
            there = self.command("inbox")
            asks = f"{item['status'].capitalize()}: {visible(who, 60)}: {what}"
            told = f"{asks}\n  -> /answer {item['id']} {how}, or `{there}`"
            yield self._shown(Notice(told, there, item["id"]))

    def of_summary(self, summary: Mapping[str, Any]) -> Iterator[Notice]:
        alive = sum(summary[name] for name in ALIVE)
        is_over, self._were_alive = bool(self._were_alive and not alive), alive
        if is_over and Notify.ALL_DONE in self.wishes:
            there = self.command("ps")
            yield self._shown(Notice(f"All tasks have finished. -> `{there}`", there))

    def _shown(self, notice: Notice) -> Notice:
        _on_desktop(notice)
        return notice


def _on_desktop(notice: Notice) -> None:
    """Show the notice with `notify-send`, without waiting for it."""
    program = shutil.which("notify-send")
    if program is None or not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    # Desktops interpret the text as markup.
    words = html.escape(f"{notice.text}\n{notice.command}", quote=False)
    process = subprocess.Popen(  # noqa: S603 - the desktop's own program, with words that are one argument
        [program, "--app-name=clutch", "Clutch", words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    # Without a wait the ended process would stay as a zombie.
    threading.Thread(target=process.wait, daemon=True).start()
