"""Live events over HTTP: Server-Sent Events with cursors. `Last-Event-ID`, or `after`, resumes after an event."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Literal
from uuid import uuid4

from pydantic import Field
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Send
from starlette.types import Scope as ASGIScope

from clutch.api import reads
from clutch.api.actions import ActionBody
from clutch.api.feed import Feed, FeedBatch, FeedWatcher
from clutch.api.objects import StreamChanged
from clutch.api.problems import Problem
from clutch.core.authority import Scope
from clutch.errors import NotFound
from clutch.store.transaction import Tx
from clutch.surfaces.http.routes import WIRE, AppState, Ask, Body, Query, Reply, route
from clutch.transactions.read import timeline
from clutch.transactions.read.targets import Standpoint

PING_S = 15.0
#: A page cannot see a comment. This event lets it notice within seconds that the gateway does not answer any more.
ALIVE_S, ALIVE = 2.0, b"event: alive\ndata: {}\n\n"
LIVE_CHARACTERS_MAX = 1000  #: of the names in `live`: a page shows a few at a time
HELD_BYTES_MAX = (
    64 * 1024
)  #: in a connection, above what the machine takes; the rest waits once for all who wait


class EventsQuery(Query):
    after: str | None = None
    root: str | None = None
    task: str | None = None
    include: Literal["overview"] | None = None
    live: Annotated[str | None, Field(max_length=LIVE_CHARACTERS_MAX)] = None


class Stream(FeedWatcher):
    """A watcher with a connection of its own, of which there may be hundreds. Events are written to the connection at
    once; only when it is full, the task of the stream wakes and waits for it."""

    def __init__(
        self,
        task_id: int | None,
        root_id: int | None,
        live: frozenset[int] | None = None,
        ping_s: float = PING_S,
    ) -> None:
        super().__init__(task_id, root_id, live)
        self._ping_s = ping_s
        self.wire: asyncio.Transport | None = None
        self.is_idle = False  #: nothing else writes to the connection
        self.last: str | None = None  #: the cursor it was given last

    def hear(self, told: FeedBatch) -> None:
        if not self._has_room(len(told.written)):
            super().hear(told)
        elif self.wire is not None and not self.wire.is_closing():
            self.last = told.cursor or self.last
            self.wire.write(b"%x\r\n%b\r\n" % (len(told.written), told.written))

    def _has_room(self, size: int) -> bool:
        if self.wire is None or not self.is_idle or self.waiting:
            return False
        return self.wire.get_write_buffer_size() + size <= HELD_BYTES_MAX

    async def comes(self) -> bool:
        """Wait for news. False: none for a while. Closing wakes every stream."""
        self.is_idle = True
        try:
            async with asyncio.timeout(self._ping_s):
                await self.came.wait()
        except TimeoutError:
            return False
        finally:
            self.is_idle = False
        return True


class Streamed(StreamingResponse):
    """Sent in chunks, as in HTTP/1.1: only then code beside the server may write one."""

    def __init__(self, stream: Stream, content: AsyncIterator[bytes]) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self._stream = stream

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        if scope["http_version"] == "1.1" and scope["method"] == "GET":
            self._stream.wire = scope.get(WIRE)
        await super().__call__(scope, receive, send)


@route("GET", "/v1/events", media="text/event-stream")
async def events(ask: Ask[ActionBody, EventsQuery]) -> Response:
    """Live events as Server-Sent Events; `Last-Event-ID`, or `after`, resumes where a connection ended.

    With `include=overview` also the counts over all tasks, and `alive` every 2 s. `live`: text and tool calls only of
    these tasks and sessions, separated by commas; an empty value means of none. With both, the event `stream` has the
    `id` under which `POST /v1/events/{id}/live` chooses others."""
    query, app = ask.query, ask.app
    after = ask.headers.get("last-event-id") or query.after
    place = None if after is None else timeline.parse(after)
    task = None if query.task is None else await app.read(reads.task_number, ask.who, query.task)
    root = None if query.root is None else await app.read(reads.root_number, ask.who, query.root)
    live = None if query.live is None else await app.read(_sessions, ask.who, query.live)
    if query.include is None:
        watcher = Stream(task, root, live)
        return Streamed(watcher, _watched(app.feed, watcher, place, app.closing))
    watcher = Stream(task, root, live, ALIVE_S)
    if isinstance(watcher.key, frozenset):
        watcher.name = uuid4().hex
    return Streamed(watcher, _with_overview(app, watcher, place))


class LiveBody(Body):
    live: Annotated[str, Field(max_length=LIVE_CHARACTERS_MAX, description="As the parameter of the stream.")]


@route("POST", "/v1/events/{id}/live", Scope.READ)
async def change_live(ask: Ask[LiveBody]) -> Reply[StreamChanged]:
    """Choose other tasks and sessions for the text of an open stream, which loses no event meanwhile."""
    chosen = await ask.app.read(_sessions, ask.who, ask.body.live)
    if not ask.app.feed.change_live(ask.path["id"], chosen):
        raise Problem("not_found", f"no stream {ask.path['id'][:64]!r} is open", remedy="GET /v1/events")
    return Reply({"status": "changed"})


def _sessions(now: float, who: Standpoint, targets: str) -> Tx[frozenset[int]]:
    """Return the sessions that are named. One that was deleted meanwhile has no events, and a page need not know."""
    found = set()
    for target in filter(None, targets.split(",")):
        try:
            found.add((yield from reads.session(now, who, target)).session_id)
        except NotFound:
            continue
    return frozenset(found)


async def _with_overview(
    app: AppState, watcher: Stream, place: timeline.Cursor | None
) -> AsyncIterator[bytes]:
    """Everything of a plain stream, and the counts of the dashboard whenever they change."""
    events = _watched(app.feed, watcher, place, app.closing, ALIVE)
    with app.overviews.watching(watcher):
        async with aclosing(events):
            yield await anext(events)
            if watcher.name is not None:
                yield f"event: stream\ndata: {json.dumps({'id': watcher.name})}\n\n".encode()
            yield await app.overviews.current(watcher)
            async for written in events:
                yield written


async def _watched(
    feed: Feed,
    watcher: Stream,
    place: timeline.Cursor | None,
    closing: asyncio.Event,
    ping: bytes = b": ping\n\n",
) -> AsyncGenerator[bytes, None]:
    async with feed.watching(watcher) as joined:
        watcher.last = str(joined.place)
        yield b": here\n\n"
        if place is not None:
            async for news in feed.since(place, joined):
                if watcher.wants(news):
                    watcher.last = news.cursor
                    yield news.written
        while not closing.is_set() and not watcher.is_behind:
            for told in watcher.take():
                watcher.last = told.cursor or watcher.last
                yield told.written
            if not watcher.waiting and not await watcher.comes():
                yield ping
    if watcher.is_behind:
        yield f"event: gap\ndata: {json.dumps({'cursor': watcher.last})}\n\n".encode()


ENTRIES = (events, change_live)
