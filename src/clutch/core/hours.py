"""When to try again, and whether it is the hour for it.

Two curves and a clock face. Knows no current time: an attempt number or a minute of the day comes in,
a delay or a yes comes out. Jitter is drawn from (seed, attempt) by a hash, so that the same letter waits
the same time in every process and in every replay.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timedelta, tzinfo

MINUTES_PER_DAY = 24 * 60
_HH_MM = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
# Beyond this every curve has long reached its maximum; a larger power would overflow.
_DOUBLINGS_MAX = 64


def next_delay(
    attempt: int,
    *,
    fast_tries: int = 3,
    first_s: float = 1.0,
    fast_max_s: float = 8.0,
    slow: bool = True,
    slow_first_s: float = 15.0,
    slow_max_s: float = 300.0,
    until_s: float = 1800.0,
    jitter: float = 0.2,
    seed: int = 0,
) -> float | None:
    """Seconds to wait after failed attempt number `attempt` (from 1); None = give up.

    `fast_tries` quick tries have one wait less between them; then the slow curve, if there is one. It
    gives up when the waits handed out so far and this one would exceed `until_s`: only failures count, so
    a letter that is deferred for a day in between loses nothing.
    """
    if attempt < 1 or first_s <= 0 or slow_first_s <= 0 or not 0 <= jitter < 1:
        raise ValueError("attempts count from 1, delays are positive and jitter is a fraction below 1")
    delay_s = waited_s = 0.0
    for number in range(1, attempt + 1):
        if number < fast_tries:
            delay_s = _doubled(first_s, number - 1, fast_max_s)
        elif slow:
            delay_s = _doubled(slow_first_s, number - max(fast_tries, 1), slow_max_s)
            delay_s *= 1 + jitter * _swing(seed, number)
        else:
            return None
        waited_s += delay_s
        if waited_s > until_s:
            return None
    return delay_s


def _doubled(first_s: float, times: int, max_s: float) -> float:
    return min(first_s * 2.0 ** min(times, _DOUBLINGS_MAX), max_s)


def _swing(seed: int, attempt: int) -> float:
    """Evenly spread over -1 … 1."""
    digest = hashlib.sha256(f"{seed}:{attempt}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**63 - 1


def parse_minute(text: str, field: str, *, is_end: bool = False) -> int:
    """`HH:MM` as minute of the day. `24:00` is the end of a day and never the start of anything."""
    if is_end and text == "24:00":
        return MINUTES_PER_DAY
    matched = _HH_MM.fullmatch(text)
    if matched is None:
        allowed = "00:00 to 24:00" if is_end else "00:00 to 23:59"
        raise ValueError(f"{field}: {text[:40]!a} is not a time; write HH:MM, {allowed}")
    return int(matched[1]) * 60 + int(matched[2])


def is_active(minute: int, start: int, end: int) -> bool:
    """Start inclusive, end exclusive; over midnight when start is later than end; equal = never."""
    if start <= end:
        return start <= minute < end
    return minute >= start or minute < end


def minutes_until_active(minute: int, start: int, end: int) -> int | None:
    """0 when active now, None when never."""
    if is_active(minute, start, end):
        return 0
    return None if start == end else (start - minute) % MINUTES_PER_DAY


def opens_at(moment: float, zone: tzinfo, start: int, end: int) -> float | None:
    """`moment` when it is the hour there; else the next moment when it is. None = never."""
    local = datetime.fromtimestamp(moment, zone)
    minute = local.hour * 60 + local.minute
    wait = minutes_until_active(minute, start, end)
    if not wait:
        return None if wait is None else moment
    opens = local.replace(hour=start // 60, minute=start % 60, second=0, microsecond=0)
    if minute >= start:
        opens = (opens + timedelta(days=1)).replace(fold=0)
    return opens.timestamp()
