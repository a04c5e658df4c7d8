"""What comes from the gateway, brought to one queue by threads of its own: replies, words on their way, how children
stand. A gateway that goes away is looked for again, also at another address.

Whoever waits for keys waits for `wakes`, too: a byte arrives there with each piece of news.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple
from urllib.parse import quote

from clutch.errors import ClutchError, NoGateway
from clutch.surfaces import address, starting
from clutch.surfaces.client import Client, connect

WAIT_S = 25.0
SLACK_S = 15.0
LOOK_S = 5.0  #: a main agent's own question is no line of any timeline
RECENT_MINUTES = 30
AGAIN_S = 0.5  #: until a lost gateway is looked for again, and between two counts of the children


@dataclass(frozen=True, slots=True)
class Words:
    """Of the agent, for the person. Whoever wrote them where a person sees them sets `shown`."""

    text: str
    shown: threading.Event = field(default_factory=threading.Event)


class News(NamedTuple):
    """`kind`: reply (`Words`), page (of tasks), inbox, lost, found, trouble; or the stable name of an event."""

    kind: str
    data: Any


@dataclass(slots=True)
class Ear:
    home: Path
    wakes: int = -1
    _bell: int = -1
    _news: SimpleQueue[News] = field(default_factory=SimpleQueue)
    _is_lost: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _starting: threading.Lock = field(default_factory=threading.Lock)  #: one of its threads is enough

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

    def listen(self, follow: Callable[[Client], None]) -> None:
        """In a thread that ends with the program: `follow` until the gateway is gone, then again."""
        threading.Thread(target=self._follow, args=(follow,), daemon=True).start()

    def tell(self, kind: str, data: Any = None) -> None:
        self._news.put(News(kind, data))
        with self._lock:
            if self._bell >= 0:
                with suppress(BlockingIOError):  # full of bytes that nobody has read: awake enough
                    os.write(self._bell, b".")

    def heard(self) -> Iterator[News]:
        """What has come since."""
        with suppress(BlockingIOError):
            os.read(self.wakes, 65536)
        while True:
            try:
                yield self._news.get_nowait()
            except Empty:
                return

    def found(self, *, is_new_work: bool = False) -> Client:
        """The gateway. One that died is started again; for new work also one that was stopped. Raises NoGateway."""
        with self._starting:
            is_wanted = is_new_work or address.has_died(self.home)
            if is_wanted and address.find(self.home) is None and starting.may_start(self.home):
                starting.start(self.home)
            return connect(self.home)

    def _follow(self, follow: Callable[[Client], None]) -> None:
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


def session_path(key: str, *rest: str) -> str:
    return "/".join(("/v1/sessions", quote(key, safe=""), *rest))


def replies(ear: Ear, session: str) -> Callable[[Client], None]:
    """The words for the person: given again until this says that they were shown, so none is lost on the way."""
    heard: list[int | None] = [None]

    def follow(client: Client) -> None:
        while True:
            body = {"waitSeconds": WAIT_S, "heard": heard[0]}
            said = client.post(session_path(session, "replies"), body, patience_s=WAIT_S + SLACK_S)
            if said["id"] is not None and said["id"] != heard[0]:
                words = Words(said["reply"])
                ear.tell("reply", words)
                words.shown.wait()  # a terminal that closes first leaves them with the gateway
            heard[0] = said["id"]

    return follow


def events(ear: Ear, changed: threading.Event, **about: str) -> Callable[[Client], None]:
    """Everything that happens; `changed` when it may have changed how the children stand."""

    def follow(client: Client) -> None:
        for name, data in client.events(**about):
            ear.tell(name, data)
            if "task" in data or name in ("here", "tool:start"):
                changed.set()

    return follow


def counts(ear: Ear, changed: threading.Event, root: str) -> Callable[[Client], None]:
    """Which children run, wait and are done, and what waits for a person: after a change, and now and then."""

    def follow(client: Client) -> None:
        while True:
            changed.wait(LOOK_S)
            changed.clear()
            ear.tell("page", client.get("/v1/tasks", root=root, recentMinutes=RECENT_MINUTES))
            ear.tell("inbox", client.get("/v1/inbox")["items"])
            time.sleep(AGAIN_S)

    return follow
