"""Results that must have a form: is this value what the schema asks for?"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

PROBLEMS_MAX = 5
PROBLEM_CHARS_MAX = 300


def problems(schema: str, value: Any) -> str:
    """What is wrong, for the model to read; empty when nothing is."""
    from referencing.exceptions import Unresolvable

    try:
        found = sorted(_validator(schema).iter_errors(value), key=lambda error: list(map(str, error.path)))
    except Unresolvable as error:
        return f"the schema refers to something that is not in it: {error}"[:PROBLEM_CHARS_MAX]
    except RecursionError:
        return "the schema refers to itself without end"
    return "; ".join(
        f"{'.'.join(map(str, error.path)) or 'value'}: {error.message[:PROBLEM_CHARS_MAX]}"
        for error in found[:PROBLEMS_MAX]
    )


def problems_of_text(schema: str, text: str) -> str:
    """The same for a value that comes as JSON."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"value: is not JSON: {error}"
    return problems(schema, value)


@lru_cache(maxsize=64)
def _validator(schema: str) -> Draft202012Validator:
    from jsonschema import Draft202012Validator  # loaded when somebody wants it
    from referencing import Registry

    # An empty registry: a reference to somewhere else is an error, never a request over the network.
    return Draft202012Validator(json.loads(schema), registry=Registry())
