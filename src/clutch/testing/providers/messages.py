"""Anthropic messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, assert_never

from clutch.core.messages import Usage
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

#: What other providers call a content filter is a refusal here.
_STOP = {
    "end": "end_turn",
    "tools": "tool_use",
    "length": "max_tokens",
    "filter": "refusal",
    "refusal": "refusal",
}

ERRORS: Mapping[Fault, tuple[str, str]] = {
    Fault.BAD_REQUEST: ("invalid_request_error", "messages.0.content: Field required"),
    Fault.AUTH: ("authentication_error", "invalid x-api-key"),
    Fault.FORBIDDEN: (
        "permission_error",
        "Your API key does not have permission to use the specified resource",
    ),
    Fault.NOT_FOUND: ("not_found_error", "model: claude-0"),
    Fault.CONTEXT: ("invalid_request_error", "prompt is too long: 210512 tokens > 200000 maximum"),
    Fault.TOO_LARGE: ("request_too_large", "Request exceeds the maximum size"),
    Fault.RATE_LIMIT: ("rate_limit_error", "This request would exceed your organization's rate limit"),
    Fault.SERVER: ("api_error", "Internal server error"),
    Fault.UNAVAILABLE: ("api_error", "Service unavailable"),
    Fault.OVERLOADED: ("overloaded_error", "Overloaded"),
}


def error(failure: Failure | StreamError) -> dict[str, Any]:
    kind, wording = ERRORS[failure.fault]
    return {"type": "error", "error": {"type": kind, "message": failure.message or wording}}


def frames(reply: Reply, request: WireRequest) -> Iterator[bytes | Control]:
    """Pieces of the same kind share a block, as long as nothing else comes between them."""
    usage = reply.usage or Usage()
    start = {**_envelope(reply, request), "content": [], "usage": {**_usage(usage), "output_tokens": 1}}
    yield event("message_start", {"type": "message_start", "message": start})
    yield event("ping", {"type": "ping"})
    index, open_kind = -1, ""

    def say(piece: Said) -> Iterator[bytes]:
        nonlocal index, open_kind
        kind = _block_kind(piece)
        if kind != open_kind or isinstance(piece, ToolCall):
            yield from _closed(index, open_kind)
            index, open_kind = index + 1, kind
            yield _opened(piece, index, request)
        yield from _deltas(piece, index)

    if not (yield from streamed(reply, say, lambda failure: event("error", error(failure)))):
        return
    yield from _closed(index, open_kind)
    delta = {"stop_reason": _STOP[reply.stops], "stop_sequence": None}
    yield event("message_delta", {"type": "message_delta", "delta": delta, "usage": _usage(usage)})
    yield event("message_stop", {"type": "message_stop"})


def _envelope(reply: Reply, request: WireRequest) -> dict[str, Any]:
    return {
        "id": f"msg_{request.ordinal}",
        "type": "message",
        "role": "assistant",
        "model": reply.model or request.model,
        "stop_reason": None,
        "stop_sequence": None,
    }


def _usage(usage: Usage) -> dict[str, int]:
    """Anthropic counts cached tokens beside the input, we count them as part of it."""
    return {
        "input_tokens": usage.input - usage.cache_read - usage.cache_write,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output,
    }


def _block_kind(piece: Said) -> str:
    match piece:
        case Text() | Refusal():
            return "text"
        case Thinking():
            return "thinking"
        case ToolCall():
            return "tool_use"
        case _:
            assert_never(piece)


def _opened(piece: Said, index: int, request: WireRequest) -> bytes:
    block: dict[str, Any]
    match piece:
        case Text() | Refusal():
            block = {"type": "text", "text": ""}
        case Thinking():
            block = {"type": "thinking", "thinking": "", "signature": ""}
        case ToolCall():
            made_up = f"toolu_{request.ordinal}_{index}" if piece.id is None else piece.id
            block = {"type": "tool_use", "id": made_up, "name": piece.name, "input": {}}
        case _:
            assert_never(piece)
    return event(
        "content_block_start", {"type": "content_block_start", "index": index, "content_block": block}
    )


def _deltas(piece: Said, index: int) -> Iterator[bytes]:
    match piece:
        case Text(text) | Refusal(text):
            yield _delta(index, {"type": "text_delta", "text": text})
        case Thinking(text, signature):
            yield _delta(index, {"type": "thinking_delta", "thinking": text})
            if signature:
                yield _delta(index, {"type": "signature_delta", "signature": signature})
        case ToolCall():
            for part in piece.arguments:
                yield _delta(index, {"type": "input_json_delta", "partial_json": part})
        case _:
            assert_never(piece)


def _delta(index: int, delta: dict[str, Any]) -> bytes:
    return event("content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta})


def _closed(index: int, open_kind: str) -> Iterator[bytes]:
    if open_kind:
        yield event("content_block_stop", {"type": "content_block_stop", "index": index})


def whole(reply: Reply, request: WireRequest) -> dict[str, Any]:
    blocks = [_block(piece, index, request) for index, piece in enumerate(reply.said)]
    answer = {**_envelope(reply, request), "content": blocks, "usage": _usage(reply.usage or Usage())}
    return {**answer, "stop_reason": _STOP[reply.stops]}


def _block(piece: Said, index: int, request: WireRequest) -> dict[str, Any]:
    match piece:
        case Text(text) | Refusal(text):
            return {"type": "text", "text": text}
        case Thinking(text, signature):
            return {"type": "thinking", "thinking": text, "signature": signature}
        case ToolCall():
            made_up = f"toolu_{request.ordinal}_{index}" if piece.id is None else piece.id
            arguments = json.loads("".join(piece.arguments) or "{}")
            return {"type": "tool_use", "id": made_up, "name": piece.name, "input": arguments}
        case _:
            assert_never(piece)
