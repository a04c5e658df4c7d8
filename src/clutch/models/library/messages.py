"""One streamed request through the library. Importing this imports the model library."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, assert_never

import aiohttp
import httpx2
from pydantic_ai import exceptions as library_errors
from pydantic_ai import messages as library
from pydantic_ai.direct import model_request_stream
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.profiles import ModelProfile, merge_profile
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.settings import ModelSettings, ThinkingLevel
from pydantic_ai.tools import ToolDefinition

from clutch.core.messages import Answer, Call, Input, Message, Results, Thought, Usage
from clutch.core.model import Thinking
from clutch.models.library.clients import LibraryClient
from clutch.models.provider import (
    MESSAGE_MAX,
    Memo,
    Provider,
    check_depth,
    classify,
    converted,
    count,
    failure,
    too_deep,
)
from clutch.ports import Delta, DeltaKind, ModelError, ModelRequest, OnDelta, ToolSpec, Trouble

# --------------------------------------------------------------------------------------------------
# Our transcript as the library's messages, and its response as our answer.

LEVELS: Mapping[Thinking, ThinkingLevel] = {
    Thinking.OFF: False,
    Thinking.MINIMAL: "minimal",
    Thinking.LOW: "low",
    Thinking.MEDIUM: "medium",
    Thinking.HIGH: "high",
    Thinking.MAX: "max",
}
STOPS: Mapping[str, str] = {
    "stop": "end",
    "tool_call": "tools",
    "length": "length",
    "content_filter": "filter",
}
#: Their formats have a field for a tool that failed; for others the library would wrap the text.
MARK_FAILURE = frozenset({"anthropic", "bedrock"})
#: Where the library notes which field a thought came from; it means nothing to the provider.
FIELDS = frozenset({"content", "reasoning", "reasoning_content"})
ID_CHARS_MAX = 40  #: OpenAI's limit; other providers' own ids are shorter
ID_SIGNS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_SEPARATOR = "|"  # in no id and in no base64
NO_TEXT = "(no text)"  # providers refuse an assistant message without content


class LibraryMessages:
    """A transcript as the library's messages.

    Consecutive messages of one side become one: some providers require that the sides alternate."""

    def __init__(self, provider: Provider, model: Model[Any]) -> None:
        self._provider = provider
        self._model = model
        self._done: list[library.ModelMessage] = []
        self._asked: list[library.ModelRequestPart] = []
        self._ids = _Ids()

    def add(self, message: Message) -> None:
        match message:
            case Input(text):
                self._asked.append(library.UserPromptPart(text))
            case Results():
                marks_failure = self._provider.language in MARK_FAILURE
                self._asked.extend(_returned(message, self._ids.newest, marks_failure))
            case Answer():
                said = _said(message, self._provider, self._model, self._ids.for_calls(message.calls))
                if said:
                    if self._asked:
                        self._done.append(library.ModelRequest(self._asked))
                        self._asked = []
                    self._done.append(library.ModelResponse(said, provider_name=self._model.system))
            case _:
                assert_never(message)

    def all(self) -> list[library.ModelMessage]:
        return [*self._done, library.ModelRequest(list(self._asked))]


class _Ids:
    """Ids for tool calls: the provider's own where they can be sent and are unique, else made up."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self.newest: tuple[str, ...] = ()

    def for_calls(self, calls: Sequence[Call]) -> tuple[str, ...]:
        self.newest = tuple(self._unique(call.id) for call in calls)
        return self.newest

    def _unique(self, wanted: str) -> str:
        is_usable = (
            0 < len(wanted) <= ID_CHARS_MAX and ID_SIGNS.issuperset(wanted) and wanted not in self._seen
        )
        given = wanted if is_usable else f"call_{len(self._seen)}_made"
        self._seen.add(given)
        return given


class _ReturnedText(library.ToolReturnPart):
    """A result that is text and no more. The library looks for files in it each time that it is sent."""

    def model_response_str(self, *, wrap_if_error: bool = True) -> str:
        del wrap_if_error  # it is no error
        return str(self.content)

    def model_response_str_and_user_content(self, *, wrap_if_error: bool = True) -> tuple[str, list[Any]]:
        return self.model_response_str(wrap_if_error=wrap_if_error), []


