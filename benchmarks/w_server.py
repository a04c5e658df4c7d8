"""The model of `w1` and `w2` as a process of its own, and the witness: all counts are what it saw itself.

Its first line is its URL. Then it obeys lines and answers each with one: `reset`, `watch K` (says `reached` when the
K-th call arrives), `mark` (from here on is after the kill), `report` (what it counted). It ends with its standard
input.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time
from typing import Any, Final

from benchmarks import w_job
from benchmarks.report import percentile
from clutch.core.messages import Usage
from clutch.testing.providers import Providers, Reply, Text, ToolCall, WireRequest
from clutch.testing.providers.log import CallLog, CallSeen, How

_PROBE_S: Final = 0.02
_FASTEST_S, _SPREAD = 0.03, 20  # the slowest child takes so many times as long as the fastest


class Witness:
    """Plays the model and remembers what it was asked. `is_uneven`: every child has a pace of its own."""

    def __init__(self, *, is_uneven: bool) -> None:
        self._is_uneven = is_uneven
        self.server = Providers(self.behave)
        self.reset()

    def reset(self) -> None:
        self.server.log = CallLog()
        self.late_ms: list[float] = []
        self._watched = 0
        self._marked_at: float | None = None
        self._marked = 0
        self._first_after: float | None = None
        self._cpu_s = time.process_time()

    # ---- the model -------------------------------------------------------------------------------------

    def behave(self, request: WireRequest) -> Reply:
        self._notice()
        words = told(request)
        results = sum(message["role"] == "tool" for message in request.messages)
        children = w_job.count_in(words)
        if children is not None:
            return _spawning(children) if not results else _last_word()
        item = w_job.item_in(words)
        return child(item, results, self._latency_s(item))

    def _notice(self) -> None:
        seen = self.server.log.count
        if seen == self._watched:
            print("reached", flush=True)
        if self._marked_at is not None and self._first_after is None:
            self._first_after = time.time()

    def _latency_s(self, item: int) -> float:
        if not self._is_uneven:
            return w_job.LATENCY_S
        return float(_FASTEST_S * _SPREAD ** ((item * 7919 % 101) / 100))

    # ---- the witness -----------------------------------------------------------------------------------

    def obey(self, line: str) -> str:
        match line.split():
            case ["reset"]:
                self.reset()
            case ["watch", number]:
                self._watched = int(number)
            case ["mark"]:
                self._marked, self._marked_at = self.server.log.count, time.time()
            case ["report"]:
                return json.dumps(self.report())
            case _:
                raise ValueError(f"unknown order: {line!r}")
        return "done"

    def report(self) -> dict[str, Any]:
        return self._counts() | self._after_kill()

    def _counts(self) -> dict[str, Any]:
        log = self.server.log
        parents = [call for call in log.calls if w_job.count_in(told(call.request)) is not None]
        children = [call for call in log.calls if w_job.count_in(told(call.request)) is None]
        shown = w_job.findings_in(all_told(parents[-1].request)) if parents else []
        return {
            "results": len(set(shown)),
            "twice": len(shown) - len(set(shown)),
            "llm_calls": log.count,
            "repeated_calls": sum(times - 1 for times in log.repeated.values()),
            "unnamed_calls": log.keys[""],
            "max_in_flight": log.in_flight_max,
            "parent_calls": len(parents),
            "request_bytes": sum(call.request.size for call in children),
            "server_cpu_s": round(time.process_time() - self._cpu_s, 4),
            "server_late_ms": round(percentile(sorted(self.late_ms), 0.95), 2) if self.late_ms else None,
        }

    def _after_kill(self) -> dict[str, Any]:
        before, after = self.server.log.calls[: self._marked], self.server.log.calls[self._marked :]
        steps = _steps(before)
        again = {step for step in _steps(after).values() if step in set(steps.values())}
        return {
            "calls_before_kill": len(before),
            "answered_before_kill": sum(call.how is How.DONE for call in before),
            "children_begun": len({item for item, _ in steps.values()}),
            "calls_after": len(after),
            # Its second call was under way, so the first was known; nobody had to ask that again.
            "children_from_zero": sum((item, 1) in steps.values() for item, step in again if step == 0),
            "first_call_at": self._first_after,
        }

    async def probe(self) -> None:
        """How late a timer is here: a server out of breath makes everybody look slow."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + _PROBE_S
            await asyncio.sleep(_PROBE_S)
            self.late_ms.append(1000 * (clock() - due))


def _steps(calls: list[CallSeen]) -> dict[int, tuple[int, int]]:
    """Calls of children by their ordinal: which item, which step."""
    found: dict[int, tuple[int, int]] = {}
    for call in calls:
        words = told(call.request)
        if w_job.count_in(words) is None:
            step = sum(message["role"] == "tool" for message in call.request.messages)
            found[call.request.ordinal] = (w_job.item_in(words), step)
    return found


def told(request: WireRequest) -> str:
    """The first words of the user: the task."""
    return next(text_of(message["content"]) for message in request.messages if message["role"] == "user")


def all_told(request: WireRequest) -> str:
    """Results may come as words of the user or as the answer of the call that waited for them."""
    said = [m for m in request.messages if m["role"] in ("user", "tool")]
    return "\n".join(text_of(message["content"]) for message in said)


def text_of(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def _spawning(children: int) -> Reply:
    calls = [call("sessions_spawn", task=w_job.task(item), label=f"item {item}") for item in range(children)]
    return Reply([*calls, call("sessions_yield")], Usage(500, 20 * children), latency_s=w_job.LATENCY_S)


def _last_word() -> Reply:
    return Reply([Text("I have heard of "), Text("all items.")], Usage(900, 9), latency_s=w_job.LATENCY_S)


def child(item: int, results: int, latency_s: float) -> Reply:
    match results:
        case 0:
            pieces: list[Text | ToolCall] = [call("look_up", item=item)]
        case 1:
            pieces = [call("record", item=item, text="as many doors as it should have, all of them green")]
        case _:
            pieces = [Text(piece) for piece in w_job.finding(item)]
    gaps = sum(1 + len(piece.arguments) if isinstance(piece, ToolCall) else 1 for piece in pieces) + 1
    return Reply(pieces, Usage(1000, 20, cache_read=800), drip_s=latency_s / gaps)


def call(name: str, **arguments: Any) -> ToolCall:
    text = json.dumps(arguments)
    half = len(text) // 2
    return ToolCall(name, (text[:half], text[half:]))


async def serve(witness: Witness) -> None:
    gc.disable()  # it keeps every request; looking through them all again would make its timers late
    async with witness.server as server, asyncio.TaskGroup() as group:
        print(server.openai_url, flush=True)
        probing = group.create_task(witness.probe())
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(witness.obey(line), flush=True)
        probing.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.w_server", description=__doc__)
    parser.add_argument("--uneven", action="store_true", help="every child has a pace of its own")
    asyncio.run(serve(Witness(is_uneven=parser.parse_args().uneven)))
