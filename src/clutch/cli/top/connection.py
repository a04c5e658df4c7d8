"""The connection to the gateway: one stream of events in a thread, and requests in threads of their own.

After a break the tasks are loaded again and the stream is followed from the cursor of that answer, so no row is lost or
doubled. The gateway sends `alive` every two seconds: a process that is stopped, and not dead, is noticed too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any

from clutch.cli.output import home_of
from clutch.errors import ClutchError
from clutch.surfaces import discovery
from clutch.surfaces.http_client import GatewayClient, connect

RETRY_S = 0.5
SILENT_S = 5.0  #: two `alive` were missed
PAGE, PAGES_MAX = 200, 5  #: active tasks come with the first page, however many there are
RECENT_MINUTES = 24 * 60

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LoadedTasks:
    """Everything as the gateway had it at one moment; events continue there."""

    tasks: list[Object]
    summary: Object
    stalled_s: float | None


@dataclass(frozen=True, slots=True)
class Lost:
    """The gateway does not answer. `at` is the moment up to which the state is known."""

    at: float
    why: str


@dataclass(frozen=True, slots=True)
class Items:
    """The decisions that wait."""

    items: list[Object]


@dataclass(frozen=True, slots=True)
class Happened:
    name: str
    said: Object


News = LoadedTasks | Lost | Items | Happened


@dataclass(slots=True)
class LiveConnection:
    """`client` is replaced when another process of the gateway serves the state directory."""

    state: Path | None
    client: GatewayClient
    _news: SimpleQueue[News] = field(default_factory=SimpleQueue)
    _closed: Event = field(default_factory=Event)
    _inbox: frozenset[str] | None = None  #: id and hash of each item that was loaded

    def open(self) -> None:
        # A daemon: it may wait for a line of the stream when the user leaves.
        Thread(target=self._follow, name="clutch-events", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def take(self) -> Iterator[News]:
        """Yield what has come since the last call."""
        while True:
            try:
                yield self._news.get_nowait()
            except Empty:
                return

    def ask(self, question: Callable[[GatewayClient], Any], then: Callable[[Any], None]) -> None:
        """Ask in a thread of its own; `then` gets the answer, or the error, in that thread."""

        def work() -> None:
            try:
                answer = question(self.client)
            except ClutchError as error:
                answer = error
            if not self._closed.is_set():
                then(answer)

        Thread(target=work, name="clutch-request", daemon=True).start()

    def _follow(self) -> None:
        while not self._closed.is_set():
            try:
                self._load_and_follow()
                why = "the gateway closed its stream of events"
            except ClutchError as error:
                why = str(error)
            except ValueError:  # a gateway that is killed leaves half a line
                why = "the stream of events was cut off"
            self._news.put(Lost(time.time(), why))
            while not self._closed.wait(RETRY_S) and not self._found_again():
                pass

    def _load_and_follow(self) -> None:
        page = self.client.get("/v1/tasks", limit=PAGE, recentMinutes=RECENT_MINUTES, patience_s=SILENT_S)
        tasks, cursor, following = list(page["tasks"]), page["cursor"], page
        for _ in range(PAGES_MAX - 1):
            if following["next"] is None:
                break
            wanted = {"limit": PAGE, "recentMinutes": RECENT_MINUTES, "cursor": following["next"]}
            following = self.client.get("/v1/tasks", patience_s=SILENT_S, **wanted)
            tasks += following["tasks"]
        self._news.put(LoadedTasks(tasks, page["summary"], page.get("stalledAfterSeconds")))
        self._load_inbox()
        for name, said in self.client.events(SILENT_S, include="overview", after=cursor):
            if name == "gap" or self._closed.is_set():
                return  # it was too slow, and loads again
            if name in ("here", "alive"):
                continue
            self._news.put(Happened(name, said))
            if name == "overview" and frozenset(said["inbox"]) != self._inbox:
                self._load_inbox()

    def _load_inbox(self) -> None:
        items = self.client.get("/v1/inbox", patience_s=SILENT_S)["items"]
        self._inbox = frozenset(f"{item['id']} {item['hash']}" for item in items)
        self._news.put(Items(items))

    def _found_again(self) -> bool:
        """Whether a gateway serves the directory. One that died is started again; one that was stopped is not."""
        home = home_of(self.state)
        try:
            if discovery.has_died(home) and discovery.may_start(home):
                discovery.start(home)
            self.client = connect(home)
            self.client.get("/v1/health", patience_s=SILENT_S)
        except ClutchError:
            return False
        return True
