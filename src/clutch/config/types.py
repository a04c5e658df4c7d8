"""How a value may be written, and how it is shown. What it means is defined by the setting behind it.

The kind of a setting follows from the type and the name of its field: an `int` with bytes in its name is a size, a
`float` that ends in `_s` a duration, an enum a choice. `keys.py` names the kinds that cannot be seen there."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Any, TypeAlias, Union, assert_never, get_args, get_origin

# --------------------------------------------------------------------------------------------------
# How durations, sizes and money are written: `1h30m`, `64KiB`, `"0.50"`. Exact both ways.
#
# A bare number is in the unit of its key; the key says which (`debounceMs`, `recentMinutes`), else seconds and bytes.

#: Seconds, longest first: also the order in which they are written together.
SECONDS: Mapping[str, Decimal] = {
    "d": Decimal(86400),
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("0.001"),
}
#: The same as floats, exact enough for a comparison.
SECONDS_OF: Mapping[str, float] = {name: float(unit) for name, unit in SECONDS.items()}
#: The unit that the end of a key gives to a bare number.
OF_NAME: Mapping[str, str] = {"Ms": "ms", "Seconds": "s", "Minutes": "m", "Hours": "h", "Days": "d"}
DURATION_MAX_S = 100 * 366 * 86400  # a longer one is a typing error
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
    """Return seconds, None for a text that is no duration."""
    found = _DURATION.fullmatch(text)
    if found is None or not text:
        return None
    parts = zip(SECONDS.values(), found.groups(), strict=True)
    total = sum((unit * Decimal(said) for unit, said in parts if said is not None), Decimal(0))
    return float(total) if total <= DURATION_MAX_S else None


def format_duration(seconds: float) -> str:
    """Return the shortest exact form: `parse_duration` returns the same number."""
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


class Plain(Enum):
    """A kind without further parts. The value is its description in messages and on the page of settings."""

    FLAG = "true or false"
    WHOLE = "a whole number"
    NUMBER = "a number"
    SIZE = 'a size: bytes, or a text like "64KiB" or "8MB"'
    MONEY = 'an amount in dollars, as a text like "0.50"'
    TEXT = "a text"
    IDENTITY = 'a text, or an object with a name: {name: "Ada"}'  #: becomes the first lines of a prompt
    FOLDER = "the path of a folder, as a text"  #: relative to the file it stands in


@dataclass(frozen=True, slots=True)
class Duration:
    """`unit` of a bare number; `stored`: the unit the setting itself counts in."""

    unit: str = "s"
    stored: str = "s"


@dataclass(frozen=True, slots=True)
class Secret:
    """A text, or `{env: "NAME"}`. `later`: the field for the name of a variable that is read when it is needed."""

    later: str | None = None


@dataclass(frozen=True, slots=True)
class OneOf:
    """`hidden`: words that are accepted and not documented."""

    words: Mapping[str, Any]
    hidden: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Either:
    choice: OneOf
    other: Kind


@dataclass(frozen=True, slots=True)
class Many:
    item: Kind
    into: Callable[[Any], Any] = tuple


@dataclass(frozen=True, slots=True)
class Table:
    """A value for each name. `names` None: any."""

    item: Kind
    names: OneOf | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """Its keys are those of `keys.FORMS[made]`."""

    made: type


@dataclass(frozen=True, slots=True)
class Named:
    """Records by a name that is one of their fields: `{NAME: {…}}`."""

    record: Record
    name: str = "name"


@dataclass(frozen=True, slots=True)
class Maybe:
    """A value, or null for one that is not set."""

    kind: Kind


Kind: TypeAlias = (
    Plain | Duration | Secret | OneOf | Either | Many | Table | Record | Named | Maybe
)  # fmt: skip

_PLAIN: Mapping[Any, Kind] = {bool: Plain.FLAG, str: Plain.TEXT, Decimal: Plain.MONEY}


def kind_of(hint: Any, key: str, name: str) -> Kind:
    """Return the kind of a setting from its type; its names give the units."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (only,) = (one for one in inner if one is not types.NoneType)
        return Maybe(kind_of(only, key, name))
    if origin in (frozenset, tuple):
        return Many(kind_of(inner[0], key, name), origin)
    if origin is not None:
        names = kind_of(inner[0], key, name)
        return Table(kind_of(inner[1], key, name), names if isinstance(names, OneOf) else None)
    if hint is int:
        return Plain.SIZE if "bytes" in name else Plain.WHOLE
    if hint is float:
        return _kind_of_number(key, name)
    if issubclass(hint, Enum):
        return OneOf({_word(one): one for one in hint})
    return _PLAIN[hint] if hint in _PLAIN else Record(hint)


def _kind_of_number(key: str, name: str) -> Kind:
    stored = "s" if name.endswith("_s") else "d" if name.endswith("_days") else None
    if stored is None or name.endswith("_per_s"):
        return Plain.NUMBER
    unit = next((unit for ending, unit in OF_NAME.items() if key.endswith(ending)), "s")
    return Duration(unit, stored)


_LOGIN = re.compile(r"://[^\s/?#]*@")


def _word(member: Enum) -> str:
    return member.value if isinstance(member.value, str) else member.name.lower()


def seconds_of(kind: Duration, value: float, unit: str) -> float:
    """Convert a bare number to the unit that the setting counts in."""
    return float(Decimal(repr(float(value))) * SECONDS[unit] / SECONDS[kind.stored])


def shown(kind: Kind, value: Any) -> Any:
    """Return a value as it would be written in a file. A secret and the login of an address are masked, a record is
    an ellipsis."""
    match kind:
        case Maybe():
            return None if value is None else shown(kind.kind, value)
        case Either(choice, other):
            word = next((word for word, one in choice.words.items() if one == value), None)
            return shown(other, value) if word is None else word
        case OneOf():
            return next(word for word, one in kind.words.items() if one == value)
        case Duration():
            return format_duration(seconds_of(Duration(), value, kind.stored))
        case Plain.SIZE:
            return format_size(value)
        case Plain.MONEY:
            return str(value)
        case Secret():
            return "***" if value else value
        case Many():
            items = [shown(kind.item, one) for one in value]
            return sorted(items) if kind.into is frozenset else items
        case Table():
            return {str(name): shown(kind.item, one) for name, one in value.items()}
        case Record() | Named():
            return "…"
        case Plain():
            return _LOGIN.sub("://***@", value) if isinstance(value, str) else value
        case _:
            assert_never(kind)


def in_words(kind: Kind) -> str:
    match kind:
        case Plain():
            return kind.value
        case Duration():
            return f'a duration: a text like "1h30m" or "500ms", or a number of {_UNIT_WORDS[kind.unit]}'
        case Secret():
            return 'a text, or {env: "NAME"} for a variable of the environment'
        case OneOf():
            return f"one of {', '.join(map(json.dumps, kind.words))}"
        case Either(choice, other):
            return f"{in_words(choice).removeprefix('one of ')}, or {in_words(other)}"
        case Many():
            return f"a list, each {in_words(kind.item)}"
        case Table(item, names):
            by = "names" if names is None else in_words(names).removeprefix("one of ")
            return f"an object of {by}, each {in_words(item)}"
        case Record() | Named():
            return "an object: {…}"
        case Maybe():
            return f"{in_words(kind.kind)}, or null"
        case _:
            assert_never(kind)


_UNIT_WORDS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
