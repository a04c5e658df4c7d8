"""Connections to providers, made for a thousand requests at once. Importing this imports the model library.

The clients' own pools collapse at that number; aiohttp as transport, without limits, does not. Google, Mistral and Groq
use the same or the nearest that they accept; Bedrock's client blocks and runs in threads. OpenAI's client is imported
only for a provider that needs it: the extra `anthropic` does not install it."""

from __future__ import annotations

import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import httpx2
from pydantic_ai.models import Model

from clutch.errors import InvalidInput
from clutch.models.provider import Provider

if TYPE_CHECKING:
    from httpx import AsyncClient
    from openai import AsyncOpenAI

CONNECT_S = 30.0  #: a thousand connections opened at once need their time
KEEP_ALIVE_S = 4.0  #: the usual server drops an idle connection after 5: a request must not meet that
NO_KEY = "none"  #: the clients require a key; local servers ignore it
#: 0 is no limit, None would be 100
UNLIMITED = httpx2.Limits(max_connections=0, keepalive_expiry=KEEP_ALIVE_S)
BEDROCK_CONNECTIONS = 100  #: more than its threads


@dataclass(frozen=True, slots=True)
class LibraryClient:
    """A connection. `model`: makes a model that uses it, of a name and of a `profile` that adapts the library's one."""

    model: Callable[..., Model[Any]]
    aclose: Callable[[], Awaitable[None]]


def connect(provider: Provider, key: str) -> LibraryClient:
    """Raises InvalidInput that names the remedy, ModuleNotFoundError where the client is not installed."""
    make = _LANGUAGES.get(provider.language)
    if make is None and not provider.base_url:
        known = ", ".join(sorted(_LANGUAGES))
        raise InvalidInput(
            f"models.providers.{provider.name}",
            f"is not a provider that is known ({known}); set baseUrl if it speaks OpenAI's language",
        )
    return (make or _openai_compatible)(provider, key)


def _timeout(provider: Provider) -> httpx2.Timeout:
    """`read` is the time between two pieces of data, so it is the idle timeout."""
    idle_s = provider.idle_s
    return httpx2.Timeout(connect=CONNECT_S, read=idle_s, write=idle_s, pool=None)


@cache
def _trusted() -> ssl.SSLContext:
    """Reading all certificates takes a quarter of a second; once is enough."""
    return httpx2.create_ssl_context()


def _transport(provider: Provider) -> httpx2.AsyncClient:
    from openai import DefaultAioHttpClient

    return DefaultAioHttpClient(
        limits=UNLIMITED, timeout=_timeout(provider), headers=dict(provider.headers), verify=_trusted()
    )


def _openai_client(provider: Provider, key: str, default_url: str | None = None) -> AsyncOpenAI:
    from clutch.models.library.openai_client import LeanOpenAI

    transport = _transport(provider)
    return LeanOpenAI(
        base_url=provider.base_url or default_url,
        api_key=key or NO_KEY,
        http_client=transport,
        timeout=_timeout(provider),
        max_retries=0,
        default_headers=provider.headers,
    )


def _openai_chat(provider: Provider, key: str) -> LibraryClient:
    from pydantic_ai.providers.openai import OpenAIProvider

    from clutch.models.library.openai_client import LeanChatModel

    client = _openai_client(provider, key)
    library = OpenAIProvider(openai_client=client)
    return LibraryClient(partial(LeanChatModel, provider=library), client.close)


def _openai_responses(provider: Provider, key: str) -> LibraryClient:
    from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
    from pydantic_ai.providers.openai import OpenAIProvider

    client = _openai_client(provider, key)
    library = OpenAIProvider(openai_client=client)
    # Thoughts come back encrypted and are sent again with the next request: the provider stores nothing.
    settings = OpenAIResponsesModelSettings(openai_store=False)
    return LibraryClient(partial(OpenAIResponsesModel, provider=library, settings=settings), client.close)


def _openai_compatible(provider: Provider, key: str) -> LibraryClient:
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    from clutch.models.library.openai_client import LeanChatModel

    client = _openai_client(provider, key)
    library = OpenAICompatibleProvider(provider.name, openai_client=client)
    return LibraryClient(partial(LeanChatModel, provider=library), client.close)


def _ollama(provider: Provider, key: str) -> LibraryClient:
    from pydantic_ai.models.ollama import OllamaModel
    from pydantic_ai.providers.ollama import OllamaProvider

    client = _openai_client(provider, key, "http://127.0.0.1:11434/v1")
    library = OllamaProvider(openai_client=client)
    return LibraryClient(partial(OllamaModel, provider=library), client.close)


