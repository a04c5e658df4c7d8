"""The client of a chaos run: spawns trees through any gateway that answers, and repeats a request until it is accepted.

A request that got no answer may have been accepted. It is sent again under the same key, mostly to another gateway.
Some accepted requests are repeated, too: the answer must name the same task.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from typing import Final

from clutch.errors import ClutchError, NoGateway
from clutch.surfaces.http_client import Declined
from tests.chaos import story
from tests.chaos.fleet import TROUBLE, Fleet

OUTSTANDING: Final = 6  #: trees at once; each has up to nine tasks
PATIENCE_S: Final = 10.0  #: for one answer
PAUSE_S: Final = 0.2
REPEATED: Final = 0.1  #: share of the accepted requests that are sent once more

UNFINISHED: Final = """
SELECT (SELECT COUNT(*) FROM tasks WHERE phase NOT IN ('completed', 'completed_giveup'))
+ (SELECT COUNT(*) FROM inbox WHERE state = 0 AND silent = 0)
"""
_ROOTS: Final = """
SELECT COUNT(*) FROM tasks t JOIN sessions s ON s.id = t.requester_id
WHERE s.parent_id IS NULL AND t.phase NOT IN ('completed', 'completed_giveup')
"""


class Driver:
    def __init__(self, fleet: Fleet, seed: int) -> None:
        self._fleet = fleet
        self._chance = random.Random(f"driver {seed}")
        self._number = 0
        self.accepted: dict[str, set[str]] = defaultdict(set)  #: key → tasks it was answered with
        self.refused: list[str] = []

    async def run(self, until: float) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(OUTSTANDING):
                group.create_task(self._client(until))

    async def _client(self, until: float) -> None:
        """One tree after the other, as long as there are not too many."""
        while time.monotonic() < until:
            if await self._is_full():
                await asyncio.sleep(PAUSE_S)
                continue
            self._number += 1
            await self._spawn(self._number)

    async def _is_full(self) -> bool:
        """A database that does not answer is full."""
        try:
            (count,) = (await self._fleet.rows(_ROOTS))[0]
        except TROUBLE:
            return True
        return int(count) >= OUTSTANDING

    async def _spawn(self, number: int) -> None:
        key = f"tree-{number}"
        body = {
            "task": story.tree(number),
            "label": key,
            "requester": story.chat_of(number),
            "notifyParent": True,
        }
        tries = 2 if self._chance.random() < REPEATED else 1
        while tries:
            try:
                answer = await self._post(key, body)
            except (NoGateway, TimeoutError, OSError):
                await asyncio.sleep(PAUSE_S)
                continue
            except Declined as error:
                if error.status < 500:
                    self.refused.append(f"{key}: {error.status} {error}")
                    return
                await asyncio.sleep(PAUSE_S)
                continue
            except ClutchError as error:
                self.refused.append(f"{key}: {error!r}")
                return
            self.accepted[key].add(answer)
            tries -= 1

    async def _post(self, key: str, body: dict[str, object]) -> str:
        client = self._chance.choice(self._fleet.nodes).client()
        if client is None:
            raise OSError("it does not answer now")
        answer = await asyncio.to_thread(client.post, "/v1/tasks", body, key=key, patience_s=PATIENCE_S)
        return str(answer["taskId"])

    async def unfinished(self) -> int | None:
        """None: the database does not answer."""
        try:
            return int((await self._fleet.rows(UNFINISHED))[0][0])
        except TROUBLE:
            return None
