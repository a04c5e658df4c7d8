"""OpenAI chat completions as text: a request of ours as a body, the events of a stream as an Answer.

No network. Written by hand where each call or each chunk passes: JSON in and out is most of what a call costs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, assert_never

from clutch.core.messages import Answer, Call, Input, Results, Thought, Transcript, Usage
from clutch.ports import Delta, DeltaKind, ModelError, ModelRequest, OnDelta, ToolSpec, Trouble

CALL_ID_MAX = 40  # characters OpenAI takes; others take less care
_STOPS = {
    "stop": "end",
    "tool_calls": "tools",
    "function_call": "tools",
    "length": "length",
    "content_filter": "filter",
}
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_text = json.encoder.encode_basestring  # what the encoder does with a text, without asking whether it is one


# --- the request ------------------------------------------------------------------------------------------


def body(request: ModelRequest, tools: str, effort: str | None) -> bytes:
    """`tools` is what `tools_text` made of the request's tools; they rarely change, so the caller may keep it."""
    said = ",".join(_messages(request.system, request.transcript))
    limit = f',"max_tokens":{request.output_tokens_max:d}' if request.output_tokens_max is not None else ""
    thinking = f',"reasoning_effort":{_text(effort)}' if effort is not None else ""
    text = (
        f'{{"model":{_text(request.model)},"messages":[{said}]{tools}{limit}{thinking},'
        '"stream":true,"stream_options":{"include_usage":true}}'
    )
    return text.encode("utf-8", "replace")  # halves of surrogate pairs cannot be sent


def tools_text(tools: Sequence[ToolSpec]) -> str:
    if not tools:
        return ""
    functions = [
        f'{{"type":"function","function":{{"name":{_text(spec.name)},"description":{_text(spec.description)},'
        f'"parameters":{_encode(dict(spec.parameters))}}}}}'
        for spec in tools
    ]
    return f',"tools":[{",".join(functions)}]'


def _messages(system: str, transcript: Transcript) -> Iterator[str]:
    if system:
        yield f'{{"role":"system","content":{_text(system)}}}'
    told: list[str] = []  # many chat templates refuse two messages of the user in a row
    used: set[str] = set()
    ids: list[str] = []
    for message in transcript:
        if told and not isinstance(message, Input):
            yield _user(told)
        match message:
            case Input(text):
                told.append(text)
            case Answer():
                ids = [_call_id(call, used) for call in message.calls]
                yield _assistant(message, ids)
            case Results(results):
                for result in results:
                    called = _text(ids[result.index])
                    yield f'{{"role":"tool","tool_call_id":{called},"content":{_text(result.text)}}}'
            case _:
                assert_never(message)
    if told:
        yield _user(told)


def _user(told: list[str]) -> str:
    text = _text("\n\n".join(told))
    told.clear()
    return f'{{"role":"user","content":{text}}}'


def _call_id(call: Call, used: set[str]) -> str:
    """The provider's own id, unless it is none or stands for another call too. Nine letters suit everybody."""
    is_usable = 0 < len(call.id) <= CALL_ID_MAX and call.id not in used
    chosen = call.id if is_usable else f"c{len(used):08d}"
    used.add(chosen)
    return chosen


def _assistant(answer: Answer, ids: Sequence[str]) -> str:
    content = _text(answer.text) if answer.text or not answer.calls else "null"
    if not answer.calls:
        return f'{{"role":"assistant","content":{content}}}'
    calls = [
        f'{{"id":{_text(called)},"type":"function","function":{{"name":{_text(call.name)},'
        f'"arguments":{_text(_encode(dict(call.args)))}}}}}'
        for call, called in zip(answer.calls, ids, strict=True)
    ]
    return f'{{"role":"assistant","content":{content},"tool_calls":[{",".join(calls)}]}}'


# --- the answer -------------------------------------------------------------------------------------------


class _OpenCall:
    """A tool call while its pieces come."""

    __slots__ = ("arguments", "id", "name", "place")

    def __init__(self, place: int, id: str, name: str) -> None:
        self.place = place
        self.id = id
        self.name = name
        self.arguments: list[str] = []


