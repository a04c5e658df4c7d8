"""A plain async function as a child: it gets the job and returns its final text.

What it has done is not journaled: after a crash it starts again from the beginning, under the same key."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from clutch.core.messages import Answer, Call, Input
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


# --------------------------------------------------------------------------------------------------
# What every adapter needs to speak for an agent of another framework: its past, its result, its usage.

GAVE_CHARS_MAX = 4000  # of what a call gave: the transcript is a journal, not an archive


class RuntimeMessage(NamedTuple):
    by_agent: bool
    text: str


def earlier(job: RuntimeJob) -> list[RuntimeMessage]:
    """What was said up to its final text. What came after that is `job.text`."""
    told: list[RuntimeMessage] = []
    upto = 0
    for entry in job.transcript:
        if isinstance(entry, Input):
            told.append(RuntimeMessage(False, entry.text))
        elif isinstance(entry, Answer) and not entry.calls:
            told.append(RuntimeMessage(True, entry.text))
            upto = len(told)
    return told[:upto]


def in_words(output: object) -> str:
    """A result as text; structured output as JSON."""
    if isinstance(output, str):
        return output
    from pydantic_core import to_json

    return to_json(output, fallback=str).decode()


def gave(output: object) -> str:
    return in_words(output)[:GAVE_CHARS_MAX]


def call(name: str, args: object, number: str = "") -> Call:
    """Frameworks give arguments as an object or as the model wrote them."""
    if isinstance(args, str):
        try:
            args = json.loads(args or "{}")
        except ValueError:
            args = {"arguments": args}
    plain: Any = json.loads(in_words(dict(args))) if isinstance(args, Mapping) else {"arguments": str(args)}
    return Call(name, plain, number)


def only(names: set[str]) -> str:
    """The model to be priced: of several, it is unknown which used what."""
    return next(iter(names)) if len(names) == 1 else ""