def _returned(message: Results, ids: Sequence[str], marks_failure: bool) -> Iterator[library.ToolReturnPart]:
    for result in message.results:
        if result.failed and marks_failure:
            yield library.ToolReturnPart(result.name, result.text, ids[result.index], outcome="failed")
        else:
            yield _ReturnedText(result.name, result.text, ids[result.index])


def _said(
    answer: Answer, provider: Provider, model: Model[Any], ids: Sequence[str]
) -> list[library.ModelResponsePart]:
    parts: list[library.ModelResponsePart] = [
        _thought(thought, model.system)
        for thought in answer.thoughts
        if thought.signature and thought.provider == provider.name
    ]
    if answer.text:
        parts.append(library.TextPart(answer.text))
    elif not answer.calls:
        parts.append(library.TextPart(NO_TEXT))
    parts += [
        library.ToolCallPart(call.name, dict(call.args), call_id)
        for call, call_id in zip(answer.calls, ids, strict=True)
    ]
    return parts


def _thought(thought: Thought, system: str) -> library.ThinkingPart:
    part_id, separator, signature = thought.signature.rpartition(_SEPARATOR)
    return library.ThinkingPart(
        thought.text, id=part_id if separator else None, signature=signature, provider_name=system
    )


def parameters(request: ModelRequest, tools: list[ToolDefinition]) -> ModelRequestParameters:
    instructions = [library.InstructionPart(request.system)] if request.system else []
    return ModelRequestParameters(function_tools=tools, instruction_parts=instructions)


def tool_maker(model: Model[Any]) -> Callable[[ToolSpec], ToolDefinition]:
    """Return a function that converts a tool to the schema dialect of this model."""

    def make(spec: ToolSpec) -> ToolDefinition:
        plain = ToolDefinition(
            name=spec.name,
            description=spec.description,
            parameters_json_schema=dict(spec.parameters),
            strict=False,
        )
        shaped = model.customize_request_parameters(ModelRequestParameters(function_tools=[plain]))
        return shaped.function_tools[0]

    return make


def settings(request: ModelRequest, provider: Provider) -> ModelSettings:
    asked = ModelSettings(cache=True)
    if provider.language not in ("bedrock", "mistral"):  # their clients take none
        asked["extra_headers"] = {"Idempotency-Key": request.key}
    if request.output_tokens_max is not None:
        asked["max_tokens"] = request.output_tokens_max
    if request.thinking is not None:
        effort = provider.efforts.get(request.thinking)
        if effort is not None:
            asked["openai_reasoning_effort"] = effort  # type: ignore[typeddict-unknown-key]
        else:
            asked["thinking"] = LEVELS[request.thinking]
    return asked


def answer(response: library.ModelResponse, provider: Provider) -> Answer:
    texts: list[str] = []
    calls: list[Call] = []
    thoughts: list[Thought] = []
    for part in response.parts:
        match part:
            case library.TextPart():
                texts.append(part.content)
            case library.ThinkingPart():
                thoughts.append(Thought(part.content, _signature(part), provider.name))
            case library.ToolCallPart():
                arguments = _arguments(part)
                if arguments is not None:
                    check_depth(part.tool_name, arguments)
                    calls.append(Call(part.tool_name, arguments, part.tool_call_id))
                elif response.finish_reason != "length":  # there it is the limit that cut them
                    raise _malformed(part)
            case _:
                pass  # built-in tools of the provider: none of them was requested
    stop, refusal = _stop(response, bool(calls))
    return Answer(
        text="".join(texts) or refusal,
        calls=tuple(calls),
        usage=_usage(response),
        model=response.model_name or "",
        stop=stop,
        thoughts=tuple(thoughts),
    )


def _signature(part: library.ThinkingPart) -> str:
    """Some providers look up a thought by its id as well, so both are kept."""
    if not part.signature:
        return ""
    return f"{part.id}{_SEPARATOR}{part.signature}" if part.id and part.id not in FIELDS else part.signature


