"""Live events over HTTP: Server-Sent Events with cursors. `Last-Event-ID`, or `after`, goes on where one was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from starlette.responses import Response, StreamingResponse

from clutch.core.authority import Scope
from clutch.gateway import reads
from clutch.gateway.feed import Feed, Watcher
from clutch.protocol import stream
from clutch.surfaces.http.bodies import Body, Query
from clutch.surfaces.http.routes import Ask, Entry

PING_S = 15.0


class EventsQuery(Query):
    after: str | None = None
    root: str | None = None
    task: str | None = None


async def events(ask: Ask[Body, EventsQuery]) -> Response:
    query, house = ask.query, ask.house
    after = ask.headers.get("last-event-id") or query.after
    place = None if after is None else stream.parse(after)
    task = None if query.task is None else await house.reads(reads.task_number, ask.who, query.task)
    root = None if query.root is None else await house.reads(reads.root_number, ask.who, query.root)
    watched = _watched(house.feed, Watcher(task, root), place, house.closing)
    return StreamingResponse(watched, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


async def _watched(
    feed: Feed, watcher: Watcher, place: stream.Cursor | None, closing: asyncio.Event
) -> AsyncIterator[bytes]:
    last = None
    async with feed.watching(watcher) as joined:
        yield b": here\n\n"
        if place is not None:
            async for news in feed.since(place, joined):
                if watcher.wants(news):
                    last = news.cursor
                    yield news.written
        while not closing.is_set() and not watcher.is_behind:
            if taken := watcher.take():
                last = next((news.cursor for news in reversed(taken) if news.cursor), last)
                yield b"".join([news.written for news in taken])
            if not await _comes(watcher):
                yield b": ping\n\n"
    if watcher.is_behind:
        yield f"event: gap\ndata: {json.dumps({'cursor': last or str(joined.place)})}\n\n".encode()


async def _comes(watcher: Watcher) -> bool:
    """False: nothing for a while. Whoever closes wakes everybody."""
    try:
        async with asyncio.timeout(PING_S):
            await watcher.came.wait()
    except TimeoutError:
        return False
    return True


ENTRIES = (Entry("GET", "/v1/events", Scope.READ, events, query=EventsQuery, media="text/event-stream"),)
