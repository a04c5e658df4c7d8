"""One request as a handler sees it, and one line of the table of all paths."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from starlette.responses import Response

from clutch.core.authority import OperatorCaller, Scope
from clutch.gateway.desk import Desk
from clutch.gateway.feed import Feed
from clutch.gateway.reads import standpoint
from clutch.protocol.targets import Standpoint
from clutch.store.door import Tx
from clutch.surfaces.http.answers import Answer
from clutch.surfaces.http.bodies import BODY_BYTES_MAX, Body, Query
from clutch.surfaces.http.tokens import Browsers
from clutch.surfaces.problems import Problem

if TYPE_CHECKING:
    from clutch.gateway.local import Gateway

WIRE = "clutch.wire"  #: in the scope: the connection itself, where there is one

#: A browser is told to keep nothing.
PRIVATE: Mapping[str, str] = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

T = TypeVar("T")
B = TypeVar("B", bound=Body)
Q = TypeVar("Q", bound=Query)


@dataclass(frozen=True, slots=True)
class House:
    """What all handlers share. `closing`: whoever waits or watches is to be answered now."""

    gateway: Gateway
    feed: Feed
    closing: asyncio.Event
    browsers: Browsers
    state: str | None = None  #: as printed commands name the state directory; None: they need not

    @property
    def desk(self) -> Desk:
        return Desk(self.gateway)

    async def reads(self, fn: Callable[..., Tx[T]], *args: Any) -> T:
        return await self.gateway.kit.door.read(fn, *args)

    async def writes(self, fn: Callable[..., Tx[T]], *args: Any) -> T:
        return await self.gateway.kit.door.alone(fn, *args)


@dataclass(frozen=True, slots=True)
class Ask(Generic[B, Q]):
    house: House
    caller: OperatorCaller
    path: Mapping[str, str]  #: decoded
    query: Q
    body: B
    headers: Mapping[str, str]
    key: str | None  #: `Idempotency-Key`: what is done under it is done once
    session: str | None = None  #: the key of the session the caller speaks from, if it said one
    token: str = field(default="", repr=False)  #: what opened the door

    @property
    def target(self) -> str:
        return self.path["target"]

    @property
    def who(self) -> Standpoint:
        return standpoint(self.caller)


@dataclass(frozen=True, slots=True)
class Reply:
    body: Any
    status: int = 200


@dataclass(frozen=True, slots=True)
class Entry:
    """`scope`: what it takes to get as far as the handler; the guard of the verbs asks again for the target.

    `answer`: what its answers look like, if they are JSON; `refusal`: what it says no with, beside errors. `tool`: its
    name for whoever comes over MCP, described in the first line of the handler; who speaks from a session has these
    paths and no others."""

    method: str
    path: str
    scope: Scope
    handler: Callable[[Ask[Any, Any]], Awaitable[Reply | Response]]
    body: type[Body] = Body
    query: type[Query] = Query
    bytes_max: int = BODY_BYTES_MAX
    answer: type[Answer] | None = None
    tool: str | None = None
    refusal: type[Answer] | None = None
    status: int = 200
    media: str = "application/json"
    in_words: Callable[[Problem], Mapping[str, Any]] = Problem.to_json  #: an error, as its clients read it

    @property
    def is_write(self) -> bool:
        return self.method != "GET"