class Reading:
    """Takes the events of one stream, passes pieces on, and has the answer in the end.

    A wrong shape raises TypeError, AttributeError or LookupError: the caller says what that means."""

    __slots__ = (
        "_by_index",
        "_calls",
        "_is_refused",
        "_on_delta",
        "_text",
        "_thinking",
        "_usage",
        "finish",
        "is_begun",
        "model",
    )

    def __init__(self, on_delta: OnDelta) -> None:
        self._on_delta = on_delta
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[_OpenCall] = []
        self._by_index: dict[int, _OpenCall] = {}
        self._usage: Mapping[str, Any] | None = None
        self._is_refused = False
        self.is_begun = False  #: an event has come
        self.model = ""
        self.finish: str | None = None  #: None: the answer is not complete

    def feed(self, event: Mapping[str, Any]) -> None:
        self.is_begun = True
        if not self.model:
            self.model = event.get("model") or ""
        if choices := event.get("choices"):
            choice = choices[0]
            if delta := choice.get("delta") or choice.get("message"):
                self._take(delta)
            self.finish = choice.get("finish_reason") or self.finish
        if usage := event.get("usage"):
            self._usage = usage

    def _take(self, delta: Mapping[str, Any]) -> None:
        if thinking := delta.get("reasoning_content") or delta.get("reasoning"):
            self._thinking.append(thinking)
            self._on_delta(Delta(DeltaKind.THINKING, thinking))
        if text := delta.get("content"):
            self._text.append(text)
            self._on_delta(Delta(DeltaKind.TEXT, text))
        if calls := delta.get("tool_calls"):
            for piece in calls:
                self._take_call(piece)
        if refusal := delta.get("refusal"):
            self._is_refused = True
            self._text.append(refusal)
            self._on_delta(Delta(DeltaKind.TEXT, refusal))

    def _take_call(self, piece: Mapping[str, Any]) -> None:
        function = piece.get("function") or {}
        call = self._open_call(piece, function)
        if arguments := function.get("arguments"):
            if not isinstance(arguments, str):  # some local servers send the object itself
                arguments = _encode(arguments)
            call.arguments.append(arguments)
            self._on_delta(Delta(DeltaKind.CALL, arguments, call.place))

    def _open_call(self, piece: Mapping[str, Any], function: Mapping[str, Any]) -> _OpenCall:
        """Pieces belong together by index. Servers that give all calls the same one, or none, give each an id."""
        index, name = piece.get("index") or 0, function.get("name")
        known = self._by_index.get(index)
        if known is not None and (not name or piece.get("id") in (None, "", known.id)):
            return known
        opened = _OpenCall(len(self._calls), piece.get("id") or "", name or "")
        self._calls.append(opened)
        self._by_index[index] = opened
        self._on_delta(Delta(DeltaKind.CALL, opened.name, opened.place))
        return opened

    def answer(self, provider: str) -> Answer:
        """Raises ModelError where the stream did not bring a whole answer."""
        if self.finish is None:
            raise ModelError(Trouble.MALFORMED, "the stream ended without saying why")
        stop = _STOPS.get(self.finish, self.finish)
        calls = tuple(_calls(self._calls, may_be_cut=stop == "length"))
        if stop in ("end", "tools"):
            stop = "tools" if calls else "refusal" if self._is_refused else "end"
        thinking = "".join(self._thinking)
        thoughts = (Thought(thinking, provider=provider),) if thinking else ()
        usage = _usage(self._usage) if self._usage else Usage()
        return Answer("".join(self._text), calls, usage, self.model, stop, thoughts)


def _calls(opened: Sequence[_OpenCall], *, may_be_cut: bool) -> Iterator[Call]:
    """Arguments nobody can read: cut off by the length limit the call is left out, else the answer is broken."""
    for call in opened:
        text = "".join(call.arguments)
        try:
            arguments = json.loads(text) if text else {}
        except ValueError:
            arguments = None
        if isinstance(arguments, dict) and call.name:
            yield Call(call.name, arguments, call.id)
        elif not may_be_cut:
            raise ModelError(
                Trouble.MALFORMED,
                f"the arguments of the call of {call.name!r} are no JSON object: {text[:100]!r}",
            )


def _usage(usage: Mapping[str, Any]) -> Usage:
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        usage.get("prompt_tokens") or 0,
        usage.get("completion_tokens") or 0,
        details.get("cached_tokens") or usage.get("prompt_cache_hit_tokens") or 0,
        details.get("cache_write_tokens") or 0,
    )
