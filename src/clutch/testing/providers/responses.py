"""OpenAI responses: one item after the other, each opened, filled and closed by events with running numbers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, assert_never

from clutch.core.messages import Usage
from clutch.testing.providers import chat
from clutch.testing.providers.script import (
    Control,
    Failure,
    Fault,
    Refusal,
    Reply,
    Said,
    StreamError,
    Text,
    Thinking,
    ToolCall,
    WireRequest,
    streamed,
)
from clutch.testing.providers.wire import event

_CONTEXT = "Your input exceeds the context window of this model. Please adjust your input and try again."
_INCOMPLETE = {"length": "max_output_tokens", "filter": "content_filter"}


def error(failure: Failure | StreamError) -> dict[str, Any]:
    said = chat.error(failure)
    if failure.fault is Fault.CONTEXT and not failure.message:
        said["error"] |= {"message": _CONTEXT, "param": "input"}
    return said


def frames(reply: Reply, request: WireRequest) -> Iterator[bytes | Control]:
    return _Stream(reply, request).frames()


class _Stream:
    def __init__(self, reply: Reply, request: WireRequest) -> None:
        self._reply = reply
        self._request = request
        self._numbers = count()
        self._output: list[dict[str, Any]] = []  #: items as they will stand in the finished response
        self._open = False

    def frames(self) -> Iterator[bytes | Control]:
        created = _envelope(self._reply, self._request, "in_progress", [])
        yield self._event("response.created", response=created)
        yield self._event("response.in_progress", response=created)
        if not (yield from streamed(self._reply, self._said, self._failed)):
            return
        yield from self._closed()
        final = _finished(self._reply, self._request, self._output)
        yield self._event(f"response.{final['status']}", response=final)

    def _event(self, name: str, /, **data: Any) -> bytes:
        return event(name, {"type": name, "sequence_number": next(self._numbers), **data})

    def _failed(self, failure: StreamError) -> bytes:
        wrong = error(failure)["error"]
        return self._event(
            "error", code=wrong["code"] or wrong["type"], message=wrong["message"], param=wrong["param"]
        )

    def _said(self, piece: Said) -> Iterator[bytes]:
        if not (self._open and _continues(self._output[-1], piece)):
            yield from self._closed()
            yield from self._opened(piece)
        yield from self._deltas(piece)

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}

    def _opened(self, piece: Said) -> Iterator[bytes]:
        self._output.append(_empty_item(piece, len(self._output), self._request))
        self._open = True
        item = {**self._output[-1]}
        part = _empty_part(piece)
        yield self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)
        match piece:
            case Text() | Refusal():
                self._output[-1]["content"] = [dict(part)]
                yield self._event("response.content_part.added", **self._place(), content_index=0, part=part)
            case Thinking():
                self._output[-1]["summary"] = [dict(part)]
                yield self._event(
                    "response.reasoning_summary_part.added", **self._place(), summary_index=0, part=part
                )
            case ToolCall():
                pass
            case _:
                assert_never(piece)

    def _deltas(self, piece: Said) -> Iterator[bytes]:
        item, place = self._output[-1], self._place()
        match piece:
            case Text(text):
                item["content"][0]["text"] += text
                yield self._event(
                    "response.output_text.delta", **place, content_index=0, delta=text, logprobs=[]
                )
            case Refusal(text):
                item["content"][0]["refusal"] += text
                yield self._event("response.refusal.delta", **place, content_index=0, delta=text)
            case Thinking(text, signature):
                item["summary"][0]["text"] += text
                item["encrypted_content"] = signature or item["encrypted_content"]
                yield self._event(
                    "response.reasoning_summary_text.delta", **place, summary_index=0, delta=text
                )
            case ToolCall(_, arguments):
                for part in arguments:
                    item["arguments"] += part
                    yield self._event("response.function_call_arguments.delta", **place, delta=part)
            case _:
                assert_never(piece)

    def _closed(self) -> Iterator[bytes]:
        if not self._open:
            return
        self._open = False
        item, place = self._output[-1], self._place()
        match item["type"]:
            case "message":
                part = item["content"][0]
                if part["type"] == "refusal":
                    yield self._event(
                        "response.refusal.done", **place, content_index=0, refusal=part["refusal"]
                    )
                else:
                    yield self._event(
                        "response.output_text.done", **place, content_index=0, text=part["text"], logprobs=[]
                    )
                yield self._event("response.content_part.done", **place, content_index=0, part=part)
            case "reasoning":
                part = item["summary"][0]
                yield self._event(
                    "response.reasoning_summary_text.done", **place, summary_index=0, text=part["text"]
                )
                yield self._event("response.reasoning_summary_part.done", **place, summary_index=0, part=part)
            case _:
                yield self._event(
                    "response.function_call_arguments.done",
                    **place,
                    name=item["name"],
                    arguments=item["arguments"],
                )
        item["status"] = "completed"
        yield self._event("response.output_item.done", output_index=place["output_index"], item=item)


def _continues(item: dict[str, Any], piece: Said) -> bool:
    match piece:
        case Text() | Refusal():
            kind = item["content"][0]["type"] if item["type"] == "message" else None
            return bool(kind == _empty_part(piece)["type"])
        case Thinking():
            return bool(item["type"] == "reasoning")
        case ToolCall():
            return False
        case _:
            assert_never(piece)


def _empty_item(piece: Said, index: int, request: WireRequest) -> dict[str, Any]:
    name = f"{request.ordinal}_{index}"
    match piece:
        case Text() | Refusal():
            return {
                "id": f"msg_{name}",
                "type": "message",
                "role": "assistant",
                "status": "in_progress",
                "content": [],
            }
        case Thinking():
            return {"id": f"rs_{name}", "type": "reasoning", "summary": [], "encrypted_content": None}
        case ToolCall():
            called = f"call_{name}" if piece.id is None else piece.id
            item = {"id": f"fc_{name}", "type": "function_call", "status": "in_progress", "call_id": called}
            return {**item, "name": piece.name, "arguments": ""}
        case _:
            assert_never(piece)


def _empty_part(piece: Said) -> dict[str, Any]:
    match piece:
        case Text():
            return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        case Refusal():
            return {"type": "refusal", "refusal": ""}
        case Thinking():
            return {"type": "summary_text", "text": ""}
        case ToolCall():
            return {}
        case _:
            assert_never(piece)


def _envelope(
    reply: Reply, request: WireRequest, status: str, output: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "id": f"resp_{request.ordinal}",
        "object": "response",
        "created_at": 1767225600,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": reply.model or request.model,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }


def _finished(reply: Reply, request: WireRequest, output: list[dict[str, Any]]) -> dict[str, Any]:
    reason = _INCOMPLETE.get(reply.stops)
    response = _envelope(reply, request, "incomplete" if reason else "completed", output)
    response["incomplete_details"] = {"reason": reason} if reason else None
    response["usage"] = _usage(reply.usage) if reply.usage is not None else None
    return response


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input + usage.output,
    }


def whole(reply: Reply, request: WireRequest) -> dict[str, Any]:
    """The items are those a stream would have built up."""
    stream = _Stream(Reply(reply.said, reply.usage, reply.stops, reply.model), request)
    for _ in stream.frames():
        pass
    return _finished(reply, request, stream._output)
