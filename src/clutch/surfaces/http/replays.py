"""`Idempotency-Key`: the same key and body get the same answer, kept in the store; another body is a conflict.

Only an answer that did something is kept. A refusal changed nothing, so asking again is asking anew. Two
requests with one key at the same moment: the second waits for the answer of the first. A gateway that died
between doing and keeping has done it under that key, and the verbs find it again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

from starlette.responses import JSONResponse, Response

from clutch.protocol import replies
from clutch.surfaces.http.routes import House, Reply
from clutch.surfaces.problems import Problem

REPLAY = {"idempotent-replay": "true"}


class Replays:
    def __init__(self, house: House) -> None:
        self._house = house
        self._under_way: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def once(self, key: str, said: str, act: Callable[[], Awaitable[Reply | Response]]) -> Response:
        """`key`: with whose it is, for another caller's is another. `said`: a digest of the request."""
        async with self._under_way.setdefault(key, asyncio.Lock()):
            kept = await self._house.reads(replies.kept, key)
            if kept is not None:
                return _again(kept, said)
            reply = await act()
            if isinstance(reply, Response):
                return reply
            if reply.status < 300:
                await self._house.writes(replies.keep, key, said, reply.status, json.dumps(reply.body))
            return JSONResponse(reply.body, reply.status)


def _again(kept: replies.Kept, said: str) -> Response:
    if kept.request != said:
        raise Problem(
            "idempotency_conflict",
            "this Idempotency-Key was used for another request",
            field="Idempotency-Key",
            remedy="use a new key for a new request",
        )
    return JSONResponse(json.loads(kept.body), kept.status, REPLAY)
