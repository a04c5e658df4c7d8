"""The keys as a JSON schema, for editors that complete and underline while one writes."""

from __future__ import annotations

import json
from typing import Any, assert_never

from clutch.config import kinds, units
from clutch.config.catalogue import REQUIRED, Tree, catalogue, default_of, kind_at, tree_of
from clutch.config.keys import FORMS, To
from clutch.config.kinds import Kind
from clutch.config.reasons import reason_of
from clutch.config.settings import Settings

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ENV = {
    "type": "object",
    "properties": {"env": {"type": "string"}},
    "required": ["env"],
    "additionalProperties": False,
}
Schema = dict[str, Any]


def schema() -> Schema:
    return {"$schema": DIALECT, "title": "clutch.json", **_object(Settings, tree_of(Settings), "", "")}


def _object(made: type, tree: Tree, inner: str, path: str) -> Schema:
    described = {}
    for key, known in tree.items():
        here = f"{inner}.{key}" if inner else key
        if isinstance(known, To):
            described[key] = _described(made, here, path)
        else:
            described[key] = _object(made, known, here, path)
    required = [
        key
        for key, to in FORMS[made].items()
        if made is not Settings and "." not in to.path and default_of(made, to.path) is REQUIRED
    ]
    return {
        "type": "object",
        "properties": described,
        "additionalProperties": False,
        **({"required": required} if required and not inner else {}),
    }


def _described(made: type, key: str, path: str) -> Schema:
    entry = next(one for one in catalogue() if one.key == path + key)
    reason = reason_of(entry.owner, entry.field)
    default = None if entry.default is REQUIRED else kinds.shown(entry.kind, entry.default)
    return {
        **_schema(kind_at(made, key), path + key),
        **({"description": reason} if reason else {}),
        **({"default": json.loads(json.dumps(default))} if default not in (None, "…") else {}),
    }


def _schema(kind: Kind, path: str) -> Schema:
    match kind:
        case kinds.Flag():
            return {"type": "boolean"}
        case kinds.Whole():
            return {"type": "integer", "minimum": 0}
        case kinds.Number():
            return {"type": "number", "minimum": 0}
        case kinds.Size():
            return {"anyOf": [{"type": "integer", "minimum": 0}, _text(units.SIZE)]}
        case kinds.Duration():
            return {"anyOf": [{"type": "number", "minimum": 0}, _text(f"(?=.){units.DURATION}")]}
        case kinds.Money():
            return {"anyOf": [{"type": "integer", "minimum": 0}, _text(units.MONEY)]}
        case kinds.Text() | kinds.Folder():
            return {"type": "string"}
        case kinds.Secret():
            return {"anyOf": [{"type": "string"}, _ENV]}
        case kinds.Choice():
            return {"enum": [str(word) for word in (*kind.words, *kind.hidden)]}
        case kinds.Either(choice, other):
            return {"anyOf": [_schema(choice, path), _schema(other, path)]}
        case kinds.Many():
            return {"type": "array", "items": _schema(kind.item, f"{path}[]")}
        case kinds.Table(item, names):
            named = {} if names is None else {"propertyNames": _schema(names, path)}
            return {"type": "object", "additionalProperties": _schema(item, path), **named}
        case kinds.Record(made):
            return _object(made, tree_of(made), "", f"{path}.")
        case kinds.Named(record):
            return {"type": "object", "additionalProperties": _schema(record, f"{path}.NAME")}
        case kinds.Maybe():
            return {"anyOf": [_schema(kind.kind, path), {"type": "null"}]}
        case _:
            assert_never(kind)


def _text(pattern: str) -> Schema:
    return {"type": "string", "pattern": f"^{pattern}$"}
