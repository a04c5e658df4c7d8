"""Settings as a program gives them: does each field have the type it declares, and is each number sane?

A dataclass calls `check(self)` when it is made, so what breaks a rule cannot exist. The error names the field in
the spelling of the program and the rule in words, never a line of our own code.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from clutch.errors import InvalidInput

SHOWN_MAX = 60  # an error repeats enough of a value to recognise it


def check(settings: object) -> None:
    """Raises InvalidInput for the first field that does not fit. Numbers are finite and not negative."""
    check_types(settings)
    kind: Any = type(settings)
    for name, _, _ in _hints(kind):
        value = getattr(settings, name)
        if _is_number(value) and not (math.isfinite(value) and value >= 0):
            raise InvalidInput(f"{kind.__name__}.{name}", f"must not be negative or without end: {value}")


def check_types(settings: object) -> None:
    kind: Any = type(settings)
    for name, hint, is_secret in _hints(kind):
        check_argument(f"{kind.__name__}.{name}", getattr(settings, name), hint, is_secret=is_secret)


def check_argument(field: str, value: object, hint: Any, *, is_secret: bool = False) -> None:
    if not fits(value, hint):
        given = f"a {type(value).__name__}" if is_secret else shown(value)
        raise InvalidInput(field, f"must be {words(hint)}, not {given}")


def at_least(settings: object, **least: float) -> None:
    for name, bound in least.items():
        require(
            f"{type(settings).__name__}.{name}",
            f"must be at least {bound}",
            is_kept=getattr(settings, name) >= bound,
        )


def above_zero(settings: object, *names: str) -> None:
    for name in names:
        require(
            f"{type(settings).__name__}.{name}", "must be more than 0", is_kept=getattr(settings, name) > 0
        )


def require(field: str, rule: str, *, is_kept: bool) -> None:
    if not is_kept:
        raise InvalidInput(field, rule)


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


@lru_cache(maxsize=64)
def _hints(kind: Any) -> Sequence[tuple[str, Any, bool]]:
    """With whether it may not be shown."""
    hints = get_type_hints(kind)
    return [(field.name, hints[field.name], not field.repr) for field in fields(kind)]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def fits(value: object, hint: Any) -> bool:
    """Exactly: `True` is no number, and a text is no member of an enum."""
    kind, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if kind in (Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if kind is tuple:
        return isinstance(value, tuple) and all(fits(one, inner[0]) for one in value)
    if kind is not None and issubclass(kind, Mapping):
        return isinstance(value, Mapping) and all(
            fits(key, inner[0]) and fits(one, inner[1]) for key, one in value.items()
        )
    if kind is frozenset:
        return isinstance(value, frozenset) and all(fits(one, inner[0]) for one in value)
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint if hint in (bool, int, str) else isinstance(value, hint)


def words(hint: Any) -> str:
    kind, inner = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        return " or ".join(words(one) for one in inner)
    if kind is tuple:
        return f"a tuple, each {words(inner[0])}"
    if kind is frozenset:
        return f"a frozenset, each {words(inner[0])}"
    if kind is not None:
        return f"a mapping from {words(inner[0])} to {words(inner[1])}"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"one of {', '.join(f'{hint.__name__}.{one.name}' for one in hint)}"
    if isinstance(hint, type) and is_dataclass(hint):
        return f"{'an' if hint.__name__[0] in 'AEIOU' else 'a'} {hint.__name__}(…)"
    return _PLAIN.get(hint) or f"a {getattr(hint, '__name__', hint)}"


_PLAIN: Mapping[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    Decimal: "a Decimal",
    types.NoneType: "None",
}
