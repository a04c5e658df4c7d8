"""Which names mean the same model."""

from __future__ import annotations

import pytest

from clutch.models.provider import ModelName, parse, same_model


@pytest.mark.parametrize(
    ("requested", "effective"),
    [
        ("gpt-x", "gpt-x"),
        ("gpt-x", "gpt-x-2026-01-01"),
        ("claude-x", "claude-x-20260101"),
        ("claude-x-latest", "claude-x-20260101"),
        ("gpt-x", "gpt-x-0613"),
        ("mistral-x-latest", "mistral-x-2407"),
        ("gemini-x", "models/gemini-x-002"),
        ("qwen", "qwen:latest"),
        ("qwen:latest", "qwen"),
        ("Org/Model", "org/model"),
    ],
)
def test_a_snapshot_is_the_model_that_was_asked_for(requested: str, effective: str) -> None:
    assert same_model(requested, effective)


@pytest.mark.parametrize(
    ("requested", "effective"),
    [
        ("gpt-x", "gpt-x-mini"),
        ("gpt-x", "gpt-x-mini-2026-01-01"),
        ("gpt-x-mini", "gpt-x"),
        ("gpt-4", "gpt-4-32k"),
        ("gpt-x-2026-01-01", "gpt-x-2026-02-02"),
        ("gpt-x-2026-01-01", "gpt-x"),
        ("llama-3", "llama-3-70"),
        ("qwen:8b", "qwen:1b"),
        ("qwen:8b", "qwen:latest"),
        ("a/model", "b/model"),
        ("claude-x", ""),
    ],
)
def test_anything_else_is_another_model(requested: str, effective: str) -> None:
    assert not same_model(requested, effective)


def test_only_the_first_colon_divides() -> None:
    assert parse("ollama:qwen3:8b") == ModelName("ollama", "qwen3:8b")
    assert parse("offline") == ModelName("", "offline")
