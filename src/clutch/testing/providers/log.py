"""A provider's own count of what it was asked: append-only, independent of what the caller believes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from clutch.core.messages import Usage
from clutch.testing.providers.script import WireRequest


class How(StrEnum):
    """How a call ended."""

    OPEN = "open"
    DONE = "done"
    FAILED = "failed"  #: answered with an error
    CUT = "cut"  #: the server broke it off
    LEFT = "left"  #: the caller went away first


@dataclass(slots=True)
class CallSeen:
    request: WireRequest
    how: How = How.OPEN
    status: int = 200
    billed: Usage = field(default_factory=Usage)  #: only what was answered to the end is billed
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class CallLog:
    def __init__(self, *, keep: bool = True) -> None:
        """`keep=False` remembers counts only: a benchmark does not measure the memory of old requests."""
        self._keep = keep
        self.calls: list[CallSeen] = []
        self.count = 0
        self.in_flight = 0
        self.in_flight_max = 0
        self.billed = Usage()
        self.ends: Counter[str] = Counter()
        self.keys: Counter[str] = Counter()

    def begin(self, request: WireRequest) -> CallSeen:
        call = CallSeen(request)
        if self._keep:
            self.calls.append(call)
        self.count += 1
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        self.keys[request.key] += 1
        return call

    def end(self, call: CallSeen, how: How, billed: Usage | None = None) -> None:
        if call.how is not How.OPEN:
            return
        call.how = how
        self.in_flight -= 1
        self.ends[how] += 1
        if billed is not None:
            call.billed = billed
            self.billed = _sum(self.billed, billed)
        call.ended.set()

    @property
    def repeated(self) -> Mapping[str, int]:
        """Stable keys that came more than once, and how often. A call without a key cannot repeat."""
        return {key: times for key, times in self.keys.items() if key and times > 1}

    def summary(self) -> dict[str, object]:
        return {
            "calls": self.count,
            "distinct": len(self.keys),
            "repeated": sum(times - 1 for times in self.repeated.values()),
            "in_flight": self.in_flight,
            "in_flight_max": self.in_flight_max,
            "ends": dict(self.ends),
            "input": self.billed.input,
            "output": self.billed.output,
            "cache_read": self.billed.cache_read,
            "cache_write": self.billed.cache_write,
        }


def _sum(left: Usage, right: Usage) -> Usage:
    return Usage(
        left.input + right.input,
        left.output + right.output,
        left.cache_read + right.cache_read,
        left.cache_write + right.cache_write,
    )