def _arguments(part: library.ToolCallPart) -> dict[str, Any] | None:
    try:
        found: Any = json.loads(part.args or "{}") if isinstance(part.args, str | None) else part.args
    except ValueError:
        return None
    except RecursionError as error:
        raise too_deep(part.tool_name) from error
    return found if isinstance(found, dict) else None


def _malformed(part: library.ToolCallPart) -> ModelError:
    name, sent = part.tool_name[:64], str(part.args)[:200]
    text = f"the arguments for {name!r} are no JSON object: {sent!r}"
    return ModelError(Trouble.MALFORMED, text, is_begun=True)


def _stop(response: library.ModelResponse, has_calls: bool) -> tuple[str, str]:
    """Return why it stopped, and the text of a refusal where it is not part of the answer's text."""
    details = response.provider_details or {}
    raw, refusal = details.get("finish_reason"), details.get("refusal")
    if refusal or raw == "refusal":
        return "refusal", str(refusal or "")
    stop = STOPS.get(response.finish_reason or "", str(raw or "unknown"))
    return ("tools" if stop == "end" and has_calls else stop), ""


def _usage(response: library.ModelResponse) -> Usage:
    used = response.usage
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    return Usage(*[count(f"usage.{name}", getattr(used, name)) for name in names])


# --------------------------------------------------------------------------------------------------
# Exceptions of the library and of the clients below it, as our own failures.

#: First match decides; for errors without a status, of providers that do not speak HTTP or inside a stream.
_CATEGORIES: tuple[tuple[type[Exception], Trouble], ...] = (
    (library_errors.ModelContextWindowExceededError, Trouble.CONTEXT),
    (library_errors.ModelAuthenticationError, Trouble.AUTH),
    (library_errors.ModelQuotaExceededError, Trouble.AUTH),
    (library_errors.ModelRequestRejectedError, Trouble.BAD_REQUEST),
    (library_errors.ModelRateLimitError, Trouble.RATE_LIMIT),
    (library_errors.ModelUnavailableError, Trouble.OVERLOADED),
    (library_errors.ModelServerError, Trouble.OVERLOADED),
    (library_errors.ModelConnectionError, Trouble.NETWORK),
    (library_errors.UserError, Trouble.BAD_REQUEST),
    (httpx2.TransportError, Trouble.NETWORK),
    (OSError, Trouble.NETWORK),
)
_TIMEOUTS = (library_errors.ModelTimeoutError, httpx2.TimeoutException, TimeoutError)
#: The client reports any lost connection as one that could not be opened; these really could not.
_NEVER_OPENED = (aiohttp.ClientConnectorError, httpx2.ConnectError, ConnectionRefusedError)


def explained(error: Exception, provider: Provider, now: float) -> ModelError:
    if isinstance(error, ModelError):
        return error
    if isinstance(error, library_errors.ModelHTTPError):
        return _of_status(error, now)
    trouble = next((trouble for kind, trouble in _CATEGORIES if isinstance(error, kind)), None)
    if trouble is Trouble.NETWORK:
        return _of_network(error, provider)
    if isinstance(error, library_errors.ModelAPIError) and error.in_stream:
        trouble = classify(0, _wording(error))
    if type(error).__module__.startswith("botocore"):  # it raises before it asks: credentials, addresses
        trouble = Trouble.AUTH if "Credential" in type(error).__name__ else Trouble.BAD_REQUEST
    retry_after = getattr(error, "retry_after", None)
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return ModelError(
        trouble or Trouble.MALFORMED,
        (str(error) or said if trouble else f"the provider's answer is malformed: {said}")[:MESSAGE_MAX],
        None if retry_after is None else now + retry_after,
    )


def _of_status(error: library_errors.ModelHTTPError, now: float) -> ModelError:
    status = 0 if error.in_stream else error.status_code
    return failure(status, _wording(error), _message(error), error.headers or {}, now)


def _of_network(error: Exception, provider: Provider) -> ModelError:
    causes = list(_causes(error))
    is_sent = not any(isinstance(cause, _NEVER_OPENED) for cause in causes)
    if is_sent and any(isinstance(cause, _TIMEOUTS) for cause in causes) and not _is_lost(causes):
        return ModelError(
            Trouble.NETWORK, f"{provider.name} was silent for {provider.idle_s:g} s (idleTimeout)"
        )
    reason = str(causes[-1]) or type(causes[-1]).__name__
    return ModelError(Trouble.NETWORK, f"{provider.name}: {reason}"[:MESSAGE_MAX], is_sent=is_sent)


