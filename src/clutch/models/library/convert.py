"""Our transcript to the library's messages and back. Importing this imports the model library."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, assert_never

from pydantic_ai import messages as library
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings, ThinkingLevel
from pydantic_ai.tools import ToolDefinition

from clutch.core.messages import Answer, Call, Input, Results, Thought, Transcript, Usage
from clutch.core.model import Thinking
from clutch.models.settings import Provider
from clutch.ports import ModelError, ModelRequest, ToolSpec, Trouble

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
#: Their formats have a place to say that a tool failed; elsewhere the library would wrap the text.
TELL_FAILURE = frozenset({"anthropic", "bedrock"})
#: Where the library notes which field a thought came from; it means nothing to the provider.
FIELDS = frozenset({"content", "reasoning", "reasoning_content"})
ID_CHARS_MAX = 40  #: OpenAI's limit; other providers' own ids are shorter
ID_SIGNS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_SEPARATOR = "|"  # in no id and in no base64


# --- there ------------------------------------------------------------------------------------------------


def messages(transcript: Transcript, provider: Provider, model: Model[Any]) -> list[library.ModelMessage]:
    """What follows each other on one side is one message: some providers insist on taking turns."""
    sent: list[library.ModelMessage] = []
    asked: list[library.ModelRequestPart] = []
    ids = _Ids()
    for message in transcript:
        match message:
            case Input(text):
                asked.append(library.UserPromptPart(text))
            case Results():
                asked.extend(_returned(message, ids.newest, provider.language in TELL_FAILURE))
            case Answer():
                said = _said(message, provider, model, ids.for_calls(message.calls))
                if said:
                    if asked:
                        sent.append(library.ModelRequest(asked))
                        asked = []
                    sent.append(library.ModelResponse(said, provider_name=model.system))
            case _:
                assert_never(message)
    sent.append(library.ModelRequest(asked))
    return sent


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


def _returned(message: Results, ids: Sequence[str], tells: bool) -> Iterator[library.ToolReturnPart]:
    for result in message.results:
        outcome: Literal["failed", "success"] = "failed" if result.failed and tells else "success"
        yield library.ToolReturnPart(result.name, result.text, ids[result.index], outcome=outcome)


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
    """Puts a tool into the shape this model wants."""

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


# --- and back ---------------------------------------------------------------------------------------------


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
                    calls.append(Call(part.tool_name, arguments, part.tool_call_id))
                elif response.finish_reason != "length":  # there it is the limit that cut them
                    raise _malformed(part)
            case _:
                pass  # what a provider did on its own: nothing of it was asked for
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
    """Some providers find a thought again by its id as well, so both are kept."""
    if not part.signature:
        return ""
    return f"{part.id}{_SEPARATOR}{part.signature}" if part.id and part.id not in FIELDS else part.signature


def _arguments(part: library.ToolCallPart) -> dict[str, Any] | None:
    try:
        found: Any = json.loads(part.args or "{}") if isinstance(part.args, str | None) else part.args
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _malformed(part: library.ToolCallPart) -> ModelError:
    name, sent = part.tool_name[:64], str(part.args)[:200]
    text = f"the arguments for {name!r} are no JSON object: {sent!r}"
    return ModelError(Trouble.MALFORMED, text, is_begun=True)


def _stop(response: library.ModelResponse, has_calls: bool) -> tuple[str, str]:
    """Why it stopped, and the words of a refusal where those come apart from the text."""
    details = response.provider_details or {}
    raw, refusal = details.get("finish_reason"), details.get("refusal")
    if refusal or raw == "refusal":
        return "refusal", str(refusal or "")
    stop = STOPS.get(response.finish_reason or "", str(raw or "unknown"))
    return ("tools" if stop == "end" and has_calls else stop), ""


def _usage(response: library.ModelResponse) -> Usage:
    used = response.usage
    return Usage(used.input_tokens, used.output_tokens, used.cache_read_tokens, used.cache_write_tokens)
