"""A provider: its settings (address, key, limits), its model names, and the meaning of its errors.

Settings that break a rule cannot be made. Keys are read from the environment when an adapter is made, and are never
shown. `classify` and `retry_at` know statuses, codes and wordings of the providers, and no client library."""

from __future__ import annotations

import email.utils
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast
from urllib.parse import urlsplit

from clutch.core.messages import Message
from clutch.core.model import Thinking
from clutch.core.policy import Life
from clutch.core.validation import check_types
from clutch.errors import InvalidInput
from clutch.ports import ModelError, ModelRequest, Trouble

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
    """The client that sends the requests of a provider."""

    LIBRARY = "library"  #: any provider, through the model library
    DIRECT = "direct"  #: OpenAI-compatible chat completions, with a quarter of the work


@dataclass(frozen=True, slots=True)
class Provider:
    """An endpoint for models. `name` is the part before the colon of "provider:model"."""

    name: str
    base_url: str = ""  #: Address without the last part of the path. Empty = the provider's own.
    api_key: str = field(default="", repr=False)  #: API key; better as {env: "NAME"}.
    api_key_env: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  #: Headers of every request.
    #: Client: library (all providers) or direct (OpenAI-compatible, less CPU).
    adapter: AdapterKind = AdapterKind.LIBRARY
    speaks: str = ""  #: Well-known provider whose API the endpoint has. Empty = that of its own name.
    concurrency_max: int | None = None  #: Calls at once. None = no limit.
    tokens_per_minute: int | None = None  #: Tokens per minute. None = no limit.
    #: A call without data for this time is cut and retried. None = models.idleTimeout.
    idle_timeout_s: float | None = None
    allow_model_mismatch: bool = False  #: Accept answers of another model than the requested one.
    context_window: int | None = None  #: Context window in tokens. None = as the price list knows it.
    #: Names of thinking levels at this endpoint; a level that is missing is not sent.
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
        """The protocol that it speaks: the name of a provider that speaks the same."""
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


class Conversion(Protocol):
    """What becomes of a transcript, entry by entry."""

    def add(self, message: Message) -> None: ...


C = TypeVar("C", bound=Conversion)


def converted(request: ModelRequest, key: object, make: Callable[[], C]) -> C:
    """Return the conversion of the request's transcript. Only what came since the request before is converted: entries
    do not change, and what is shown in front of them, such as a summary, is compared.

    `key`: who converts; no other may use the same."""
    now = tuple(request.transcript)
    before, conversion = request.converted.pop(key, ((), None))  # gone, if a message cannot be converted
    if conversion is None or now[: len(before)] != before:
        before, conversion = (), make()
    for message in now[len(before) :]:
        conversion.add(message)
    request.converted[key] = now, conversion
    return cast("C", conversion)


def key_place(provider: Provider) -> str:
    """Return where the operator has set the key of a provider, or can set it."""
    variable = "" if provider.api_key else provider._key_variable
    return variable or f"models.providers.{provider.name}.apiKey"


# --------------------------------------------------------------------------------------------------
# Errors of a provider: which Trouble it is, and when to retry


MESSAGE_MAX = 500  # characters; some providers answer with a page

_CONTEXT = re.compile(
    r"context_length_exceeded|exceed_context_size|context (?:length|window|size)|prompt is too long"
    r"|input is too long|too many tokens|reduce the length|request_too_large|input token count",
    re.IGNORECASE,
)
#: First match decides; codes, types and wordings together.
_WORDS: tuple[tuple[re.Pattern[str], Trouble], ...] = tuple(
    (re.compile(words, re.IGNORECASE), trouble)
    for words, trouble in (
        (r"insufficient_quota|billing|credit balance", Trouble.AUTH),
        (r"rate.?limit|too many requests", Trouble.RATE_LIMIT),
        (r"overloaded|unavailable|server.?error|api_error|internal error", Trouble.OVERLOADED),
        (r"authentication|permission|api.?key", Trouble.AUTH),
    )
)
_STATUSES: Mapping[int, Trouble] = {
    401: Trouble.AUTH,
    402: Trouble.AUTH,
    403: Trouble.AUTH,
    408: Trouble.NETWORK,
    413: Trouble.CONTEXT,
    429: Trouble.RATE_LIMIT,
}


def classify(status: int, wording: str) -> Trouble:
    """`wording`: code, type and message, as far as they are known. Status 0: the error came inside a stream."""
    if status == 429 and "insufficient_quota" in wording:
        return Trouble.AUTH  # no credit: waiting does not help, a person does
    if status in _STATUSES:
        return _STATUSES[status]
    if _CONTEXT.search(wording):
        return Trouble.CONTEXT
    if status >= 500:
        return Trouble.OVERLOADED
    if status:
        return Trouble.BAD_REQUEST
    return next((trouble for words, trouble in _WORDS if words.search(wording)), Trouble.BAD_REQUEST)


