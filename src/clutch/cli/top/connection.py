"""The connection to the gateway: one stream of events in a thread, and requests in threads of their own.

After a break the tasks are loaded again and the stream is followed from the cursor of that answer, so no row is lost or
doubled. The gateway sends `alive` every two seconds: a process that is stopped, and not dead, is noticed too.

The stream has text and tool calls only of the selected task. For another one a second stream is opened, and takes over
when it has begun: until then the first one is read, so nothing is missed in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
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


@dataclass(frozen=True, slots=True)
class Watching:
    """From now on, text and tool calls of this task are reported. What it did before is in its transcript."""

    task_id: str


News = LoadedTasks | Lost | Items | Happened | Watching


@dataclass(slots=True)
class LiveConnection:
    """`client` is replaced when another process of the gateway serves the state directory."""

    state: Path | None
    client: GatewayClient
    _news: SimpleQueue[News] = field(default_factory=SimpleQueue)
    _closed: Event = field(default_factory=Event)
    _inbox: frozenset[str] | None = None  #: id and hash of each item that was loaded
    _lock: Lock = field(default_factory=Lock)  #: of what follows: each stream has a thread
    _watched: str = ""  #: the task whose text is wanted
    _cursor: str | None = None  #: of the last event; None: the tasks have to be loaded
    _newest: int = 0  #: the number of the stream that was opened last
    _current: int = 0  #: the number of the stream that is read

    def open(self) -> None:
        self._start(self._current, None)

    def watch(self, task_id: str) -> None:
        """Report text and tool calls of this task, and of no other."""
        with self._lock:
            if task_id == self._watched:
                return
            self._watched = task_id
            if self._cursor is None:
                return  # the stream that is opened next has them
            self._newest += 1
            number, cursor = self._newest, self._cursor
        self._start(number, cursor)

    def _start(self, number: int, cursor: str | None) -> None:
        # A daemon: it may wait for a line of the stream when the user leaves.
        Thread(target=self._follow, args=(number, cursor), name="clutch-events", daemon=True).start()

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

    def _follow(self, number: int, cursor: str | None) -> None:
        """Load, unless there is a cursor, and follow; again after a break, until another stream takes over."""
        while not self._closed.is_set():
            try:
                self._read_stream(number, self._load(number) if cursor is None else cursor)
                why = "the gateway closed its stream of events"
            except ClutchError as error:
                why = str(error)
            except ValueError:  # a gateway that is killed leaves half a line
                why = "the stream of events was cut off"
            cursor = None
            if not self._put(number, Lost(time.time(), why)):
                return self._give_up(number)
            while not self._closed.wait(RETRY_S) and not self._found_again():
                pass

    def _give_up(self, number: int) -> None:
        """End a stream that is not read. One that never took over is opened again after a while."""
        if number > self._current and not self._closed.wait(RETRY_S):
            with self._lock:
                self._watched = "" if number == self._newest else self._watched

    def _load(self, number: int) -> str:
        page = self.client.get("/v1/tasks", limit=PAGE, recentMinutes=RECENT_MINUTES, patience_s=SILENT_S)
        tasks, following = list(page["tasks"]), page
        for _ in range(PAGES_MAX - 1):
            if following["next"] is None:
                break
            wanted = {"limit": PAGE, "recentMinutes": RECENT_MINUTES, "cursor": following["next"]}
            following = self.client.get("/v1/tasks", patience_s=SILENT_S, **wanted)
            tasks += following["tasks"]
        self._put(number, LoadedTasks(tasks, page["summary"], page.get("stalledAfterSeconds")))
        self._load_inbox(number)
        return str(page["cursor"])

    def _read_stream(self, number: int, cursor: str) -> None:
        with self._lock:
            self._cursor = cursor if number == self._current else self._cursor
            watched = self._watched
        for name, said in self.client.events(SILENT_S, include="overview", after=cursor, live=watched):
            if name == "gap" or self._closed.is_set():
                return  # it was too slow, and loads again
            if name == "here":
                self._take_over(number)
            if not self._put(number, _news(name, said, watched)):
                return
            if name == "overview" and frozenset(said["inbox"]) != self._inbox:
                self._load_inbox(number)

    def _take_over(self, number: int) -> None:
        """Read the stream, which has begun, from now on; unless a newer one was opened, or the tasks are loaded."""
        with self._lock:
            if number == self._newest and self._cursor is not None:
                self._current = number

    def _put(self, number: int, news: News | None) -> bool:
        """Report news of the stream that is read. False: it is another one."""
        with self._lock:
            if number != self._current:
                return False
            if isinstance(news, Lost):
                self._cursor = None
            elif isinstance(news, Happened):
                self._cursor = news.said.get("cursor") or self._cursor
            if news is not None:
                self._news.put(news)
            return True

    def _load_inbox(self, number: int) -> None:
        items = self.client.get("/v1/inbox", patience_s=SILENT_S)["items"]
        self._inbox = frozenset(f"{item['id']} {item['hash']}" for item in items)
        self._put(number, Items(items))

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


def _news(name: str, said: Object, watched: str) -> News | None:
    match name:
        case "here":
            return Watching(watched)
        case "alive":
            return None
        case _:
            return Happened(name, said)
