"""Conversations with main agents, for the chat of the dashboard: their JSON objects, and the event `chat`.

A main session has no task and so no timeline. What it does is read after a change, and sent to the streams with
`include=overview` as `chat` when it differs. The text of a model comes with the same stream, as `assistant:text`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from typing_extensions import TypedDict

from clutch.api import reads, views
from clutch.api.feed import FeedBatch, FeedEvent, FeedWatcher
from clutch.api.objects import Message
from clutch.api.schema import MaybeOutcome, MaybeStatus
from clutch.core import ids
from clutch.core.run import ERROR, STOPPED
from clutch.errors import StoreError
from clutch.store.transaction import Tx
from clutch.transactions.read import chats as chat_reads
from clutch.transactions.read import timeline
from clutch.transactions.read.chats import ChatRow, Turn
from clutch.transactions.read.targets import Standpoint

if TYPE_CHECKING:
    from clutch.api.gateway import Gateway

PERIOD_S = 0.1  #: changes within it are sent together
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
    now: float,
    who: Standpoint,
    target: str,
    *,
    before: int | None,
    after: int | None,
    limit: int,
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
            await asyncio.sleep(max(PERIOD_S, SHARE * (time.monotonic() - began)))
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
