"""A plain async function as a child: it gets the job and returns its last word.

What it has done is not journaled: after a crash it starts again from the beginning, under the same key.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any

from clutch.core.messages import Answer
from clutch.errors import InvalidInput
from clutch.ports import RuntimeJob

Function = Callable[[RuntimeJob], Awaitable[Any]]


class FunctionRuntime:
    """`function` returns a text, an Answer (to report usage), or anything JSON can say."""

    def __init__(self, function: Function) -> None:
        self.name = getattr(function, "__name__", "function")
        call = getattr(function, "__call__", None)  # noqa: B004 - of an object that can be awaited like a function
        if not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)):
            raise InvalidInput(f"runtime {self.name!r}", "must be an async function; write `async def`")
        self._function = function

    async def run(self, job: RuntimeJob) -> Answer:
        said = await self._function(job)
        if isinstance(said, Answer):
            return said
        text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
        return Answer(text, model=f"runtime:{self.name}")
