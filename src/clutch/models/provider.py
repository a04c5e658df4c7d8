"""The settings of a provider: address, key, limits. Settings that break a rule cannot be made.

Keys are read from the environment when an adapter is made, and are never shown."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

from clutch.core.model import Thinking
from clutch.core.policy import Life
from clutch.core.validation import check_types
from clutch.errors import InvalidInput

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_PRINTABLE = re.compile(r"[\x21-\x7e]+")  # a key travels in a header: no spaces, no line ends

#: Where the key of a well-known provider is looked for when its settings name no place.
KEY_VARIABLES: Mapping[str, str] = {
    "anthropic": "ANTHROPIC_API_KEY",
    "google": "GOOGLE_API_KEY",
    "groq": "GROQ_API_KEY",
    "mistral": "MISTRAL_API_KEY",
    "openai": "OPENAI_API_KEY",
    "openai-chat": "OPENAI_API_KEY",
    "openai-responses": "OPENAI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
}

#: Usable without settings.
WELL_KNOWN = (*KEY_VARIABLES, "bedrock", "ollama")


class AdapterKind(StrEnum):
    LIBRARY = "library"  #: any provider, through the model library
    DIRECT = "direct"  #: OpenAI-compatible chat completions, with a quarter of the work


@dataclass(frozen=True, slots=True)
class Provider:
    name: str
    base_url: str = ""  #: empty: the provider's own
    api_key: str = field(default="", repr=False)  #: better from the environment
    api_key_env: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  #: sent with every request
    adapter: AdapterKind = AdapterKind.LIBRARY  #: which client is used
    speaks: str = ""  #: the well-known provider whose API it has; empty: its own name
    concurrency_max: int | None = None  #: calls at once; None = no limit
    tokens_per_minute: int | None = None  #: None = no limit
    #: a call without data for so long is cut and retried; None = models.idleTimeout
    idle_timeout_s: float | None = None
    allow_model_mismatch: bool = False  #: another model than asked for may answer
    context_window: int | None = None  #: tokens; None = as the price list knows it
    #: Thinking levels in the words of this endpoint; a level that is missing is not sent.
    efforts: Mapping[Thinking, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_types(self)
        if not _NAME.fullmatch(self.name):
            raise InvalidInput(
                "models.providers", f"{self.name[:80]!r} is no name: a-z, 0-9, . _ and -, at most 64"
            )
        self._check_url()
        self._check_key()
        self._check_numbers()

    @property
    def idle_s(self) -> float:
        """The router sets the timeout; without a router the default of the policy is used."""
        return Life().provider_idle_s if self.idle_timeout_s is None else self.idle_timeout_s

    @property
    def language(self) -> str:
        return self.speaks or self.name

    def key(self, environment: Mapping[str, str]) -> str:
        """Return the key, empty where none is needed. Raises InvalidInput naming the variable to set."""
        if self.api_key:
            return self.api_key
        if not self._key_variable:
            return ""
        found = environment.get(self._key_variable, "").strip()
        if not found:
            raise self._wrong(
                "apiKey",
                f"provider {self.name!r} has no key: set the environment variable {self._key_variable},"
                f" or models.providers.{self.name}.apiKey",
            )
        if not _PRINTABLE.fullmatch(found):
            raise self._wrong(
                "apiKey", f"{self._key_variable} holds spaces or characters outside ASCII; set it again"
            )
        return found

    @property
    def _key_variable(self) -> str:
        # The usual key of a provider is never sent to another address unless the settings name its variable.
        return self.api_key_env or ("" if self.base_url else KEY_VARIABLES.get(self.language, ""))

    def _wrong(self, key: str, rule: str) -> InvalidInput:
        return InvalidInput(f"models.providers.{self.name}.{key}", rule)

    def _check_url(self) -> None:
        if not self.base_url:
            if self.adapter is AdapterKind.DIRECT:
                raise self._wrong("baseUrl", "adapter direct needs one, for example http://127.0.0.1:8000/v1")
            return
        problem = _url_problem(self.base_url)
        if problem is not None:
            raise self._wrong("baseUrl", problem)

    def _check_key(self) -> None:
        if self.api_key and self.api_key_env:
            raise self._wrong("apiKey", "give either apiKey or apiKeyEnv, not both")
        if self.api_key and not _PRINTABLE.fullmatch(self.api_key):
            raise self._wrong("apiKey", "a key has no spaces, line ends or characters outside ASCII")
        if self.api_key_env and not _VARIABLE.fullmatch(self.api_key_env):
            raise self._wrong(
                "apiKeyEnv", "is the name of an environment variable, such as OPENAI_API_KEY; not a key"
            )
        for name, value in self.headers.items():
            if not _HEADER.fullmatch(name) or not value.isprintable() or not value.isascii():
                raise self._wrong(
                    "headers", f"{name[:80]!r}: a header has a plain name and printable ASCII text"
                )

    def _check_numbers(self) -> None:
        if self.idle_timeout_s is not None and not 0 < self.idle_timeout_s < math.inf:
            raise self._wrong("idleTimeout", "is more than 0 seconds")
        limits = {
            "concurrencyMax": self.concurrency_max,
            "tokensPerMinute": self.tokens_per_minute,
            "contextWindow": self.context_window,
        }
        for key, limit in limits.items():
            if limit is not None and limit < 1:
                raise self._wrong(key, "is at least 1; leave it out for no limit")


def _url_problem(url: str) -> str | None:
    # The text never repeats the URL: it may contain a secret.
    example = "write it like https://llm.example.com/v1"
    if not _PRINTABLE.fullmatch(url):
        return f"holds spaces or characters outside ASCII; {example}"
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return f"has a bad host or port; {example}"
    if parts.scheme not in ("http", "https"):
        return f"begins with http:// or https://; {example}"
    if not has_host:
        return f"has no host; {example}"
    if parts.username is not None or parts.password is not None:
        return "holds a user or password; put the key into apiKey or apiKeyEnv"
    if parts.query or parts.fragment:
        return f"has no ? and no #; {example}"
    if parts.path.rstrip("/").endswith(("/chat/completions", "/messages", "/responses")):
        return f"is the address before the last part of the path; {example}"
    return None


# --------------------------------------------------------------------------------------------------
# Names of models: `provider:model` as users write it, and the names that providers report.

#: How providers pin a name they were asked for: 2026-01-01, 20260101, 2026-01, 2601, 01-31, 0131 or build 002.
_SNAPSHOT = re.compile(r"[-@](?:20\d\d-?[01]\d(?:-?[0-3]\d)?|2\d[01]\d|[01]\d-?[0-3]\d|00\d)$")


class ModelName(NamedTuple):
    provider: str  #: empty for a plain name such as `offline`
    model: str


def parse(text: str) -> ModelName:
    """Only the first colon divides: `ollama:qwen3:8b` is the model `qwen3:8b` of `ollama`."""
    provider, colon, model = text.partition(":")
    return ModelName(provider, model) if colon else ModelName("", text)


def same_model(requested: str, effective: str) -> bool:
    """A dated snapshot of the requested model is the same model, and so is its `latest`. Any other is not."""
    wanted, got = _bare(requested), _bare(effective)
    return wanted in (got, _SNAPSHOT.sub("", got))


def _bare(name: str) -> str:
    """Remove the path of a name (`models/…`) and its default tag."""
    return name.removeprefix("models/").removesuffix(":latest").removesuffix("-latest").casefold()


# --------------------------------------------------------------------------------------------------
# A cache by the identity of an object: a tool's schema is a mapping and has no hash.

K = TypeVar("K")
V = TypeVar("V")


class Memo(Generic[K, V]):
    """For objects that do not change. It holds them, so that their identity is not reused."""

    def __init__(self, make: Callable[[K], V], *, kept_max: int) -> None:
        self._make = make
        self._kept_max = kept_max
        self._kept: dict[int, tuple[K, V]] = {}

    def __call__(self, thing: K) -> V:
        found = self._kept.get(id(thing))
        if found is not None:
            return found[1]
        value = self._make(thing)
        if len(self._kept) >= self._kept_max:
            self._kept.clear()
        self._kept[id(thing)] = (thing, value)
        return value
