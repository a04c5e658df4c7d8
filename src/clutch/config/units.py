"""How durations, sizes and money are written: `1h30m`, `64KiB`, `"0.50"`. Exact both ways.

A bare number is in the unit of its key; the key says which (`debounceMs`, `recentMinutes`), else seconds and bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

#: Seconds, longest first: also the order in which they are written together.
SECONDS: Mapping[str, Decimal] = {
    "d": Decimal(86400),
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("0.001"),
}
#: The same, near enough for comparing.
SECONDS_OF: Mapping[str, float] = {name: float(unit) for name, unit in SECONDS.items()}
#: What the end of a name says about its numbers.
OF_NAME: Mapping[str, str] = {"Ms": "ms", "Seconds": "s", "Minutes": "m", "Hours": "h", "Days": "d"}
DURATION_MAX_S = 100 * 366 * 86400  # beyond a lifetime a typing error is likelier
BYTES: Mapping[str, int] = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
BYTES_MAX = 2**53
DURATION = "".join(rf"(?:([0-9]{{1,12}}(?:\.[0-9]{{1,24}})?){unit})?" for unit in SECONDS)
SIZE = rf"([0-9]{{1,16}}) ?({'|'.join(BYTES)})"
MONEY = r"[0-9]{1,12}(\.[0-9]{1,12})?"
_DURATION, _SIZE, _MONEY = re.compile(DURATION), re.compile(SIZE), re.compile(MONEY)


def parse_duration(text: str) -> float | None:
    """Seconds; None: not one."""
    found = _DURATION.fullmatch(text)
    if found is None or not text:
        return None
    parts = zip(SECONDS.values(), found.groups(), strict=True)
    total = sum((unit * Decimal(said) for unit, said in parts if said is not None), Decimal(0))
    return float(total) if total <= DURATION_MAX_S else None


def format_duration(seconds: float) -> str:
    """The shortest exact form; `parse_duration` gives the same number back."""
    left, parts = Decimal(repr(float(seconds))), []
    for name, unit in list(SECONDS.items())[:3]:
        whole, left = left // unit, left % unit
        parts += [f"{whole:f}{name}"] if whole else []
    if left and left < 1:
        parts.append(_plain(left * 1000) + "ms")
    elif left or not parts:
        parts.append(_plain(left) + "s")
    return "".join(parts)


def _plain(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def parse_size(text: str) -> int | None:
    found = _SIZE.fullmatch(text)
    size = None if found is None else int(found[1]) * BYTES[found[2]]
    return None if size is None or size > BYTES_MAX else size


def format_size(size: int) -> str:
    name = next((name for name in ("GiB", "MiB", "KiB") if size and size % BYTES[name] == 0), "B")
    return f"{size // BYTES[name]}{name}"


def parse_money(text: str) -> Decimal | None:
    return Decimal(text) if _MONEY.fullmatch(text) else None
