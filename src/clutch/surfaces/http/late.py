"""An answer that may take long: it is waited for as long as somebody waits for it, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from clutch.errors import ClutchError
from clutch.surfaces.http.guard import refusal
from clutch.surfaces.http.routes import PRIVATE
from clutch.surfaces.problems import Problem, problem_of

T = TypeVar("T")


class Late(Response, Generic[T]):
    """`sent` is called with what was answered when all of it is on its way, and never if nobody was there."""

    def __init__(
        self,
        answer: Callable[[], Coroutine[Any, Any, T]],
        rendered: Callable[[T], Response],
        sent: Callable[[T], Awaitable[None]],
        in_words: Callable[[Problem], Any],
    ) -> None:
        super().__init__()
        self._answer, self._rendered, self._sent, self._in_words = answer, rendered, sent, in_words

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = asyncio.ensure_future(self._answer())
        try:
            await first(asyncio.wait({answering}), _gone(receive))
            if not answering.done():
                return
            said = answering.result()
        except ClutchError as error:
            return await refusal(problem_of(error), self._in_words)(scope, receive, send)
        finally:
            answering.cancel()
        response = self._rendered(said)
        response.headers.update(PRIVATE)
        await response(scope, receive, send)
        await self._sent(said)


async def first(*works: Coroutine[Any, Any, Any], within_s: float | None = None) -> bool:
    """Until one of them is done; the others are let go. False: none, within that time."""
    started = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(started, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for work in started:
            work.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
