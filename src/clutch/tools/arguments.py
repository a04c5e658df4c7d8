"""Arguments that models and clients write: strict models, and errors that name the field and the rule."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from clutch.core.ids import hint
from clutch.errors import InvalidInput

FIELD_CHARS_MAX = 80  # an error repeats enough of the input to recognise it, never the whole
RULE_CHARS_MAX = 400


class Arguments(BaseModel):
    """Unknown fields and wrong types are errors; nothing is converted."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


A = TypeVar("A", bound=BaseModel)


def checked(model: type[A], args: Mapping[str, Any]) -> A:
    """Parse arguments as `model`. Raises InvalidInput for the first problem."""
    for name, value in args.items():
        if not _is_unicode(name) or not _is_unicode(value):
            raise InvalidInput(_printable(name)[:FIELD_CHARS_MAX], "must be valid Unicode text")
    try:
        # Parsed as JSON, where strict mode accepts a string for a date and a list for a tuple.
        return model.model_validate_json(json.dumps(dict(args)))
    except ValidationError as error:
        field, rule = _first(model, error)
        raise InvalidInput(field, rule) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(_not_json(args), "must be plain JSON") from error


def _not_json(args: Mapping[str, Any]) -> str:
    for name, value in args.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            return _printable(str(name))[:FIELD_CHARS_MAX]
    return "arguments"


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema for a provider, short because every request carries it.

    Left out are titles of pydantic, rules that are checked anyway, and null where a field may be absent."""
    schema = model.model_json_schema(by_alias=True)
    definitions = schema.pop("$defs", {})
    try:
        plain = _plain(schema, definitions)
    except RecursionError:  # a recursive type keeps its definition
        plain = _plain(schema, {})
        plain["$defs"] = {name: _plain(inner, {}) for name, inner in definitions.items()}
    plain.pop("description", None)
    return {"type": "object", "properties": {}, **plain}


def _plain(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """`definitions`: replace each `$ref`; without them it stays."""
    if schema.get("default", ...) is None:
        schema = _optional(schema)
    if definitions and "$ref" in schema:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**definitions[schema["$ref"].removeprefix("#/$defs/")], "description": None, **rest}
    if "enum" in schema:  # a model names its choice; the default is the first one
        schema = {key: value for key, value in schema.items() if key != "default"}
    plain = {key: _plain_value(key, value, definitions) for key, value in schema.items()}
    return {key: value for key, value in plain.items() if not _is_noise(key, value)}


def _is_noise(key: str, value: Any) -> bool:
    """Rules that a model follows without reading them: false by default, at least one, high limits."""
    match key, value:
        case ("title", str()) | ("description", None) | ("additionalProperties", bool()):
            return True
        case "default", False:
            return True
        case (("minLength" | "minItems" | "minimum" | "exclusiveMinimum"), 0 | 1):
            return True
        case (("maxLength" | "maxItems"), int(most)):
            return most >= 64
        case "maximum", int() | float():
            return bool(value >= 100)
        case _:
            return False


def _plain_value(key: str, value: Any, definitions: Mapping[str, Any]) -> Any:
    match key, value:
        case (("properties" | "patternProperties"), dict()):
            return {name: _plain(inner, definitions) for name, inner in value.items()}
        case (("default" | "enum" | "const" | "examples" | "required" | "discriminator"), _):
            return value
        case _, dict():
            return _plain(value, definitions)
        case _, list():
            return [_plain(inner, definitions) if isinstance(inner, dict) else inner for inner in value]
        case _:
            return value


def _optional(schema: Mapping[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in schema.items() if key not in ("default", "anyOf")}
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) == 1:
        return {**kinds[0], **rest}
    return {**rest, "anyOf": kinds} if kinds else rest


def _first(model: type[BaseModel], error: ValidationError) -> tuple[str, str]:
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(str(part) for part in problem["loc"])
    match problem["type"]:
        case "missing":
            rule = "is required"
        case "extra_forbidden":
            known = _names(_inner(model, problem["loc"][:-1]))
            near = hint(str(problem["loc"][-1]), known)
            rule = f"is not a known field{near or ';'} known are: {', '.join(known) or 'none'}"
        case _:
            rule = re.sub(r"^\w+ should", "must", problem["msg"])
    return _printable(field)[:FIELD_CHARS_MAX] or "arguments", rule[:RULE_CHARS_MAX]


def _is_unicode(value: object) -> bool:
    # Half of a surrogate pair is a valid Python string, but no database and no provider takes it.
    if not isinstance(value, str):
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _inner(model: type[BaseModel], path: Sequence[int | str]) -> type[BaseModel]:
    """Return the model of the field at `path`, as far as the path can be followed."""
    for part in path:
        fields = {info.alias or name: info.annotation for name, info in model.model_fields.items()}
        found = [one for one in _parts(fields.get(str(part))) if _is_model(one)]
        model = found[0] if found else model
    return model


def _parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for inner in get_args(annotation):
        yield from _parts(inner)


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _names(model: type[BaseModel]) -> list[str]:
    return [info.alias or name for name, info in model.model_fields.items()]


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii(text)
