"""Arguments written by strangers: strict models, and errors that name the field and the rule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from clutch.errors import InvalidInput

FIELD_CHARS_MAX = 80  # an error repeats enough of the input to recognise it, never the whole
RULE_CHARS_MAX = 200


class Arguments(BaseModel):
    """Unknown fields and wrong types are errors; nothing is converted."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


A = TypeVar("A", bound=BaseModel)


def checked(model: type[A], args: Mapping[str, Any]) -> A:
    """`args` as `model`. Raises InvalidInput for the first thing that is wrong."""
    for name, value in args.items():
        if not _is_unicode(name) or not _is_unicode(value):
            raise InvalidInput(_printable(name)[:FIELD_CHARS_MAX], "must be valid Unicode text")
    try:
        return model.model_validate(dict(args))
    except ValidationError as error:
        field, rule = _first(model, error)
        raise InvalidInput(field, rule) from error


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema a provider is given, without the words pydantic adds for people."""
    schema = model.model_json_schema(by_alias=True)
    return {key: value for key, value in schema.items() if key not in ("title", "description")}


def _first(model: type[BaseModel], error: ValidationError) -> tuple[str, str]:
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(str(part) for part in problem["loc"])
    match problem["type"]:
        case "missing":
            rule = "is required"
        case "extra_forbidden":
            known = ", ".join(_names(model)) or "none"
            rule = f"is not a known field; known are: {known}"
        case _:
            rule = re.sub(r"^\w+ should", "must", problem["msg"])
    return _printable(field)[:FIELD_CHARS_MAX] or "arguments", rule[:RULE_CHARS_MAX]


def _is_unicode(value: object) -> bool:
    """Half a surrogate pair is a Python string, but no database and no provider takes it."""
    if not isinstance(value, str):
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _names(model: type[BaseModel]) -> list[str]:
    return [info.alias or name for name, info in model.model_fields.items()]


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii(text)
