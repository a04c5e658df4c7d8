"""Foreign text inside our own lines, and figures as people read them.

A label, an error or a file name comes from a model or a stranger. Where one stands in a line we write,
it must not begin a new line, move the cursor, turn the reading direction, hide, or end our quotes.
What would do so is written as an escape that can be seen; a backslash is doubled, so that two different
texts never look the same."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

LABEL_MAX = 200
ERROR_MAX = 300
KEY_MAX = 200  # ours are shorter; imported sessions keep the key they came with

# isprintable() already refuses controls, bidi marks, zero-width characters, surrogates and every space
# but the plain one. These are "printable" by category yet leave no mark on the screen.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}


def is_plain(text: str) -> bool:
    """Every character leaves a mark of its own and none moves the others."""
    return text.isprintable() and not _INVISIBLE.search(text)


def plain_json(encoded: str) -> str:
    """The same JSON of one line: what is not plain stands in its strings only, and is an escape there."""
    if is_plain(encoded):
        return encoded
    return "".join(one if is_plain(one) else json.dumps(one)[1:-1] for one in encoded)


def visible(text: str, length_max: int) -> str:
    """One line of at most `length_max` characters; a cut is marked and never splits an escape."""
    if _stays(text, length_max):
        return text
    return _fit((_escaped(character) for character in text[: length_max + 1]), length_max)


def quoted(text: str, length_max: int = LABEL_MAX) -> str:
    """In double quotes that the text itself cannot close. The limit is for what stands between them."""
    if _stays(text, length_max) and '"' not in text:
        return f'"{text}"'
    escaped = ('\\"' if character == '"' else _escaped(character) for character in text[: length_max + 1])
    return f'"{_fit(escaped, length_max)}"'


def typed(*words: str, state: str | None = None) -> str:
    """Return a command that runs as it is printed. `state`: the directory it must name; None: the default one."""
    return shlex.join(("clutch", *words, *(() if state is None else ("--state", state))))


def _stays(text: str, length_max: int) -> bool:
    """Nearly every text needs no escape; looking at each character of it is slow."""
    return len(text) <= length_max and "\\" not in text and is_plain(text)


def _escaped(character: str) -> str:
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    if is_plain(character):
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _fit(pieces: Iterable[str], length_max: int) -> str:
    kept: list[str] = []
    room = length_max
    for piece in pieces:
        if len(piece) > room:
            return _with_ellipsis(kept, room)
        kept.append(piece)
        room -= len(piece)
    return "".join(kept)


def _with_ellipsis(kept: list[str], room: int) -> str:
    while room < 1 and kept:
        room += len(kept.pop())
    return "".join(kept) + "…"


def duration(seconds: float) -> str:
    """Two units at most: 45s, 2m34s, 1h05m, 2d03h."""
    whole = int(max(0.0, seconds))
    if whole < 60:
        return f"{whole}s" if whole else "<1s"
    minutes, second = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{second:02}s"
    hours, minute = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minute:02}m"
    days, hour = divmod(hours, 24)
    return f"{days}d{hour:02}h"


def seconds_text(seconds: float) -> str:
    """The same beside other words, with a space before the unit of a short one: 6 s, 2m34s."""
    whole = int(max(0.0, seconds))
    return f"{whole} s" if whole < 60 else duration(whole)


def counted(count: int, one: str, many: str | None = None) -> str:
    """`1 subagent`, `3 subagents`; `many` where an s is not enough."""
    return f"{count} {one if count == 1 else many or one + 's'}"


UNKNOWN = "n/a"


def used_tokens(count: int, calls: int) -> str:
    """Calls that used nothing are calls whose provider does not count: unknown, never 0."""
    return UNKNOWN if calls and not count else tokens(count)


def tokens(count: int) -> str:
    """Rounded to three or four digits: 850, 15.2k, 12k, 1.3M."""
    if count < 1000:
        return str(count)
    thousands = (count + 50) // 100
    if thousands < 10_000:
        return _tenths(thousands) + "k"
    return _tenths((count + 50_000) // 100_000) + "M"


def _tenths(value: int) -> str:
    return f"{value // 10}.{value % 10}".removesuffix(".0")


def money(usd: Decimal) -> str:
    """A known price that is not zero is never shown as zero."""
    cents = usd.quantize(Decimal("0.01"), rounding=ROUND_HALF_UP)
    return "<$0.01" if usd > 0 and cents == 0 else f"${cents:,}"


def size(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    if count < 1024 * 1024:
        return _tenths(count * 10 // 1024) + " KiB"
    if count < 1024**3:
        return _tenths(count * 10 // 1024**2) + " MiB"
    return _tenths(count * 10 // 1024**3) + " GiB"


def clock(at: float, beside: float) -> str:
    """With its day, if that is another one."""
    moment, day = datetime.fromtimestamp(at, UTC), datetime.fromtimestamp(beside, UTC).date()
    return f"{moment:%H:%M:%S} UTC" if moment.date() == day else f"{moment:%Y-%m-%d %H:%M:%S} UTC"


# --------------------------------------------------------------------------------------------------
# A tool call in a few words: its name and the one argument that tells most about it.

ARGUMENT_MAX = 60
#: What a call is about, in the order of how much it tells.
_TELLING = ("path", "url", "command", "query", "pattern", "label", "sessionKey", "target", "question", "task")


def main_argument(args: Mapping[str, Any]) -> str:
    """Empty if there is none. Of an address only the host: what follows may be long or secret."""
    texts = {name: value for name, value in args.items() if isinstance(value, str) and value.strip()}
    name = next((name for name in _TELLING if name in texts), next(iter(texts), ""))
    text = texts.get(name, "").strip()
    if text.startswith(("http://", "https://")):
        text = text.split("/", 3)[2].rpartition("@")[2].partition("?")[0]
    return visible(text, ARGUMENT_MAX)


def in_words(name: str, argument: str) -> str:
    return f"{name}({argument})" if argument else name
