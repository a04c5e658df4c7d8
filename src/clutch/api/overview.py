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
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from typing_extensions import TypedDict

from clutch.api import reads, views
from clutch.api.feed import Feed, FeedBatch, FeedEvent, FeedWatcher
from clutch.api.objects import Message
from clutch.api.schema import MaybeOutcome, MaybeStatus
from clutch.core import ids
from clutch.core.agents import MAIN, OFFLINE
from clutch.core.run import ERROR, STOPPED
from clutch.core.views import TaskView
from clutch.engine.live import BusWatcher, Live
from clutch.errors import StoreError
from clutch.store.transaction import Tx, TxFunction
from clutch.transactions.read import chats as chat_reads
from clutch.transactions.read import lists, tasks, timeline
from clutch.transactions.read.chats import ChatRow, Turn
from clutch.transactions.read.inbox import waiting_items
from clutch.transactions.read.lists import TaskFilter
from clutch.transactions.read.targets import Standpoint

if TYPE_CHECKING:
    from clutch.api import objects
    from clutch.api.gateway import Gateway


# --------------------------------------------------------------------------------------------------
# Conversations with main agents, for the chat of the dashboard: their JSON objects, and the event `chat`.
#
# A main session has no task and so no timeline. What it does is read after a change, and sent to the streams with
# `include=overview` as `chat` when it differs. The text of a model comes with the same stream, as `assistant:text`.

CHAT_PERIOD_S = 0.1  #: changes within it are sent together
SHARE = 5  #: reading takes at most one part in so many of the time


class ChatObject(TypedDict):
    """A main session: also the event `chat` of a stream with `include=overview`."""

    sessionKey: str
    agentId: str
    head: int  #: the number of its last message
    lastProgressAt: str
    status: MaybeStatus  #: null: idle
    since: str | None  #: when its current turn began
    waiting: int  #: messages that it has not read yet
    children: int  #: subagents that are active
    lastLine: str


class Chats(TypedDict):
    chats: list[ChatObject]
    cursor: str  #: events from here on are newer than this answer


class WaitingObject(TypedDict):
    letterId: str
    text: str
    at: str


class TurnObject(TypedDict):
    runId: str
    startedAt: str
    endedAt: str | None
    stopped: bool  #: by the user
    error: str | None


class DeliveredObject(TypedDict):
    """A result of a subagent. `seq`: the message in which it was delivered."""

    seq: int
    taskId: str
    label: str
    outcome: MaybeOutcome


class ConversationObject(TypedDict):
    """`earlier`: as `before` it continues before these messages. `more`: there are newer ones than these."""

    chat: ChatObject
    messages: list[Message]
    earlier: int | None
    more: bool
    waiting: list[WaitingObject]
    turns: list[TurnObject]
    delivered: list[DeliveredObject]


def listed(now: float) -> Tx[Chats]:
    # The place is read before the rows: an event in between is sent twice rather than never.
    place = yield from timeline.newest(now)
    found = yield from _with_lines(now)
    return {"chats": [_chat(row, line) for row, line in found], "cursor": str(place)}


def _with_lines(now: float) -> Tx[list[tuple[ChatRow, str]]]:
    found = []
    for row in (yield from chat_reads.chats(now)):
        found.append((row, (yield from chat_reads.last_line(now, row.session_id))))
    return found


def conversation(
    now: float, who: Standpoint, target: str, *, before: int | None, after: int | None, limit: int
) -> Tx[ConversationObject]:
    number = yield from reads.session_number(now, who, target)
    row = yield from chat_reads.one_chat(now, number)
    if row is None:
        raise reads.unknown(number)
    line = yield from chat_reads.last_line(now, number)
    found = yield from chat_reads.conversation(now, number, before=before, after=after, limit=limit)
    return {
        "chat": _chat(row, line),
        "messages": [views.message(one) for one in found.lines],
        "earlier": found.earlier,
        "more": found.more,
        "waiting": [
            {"letterId": one.letter, "text": one.text, "at": views.moment(one.at)} for one in found.waiting
        ],
        "turns": [_turn(one) for one in found.turns],
        "delivered": [
            {"seq": one.seq, "taskId": ids.task_id(one.task_id), "label": one.label, "outcome": one.outcome}
            for one in found.delivered
        ],
    }


def _chat(row: ChatRow, line: str) -> ChatObject:
    return {
        "sessionKey": row.key,
        "agentId": row.agent_id,
        "head": row.head,
        "lastProgressAt": views.moment(row.moved_at),
        "status": None if row.status is None else row.status.value,
        "since": views.moment(row.since),
        "waiting": row.letters,
        "children": row.children,
        "lastLine": line,
    }


def _turn(one: Turn) -> TurnObject:
    reason = one.stop_reason or ""
    return {
        "runId": ids.run_id(one.run_id),
        "startedAt": views.moment(one.started_at),
        "endedAt": views.moment(one.ended_at),
        "stopped": reason == STOPPED,
        "error": reason.removeprefix(ERROR) if reason.startswith(ERROR) else None,
    }


# ---- the event `chat` --------------------------------------------------------------------------------


class ChatFollower:
    """`watchers`: the streams that get the events."""

    def __init__(self, gateway: Gateway, watchers: Collection[FeedWatcher]) -> None:
        self._gateway, self._watchers = gateway, watchers
        self._sent: dict[int, ChatRow] = {}

    async def current(self, watcher: FeedWatcher) -> bytes:
        """Return every conversation as events, for a watcher that begins; the others have them."""
        found = await self._gateway.services.db.read(_with_lines)
        rows = {row.session_id: row for row, _ in found}
        if set(self._watchers) == {watcher}:
            self._sent = rows
        else:  # what differs from what the others have, all get with the next look
            self._sent = {number: row for number, row in self._sent.items() if rows.get(number) == row}
        news = (_event(row, line) for row, line in found)
        return b"".join(one.written for one in news if watcher.wants(one))

    async def run(self) -> None:
        changes = self._gateway.services.changes
        while True:
            change = changes.next_change
            began = time.monotonic()
            if self._watchers:
                await self._look()
            await asyncio.sleep(max(CHAT_PERIOD_S, SHARE * (time.monotonic() - began)))
            await changes.until(change)

    async def _look(self) -> None:
        db = self._gateway.services.db
        try:
            fresh = [row for row in await db.read(chat_reads.chats) if self._sent.get(row.session_id) != row]
            lines = [await db.read(chat_reads.last_line, row.session_id) for row in fresh]
        except StoreError:
            return  # the next tick looks again
        for row, line in zip(fresh, lines, strict=True):
            self._sent[row.session_id] = row
            news = _event(row, line)
            for watcher in tuple(self._watchers):
                if watcher.wants(news):
                    watcher.hear(FeedBatch([news]))


def _event(row: ChatRow, line: str) -> FeedEvent:
    return FeedEvent("chat", row.session_id, row.session_id, json.dumps(_chat(row, line)))


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
        async with self._feed.order:
            try:
                shown = await self._gateway.services.db.read(read_tasks, sorted(task_ids))
            except StoreError:
                return
            news = [_progress(view) for view in shown]
            for watcher in tuple(self._watchers):
                if wanted := [one for one in news if watcher.wants(one)]:
                    self._feed.tell_at_once(watcher)  # what was read before, and is still gathered
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
