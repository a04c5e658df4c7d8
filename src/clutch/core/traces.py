"""The spans of a run, for OpenTelemetry: made from what the database recorded, so that no crash loses one.

All ids are derived from the identity of the database and the numbers of its rows. A span that is written twice, after a
restart or by another machine, has the same ids both times. The names and attributes are those of the semantic
conventions for generative AI (`invoke_agent`, `chat`, `execute_tool`)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from clutch.core import ids
from clutch.core.budget import CallState
from clutch.core.messages import Answer, Entry, Input, Results
from clutch.core.redaction import redact
from clutch.core.run import failure

CONTENT_CHARS_MAX = 8192  #: of one attribute; collectors refuse large requests
ERROR_CHARS_MAX = 200
_SPAWN_KEY = re.compile(r"\d+:\d+:\d+")  # a program, or a model that chose a key, spawns under another one
RUNTIME = "runtime:"  #: a model name that begins so is foreign code, which makes its calls by itself

Value = str | int | float | Sequence[str]


@dataclass(frozen=True, slots=True)
class TraceIds:
    """`identity`: a random text of the database, the same for all processes that share it."""

    identity: str

    def trace(self, root_id: int) -> int:
        """Return the trace of a tree: the root session with everything below it, for as long as it lives."""
        return self._derived(16, "trace", root_id)

    def run(self, run_id: int) -> int:
        return self._derived(8, "run", run_id)

    def chat(self, session_id: int, call_no: int) -> int:
        return self._derived(8, "chat", session_id, call_no)

    def tool(self, key: str) -> int:
        """`key`: of the call, "session:answer:place", as tools and spawns know it."""
        return self._derived(8, "tool", key)

    def traceparent(self, root_id: int, span_id: int) -> str:
        """Return the header of W3C Trace Context: what a program does for this span belongs to its trace."""
        return f"00-{self.trace(root_id):032x}-{span_id:016x}-01"

    def _derived(self, size: int, *parts: object) -> int:
        named = "/".join(map(str, (self.identity, *parts)))
        # 0 is no valid id.
        return int.from_bytes(hashlib.sha256(named.encode()).digest()[:size], "big") or 1


class ModelCall(NamedTuple):
    """A row of the ledger of model calls."""

    call_no: int
    at: float
    state: int
    model: str
    effective: str | None
    input: int
    output: int
    cache_read: int
    cache_write: int


class RecordedEntry(NamedTuple):
    seq: int
    at: float
    entry: Entry


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """An ended run with everything that was recorded of it."""

    id: int
    session_id: int
    root_id: int
    session_key: str
    agent_id: str
    is_task: int  #: 0: a main session
    generation: int
    started_at: float
    ended_at: float
    stop_reason: str
    spawn_key: str | None  #: the key of the spawn that made its task
    entries: Sequence[RecordedEntry] = ()
    calls: Sequence[ModelCall] = ()
    read: Sequence[int] = ()  #: the runs of children whose results it read


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """`error`: why it failed; empty: it did not. `model_call`: of a `chat` span that was answered."""

    name: str
    trace_id: int
    span_id: int
    parent_id: int | None
    start: float
    end: float
    attributes: Mapping[str, Value]
    links: Sequence[int] = ()
    error: str = ""
    model_call: ModelCall | None = field(default=None, compare=False)


def spans(identity: TraceIds, run: RecordedRun, *, has_content: bool = False) -> list[SpanRecord]:
    """Return the spans of a run, that of the run itself last. `has_content`: with prompts and results, redacted."""
    made = _Spans(identity, run, has_content)
    return [*made.chats(), *made.tools(), made.invocation()]


class _Spans:
    def __init__(self, identity: TraceIds, run: RecordedRun, has_content: bool) -> None:
        self._ids, self._run, self._has_content = identity, run, has_content
        self._trace_id, self._span_id = identity.trace(run.root_id), identity.run(run.id)

    def invocation(self) -> SpanRecord:
        run, calls = self._run, self._run.calls
        inputs = [one.entry.text for one in run.entries if isinstance(one.entry, Input)]
        said = [one.entry.text for one in run.entries if isinstance(one.entry, Answer) and one.entry.text]
        mine: dict[str, Value] = {
            "gen_ai.usage.input_tokens": sum(call.input for call in calls),
            "gen_ai.usage.output_tokens": sum(call.output for call in calls),
            "clutch.run.id": ids.run_id(run.id),
            "clutch.stop_reason": run.stop_reason.partition(":")[0],
        }
        if run.is_task:
            mine |= {"clutch.task.id": ids.task_id(run.session_id), "clutch.attempt": run.generation}
        content = {
            "gen_ai.input.messages": _messages("user", inputs),
            "gen_ai.output.messages": _messages("assistant", said[-1:]),
        }
        return SpanRecord(
            f"invoke_agent {run.agent_id}",
            self._trace_id,
            self._span_id,
            self._parent_id(),
            run.started_at,
            max(run.started_at, run.ended_at),
            self._with("invoke_agent", mine, content),
            [self._ids.run(child) for child in run.read],
            redact(failure(run.stop_reason) or "").text[:ERROR_CHARS_MAX],
        )

    def _parent_id(self) -> int | None:
        """Return the span of the call that spawned the task; None: a program did, or the session has no task."""
        key = self._run.spawn_key
        return self._ids.tool(key) if key is not None and _SPAWN_KEY.fullmatch(key) else None

    def chats(self) -> Iterator[SpanRecord]:
        answers = iter([one for one in self._run.entries if isinstance(one.entry, Answer)])
        answer = next(answers, None)
        for place, call in enumerate(self._run.calls):
            if call.model.startswith(RUNTIME):
                continue
            later = self._run.calls[place + 1].at if place + 1 < len(self._run.calls) else self._run.ended_at
            while answer is not None and answer.at < call.at:
                answer = next(answers, None)
            # The answer of a summary is no entry: such a call lasts until the next one is booked.
            is_its = call.state == CallState.ANSWERED and answer is not None and answer.at <= later
            yield self._chat(call, later, answer if is_its else None)
            answer = next(answers, None) if is_its else answer

    def _chat(self, call: ModelCall, later: float, answer: RecordedEntry | None) -> SpanRecord:
        provider, _, model = call.model.rpartition(":")
        mine: dict[str, Value] = {
            "gen_ai.provider.name": provider or model,
            "gen_ai.request.model": model,
            "gen_ai.response.model": call.effective or model,
            "gen_ai.usage.input_tokens": call.input,
            "gen_ai.usage.output_tokens": call.output,
            "gen_ai.usage.cache_read.input_tokens": call.cache_read,
            "gen_ai.usage.cache_creation.input_tokens": call.cache_write,
        }
        content: dict[str, Value] = {}
        if answer is not None and isinstance(answer.entry, Answer):
            mine["gen_ai.response.finish_reasons"] = [answer.entry.stop]
            content["gen_ai.output.messages"] = _messages("assistant", [answer.entry.text])
        is_answered = call.state == CallState.ANSWERED
        # When a call failed was not recorded, so its span has no length.
        end = (answer.at if answer is not None else later) if is_answered else call.at
        return SpanRecord(
            f"chat {model}",
            self._trace_id,
            self._ids.chat(self._run.session_id, call.call_no),
            self._span_id,
            call.at,
            max(call.at, end),
            self._with("chat", mine, content),
            error="" if is_answered else "the provider gave no answer",
            model_call=call if is_answered else None,
        )

    def tools(self) -> Iterator[SpanRecord]:
        """All calls of one answer run at once, and their results are committed together: they end together."""
        for asked, gave in pairwise(self._run.entries):
            if not isinstance(asked.entry, Answer) or not isinstance(gave.entry, Results):
                continue
            for result in gave.entry.results:
                if result.index >= len(asked.entry.calls):
                    continue
                call = asked.entry.calls[result.index]
                mine: dict[str, Value] = {"gen_ai.tool.name": call.name, "gen_ai.tool.call.id": call.id}
                content: dict[str, Value] = {
                    "gen_ai.tool.call.arguments": json.dumps(dict(call.args), ensure_ascii=False),
                    "gen_ai.tool.call.result": result.text,
                }
                yield SpanRecord(
                    f"execute_tool {call.name}",
                    self._trace_id,
                    self._ids.tool(f"{self._run.session_id}:{asked.seq}:{result.index}"),
                    self._span_id,
                    asked.at,
                    max(asked.at, gave.at),
                    self._with("execute_tool", mine, content),
                    error="the tool failed" if result.failed else "",
                )

    def _with(
        self, operation: str, mine: Mapping[str, Value], content: Mapping[str, Value]
    ) -> Mapping[str, Value]:
        """Content is redacted before it is cut: the rest of a cut secret would not be recognised."""
        told = {name: redact(str(text)).text[:CONTENT_CHARS_MAX] for name, text in content.items() if text}
        return {
            "gen_ai.operation.name": operation,
            "gen_ai.agent.name": self._run.agent_id,
            "gen_ai.conversation.id": self._run.session_key,
            **mine,
            **(told if self._has_content else {}),
        }


def _messages(role: str, texts: Sequence[str]) -> str:
    told = [{"role": role, "parts": [{"type": "text", "content": text}]} for text in texts if text]
    return json.dumps(told, ensure_ascii=False) if told else ""