def _openrouter(provider: Provider, key: str) -> LibraryClient:
    from pydantic_ai.models.openrouter import OpenRouterModel
    from pydantic_ai.providers.openrouter import OpenRouterProvider

    client = _openai_client(provider, key, "https://openrouter.ai/api/v1")
    library = OpenRouterProvider(openai_client=client)
    return LibraryClient(partial(OpenRouterModel, provider=library), client.close)


def _anthropic(provider: Provider, key: str) -> LibraryClient:
    from anthropic import AsyncAnthropic
    from anthropic import DefaultAioHttpClient as AnthropicAioHttpClient
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    client = AsyncAnthropic(
        base_url=provider.base_url or None,
        api_key=key or NO_KEY,
        http_client=AnthropicAioHttpClient(limits=UNLIMITED, timeout=_timeout(provider), verify=_trusted()),
        timeout=_timeout(provider),
        max_retries=0,
        default_headers=provider.headers,
    )
    library = AnthropicProvider(anthropic_client=client)
    return LibraryClient(partial(AnthropicModel, provider=library), client.close)


def _google(provider: Provider, key: str) -> LibraryClient:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    transport = _transport(provider)
    library = GoogleProvider(api_key=key or NO_KEY, http_client=transport, base_url=provider.base_url or None)
    return LibraryClient(partial(GoogleModel, provider=library), transport.aclose)


def _mistral(provider: Provider, key: str) -> LibraryClient:
    from pydantic_ai.models.mistral import MistralModel
    from pydantic_ai.providers.mistral import MistralProvider

    transport = _transport(provider)
    library = MistralProvider(
        api_key=key or NO_KEY, http_client=transport, base_url=provider.base_url or None
    )
    return LibraryClient(partial(MistralModel, provider=library), transport.aclose)


def _groq(provider: Provider, key: str) -> LibraryClient:
    import httpx
    from groq import AsyncGroq
    from pydantic_ai.models.groq import GroqModel
    from pydantic_ai.providers.groq import GroqProvider

    idle_s = provider.idle_s
    timeout = httpx.Timeout(connect=CONNECT_S, read=idle_s, write=idle_s, pool=None)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    transport: AsyncClient = httpx.AsyncClient(limits=limits, timeout=timeout, verify=_trusted())
    client = AsyncGroq(
        base_url=provider.base_url or None,
        api_key=key or NO_KEY,
        http_client=transport,
        timeout=timeout,
        max_retries=0,
        default_headers=provider.headers,
    )
    library = GroqProvider(groq_client=client)
    return LibraryClient(partial(GroqModel, provider=library), client.close)


def _bedrock(provider: Provider, key: str) -> LibraryClient:
    """A key is a Bedrock API key; without one, AWS credentials are taken from their usual places."""
    from pydantic_ai.models.bedrock import BedrockConverseModel
    from pydantic_ai.providers.bedrock import BedrockProvider

    botocore = import_module("botocore.session")  # untyped, and so is all below
    session = botocore.Session()
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region is None:
        raise InvalidInput(
            f"models.providers.{provider.name}", "has no region: set the environment variable AWS_REGION"
        )
    config = import_module("botocore.config").Config(
        read_timeout=provider.idle_s,
        connect_timeout=CONNECT_S,
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=BEDROCK_CONNECTIONS,
    )
    if key:
        config = config.merge(type(config)(signature_version="bearer"))
        token = import_module("botocore.tokens").FrozenAuthToken(key)
        session.get_auth_token, session.get_credentials = lambda **_: token, lambda: None
    client = (
        import_module("boto3")
        .Session(botocore_session=session, region_name=region)
        .client("bedrock-runtime", endpoint_url=provider.base_url or None, config=config)
    )
    library = BedrockProvider(bedrock_client=client)
    return LibraryClient(partial(BedrockConverseModel, provider=library), _nothing_to_close)


async def _nothing_to_close() -> None:
    """Its connections are not bound to an event loop."""


_LANGUAGES: Mapping[str, Callable[[Provider, str], LibraryClient]] = {
    "anthropic": _anthropic,
    "bedrock": _bedrock,
    "google": _google,
    "groq": _groq,
    "mistral": _mistral,
    "ollama": _ollama,
    "openai": _openai_responses,
    "openai-chat": _openai_chat,
    "openai-responses": _openai_responses,
    "openrouter": _openrouter,
}
