"""OpenAI's client without the work that changes nothing. Importing this imports the client.

The client walks through every tool and message of a request to rename fields, though no field of these two requests has
another name, and builds every piece of a stream field by field: with ten tools, more than half of a call. Here a
request is sent as it is, and a piece is read by pydantic's own parser; pieces that it refuses take the client's way."""

from __future__ import annotations

from copy import copy
from functools import cache, cached_property
from typing import Any, cast, get_args

import pydantic
from openai import AsyncOpenAI, AsyncStream, NotGiven, Omit
from openai.resources.chat import AsyncChat, AsyncCompletions
from openai.resources.responses import AsyncResponses
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessageParam
from openai.types.responses import Response, ResponseStreamEvent
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.openai import OpenAIChatModel

_MAPPED = "_clutch_mapped"
_NOT_IN_BODY = ("extra_headers", "extra_body", "extra_query", "timeout")


class LeanOpenAI(AsyncOpenAI):
    @cached_property
    def chat(self) -> AsyncChat:
        return _Chat(self)

    @cached_property
    def responses(self) -> AsyncResponses:
        return _Responses(self)

    def _process_response_data(self, *, data: object, cast_to: Any, response: Any) -> Any:
        kind = _kind(data) if cast_to is ResponseStreamEvent else cast_to
        if kind is not None and isinstance(data, dict):
            try:
                return kind.model_validate(data)
            except pydantic.ValidationError:
                pass  # servers that only resemble OpenAI's leave fields out
        return super()._process_response_data(data=data, cast_to=cast_to, response=response)


class _Chat(AsyncChat):
    @cached_property
    def completions(self) -> AsyncCompletions:
        return _Completions(self._client)


class _Completions(AsyncCompletions):
    async def create(self, **asked: Any) -> Any:
        return await _post(
            self._client, "/chat/completions", asked, ChatCompletion, AsyncStream[ChatCompletionChunk]
        )


class _Responses(AsyncResponses):
    async def create(self, **asked: Any) -> Any:
        return await _post(self._client, "/responses", asked, Response, AsyncStream[ResponseStreamEvent])


async def _post(client: Any, path: str, asked: dict[str, Any], whole: Any, pieces: Any) -> Any:
    given = {name: value for name, value in asked.items() if not isinstance(value, Omit | NotGiven)}
    headers, more, query, timeout = (given.pop(name, None) for name in _NOT_IN_BODY)
    options = {"headers": headers, "extra_json": more, "params": query, "timeout": timeout}
    return await client.post(
        path,
        cast_to=whole,
        body=given,
        options={name: value for name, value in options.items() if value is not None},
        stream=bool(given.get("stream")),
        stream_cls=pieces,
    )


class LeanChatModel(OpenAIChatModel):
    """Maps an answer of a transcript once, not again for each request that shows it: Clutch keeps its messages."""

    def _map_model_response(self, message: ModelResponse) -> ChatCompletionMessageParam | None:
        kept = vars(message)
        if _MAPPED not in kept:
            kept[_MAPPED] = super()._map_model_response(message)
        # A copy: for some providers the library adds fields that depend on what follows.
        return cast("ChatCompletionMessageParam | None", copy(kept[_MAPPED]))


def _kind(data: object) -> type[pydantic.BaseModel] | None:
    return _kinds().get(str(data.get("type"))) if isinstance(data, dict) else None


@cache
def _kinds() -> dict[str, type[pydantic.BaseModel]]:
    """Which event each `type` stands for."""
    events = get_args(get_args(ResponseStreamEvent)[0])
    return {get_args(event.model_fields["type"].annotation)[0]: event for event in events}
