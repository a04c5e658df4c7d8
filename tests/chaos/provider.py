"""The model provider of a chaos run: real HTTP, its own count of every call, and moods.

It is a witness outside of the product: which call was asked by which gateway, when, how it ended, and which results
stood in the request.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from clutch.core.messages import Usage
from clutch.testing.providers import (
    Behaviour,
    CallLog,
    CallSeen,
    Cut,
    Failure,
    Fault,
    How,
    Providers,
    Reply,
    Silence,
    StreamError,
    Text,
    WireRequest,
    turns,
)
from tests.chaos import story

FAILURES: Final = 4
FAILS: Final = 0.5  #: share of the calls, while it fails
SLOW_S: Final = (1.0, 5.0)
SILENT: Final = 0.1  #: share of the slow calls that never get a byte; a gateway gives up on them


@dataclass(slots=True)
class Asked:
    """One request. `key` is the same for every request of one call: session and place in its transcript."""

    key: str
    node: str
    at: float
    how: How = How.OPEN
    ended_at: float | None = None
    is_failed: bool = False  #: an error was sent, maybe in the middle of an answer

    @property
    def answered_at(self) -> float | None:
        """When the last byte of a whole answer was sent. None: it was not."""
        return self.ended_at if self.how is How.DONE and not self.is_failed else None


class Ledger(CallLog):
    """The log of the server with the time of each beginning and end, and without the bodies."""

    def __init__(self) -> None:
        super().__init__(keep=False)
        self.by_key: dict[str, list[Asked]] = defaultdict(list)
        self._open: dict[int, Asked] = {}
        self._begun = asyncio.Event()

    def begin(self, request: WireRequest) -> CallSeen:
        call = super().begin(request)
        asked = Asked(request.key, request.headers.get(story.NODE_HEADER, ""), time.time())
        self.by_key[request.key].append(asked)
        self._open[id(call)] = asked
        self._begun.set()
        return call

    def end(self, call: CallSeen, how: How, billed: Usage | None = None) -> None:
        asked = self._open.pop(id(call), None)
        if asked is not None:
            asked.how, asked.ended_at = how, time.time()
        super().end(call, how, billed)

    async def busy(self, node: str) -> None:
        """Return when a call of this gateway is under way."""
        while not self.open_calls(node):
            self._begun.clear()
            await self._begun.wait()

    def write(self, file: Path, began_at: float) -> None:
        """One line per request, in their order, with times since the beginning of the run."""
        asked = sorted((one for many in self.by_key.values() for one in many), key=lambda one: one.at)
        with file.open("w", encoding="utf-8") as lines:
            for one in asked:
                ended = None if one.ended_at is None else round(one.ended_at - began_at, 3)
                line = {"at": round(one.at - began_at, 3), "ended": ended, "how": one.how, "node": one.node}
                lines.write(f"{json.dumps({**line, 'key': one.key, 'failed': one.is_failed})}\n")

    def open_calls(self, node: str) -> list[str]:
        return [asked.key for asked in self._open.values() if asked.node == node]


class ChaosProvider:
    def __init__(self, seed: int) -> None:
        self._chance = Random(f"provider {seed}")
        self.server = Providers(self._behave, keep_log=False)
        self.ledger = Ledger()
        self.server.log = self.ledger
        self.fails_with: int | None = None  #: number of a failure, while it fails
        self.is_slow = False
        #: task → sessions whose model was shown its result
        self.shown: dict[str, set[str]] = defaultdict(set)
        self.shown_twice: set[str] = set()  #: results that stood twice in one request

    def _behave(self, request: WireRequest) -> Behaviour:
        self._look(request)
        reply = story.reply(request)
        if self.fails_with is not None and self._chance.random() < FAILS:
            self.ledger.by_key[request.key][-1].is_failed = True
            return self._failure(reply, self.fails_with)
        if self.is_slow:
            if self._chance.random() < SILENT:
                return Silence()
            return Reply(reply.pieces, latency_s=reply.latency_s + self._chance.uniform(*SLOW_S))
        return reply

    def _look(self, request: WireRequest) -> None:
        session, seen = request.key.rpartition(":")[0], set()
        for turn in turns(request):
            for task in story.results_in(turn):
                if task in seen:
                    self.shown_twice.add(task)
                seen.add(task)
                self.shown[task].add(session)

    def _failure(self, reply: Reply, number: int) -> Behaviour:
        match number:
            case 0:
                return Failure(Fault.RATE_LIMIT, headers={"Retry-After": "1"})
            case 1:
                return Failure(Fault.SERVER)
            case 2:
                return Reply([Text("I was about to"), Cut()], latency_s=reply.latency_s)
            case _:
                return Reply([Text("I was about to"), StreamError()], latency_s=reply.latency_s)
