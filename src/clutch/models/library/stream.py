"""One streamed request through the library. Importing this imports the model library."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pydantic_ai import messages as library
from pydantic_ai.direct import model_request_stream
from pydantic_ai.profiles import ModelProfile, merge_profile
from pydantic_ai.profiles.openai import OpenAIModelProfile

from clutch.core.messages import Answer
from clutch.models.library.clients import Client
from clutch.models.library.convert import answer, messages, parameters, settings, tool_maker
from clutch.models.library.failures import explained
from clutch.models.memo import Memo
from clutch.models.settings import Provider
from clutch.ports import Delta, DeltaKind, ModelError, ModelRequest, OnDelta, Trouble

TOOLS_KEPT_MAX = 1024


class Asker:
    """One model of one provider."""

    def __init__(self, provider: Provider, client: Client, name: str) -> None:
        self._provider = provider
        self._model = client.model(name, _as_asked)
        self._tools = Memo(tool_maker(client.model(name, None)), kept_max=TOOLS_KEPT_MAX)

    async def ask(self, request: ModelRequest, on_delta: OnDelta, now: Callable[[], float]) -> Answer:
        sent = messages(request.transcript, self._provider, self._model)
        asked = parameters(request, [self._tools(spec) for spec in request.tools])
        allowed = settings(request, self._provider)
        watching = _Watching(on_delta)
        try:
            response = await self._streamed(sent, asked, allowed, watching)
        except Exception as error:  # foreign code; whatever breaks in it is a call that failed
            failure = explained(error, self._provider, now())
            failure.is_begun = watching.is_begun
            raise failure from error
        reason = (response.provider_details or {}).get("finish_reason")
        if response.state != "complete" or (response.finish_reason is None and reason is None):
            raise ModelError(Trouble.MALFORMED, "the answer ended without saying why", is_begun=True)
        return answer(response, self._provider)

    async def _streamed(
        self, sent: list[library.ModelMessage], asked: Any, allowed: Any, watching: _Watching
    ) -> library.ModelResponse:
        stream = model_request_stream(
            self._model, sent, model_settings=allowed, model_request_parameters=asked, instrument=False
        )
        async with stream as streamed:
            watching.is_begun = True
            async for event in streamed:
                watching.see(event)
            return streamed.get()


def _as_asked(profile: ModelProfile) -> ModelProfile:
    """Tools are put into shape once, not for each request. A stream that ends without saying why was cut."""
    return merge_profile(
        profile,
        OpenAIModelProfile(json_schema_transformer=None, openai_chat_streaming_requires_finish_reason=True),
    )


class _Watching:
    """Events of the library as deltas. The first piece of a part comes with its start."""

    def __init__(self, on_delta: OnDelta) -> None:
        self.is_begun = False  #: the library opens a stream when its first event has come
        self._tell = on_delta
        self._calls: dict[int, int] = {}  # index of a part -> which call it is

    def see(self, event: library.ModelResponseStreamEvent) -> None:
        match event:
            case library.PartStartEvent(index=index, part=part):
                self._started(index, part)
            case library.PartDeltaEvent(index=index, delta=delta):
                self._went_on(index, delta)
            case _:
                pass

    def _started(self, index: int, part: library.ModelResponsePart) -> None:
        match part:
            case library.TextPart(content=text):
                self._pass(DeltaKind.TEXT, text)
            case library.ThinkingPart(content=text):
                self._pass(DeltaKind.THINKING, text)
            case library.ToolCallPart(tool_name=name, args=args):
                call = self._calls[index] = len(self._calls)
                self._pass(DeltaKind.CALL, name, call)
                self._pass(DeltaKind.CALL, _text(args), call)
            case _:
                pass

    def _went_on(self, index: int, delta: library.ModelResponsePartDelta) -> None:
        match delta:
            case library.TextPartDelta(content_delta=text):
                self._pass(DeltaKind.TEXT, text)
            case library.ThinkingPartDelta(content_delta=text):
                self._pass(DeltaKind.THINKING, text or "")
            case library.ToolCallPartDelta(args_delta=args):
                self._pass(DeltaKind.CALL, _text(args), self._calls.get(index, 0))
            case _:
                pass

    def _pass(self, kind: DeltaKind, text: str, call: int = 0) -> None:
        if text:
            self._tell(Delta(kind, text, call))


def _text(args: object) -> str:
    return args if isinstance(args, str) else json.dumps(args) if args else ""
