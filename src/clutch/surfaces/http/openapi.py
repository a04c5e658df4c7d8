"""The OpenAPI document, made from the table of paths, the models of requests and the objects of `api/objects.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core.core_schema import TypedDictSchema

from clutch import __version__
from clutch.api.actions import ActionBody
from clutch.api.objects import ProblemAnswer
from clutch.api.problems import STATUS
from clutch.surfaces.http.routes import HttpRoute

Json = dict[str, Any]
Known = Mapping[Any, Json]  #: by the model, how it is referred to

REF = "#/components/schemas/{model}"
KEY_PARAMETER: Json = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
    "description": "the same key and body get the same answer",
}


class PublishedSchemas(GenerateJsonSchema):
    """Schemas under the names that clients know: without the `Object` at the end of a class of ours."""

    def normalize_name(self, name: str) -> str:
        return super().normalize_name(name).removesuffix("Object")

    def typed_dict_schema(self, schema: TypedDictSchema) -> JsonSchemaValue:
        made = super().typed_dict_schema(schema)
        return made | {"title": made["title"].removesuffix("Object")}


def schema_of(model: Any, mode: JsonSchemaMode) -> Json:
    return TypeAdapter(model).json_schema(mode=mode, schema_generator=PublishedSchemas)


def document(entries: Iterable[HttpRoute]) -> Json:
    entries = list(entries)
    used = sorted({model for entry in entries for model in _models(entry)}, key=lambda model: model.__name__)
    adapters: list[tuple[Any, JsonSchemaMode, TypeAdapter[Any]]] = [
        (model, "validation", TypeAdapter(model)) for model in used
    ]
    refs, defined = TypeAdapter.json_schemas(adapters, ref_template=REF, schema_generator=PublishedSchemas)
    known: Known = {model: ref for (model, _), ref in refs.items()}
    paths: Json = {}
    for entry in entries:
        paths.setdefault(entry.path, {})[entry.method.lower()] = _operation(entry, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Clutch", "version": __version__},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": defined.get("$defs", {}),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _models(entry: HttpRoute) -> Iterator[Any]:
    yield ProblemAnswer
    yield from (model for model in (entry.answer, entry.refusal) if model is not None)
    if entry.body is not ActionBody:
        yield entry.body


def _operation(entry: HttpRoute, known: Known) -> Json:
    operation: Json = {
        "operationId": f"{entry.method.lower()}{re.sub(r'[^a-zA-Z]+', '_', entry.path)}".strip("_"),
        "description": f"{entry.about} Scope: {entry.scope}.",
        "x-scope": entry.scope.value,
        "parameters": [*_parameters(entry)],
        "responses": _responses(entry, known),
    }
    if entry.body is not ActionBody:
        is_needed = bool(schema_of(entry.body, "validation").get("required"))
        content = {"application/json": {"schema": known[entry.body]}}
        operation["requestBody"] = {"required": is_needed, "content": content}
    return operation


def _parameters(entry: HttpRoute) -> Iterator[Json]:
    for name in re.findall(r"{(\w+)}", entry.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    asked = entry.query.model_json_schema(ref_template="#/$defs/{model}")
    for name, given in asked.get("properties", {}).items():
        yield {"name": name, "in": "query", "schema": _inlined(given, asked.get("$defs", {}))}
    if entry.is_write:
        yield KEY_PARAMETER


def _inlined(given: Any, defined: Json) -> Any:
    """Parameters have no place for definitions of their own."""
    if isinstance(given, list):
        return [_inlined(one, defined) for one in given]
    if not isinstance(given, dict):
        return given
    if "$ref" in given:
        return _inlined(defined[given["$ref"].rpartition("/")[2]], defined)
    return {name: _inlined(value, defined) for name, value in given.items()}


def _responses(entry: HttpRoute, known: Known) -> Json:
    schema = {"type": "string"} if entry.answer is None else known[entry.answer]
    problem = known[ProblemAnswer]
    if entry.refusal is not None:
        problem = {"anyOf": [problem, known[entry.refusal]]}
    said: Json = {
        str(status): {"description": meaning, "content": {entry.media: {"schema": schema}}}
        for status, meaning in ((entry.status, "done"), (entry.dry_status, "nothing was created: a dry run"))
        if status is not None
    }
    for code, status in STATUS.items():
        known_as = said.setdefault(str(status), {"description": code})
        known_as["description"] = " or ".join(dict.fromkeys([*known_as["description"].split(" or "), code]))
        known_as["content"] = {"application/json": {"schema": problem}}
    return said
