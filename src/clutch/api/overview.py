"""What the dashboard needs beside timeline entries, pushed to the event streams that asked for it.

A timeline entry carries the task that changed. Three things have no entry of their own. The step inside a run: the
tasks whose runs have reported one are read together and sent as `progress`. The ancestors of a task: what their trees
use and whom they wait for changes with it, and they are sent as `progress` too, at most once per period. What is
counted over all tasks, the inbox and the problems of the gateway: read after a change, at most once per period, sent
as `overview` when it differs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from clutch.api import views
from clutch.api.chats import ChatFollower
from clutch.api.feed import Feed, FeedBatch, FeedEvent, FeedWatcher
from clutch.core import ids
from clutch.core.agents import MAIN, OFFLINE
from clutch.core.views import TaskView
from clutch.engine.live import BusWatcher, Live
from clutch.errors import StoreError
from clutch.store.transaction import Tx, TxFunction
from clutch.transactions.read import lists, tasks
from clutch.transactions.read.inbox import waiting_items
from clutch.transactions.read.lists import TaskFilter

if TYPE_CHECKING:
    from clutch.api import objects
    from clutch.api.gateway import Gateway

PERIOD_S = 1.0
PROGRESS_S = 0.25  #: steps within it are sent together
PROGRESS_SHARE = 5  #: reading progress takes at most one part in so many of the time
STEPS = frozenset({"tool:start", "tool:end", "usage"})
RECENT_S = 24 * 3600.0  #: finished tasks are counted for a day


def read(now: float) -> Tx[tuple[objects.SummaryObject, list[str]]]:
    """Return the counts, and id and hash of each item of the inbox."""
    counted = yield from lists.summary(now, TaskFilter(ended_after=now - RECENT_S))
    items = yield from waiting_items(now)
    return views.summary(counted), [f"{item.id} {item.hash}" for item in items]


class Overviews:
    def __init__(self, gateway: Gateway, feed: Feed) -> None:
        self._gateway = gateway
        self._feed = feed
        self._stepped: set[int] = set()  #: sessions with a step since their ancestors were sent
        self._watchers: set[FeedWatcher] = set()
        self._sent = ""
        self._chats = ChatFollower(gateway, self._watchers)
        self._main_calls = 0  # of main agents, which have no task whose progress would be sent

    @contextmanager
    def watching(self, watcher: FeedWatcher) -> Iterator[None]:
        """Send each new overview to the watcher."""
        self._watchers.add(watcher)
        self._sent = ""  # the watcher begins with `current`, not with what the others were sent
        try:
            yield
        finally:
            self._watchers.discard(watcher)

    async def current(self, watcher: FeedWatcher) -> bytes:
        """Return the overview and the conversations as events, for a watcher that begins."""
        overview = FeedEvent("overview", 0, None, await self._text()).written
        return overview + await self._chats.current(watcher)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_changes())
            group.create_task(self._follow_steps())
            group.create_task(self._chats.run())

    async def _follow_steps(self) -> None:
        """Send the tasks whose runs have made a step. A slow read lengthens the pause after it."""
        services = self._gateway.services
        heard = services.bus.watch()
        try:
            while True:
                sessions = {(await self._step(heard)).session_id}
                await asyncio.sleep(PROGRESS_S)
                taken = heard.take_every()
                self._main_calls += sum(map(_is_main_call, taken))
                sessions |= {live.session_id for live in taken if _is_step(live)}
                began = time.monotonic()
                if self._watchers:
                    self._stepped |= sessions
                    await self._send_progress(tasks.of, sessions)
                await asyncio.sleep(PROGRESS_SHARE * (time.monotonic() - began))
        finally:
            services.bus.leave(heard)

    async def _step(self, heard: BusWatcher) -> Live:
        while True:
            live = await heard.first()
            heard.take(live)
            self._main_calls += _is_main_call(live)
            if _is_step(live):
                return live

    async def _send_progress(
        self, read_tasks: TxFunction[[Sequence[int]], list[TaskView]], task_ids: set[int]
    ) -> None:
        try:
            shown = await self._gateway.services.db.read(read_tasks, sorted(task_ids))
        except StoreError:
            return
        news = [_progress(view) for view in shown]
        for watcher in tuple(self._watchers):
            if wanted := [one for one in news if watcher.wants(one)]:
                watcher.hear(FeedBatch(wanted))

    async def _follow_changes(self) -> None:
        changes = self._gateway.services.changes
        while True:
            change = changes.next_change
            began = time.monotonic()
            changed, self._stepped = self._feed.take_changed() | self._stepped, set()
            if self._watchers:
                await self._look()
                await self._send_progress(tasks.above, changed)
            await asyncio.sleep(max(PERIOD_S, PROGRESS_SHARE * (time.monotonic() - began)))
            await changes.until(change)

    async def _look(self) -> None:
        try:
            text = await self._text()
        except StoreError:
            return  # the next tick looks again
        if text == self._sent:
            return
        self._sent = text
        batch = FeedBatch([FeedEvent("overview", 0, None, text)])
        for watcher in tuple(self._watchers):
            watcher.hear(batch)

    async def _text(self) -> str:
        services = self._gateway.services
        summary, items = await services.db.read(read)
        model = None if services.check_model is None else services.policy.model_of(MAIN)
        found: objects.Overview = {
            "summary": summary,
            "inbox": items,
            "problems": views.problems(services.problems()),
            "model": model,
            "isDemo": model == OFFLINE,
            "mainCalls": self._main_calls,
        }
        return json.dumps(found, ensure_ascii=False)


def _is_step(live: Live) -> bool:
    return live.is_task and live.name in STEPS


def _is_main_call(live: Live) -> bool:
    return not live.is_task and live.name == "usage"


def _progress(view: TaskView) -> FeedEvent:
    data = {"at": views.moment(view.at), "taskId": ids.task_id(view.task_id), "task": views.task(view)}
    return FeedEvent("progress", view.task_id, view.root_id, json.dumps(data, ensure_ascii=False))
