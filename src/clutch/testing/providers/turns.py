"""What a request says, in one form for all formats: who said what, which calls were made, what they gave."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from clutch.testing.providers.script import Format, WireRequest


@dataclass(frozen=True, slots=True)
class Turn:
    role: str  #: system | user | assistant | call | result
    text: str  #: of a call its arguments, of a result what it gave
    name: str = ""  #: of a called tool
    id: str = ""  #: by which a result finds its call
    thinking: str = ""


def turns(request: WireRequest) -> list[Turn]:
    match request.format:
        case Format.CHAT:
            return [turn for message in request.messages for turn in _chat(message)]
        case Format.RESPONSES:
            spoken = (
                [Turn("system", request.body["instructions"])] if request.body.get("instructions") else []
            )
            return [*spoken, *(turn for item in request.messages for turn in _response_item(item))]
        case Format.MESSAGES:
            spoken = [Turn("system", _text(request.body["system"]))] if request.body.get("system") else []
            return [*spoken, *(turn for message in request.messages for turn in _anthropic(message))]
        case _:
            assert_never(request.format)


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def _chat(message: Mapping[str, Any]) -> Iterator[Turn]:
    match message["role"]:
        case "tool":
            yield Turn("result", _text(message["content"]), id=message["tool_call_id"])
        case "assistant":
            text, thinking = _text(message.get("content")), message.get("reasoning_content") or ""
            if text or thinking:
                yield Turn("assistant", text, thinking=thinking)
            for call in message.get("tool_calls") or ():
                function = call["function"]
                yield Turn("call", function["arguments"], function["name"], call["id"])
        case "developer":
            yield Turn("system", _text(message["content"]))
        case role:
            yield Turn(role, _text(message["content"]))


def _response_item(item: Mapping[str, Any]) -> Iterator[Turn]:
    match item.get("type", "message"):
        case "function_call":
            yield Turn("call", item["arguments"], item["name"], item["call_id"])
        case "function_call_output":
            yield Turn("result", _text(item["output"]), id=item["call_id"])
        case "reasoning":
            yield Turn("assistant", "", thinking=_text(item["summary"]))
        case "message":
            role = "system" if item["role"] == "developer" else item["role"]
            yield Turn(role, _text(item["content"]))
        case other:
            raise ValueError(f"this server knows no item of type {other!r}")


def _anthropic(message: Mapping[str, Any]) -> Iterator[Turn]:
    content = message["content"]
    blocks: Iterable[Mapping[str, Any]] = (
        [{"type": "text", "text": content}] if isinstance(content, str) else content
    )
    for block in blocks:
        match block["type"]:
            case "text":
                yield Turn(message["role"], block["text"])
            case "thinking":
                yield Turn(message["role"], "", thinking=block["thinking"])
            case "tool_use":
                yield Turn("call", json.dumps(block["input"]), block["name"], block["id"])
            case "tool_result":
                yield Turn("result", _text(block.get("content")), id=block["tool_use_id"])
            case other:
                raise ValueError(f"this server knows no block of type {other!r}")
