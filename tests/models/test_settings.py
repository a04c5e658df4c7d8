"""Settings of a provider: what is wrong is said with the key, the rule and the remedy, and no secret is shown."""

from __future__ import annotations

import math
from typing import Any

import pytest

from clutch.errors import InvalidInput
from clutch.models.provider import AdapterKind, Provider


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"base_url": "llm.example.com/v1"}, "baseUrl"),
        ({"base_url": "ftp://llm.example.com"}, "baseUrl"),
        ({"base_url": "http://"}, "baseUrl"),
        ({"base_url": "http://host:99999/v1"}, "baseUrl"),
        ({"base_url": "http://host:0/v1"}, "baseUrl"),
        ({"base_url": "http://[::1/v1"}, "baseUrl"),
        ({"base_url": "http://host/v1 "}, "baseUrl"),
        ({"base_url": "http://host/v1\r\nX: y"}, "baseUrl"),
        ({"base_url": "http://höst/v1"}, "baseUrl"),
        ({"base_url": "http://me:hunter2@host/v1"}, "baseUrl"),
        ({"base_url": "http://host/v1?key=hunter2"}, "baseUrl"),
        ({"base_url": "http://host/v1#part"}, "baseUrl"),
        ({"base_url": "http://host/v1/chat/completions"}, "baseUrl"),
        ({"adapter": AdapterKind.DIRECT}, "baseUrl"),
        ({"api_key": "hunter2\n"}, "apiKey"),
        ({"api_key": "hunter2", "api_key_env": "KEY"}, "apiKey"),
        ({"api_key_env": "hunter2-is-no-name"}, "apiKeyEnv"),
        ({"headers": {"X-Team": "hunter2\r\nHost: evil"}}, "headers"),
        ({"headers": {"X Team": "a"}}, "headers"),
        ({"idle_timeout_s": 0}, "idleTimeout"),
        ({"idle_timeout_s": math.inf}, "idleTimeout"),
        ({"idle_timeout_s": math.nan}, "idleTimeout"),
        ({"concurrency_max": 0}, "concurrencyMax"),
        ({"tokens_per_minute": -1}, "tokensPerMinute"),
        ({"context_window": 0}, "contextWindow"),
    ],
)
def test_a_bad_setting_is_named_and_its_secret_is_not(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Provider("lab", **changes)
    assert caught.value.field == f"models.providers.lab.{field}"
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "Lab", "a:b", "lab\n", "x" * 65])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="no name"):
        Provider(name)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000/v1", "https://llm.example.com", "http://[::1]:11434/v1/"]
)
def test_usual_addresses_are_taken(url: str) -> None:
    assert Provider("lab", url).base_url == url


def test_a_missing_key_names_the_variable_to_set() -> None:
    with pytest.raises(InvalidInput, match="ANTHROPIC_API_KEY") as caught:
        Provider("anthropic").key({})
    assert caught.value.field == "models.providers.anthropic.apiKey"
    with pytest.raises(InvalidInput, match="LAB_KEY"):
        Provider("lab", "http://host/v1", api_key_env="LAB_KEY").key({"LAB_KEY": "  "})


def test_a_key_comes_from_the_settings_or_the_environment() -> None:
    assert Provider("openai", api_key="sk-1").key({"OPENAI_API_KEY": "sk-2"}) == "sk-1"
    assert Provider("openai").key({"OPENAI_API_KEY": "sk-2\n"}) == "sk-2"
    assert Provider("lab", "http://host/v1", api_key_env="LAB").key({"LAB": "sk-3"}) == "sk-3"
    with pytest.raises(InvalidInput, match="OPENAI_API_KEY holds"):
        Provider("openai").key({"OPENAI_API_KEY": "sk-2\nX: y"})


def test_the_usual_key_of_a_provider_is_not_sent_to_another_address() -> None:
    assert Provider("openai", "http://proxy.example.com/v1").key({"OPENAI_API_KEY": "sk-2"}) == ""


def test_secrets_are_not_shown() -> None:
    shown = repr(Provider("lab", api_key="hunter2", headers={"X-Key": "hunter2"}))
    assert "hunter2" not in shown
