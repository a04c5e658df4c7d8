"""Prices of model calls and sizes of context windows. An unknown price is None and never 0.

The price list comes with the `genai-prices` package and is read at the first question about a provider that is on
it. Reading takes a third of a second, so it belongs into a thread: `await asyncio.to_thread(preload)`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, assert_never

from clutch.core.messages import Answer, Input, Message, Results, Usage
from clutch.models.provider import Memo, converted, parse
from clutch.ports import ModelRequest, ToolSpec

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, Provider

OUTPUT_TOKENS = (
    4096  #: reserved for an answer without a length limit; the real count is booked after the call
)
BYTES_PER_TOKEN = 4
#: Providers on the list, by the list's own names. The list also accepts any name that resembles one of them: it would
#: charge an endpoint of the user's own like the provider it is called after.
# fmt: off
LISTED = frozenset((
    "anthropic", "avian", "aws", "azure", "cerebras", "cohere", "deepseek", "fireworks", "google", "groq", "meta",
    "minimax", "mistral", "moonshotai", "novita", "openai", "openrouter", "ovhcloud", "perplexity", "together", "x-ai",
    "zai", "zhipuai",
))
# fmt: on
#: Our name of a provider -> the price list's, where they differ.
LISTED_AS: Mapping[str, str] = {"bedrock": "aws", "openai-chat": "openai", "openai-responses": "openai"}
NO_WINDOWS: Mapping[str, int] = MappingProxyType({})


def preload() -> None:
    """Reads the price list."""
    from genai_prices.data_snapshot import get_snapshot

    get_snapshot()


def price(model: str, usage: Usage) -> Decimal | None:
    """Return the dollars for one call of `provider:model`, None where the list lacks the model or one of its prices."""
    found = _find(model)
    if found is None:
        return None
    provider, info = found
    from genai_prices import calc_price
    from genai_prices import types as listed

    priced = listed.Usage(
        input_tokens=usage.input,
        output_tokens=usage.output,
        cache_read_tokens=usage.cache_read,
        cache_write_tokens=usage.cache_write,
    )
    try:
        cost = calc_price(priced, info.id, provider_id=provider.id)
    except (LookupError, ValueError):
        return None
    is_listed = cost.model_price.input_mtok is not None and cost.model_price.output_mtok is not None
    return cost.total_price if is_listed else None


def context_window(model: str) -> int | None:
    found = _find(model)
    return None if found is None else found[1].context_window


def offers(language: str, model: str) -> bool:
    """Whether the list has this model of the provider."""
    return _find(f"{language}:{model}") is not None


def tokens(request: ModelRequest) -> int:
    """Estimate the tokens of a request: four bytes a token."""
    around = _bytes(request.system) + sum(map(_tool_size, request.tools))
    return (around + converted(request, _Size, _Size).bytes) // BYTES_PER_TOKEN


def estimate(request: ModelRequest) -> int:
    """Return the tokens to reserve before a call: those of the request, and those of the answer."""
    return tokens(request) + (request.output_tokens_max or OUTPUT_TOKENS)


class ListedPrices:
    """The price list as the engine uses it. `windows`: context windows by provider, in place of those of the list."""

    def __init__(self, windows: Mapping[str, int] = NO_WINDOWS) -> None:
        self._windows = windows

    def cost(self, model: str, usage: Usage) -> Decimal | None:
        return price(model, usage)

    def tokens(self, request: ModelRequest) -> int:
        return tokens(request)

    def window(self, model: str) -> int | None:
        return self._windows.get(parse(model).provider) or context_window(model)


@lru_cache(maxsize=512)
def _find(model: str) -> tuple[Provider, ModelInfo] | None:
    name = parse(model)
    listed_as = LISTED_AS.get(name.provider, name.provider)
    if listed_as not in LISTED:
        return None  # before the list is read: the demo model is asked for most often
    from genai_prices.data_snapshot import get_snapshot

    try:
        return get_snapshot().find_provider_model(name.model, None, listed_as, None)
    except LookupError:
        return None


def _measured(spec: ToolSpec) -> int:
    return _bytes(spec.name) + _bytes(spec.description) + len(json.dumps(dict(spec.parameters)))


_tool_size: Memo[ToolSpec, int] = Memo(_measured, kept_max=1024)


class _Size:
    """The size of a transcript."""

    def __init__(self) -> None:
        self.bytes = 0

    def add(self, message: Message) -> None:
        self.bytes += _size(message)


def _size(message: Message) -> int:
    match message:
        case Input(text):
            return _bytes(text)
        case Answer(text, calls, thoughts=thoughts):
            called = sum(len(call.name) + len(json.dumps(dict(call.args))) for call in calls)
            return _bytes(text) + called + sum(_bytes(thought.text) for thought in thoughts)
        case Results(results):
            return sum(_bytes(result.text) for result in results)
        case _:
            assert_never(message)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
