"""What every adapter needs to speak for an agent of another framework: its past, its result, its usage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from clutch.core.messages import Answer, Call, Input
from clutch.ports import RuntimeJob

GAVE_CHARS_MAX = 4000  # of what a call gave: the transcript is a journal, not an archive


class Said(NamedTuple):
    by_agent: bool
    text: str


def earlier(job: RuntimeJob) -> list[Said]:
    """What was said up to its last word. What came after that is `job.text`."""
    told: list[Said] = []
    upto = 0
    for entry in job.transcript:
        if isinstance(entry, Input):
            told.append(Said(False, entry.text))
        elif isinstance(entry, Answer) and not entry.calls:
            told.append(Said(True, entry.text))
            upto = len(told)
    return told[:upto]


def in_words(output: object) -> str:
    """A result as text; whatever has a form, as JSON."""
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
    """The model to be priced: of several, nobody can tell which used what."""
    return next(iter(names)) if len(names) == 1 else ""
