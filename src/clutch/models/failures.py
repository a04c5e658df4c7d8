"""What a provider's complaint means to us: which Trouble it is, and when to come back.

Shared by the adapters. Knows statuses, codes and wordings of the providers, no client library.
"""

from __future__ import annotations

import email.utils
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime

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
    """`wording`: code, type and message, whatever there is. Status 0: it came inside a stream that began well."""
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
    """`headers` must find its names in any case."""
    trouble = classify(status, wording)
    waits = trouble in (Trouble.RATE_LIMIT, Trouble.OVERLOADED)
    shown = f"{message[:MESSAGE_MAX] or 'no message'}{f' (status {status})' if status else ''}"
    return ModelError(trouble, shown, retry_at(headers, now) if waits else None)


def mismatch(requested: str, effective: str) -> ModelError | None:
    """A name the provider does not report cannot be compared."""
    if not effective or same_model(requested, effective):
        return None
    return ModelError(
        Trouble.BAD_REQUEST,
        f"{requested!r} was asked for, {effective!r} answered; name that one, "
        "or set allowModelMismatch for this provider",
        is_begun=True,
    )


# --- when to come back ------------------------------------------------------------------------------------

_RESETS: tuple[tuple[str, str], ...] = tuple(
    (f"{prefix}reset{suffix}", f"{prefix}remaining{suffix}")
    for prefix, suffix in (("x-ratelimit-", "-requests"), ("x-ratelimit-", "-tokens"), ("x-ratelimit-", ""))
) + tuple(
    (f"anthropic-ratelimit-{what}-reset", f"anthropic-ratelimit-{what}-remaining")
    for what in ("requests", "tokens", "input-tokens", "output-tokens")
)
_SPAN = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?")
_SPAN_UNITS = (86400.0, 3600.0, 60.0, 1.0, 0.001)
_EPOCH_MIN = 1e9  # a bare number from here on is a moment, not a wait
_EPOCH_MS_MIN = 1e12


def retry_at(headers: Mapping[str, str], now: float) -> float | None:
    """`retry-after` if there is one; else when the limits that are used up, or all of them, are reset."""
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
