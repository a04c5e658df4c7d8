"""A Python type as the form of a result: its JSON schema for the child, its reading for the program.

Anything pydantic knows: a model, a dataclass, a TypedDict. Loaded when somebody asks for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from clutch.errors import InvalidInput

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Form(Generic[V]):
    schema: Mapping[str, Any]
    read: Callable[[Any], V]


def form_of(output_type: type[V]) -> Form[V]:
    """Raises InvalidInput for a type that has no schema."""
    from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
    from pydantic.errors import PydanticInvalidForJsonSchema

    try:
        adapter = TypeAdapter(output_type)
        schema = adapter.json_schema()
    except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema, PydanticUserError) as error:
        raise InvalidInput("output_type", f"has no JSON schema: {str(error)[:200]}") from error

    def read(value: Any) -> V:
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            name = getattr(output_type, "__name__", str(output_type))
            raise InvalidInput("value", f"is no {name}: {str(error)[:500]}") from error

    return Form(schema, read)