def failure(status: int, wording: str, message: str, headers: Mapping[str, str], now: float) -> ModelError:
    """`headers` must ignore the case of names."""
    trouble = classify(status, wording)
    waits = trouble in (Trouble.RATE_LIMIT, Trouble.OVERLOADED)
    shown = f"{message[:MESSAGE_MAX] or 'no message'}{f' (status {status})' if status else ''}"
    return ModelError(trouble, shown, retry_at(headers, now) if waits else None)


class TrialResult(StrEnum):
    """What one small call says about a model and its key."""

    OK = "ok"
    REJECTED = "rejected"  #: the key is wrong, or has no right or credit
    NO_MODEL = "no such model"
    UNREACHABLE = "unreachable"
    FAILED = "failed"  #: the provider refused for another reason: a rate limit, an error of its own


_NO_MODEL = re.compile(
    r"\(status 404\)|model_not_found|(model|deployment).{0,80}(not found|does not exist|not exist|unknown|invalid)"
    r"|(no such|unknown|invalid) model",
    re.IGNORECASE | re.DOTALL,
)
_TRIALS = {Trouble.AUTH: TrialResult.REJECTED, Trouble.NETWORK: TrialResult.UNREACHABLE}


def trial_result(error: ModelError) -> TrialResult:
    """Return what a failed call says about the model and its key."""
    if error.trouble is Trouble.BAD_REQUEST and _NO_MODEL.search(str(error)):
        return TrialResult.NO_MODEL
    return _TRIALS.get(error.trouble, TrialResult.FAILED)


def mismatch(requested: str, effective: str) -> ModelError | None:
    """Return an error where another model answered. A model that the provider does not name is not compared."""
    if not effective or same_model(requested, effective):
        return None
    return ModelError(
        Trouble.BAD_REQUEST,
        f"{requested!r} was asked for, {effective!r} answered; name that one, "
        "or set allowModelMismatch for this provider",
        is_begun=True,
    )


# --- when to retry ----------------------------------------------------------------------------------------

_RESETS: tuple[tuple[str, str], ...] = tuple(
    (f"{prefix}reset{suffix}", f"{prefix}remaining{suffix}")
    for prefix, suffix in (("x-ratelimit-", "-requests"), ("x-ratelimit-", "-tokens"), ("x-ratelimit-", ""))
) + tuple(
    (f"anthropic-ratelimit-{what}-reset", f"anthropic-ratelimit-{what}-remaining")
    for what in ("requests", "tokens", "input-tokens", "output-tokens")
)
_SPAN = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?")
_SPAN_UNITS = (86400.0, 3600.0, 60.0, 1.0, 0.001)
_EPOCH_MIN = 1e9  # a larger number is a moment, not a wait
_EPOCH_MS_MIN = 1e12


def retry_at(headers: Mapping[str, str], now: float) -> float | None:
    """Return `retry-after` if there is one, else when the exhausted limits, or all limits, are reset."""
    in_ms = _number(headers.get("retry-after-ms", ""))
    if in_ms is not None:
        return now + in_ms / 1000
    said = headers.get("retry-after")
    if said is not None:
        return _moment(said, now)
    resets = [
        (at, headers.get(remaining, "").strip() == "0")
        for reset, remaining in _RESETS
        if (at := _moment(headers.get(reset, ""), now)) is not None
    ]
    used_up = [at for at, is_used_up in resets if is_used_up]
    return max(used_up or [at for at, _ in resets], default=None)


def _moment(text: str, now: float) -> float | None:
    """Seconds, a span like 6m0s, seconds or milliseconds since the epoch, or a date in either usual form."""
    text = text.strip()
    number = _number(text)
    if number is not None:
        if number >= _EPOCH_MS_MIN:
            return number / 1000
        return number if number >= _EPOCH_MIN else now + number
    span = _SPAN.fullmatch(text)
    if text and span:
        parts = [_number(part) if part else 0.0 for part in span.groups()]
        return now + sum(unit * (part or 0.0) for unit, part in zip(_SPAN_UNITS, parts, strict=True))
    return _date(text)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None


def _date(text: str) -> float | None:
    try:
        date = datetime.fromisoformat(text) if text[:4].isdigit() else email.utils.parsedate_to_datetime(text)
        return (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


# --- answers that have not the form they should -------------------------------------------------------------

# No tool nests half as deep, and our own code must walk through all levels.
DEPTH_MAX = 100


def malformed(what: str) -> ModelError:
    return ModelError(Trouble.MALFORMED, f"the provider's answer is malformed: {what}", is_begun=True)


def count(name: str, value: Any) -> int:
    """Return a number of tokens. Raises ModelError for any other value."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        raise malformed(f"{name} is {str(value)[:40]}, not a whole number")
    return int(value)


def check_depth(name: str, args: Mapping[str, Any]) -> None:
    """Raises ModelError. Level by level: the arguments may be deeper than Python can call."""
    level: list[Any] = [args]
    for _ in range(DEPTH_MAX):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return
    raise too_deep(name)


def too_deep(name: str) -> ModelError:
    return malformed(f"the arguments of the call of {name[:64]!r} have more than {DEPTH_MAX} levels")
