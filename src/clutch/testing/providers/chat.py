"""OpenAI chat completions, also spoken by vLLM, Ollama, LM Studio and proxies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, assert_never

from clutch.core.messages import Usage
from clutch.testing.providers.script import (
    Control,
    Cut,
    Failure,
    Fault,
    Gate,
    Pause,
    Raw,
    Refusal,
    Reply,
    Silence,
    StreamError,
    Text,
    Thinking,
    ToolCall,
    WireRequest,
)
from clutch.testing.providers.wire import encode

_FINISH = {
    "end": "stop",
    "tools": "tool_calls",
    "length": "length",
    "filter": "content_filter",
    "refusal": "stop",
}

#: type, code, message
ERRORS: Mapping[Fault, tuple[str, str | None, str]] = {
    Fault.BAD_REQUEST: (
        "invalid_request_error",
        "invalid_value",
        "Invalid value for 'tools[0].function.name'",
    ),
    Fault.AUTH: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided: sk-x"),
    Fault.FORBIDDEN: (
        "invalid_request_error",
        "unsupported_country_region_territory",
        "Country not supported",
    ),
    Fault.NOT_FOUND: ("invalid_request_error", "model_not_found", "The model `gpt-0` does not exist"),
    Fault.CONTEXT: (
        "invalid_request_error",
        "context_length_exceeded",
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 130512 tokens. "
        "Please reduce the length of the messages.",
    ),
    Fault.TOO_LARGE: ("invalid_request_error", "request_too_large", "Request body is too large"),
    Fault.RATE_LIMIT: ("requests", "rate_limit_exceeded", "Rate limit reached for gpt-x on requests per min"),
    Fault.SERVER: ("server_error", None, "The server had an error while processing your request"),
    Fault.UNAVAILABLE: ("server_error", "service_unavailable", "That model is currently overloaded"),
    Fault.OVERLOADED: ("server_error", "overloaded", "The engine is currently overloaded"),
}


def error(failure: Failure | StreamError) -> dict[str, Any]:
    kind, code, wording = ERRORS[failure.fault]
    return {"error": {"message": failure.message or wording, "type": kind, "param": None, "code": code}}


def frames(reply: Reply, request: WireRequest) -> Iterator[bytes | Control]:
    """By hand and from templates: this path carries the benchmarks."""
    model = encode(reply.model or request.model)
    head = (
        f'data: {{"id":"chatcmpl-{request.ordinal}","object":"chat.completion.chunk","created":1767225600,'
        f'"model":{model},"choices":['
    )
    open_choice, close_choice = f'{head}{{"index":0,"delta":', ',"finish_reason":null}]}\n\n'
    yield f'{open_choice}{{"role":"assistant","content":""}}{close_choice}'.encode()
    calls = 0
    for piece in reply.pieces:
        match piece:
            case Text(text):
                yield f'{open_choice}{{"content":{encode(text)}}}{close_choice}'.encode()
            case Thinking(text):
                yield f'{open_choice}{{"reasoning_content":{encode(text)}}}{close_choice}'.encode()
            case Refusal(text):
                yield f'{open_choice}{{"refusal":{encode(text)}}}{close_choice}'.encode()
            case ToolCall():
                for delta in _call_deltas(piece, calls, request):
                    yield f'{open_choice}{{"tool_calls":[{delta}]}}{close_choice}'.encode()
                calls += 1
            case StreamError():
                yield f"data: {encode(error(piece))}\n\n".encode()
                return
            case Raw(data):
                yield data
            case Pause() | Gate() | Silence():
                yield piece
            case Cut():
                yield piece
                return
            case _:
                assert_never(piece)
    finish = f'{open_choice}{{}},"finish_reason":"{_FINISH[reply.stops]}"}}]}}\n\n'
    yield (finish + _trailer(head, reply, request)).encode()


def _trailer(head: str, reply: Reply, request: WireRequest) -> str:
    """Comes in one packet with the end, as it mostly does."""
    wants_usage = (request.body.get("stream_options") or {}).get("include_usage")
    if reply.usage is None or not wants_usage:
        return "data: [DONE]\n\n"
    return f'{head}],"usage":{encode(_usage(reply.usage))}}}\n\ndata: [DONE]\n\n'


def _call_deltas(call: ToolCall, index: int, request: WireRequest) -> Iterator[str]:
    made_up = _call_id(call, index, request)
    yield (
        f'{{"index":{index},"id":{encode(made_up)},"type":"function",'
        f'"function":{{"name":{encode(call.name)},"arguments":""}}}}'
    )
    for part in call.arguments:
        yield f'{{"index":{index},"function":{{"arguments":{encode(part)}}}}}'


def _call_id(call: ToolCall, index: int, request: WireRequest) -> str:
    return f"call_{request.ordinal}_{index}" if call.id is None else call.id


def _usage(usage: Usage) -> dict[str, Any]:
    details = {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write}
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": details,
    }


def whole(reply: Reply, request: WireRequest) -> dict[str, Any]:
    said = reply.said
    calls = [piece for piece in said if isinstance(piece, ToolCall)]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(piece.text for piece in said if isinstance(piece, Text)) or None,
        "reasoning_content": "".join(piece.text for piece in said if isinstance(piece, Thinking)) or None,
        "refusal": "".join(piece.text for piece in said if isinstance(piece, Refusal)) or None,
    }
    if calls:
        message["tool_calls"] = [
            {
                "id": _call_id(call, index, request),
                "type": "function",
                "function": {"name": call.name, "arguments": "".join(call.arguments)},
            }
            for index, call in enumerate(calls)
        ]
    return {
        "id": f"chatcmpl-{request.ordinal}",
        "object": "chat.completion",
        "created": 1767225600,
        "model": reply.model or request.model,
        "choices": [{"index": 0, "message": message, "finish_reason": _FINISH[reply.stops]}],
        "usage": _usage(reply.usage) if reply.usage is not None else None,
    }