def _is_lost(causes: list[BaseException]) -> bool:
    """Whether the connection was lost, which the client reports as a timeout, too."""
    lost = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)
    return any(isinstance(cause, lost) for cause in causes)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _wording(error: library_errors.ModelAPIError) -> str:
    return f"{error.provider_error_code or ''} {error.provider_error_type or ''} {error.body}"


def _message(error: library_errors.ModelHTTPError) -> str:
    """Return the provider's own sentence without the objects around it."""
    body: Any = error.body
    while isinstance(body, dict) and isinstance(body.get("error"), dict):
        body = body["error"]
    said = body.get("message") if isinstance(body, dict) else body
    hint = f"; did you mean {error.suggested_model_id!r}?" if error.suggested_model_id else ""
    return f"{said or 'no message'}{hint}"


TOOLS_KEPT_MAX = 1024


class Asker:
    """One model of one provider."""

    def __init__(self, provider: Provider, client: LibraryClient, name: str) -> None:
        self._provider = provider
        self._model = client.model(name, profile=_as_asked)
        self._tools = Memo(tool_maker(client.model(name, profile=None)), kept_max=TOOLS_KEPT_MAX)

    async def ask(self, request: ModelRequest, on_delta: OnDelta, now: Callable[[], float]) -> Answer:
        sent = converted(request, self, lambda: LibraryMessages(self._provider, self._model)).all()
        asked = parameters(request, [self._tools(spec) for spec in request.tools])
        allowed = settings(request, self._provider)
        watching = _Watching(on_delta)
        try:
            response = await self._streamed(sent, asked, allowed, watching)
            reason = (response.provider_details or {}).get("finish_reason")
            if response.state != "complete" or (response.finish_reason is None and reason is None):
                raise ModelError(Trouble.MALFORMED, "the answer ended without saying why")
            return answer(response, self._provider)
        except Exception as error:  # foreign code; whatever breaks in it is a call that failed
            failure = explained(error, self._provider, now())
            failure.is_begun = watching.is_begun
            raise failure from error

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
    """Tools are converted once, not for each request. A stream that ends without a finish reason was cut."""
    return merge_profile(
        profile,
        OpenAIModelProfile(json_schema_transformer=None, openai_chat_streaming_requires_finish_reason=True),
    )


class _Watching:
    """Events of the library as deltas. The first piece of a part comes with its start."""

    def __init__(self, on_delta: OnDelta) -> None:
        self.is_begun = False  #: the library opens a stream when its first event has come
        self._on_delta = on_delta
        self._calls: dict[int, int] = {}  # index of a part -> which call it is

    def see(self, event: library.ModelResponseStreamEvent) -> None:
        match event:
            case library.PartDeltaEvent(delta=library.TextPartDelta(content_delta=text)):
                self._pass(DeltaKind.TEXT, text)
            case library.PartDeltaEvent(delta=library.ThinkingPartDelta(content_delta=thought)):
                self._pass(DeltaKind.THINKING, thought or "")
            case library.PartDeltaEvent(index=index, delta=library.ToolCallPartDelta(args_delta=args)):
                self._pass(DeltaKind.CALL, _text(args), self._calls.get(index, 0))
            case library.PartStartEvent(part=library.TextPart(content=text)):
                self._pass(DeltaKind.TEXT, text)
            case library.PartStartEvent(part=library.ThinkingPart(content=text)):
                self._pass(DeltaKind.THINKING, text)
            case library.PartStartEvent(index=index, part=library.ToolCallPart(tool_name=name, args=args)):
                call = self._calls[index] = len(self._calls)
                self._pass(DeltaKind.CALL, name, call)
                self._pass(DeltaKind.CALL, _text(args), call)
            case _:
                pass

    def _pass(self, kind: DeltaKind, text: str, call: int = 0) -> None:
        if text:
            self._on_delta(Delta(kind, text, call))


def _text(args: object) -> str:
    return args if isinstance(args, str) else json.dumps(args) if args else ""
