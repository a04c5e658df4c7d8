"""Structured output: check whether a value matches its JSON schema.

A schema is a foreign program: it may refer to itself a thousandfold, and its patterns may backtrack exponentially. So a
value is checked in a thread and for a limited time, and patterns are matched by an engine without backtracking, because
Python's own cannot be interrupted, not even from another thread.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from clutch.errors import InvalidInput

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from pydantic_core import SchemaValidator

PROBLEMS_MAX = 5
PROBLEM_CHARS_MAX = 300
CHECK_S = 5.0  #: an honest form takes milliseconds
MATCH_MAX = 20_000_000  #: states of a pattern times characters: half a second, in which no other task runs

_ends_at: ContextVar[float] = ContextVar("_ends_at")
#: Below these are names, and below those plain values: neither is a rule.
_NAMES = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})
_VALUES = frozenset({"const", "enum", "default", "examples"})
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d+)(?:,(\d*))?\}|.", re.DOTALL)


class _TooMuch(Exception):
    """Checking it takes more than it is worth."""


def check_form(schema: str, field: str = "outputSchema") -> None:
    """Raises InvalidInput: it holds a pattern that cannot be matched in a bounded time."""
    from pydantic_core import SchemaError

    for pattern in _patterns(json.loads(schema), field):
        try:
            _engine(pattern)
        except SchemaError as error:
            why = str(error).strip().splitlines()[-1].strip()
            rule = f"has the pattern {pattern[:80]!r}, which cannot be matched in a bounded time: {why}"
            raise InvalidInput(field, rule) from error


async def problems(schema: str, value: Any) -> str:
    """What is wrong, for the model to read; empty when nothing is."""
    return await asyncio.to_thread(_problems, schema, value)


async def problems_of_text(schema: str, text: str) -> str:
    """The same for a value that comes as JSON."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)  # Python reads more numbers than there are
    except ValueError as error:
        return f"value: is not JSON: {error}"
    except RecursionError:
        return "value: is nested too deeply"
    return await problems(schema, value)


def _problems(schema: str, value: Any) -> str:
    from referencing.exceptions import Unresolvable

    _ends_at.set(time.monotonic() + CHECK_S)
    try:
        found = sorted(_validator(schema).iter_errors(value), key=lambda error: list(map(str, error.path)))
    except Unresolvable as error:
        return f"the schema refers to something that is not in it: {error}"[:PROBLEM_CHARS_MAX]
    except RecursionError:
        return "the schema refers to itself without end"
    except _TooMuch:
        return "value: it takes too long to check this against the schema; hand in something shorter"
    return "; ".join(
        f"{'.'.join(map(str, error.path)) or 'value'}: {error.message[:PROBLEM_CHARS_MAX]}"
        for error in found[:PROBLEMS_MAX]
    )


@lru_cache(maxsize=64)
def _validator(schema: str) -> Draft202012Validator:
    from jsonschema import Draft202012Validator, validators  # loaded when it is needed
    from referencing import Registry

    rules = dict(Draft202012Validator.VALIDATORS) | {"pattern": _pattern, "uniqueItems": _unique}
    extend: Callable[..., type[Draft202012Validator]] = validators.extend
    checked = extend(Draft202012Validator, {name: _timed(rule) for name, rule in rules.items()})
    # An empty registry: a reference to somewhere else is an error, never a request over the network.
    return checked(json.loads(schema), registry=Registry())


def _timed(rule: Callable[..., Any]) -> Callable[..., Any]:
    def timed(*known: Any) -> Any:
        if time.monotonic() > _ends_at.get():
            raise _TooMuch
        return rule(*known)

    return timed


def _pattern(_: Any, pattern: str, text: Any, __: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if not isinstance(text, str):
        return
    if _weight(pattern) * len(text) > MATCH_MAX:
        raise _TooMuch
    if not _engine(pattern).isinstance_python(text):
        yield ValidationError(f"{text!r} does not match {pattern!r}")


def _unique(_: Any, is_wanted: bool, items: Any, __: Any) -> Iterator[Any]:
    """The library compares everything with everything."""
    from jsonschema import ValidationError

    if not is_wanted or not isinstance(items, list):
        return
    if len({json.dumps(item, sort_keys=True) for item in items}) < len(items):
        yield ValidationError("has non-unique elements")


# ---- patterns ----------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _engine(pattern: str) -> SchemaValidator:
    from pydantic_core import SchemaValidator, core_schema

    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


@lru_cache(maxsize=256)
def _weight(pattern: str) -> int:
    """How many states it has, about: what is counted is multiplied."""
    groups = [[1]]
    for token in _TOKEN.finditer(pattern):
        match token[0]:
            case "(":
                groups.append([1])
            case ")" if len(groups) > 1:
                size = sum(groups.pop())
                groups[-1].append(size)
            case _ if token[1] is not None:
                groups[-1][-1] *= max(int(token[1]), int(token[2] or 0), 1)
            case _:
                groups[-1].append(1)
    return sum(map(sum, groups))


def _patterns(schema: Any, field: str) -> Iterator[str]:
    if isinstance(schema, list):
        for one in schema:
            yield from _patterns(one, field)
    if not isinstance(schema, Mapping):
        return
    if isinstance(schema.get("pattern"), str):
        yield schema["pattern"]
    if isinstance(schema.get("patternProperties"), Mapping):
        raise InvalidInput(field, "has patternProperties, which are not supported: name the properties")
    for name, one in schema.items():
        if name in _NAMES and isinstance(one, Mapping):
            yield from _patterns(list(one.values()), field)
        elif name not in _VALUES:
            yield from _patterns(one, field)
