"""What an agent does, as lines of a chat: its tool calls, its subagents, and what it is doing now with seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from clutch.cli import output
from clutch.core.model import RETRYABLE, DeliveryStatus
from clutch.core.status import call_text
from clutch.core.text.format import counted, seconds_text, visible

LABEL_CHARS_MAX = 60
DIM, RED = "2", "31"  #: SGR codes
#: What the lines of a result are; the last line of a search says what was searched.
LINES = {"search": (("match", "matches"), 1), "list": (("entry", "entries"), 0)}


class ChatLine(NamedTuple):
    text: str
    style: str = DIM


def size_text(count: int) -> str:
    """`840 B`, `3.1 kB`, `2.4 MB`."""
    if count < 1000:
        return f"{count} B"
    return f"{count / 1000:.1f} kB" if count < 1_000_000 else f"{count / 1_000_000:.1f} MB"


def took_text(seconds: float) -> str:
    """`40 ms`, `6 s`, `2m34s`."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else seconds_text(seconds)


def tool_line(event: Mapping[str, Any]) -> ChatLine:
    """`search "TODO" → 12 matches, 3.1 kB · 40 ms`"""
    tool = event["tool"]
    called, took = call_text(event["text"], tool["argument"]), took_text(tool["seconds"])
    if tool["error"] is not None:
        return ChatLine(f"{called} → failed: {tool['error']} · {took}", RED)
    (one, many), fewer = LINES.get(event["text"], (("line", "lines"), 0))
    lines = counted(max(0, tool["lines"] - fewer), one, many)
    return ChatLine(f"{called} → {lines}, {size_text(tool['bytes'])} · {took}")


@dataclass(slots=True)
class ChatActivity:
    """What the agent is doing now: `thinking… 6 s`, `search "TODO" · 3 s`. Times are of `output.now`."""

    is_busy: bool = False
    is_writing: bool = False  #: the text that arrives is on the screen
    _since: float = 0.0
    _tools: dict[tuple[str, str], tuple[str, float]] = field(default_factory=dict)

    def begin(self, now: float) -> None:
        """Begin a turn, or what follows an answer or a tool in it."""
        self.is_busy, self.is_writing, self._since = True, False, now

    def write(self) -> None:
        self.is_busy = self.is_writing = True

    def end(self) -> None:
        self.is_busy = False
        self._tools.clear()

    def begin_tool(self, event: Mapping[str, Any], now: float) -> None:
        self.begin(now)
        called = call_text(event["text"], event["tool"]["argument"])
        self._tools[event["runId"], event["tool"]["call"]] = (called, now)

    def end_tool(self, event: Mapping[str, Any], now: float) -> None:
        self._tools.pop((event["runId"], event["tool"]["call"]), None)
        self.begin(now)

    def rows(self, now: float) -> list[str]:
        if not self.is_busy:
            return []
        if not self._tools:
            return [] if self.is_writing else [f"thinking… {seconds_text(now - self._since)}"]
        return [f"{called} · {seconds_text(now - since)}" for called, since in self._tools.values()]


@dataclass(slots=True)
class SubagentLines:
    """One line when a subagent is spawned, when it ends, and when its result is delivered to this session.

    An event tells where the task is now, and may come late or twice: each line is made once for each attempt."""

    command: Callable[..., str]
    _made: set[tuple[str, str, int]] = field(default_factory=set)

    def of_event(self, event: Mapping[str, Any]) -> Iterator[ChatLine]:
        task = event["task"]
        if event["seq"] == 1 and self._is_new("spawned", task):
            status = task["status"] if task["outcome"] is None else "queued"
            yield self._line(task, "spawned", status)
        if task["outcome"] is not None and self._is_new("ended", task):
            yield from self._end(task)
        is_delivered = task["delivery"]["status"] in (DeliveryStatus.DELIVERED, DeliveryStatus.UNDELIVERED)
        if is_delivered and task["depth"] == 1 and self._is_new("delivered", task):
            yield self._line(task, task["delivery"]["status"], "")

    def _end(self, task: Mapping[str, Any]) -> Iterator[ChatLine]:
        yield self._line(task, task["status"], output.elapsed(task, output.now()))
        if task["status"] in RETRYABLE and (said := output.failure(task, self.command)) is not None:
            yield ChatLine(f"{_indent(task)}  {said}", RED)

    def _is_new(self, what: str, task: Mapping[str, Any]) -> bool:
        made = (what, task["taskId"], task["generation"])
        is_new = made not in self._made
        self._made.add(made)
        return is_new

    def _line(self, task: Mapping[str, Any], what: str, beside: str) -> ChatLine:
        named = f"{_indent(task)}↳ {what} “{visible(task['label'], LABEL_CHARS_MAX)}” · {task['taskId']}"
        style = RED if what in RETRYABLE or what == DeliveryStatus.UNDELIVERED else DIM
        return ChatLine(f"{named} · {beside}" if beside else named, style)


def _indent(task: Mapping[str, Any]) -> str:
    return "  " * (int(task["depth"]) - 1)
