"""Prices: what is known is charged, what is not known is never free."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal

import pytest

from clutch.core.messages import Answer, Call, Input, Result, Results, Usage
from clutch.models.prices import (
    LISTED,
    LISTED_AS,
    OUTPUT_TOKENS,
    ListedPrices,
    context_window,
    estimate,
    price,
    tokens,
)
from clutch.models.provider import WELL_KNOWN
from clutch.ports import ModelRequest, Prices, ToolSpec

USED = Usage(input=1_000_000, output=100_000)
TOOL = ToolSpec("read", "Reads a file.", {"type": "object"})
PRICES: Prices = ListedPrices()


def request(**changes: object) -> ModelRequest:
    known: dict[str, object] = {"model": "m", "system": "", "transcript": (), "tools": (), "key": "k"}
    return ModelRequest(**{**known, **changes})  # type: ignore[arg-type]


def test_a_known_model_has_its_price_whatever_door_it_is_asked_through() -> None:
    cost = price("openai:gpt-4o", USED)
    assert cost is not None
    assert cost > 0
    assert price("openai-chat:gpt-4o", USED) == price("openai-responses:gpt-4o", USED) == cost
    assert PRICES.cost("openai:gpt-4o", USED) == cost


def test_the_price_is_exact_and_reading_a_cache_costs_less() -> None:
    plain = price("anthropic:claude-sonnet-4-5", Usage(1000, 0))
    cached = price("anthropic:claude-sonnet-4-5", Usage(1000, 0, cache_read=1000))
    assert isinstance(plain, Decimal)
    assert plain == Decimal("0.003")
    assert cached == Decimal("0.0003")
    written = price("anthropic:claude-sonnet-4-5", Usage(1000, 0, cache_write=1000))
    assert written is not None
    assert written > plain


@pytest.mark.parametrize(
    "model",
    [
        "openai:gpt-0-nobody",
        "ollama:llama3",
        "my-proxy:gpt-4o",
        "my-openai:gpt-4o",
        "offline",
        "gpt-4o",
        "openai:",
        ":x",
        "",
    ],
)
def test_a_price_that_nobody_knows_is_none_and_never_zero(model: str) -> None:
    assert price(model, USED) is None
    assert context_window(model) is None


def test_a_model_without_a_price_for_words_has_none() -> None:
    """Such as those that are paid by the minute of speech."""
    assert price("groq:whisper-large-v3", USED) is None


def test_the_context_window_is_told_where_it_is_known() -> None:
    window = context_window("anthropic:claude-sonnet-4-5")
    assert window is not None
    assert window >= 100_000


def test_the_context_window_of_the_settings_goes_before_the_list() -> None:
    prices = ListedPrices({"lab": 8000, "anthropic": 9000})
    assert prices.window("lab:qwen3:8b") == 8000
    assert prices.window("anthropic:claude-sonnet-4-5") == 9000
    assert prices.window("openai:gpt-4o") == context_window("openai:gpt-4o")
    assert prices.window("offline") is None


def test_every_well_known_provider_that_charges_is_on_the_list() -> None:
    from genai_prices.data_snapshot import get_snapshot

    assert {provider.id for provider in get_snapshot().providers} >= LISTED
    assert {LISTED_AS.get(name, name) for name in WELL_KNOWN if name != "ollama"} <= LISTED


def test_an_estimate_counts_everything_that_is_sent_and_room_for_the_answer() -> None:
    answer = Answer("b" * 400, (Call("read", {"path": "c" * 400}),))
    parts = (Input("a" * 400), answer, Results((Result(0, "read", "d" * 400),)))
    empty = request()
    assert tokens(empty) == 0
    assert estimate(empty) == OUTPUT_TOKENS
    assert estimate(request(output_tokens_max=7)) == 7
    assert 400 <= tokens(request(transcript=parts)) <= 420
    assert tokens(request(system="e" * 400)) == 100
    assert 0 < tokens(request(tools=[TOOL])) < 20
    assert PRICES.tokens(request(system="e" * 400)) == 100


def test_letters_of_several_bytes_count_as_several() -> None:
    assert tokens(request(system="日" * 400)) == 300
    assert tokens(request(system="\ud800" * 400)) > 0


def test_the_price_list_is_read_only_for_a_provider_that_is_on_it() -> None:
    code = (
        "import sys, clutch.models.rate_limiter\n"
        "from clutch.models.prices import ListedPrices, Usage\n"
        "for model in ('offline', 'gpt-4o', 'lab:qwen3:8b', 'openai:gpt-4o'):\n"
        "    ListedPrices().cost(model, Usage(1, 1)), ListedPrices().window(model)\n"
        "    print('genai_prices' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert said.stdout.split() == ["False", "False", "False", "True"]
