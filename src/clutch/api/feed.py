"""Live events for all watchers: timeline entries from the store, text and tool calls from the bus as they come.

A watcher first gets what happened since its cursor, then everything new, without a gap or a repetition. Where several
processes write to one store, an entry may appear behind a cursor that was given already: a watcher that resumes at that
cursor gets it; if another gateway gave the cursor, together with the other entries of those moments once more.

A watcher that does not read is dropped at a limit of bytes and can resume at its last cursor: a slow reader slows no
other one. Without watchers nothing is read. Events within a moment reach all watchers of the same thing together,
encoded once, a few watchers at a time: hundreds may watch, and other requests must not wait for all of them. Watchers
of different things get theirs at different moments, so that not all of them react at once.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from clutch.api import views
from clutch.core import ids
from clutch.core.messages import Usage
from clutch.engine.live import SKIPPED, BusWatcher, Live
from clutch.errors import StoreError
from clutch.store.transaction import Tx
from clutch.transactions.read import tasks as tasks_tx
from clutch.transactions.read import timeline
from clutch.transactions.read.timeline import OVERLAP_S, Cursor, Moment

if TYPE_CHECKING:
    from clutch.api import objects
    from clutch.api.gateway import Gateway

BEHIND_BYTES_MAX = 1024 * 1024
PAUSE_S = 0.02  # between two looks: under load every commit is a change
ONE_WRITER_OVERLAP_S = 0.1  # one writer is in order, but for a clock that is set back a little
GATHER_S = 0.04  # the events of one step come within it; a reader sees no smaller pieces
WATCHERS_PER_BATCH = 16  # watchers, about half a millisecond; then the loop does something else
SEEN_MAX = 1000  # entries, beside those within the overlap: a watcher that resumes later reads them all
RUN_START, RUN_END = "lifecycle:start", frozenset({"lifecycle:end", "lifecycle:error"})
#: A main agent has no timeline: the beginning and the end of its turns are live events.
TURNS = {RUN_START: "turn:start", **dict.fromkeys(RUN_END, "turn:end")}
LIVE_NAMES = frozenset({"assistant:text", "assistant:thinking", "tool:start", "tool:end", "usage"})


#: What a watcher watches: a task, a root, everything (None), or everything but the live events of other sessions.
Key: TypeAlias = tuple[str, int | None] | frozenset[int] | None
Page: TypeAlias = "Sequence[tuple[Moment, FeedEvent | None]]"


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """`cursor`: None for what is not kept and cannot be read again."""

    name: str
    task_id: int
    root_id: int | None
    data: str
    cursor: str | None = None
    written: bytes = field(init=False, repr=False)  #: as a Server-Sent Event

    def __post_init__(self) -> None:
        place = "" if self.cursor is None else f"id: {self.cursor}\n"
        text = f"{place}event: {self.name}\ndata: {self.data}\n\n"
        object.__setattr__(self, "written", text.encode())


@dataclass(frozen=True, slots=True)
class Joined:
    """Where a watcher joined. `arrivals`: how many entries had been seen; it gets later ones by itself."""

    place: Cursor
    arrivals: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """`is_live`: there was a watcher when it came. The order of the others is not known."""

    number: int
    is_live: bool


@dataclass(frozen=True, slots=True)
class FeedBatch:
    """The events of a moment for all watchers of the same thing."""

    news: Sequence[FeedEvent]
    written: bytes = field(init=False, repr=False)
    cursor: str | None = field(init=False)  #: the last

    def __post_init__(self) -> None:
        object.__setattr__(self, "written", b"".join([news.written for news in self.news]))
        last = next((news.cursor for news in reversed(self.news) if news.cursor), None)
        object.__setattr__(self, "cursor", last)


class FeedWatcher:
    """`live`: of all tasks, but text and tool calls only of these sessions. A page with a thousand tasks shows those of
    the one that is open, and four of five events would be written for nothing. `name` is for `Feed.change_live`."""

    name: str | None = None

    def __init__(
        self, task_id: int | None = None, root_id: int | None = None, live: frozenset[int] | None = None
    ) -> None:
        self.key: Key = live
        if task_id is not None:
            self.key = ("task", task_id)
        elif root_id is not None:
            self.key = ("root", root_id)
        self.waiting: list[FeedBatch] = []
        self._bytes = 0
        self.came = asyncio.Event()
        self.is_behind = False

    def wants(self, news: FeedEvent) -> bool:
        if isinstance(self.key, frozenset):
            return _is_for(self.key, news.name, news.task_id)
        return self.key in _keys(news.task_id, news.root_id)

    def hear(self, told: FeedBatch) -> None:
        """Something it wants."""
        if not self.is_behind:
            self.waiting.append(told)
            self._bytes += len(told.written)
            self.is_behind = self._bytes > BEHIND_BYTES_MAX
            self.came.set()

    def take(self) -> Sequence[FeedBatch]:
        self.came.clear()
        taken, self.waiting, self._bytes = self.waiting, [], 0
        return taken


def _keys(task_id: int, root_id: int | None) -> Sequence[Key]:
    return (None, ("root", root_id), ("task", task_id))


def _is_for(sessions: frozenset[int], name: str, session_id: int) -> bool:
    return name not in LIVE_NAMES or session_id in sessions


class Feed:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._watchers: dict[
            Key, set[FeedWatcher]
        ] = {}  #: by what they watch, so that news cost only those who want them
        self._selective: list[frozenset[int]] = []  #: the keys of those that choose sessions
        self._place = timeline.BEGINNING
        self._seen: OrderedDict[Cursor, Arrival] = OrderedDict()
        self._arrivals = 0
        #: Held from a read of tasks until it is sent. Reads run beside each other: without it, a watcher could be sent
        #: what was read first last, and would keep the older state until the task changes again.
        self.order = asyncio.Lock()
        self._roots: dict[int, int] = {}
        self._changed: set[int] = set()  #: tasks whose lines were published since `take_changed`
        self._fresh: dict[Key, list[FeedEvent]] = {}  #: of this moment
        self._telling: deque[tuple[FeedWatcher, FeedBatch]] = deque()
        self._heard = BusWatcher()  #: what the runs of this process have reported, and is not published yet

    @property
    def _is_shared(self) -> bool:
        return self._gateway.services.lives is not None

    def _a_little_before(self, place: Cursor) -> Cursor:
        overlap_s = OVERLAP_S if self._is_shared else ONE_WRITER_OVERLAP_S
        return place._replace(at=max(0.0, place.at - overlap_s))

    @property
    def watchers(self) -> int:
        return sum(map(len, self._watchers.values()))

    def take_changed(self) -> set[int]:
        """Return the tasks whose lines were published since the last call."""
        taken, self._changed = self._changed, set()
        return taken

    def wake(self) -> None:
        """Wake all watchers: something else than an event has happened."""
        for watcher in chain.from_iterable(self._watchers.values()):
            watcher.came.set()

    @asynccontextmanager
    async def watching(self, watcher: FeedWatcher) -> AsyncIterator[Joined]:
        """Deliver everything new to the watcher; what was before the yielded place it reads with `since`."""
        async with self.order:
            if not self._watchers:
                await self._begin()
            self._gathered(watcher.key)  # is for those who were there when it came
            self._join(watcher)
            joined = Joined(self._place, self._arrivals)
        try:
            yield joined
        finally:
            self._leave(watcher)

    def change_live(self, name: str, live: frozenset[int]) -> bool:
        """Let an open watcher choose other sessions. False: there is none of this name.

        Nothing is lost or doubled: the change is one step of the event loop, and what was published before it goes to
        the watchers of that moment."""
        every = chain.from_iterable(self._watchers.values())
        watcher = next((one for one in every if one.name == name), None)
        if watcher is None:
            return False
        self._gathered(watcher.key)
        self._gathered(live)
        self._leave(watcher)
        watcher.key = live
        self._join(watcher)
        return True

    def _join(self, watcher: FeedWatcher) -> None:
        self._watchers.setdefault(watcher.key, set()).add(watcher)
        self._note_keys()

    def _leave(self, watcher: FeedWatcher) -> None:
        self._watchers[watcher.key].discard(watcher)
        if not self._watchers[watcher.key]:
            del self._watchers[watcher.key]
            self._note_keys()

    def _note_keys(self) -> None:
        self._selective = [key for key in self._watchers if isinstance(key, frozenset)]

    async def _begin(self) -> None:
        """What is there already is not new."""
        self._place = await self._gateway.services.db.read(timeline.newest)
        await self._look()

    async def since(self, cursor: Cursor, joined: Joined) -> AsyncIterator[FeedEvent]:
        place = self._a_little_before(cursor) if self._is_shared else cursor
        given = self._seen.get(cursor)
        told = None if given is None or not given.is_live else given.number
        while page := await self._read(place, lambda _: True):
            for moment, news in page:
                place = moment.cursor
                if place > joined.place:
                    return
                if place == cursor or news is None:
                    continue
                if self._is_missing(place, joined, told if place < cursor else 0):
                    yield news

    def _is_missing(self, place: Cursor, joined: Joined, told: int | None) -> bool:
        """`told`: how many entries had been seen when the watcher got its cursor; None: not known here."""
        seen = self._seen.get(place)
        if seen is None:  # within the overlap it is found with the next look, and reaches the watcher then
            return place < self._a_little_before(joined.place)
        return (told is None or seen.number > told) and seen.number <= joined.arrivals

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_store())
            group.create_task(self._follow_bus())

    async def _follow_store(self) -> None:
        changes = self._gateway.services.changes
        while True:
            change = changes.next_change
            await self._catch_up()
            await asyncio.sleep(PAUSE_S)
            await changes.until(change)

    async def _catch_up(self) -> None:
        """Publish every timeline line that is committed now."""
        if self._watchers:
            try:
                async with self.order:
                    await self._look()
            except StoreError:
                pass  # the next tick looks again

    async def _look(self) -> None:
        place, watched = self._a_little_before(self._place), frozenset(self._watchers)

        def is_news(one: Moment) -> bool:
            if one.cursor in self._seen:
                return False
            return bool(self._selective) or not watched.isdisjoint(_keys(one.cursor.task_id, one.root_id))

        while page := await self._read(place, is_news):
            for index, (moment, news) in enumerate(page):
                if moment.cursor not in self._seen:
                    self._arrivals += 1
                    self._seen[moment.cursor] = Arrival(self._arrivals, bool(self._watchers))
                    self._roots[moment.cursor.task_id] = moment.root_id
                if news is not None:
                    self._changed.add(news.task_id)
                    if moment.name in RUN_END:
                        self._publish_told(moment, news, page[index + 1 :])
                    self._publish(news)
            place = page[-1][0].cursor
            self._place = max(self._place, place)
            if len(page) < timeline.LIMIT:
                break
        edge = self._a_little_before(self._place)  # what the next look reads again must be known then
        while len(self._seen) > SEEN_MAX and next(iter(self._seen)) < edge:
            self._seen.popitem(last=False)

    def _publish_told(self, end: Moment, news: FeedEvent, later: Page) -> None:
        """Publish what a run has reported before the line of its end, which is committed after all of it."""
        task_id, next_run = end.cursor.task_id, None
        if any(one.cursor.task_id == task_id and one.name == RUN_START for one, _ in later):
            # The task works again. What its new run tells comes after the line of that start.
            next_run = ids.parse_run_id(json.loads(news.data)["task"]["runId"])
        for live in self._heard.take_all(task_id, next_run):
            if live.name in LIVE_NAMES:
                self._publish(_live(live, end.root_id))

    def _publish(self, news: FeedEvent) -> None:
        for key in self._keys_for(news.name, news.task_id, news.root_id):
            if key not in self._fresh:
                asyncio.get_running_loop().call_later(GATHER_S, self._gathered, key)
            self._fresh.setdefault(key, []).append(news)

    def _keys_for(self, name: str, task_id: int, root_id: int | None) -> list[Key]:
        named = [key for key in _keys(task_id, root_id) if key in self._watchers]
        return [*named, *(key for key in self._selective if _is_for(key, name, task_id))]

    def _gathered(self, key: Key) -> None:
        if news := self._fresh.pop(key, None):
            told = FeedBatch(news)
            if not self._telling:
                asyncio.get_running_loop().call_soon(self._tell)
            self._telling.extend((watcher, told) for watcher in self._watchers.get(key, ()))

    def _tell(self) -> None:
        try:
            for _ in range(min(WATCHERS_PER_BATCH, len(self._telling))):
                watcher, told = self._telling.popleft()
                watcher.hear(told)
        finally:  # whatever became of one of them, the others hear it
            if self._telling:
                asyncio.get_running_loop().call_soon(self._tell)

    def tell_at_once(self, watcher: FeedWatcher) -> None:
        """Deliver now to a watcher that cannot wait until a moment is over; all others get it in their turn."""
        self._gathered(watcher.key)
        mine = [told for one, told in self._telling if one is watcher]
        self._telling = deque(pair for pair in self._telling if pair[0] is not watcher)
        for told in mine:
            watcher.hear(told)

    async def _read(self, place: Cursor, is_wanted: Callable[[Moment], bool]) -> Page:
        return await self._gateway.services.db.read(_page, place, is_wanted)

    async def _follow_bus(self) -> None:
        bus = self._gateway.services.bus
        heard = self._heard = bus.watch()
        try:
            while True:
                live = await heard.first()
                if live.name == RUN_START:
                    # The run is committed. Its line is published before anything that the run does.
                    await self._catch_up()
                is_named = live.name in LIVE_NAMES or (not live.is_task and live.name in TURNS)
                is_named |= live.name == SKIPPED
                is_wanted = bool(self._watchers) and is_named
                root_id = await self._root_of(live.session_id) if is_wanted else None
                # It may have been published meanwhile, before the line of the end of its run. Most are for no watcher
                # when only pages watch, and are not written.
                if heard.take(live) and is_wanted and self._keys_for(live.name, live.session_id, root_id):
                    self._publish(_live(live, root_id))
        finally:
            bus.leave(heard)

    async def _root_of(self, session_id: int) -> int | None:
        """Return the root. None: the session was deleted, or the store fails; watchers of one root miss the event."""
        if len(self._roots) > SEEN_MAX:
            self._roots.clear()
        if session_id not in self._roots:
            try:
                root = await self._gateway.services.db.read(timeline.root_of, session_id)
            except StoreError:
                return None
            if root is None:
                return None
            self._roots[session_id] = root
        return self._roots[session_id]


def _page(now: float, place: Cursor, is_wanted: Callable[[Moment], bool]) -> Tx[Page]:
    """Only what is wanted is read as news: most of a page is there because its time is looked at again."""
    moments = yield from timeline.after(now, place)
    wanted = {one.cursor.task_id for one in moments if is_wanted(one)}
    shown = yield from tasks_tx.of(now, sorted(wanted))
    tasks = {view.task_id: views.task(view) for view in shown}
    return [
        (
            one,
            _news(one, tasks[one.cursor.task_id]) if one.cursor.task_id in tasks and is_wanted(one) else None,
        )
        for one in moments
    ]


def _news(moment: Moment, task: objects.TaskObject) -> FeedEvent:
    data = {
        "cursor": str(moment.cursor),
        "at": views.moment(moment.cursor.at),
        "taskId": task["taskId"],
        "rootKey": task["rootKey"],
        "seq": moment.cursor.seq,
        "from": moment.from_phase,
        "to": moment.to_phase,
        "reason": moment.reason,
        "task": task,
    }
    return FeedEvent(
        moment.name,
        moment.cursor.task_id,
        moment.root_id,
        json.dumps(data, ensure_ascii=False),
        str(moment.cursor),
    )


def _live(live: Live, root_id: int | None) -> FeedEvent:
    if live.name == SKIPPED:
        return FeedEvent(SKIPPED, live.session_id, root_id, json.dumps(live.data))
    data = {
        "taskId": ids.task_id(live.session_id) if live.is_task else None,
        "sessionKey": live.session_key,
        "runId": ids.run_id(live.run_id),
        "seq": live.seq,
        **({"usage": _used(live.data)} if isinstance(live.data, Usage) else {"text": str(live.data or "")}),
        **({} if live.detail is None else {"tool": live.detail}),
    }
    # In ASCII: a piece may end in the middle of a character, which is whole again when the pieces are joined.
    name = live.name if live.is_task else TURNS.get(live.name, live.name)
    return FeedEvent(name, live.session_id, root_id, json.dumps(data))


def _used(usage: Usage) -> dict[str, int]:
    return {
        "input": usage.input,
        "output": usage.output,
        "cacheRead": usage.cache_read,
        "cacheWrite": usage.cache_write,
    }
