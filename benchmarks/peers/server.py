"""The model of all systems as a process of its own, and the witness of what each of them asked.

It is `w_server` with three differences: a parent asks for children with the tool of its own library, a call is known by
what it asks for instead of a header, and two more jobs are played: children that end at once, and one long walk.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from dataclasses import replace
from typing import Any, Final, cast

from benchmarks import w_job
from benchmarks.peers import job
from benchmarks.peers.registry import CLUTCH, PEERS
from benchmarks.w_server import Witness, all_told, call, child, serve, told
from clutch.core.messages import Usage
from clutch.testing.providers import Reply, Text, ToolCall, WireRequest
from clutch.testing.providers.log import CallSeen, How

_GATHERED_S: Final = 3.0  # from the first child's call until the first child ends: all have begun by then
_ENDS_WITHIN_S: Final = 0.8
_FIRST_KEPT: Final = 4  # messages of a long walk that are remembered: the words of the task are among them
_CANCELLED: Final = re.compile(r'task_id="([^"]+)"[^>]*outcome="cancelled"')
_GO_ON: Final = "You were interrupted. Go on with what you were asked."

Step = tuple[str, int, int]  #: who asks, which item, after how many tool results


class PeerWitness(Witness):
    """One process serves a whole comparison: the order `play NAME [uneven|together]` says for which system."""

    def __init__(self) -> None:
        super().__init__(is_uneven=False)
        self._play(CLUTCH)

    def _play(self, name: str, how: str = "") -> None:
        """`uneven`: every child has a pace of its own. `together`: children answer once, all within a second."""
        self._delegate = PEERS[name].delegate
        self._is_uneven, self._ends_together = how == "uneven", how == "together"
        self.reset()

    def obey(self, line: str) -> str:
        order, *words = line.split()
        if order != "play":
            return super().obey(line)
        self._play(*words)
        return "done"

    def reset(self) -> None:
        super().reset()
        self._first_child_at: float | None = None

    def behave(self, request: WireRequest) -> Reply:
        self._notice()
        words = told(request)
        if (children := w_job.count_in(words)) is not None:
            return self._parent(request, children)
        if (steps := job.steps_in(words)) is not None:
            return _walk(request, steps)
        item = w_job.item_in(words)
        if self._ends_together:
            return self._ending(item)
        latency_s = self._latency_s(item)
        reply = child(item, _results(request), latency_s)
        # A stream drips for as long as a whole answer is waited for.
        return reply if request.body.get("stream") else replace(reply, latency_s=latency_s, drip_s=0.0)

    def _parent(self, request: WireRequest, children: int) -> Reply:
        if _has_delegated(request, self._delegate.tool):
            if lost := self._cancelled(request):
                return Reply(lost, Usage(500, 20 * len(lost)), latency_s=w_job.LATENCY_S)
            return Reply(
                [Text("I have heard of "), Text("all items.")], Usage(900, 9), latency_s=w_job.LATENCY_S
            )
        known = self._delegate
        calls = [
            call(known.tool, **{known.argument: w_job.task(item)}, **known.fixed) for item in range(children)
        ]
        if known.then is not None:
            calls.append(call(known.then))
        return Reply(calls, Usage(500, 20 * children), latency_s=w_job.LATENCY_S)

    def _cancelled(self, request: WireRequest) -> list[ToolCall]:
        """Calls that resume the children reported as cancelled, each once. Only one library asks its model for that."""
        known = self._delegate
        if known.resumed_by is None:
            return []
        given = [
            one["function"]["arguments"]
            for message in request.messages
            for one in message.get("tool_calls") or ()
        ]
        asked = {json.loads(text).get(known.resumed_by) for text in given}
        lost = dict.fromkeys(one for one in _CANCELLED.findall(all_told(request)) if one not in asked)
        return [
            call(known.tool, **{known.argument: _GO_ON, known.resumed_by: one}, **known.fixed) for one in lost
        ]

    def _ending(self, item: int) -> Reply:
        now = time.monotonic()
        if self._first_child_at is None:
            self._first_child_at = now
        due = self._first_child_at + _GATHERED_S + _ENDS_WITHIN_S * (item % 100) / 100
        pieces = [Text("".join(w_job.finding(item)))]
        return Reply(pieces, Usage(1000, 20), latency_s=max(0.0, due - now))

    # ---- the witness -----------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        log, seen = self.server.log, Counter(_step(one) for one in self.server.log.calls)
        work = Counter({step: times for step, times in seen.items() if _is_work(step)})
        parents = [one for one in log.calls if _step(one)[0] == "parent"]
        shown = [w_job.findings_in(all_told(one.request)) for one in parents]
        most = Counter(shown[-1]) if shown else Counter()
        before = log.calls[: self._marked]
        return {
            "llm_calls": log.count,
            "repeated_calls": work.total() - len(work),
            "repaid_calls": _repaid(log.calls),
            "max_in_flight": log.in_flight_max,
            "parent_calls": len(parents),
            "results": len(set().union(*map(set, shown))) if shown else 0,
            "twice": sum(times > 1 for times in most.values()),
            "request_bytes": sum(one.request.size for one in log.calls),
            "calls_before_kill": len(before),
            "in_flight_at_kill": sum(one.how is not How.DONE for one in before),
            "calls_after": log.count - len(before),
        }


def _repaid(calls: list[CallSeen]) -> int:
    """Calls whose answer had been given to the end before: a provider bills them a second time."""
    answered: set[Step] = set()
    repaid = 0
    for one in calls:
        step = _step(one)
        repaid += step in answered and _is_work(step)
        if one.how is How.DONE:
            answered.add(step)
    return repaid


def _is_work(step: Step) -> bool:
    """A parent may well read what came since more than once; that it delegates again is a repetition."""
    return step[0] != "parent" or step[1] == 0


def _step(one: CallSeen) -> Step:
    words = told(one.request)
    if w_job.count_in(words) is not None:
        has_delegated = any(message.get("tool_calls") for message in one.request.messages)
        return "parent", int(has_delegated), 0
    if job.steps_in(words) is not None:
        return "walk", one.request.ordinal, 0
    return "child", w_job.item_in(words), _results(one.request)


def _results(request: WireRequest) -> int:
    return sum(message["role"] == "tool" for message in request.messages)


def _has_delegated(request: WireRequest, tool: str) -> bool:
    asked = (one for message in request.messages for one in message.get("tool_calls") or ())
    return any(one["function"]["name"] == tool for one in asked)


def _walk(request: WireRequest, steps: int) -> Reply:
    done = job.last_seen_in(all_told(request)) + 1
    cast("list[object]", request.messages)[
        _FIRST_KEPT:
    ] = []  # a thousand long requests would fill the memory
    if done >= steps - 1:
        return Reply([Text("I have arrived.")], Usage(1000, 5))
    return Reply([call("look_up", item=done)], Usage(1000, 20))


if __name__ == "__main__":
    asyncio.run(serve(PeerWitness()))
