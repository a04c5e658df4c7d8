"""What an error of a provider means: which Trouble it is, and when to retry.

Shared by the adapters. Knows statuses, codes and wordings of the providers, and no client library.
"""

from __future__ import annotations

import email.utils
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from clutch.models.provider import same_model
from clutch.ports import ModelError, Trouble

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
