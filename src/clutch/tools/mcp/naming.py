"""A stranger's tool in our own terms: a name every provider takes, words that hide nothing, a sound schema.

What cannot be made sound is refused with the reason. Nothing here decides whether a tool is approved.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clutch.core.pins import canonical
from clutch.core.shown import is_plain
from clutch.ports import ToolSpec
from clutch.tools.mcp.settings import McpServer

NAME_CHARS_MAX = 64
DESCRIPTION_CHARS_MAX = 2000
FIELD_DESCRIPTION_CHARS_MAX = 500
SCHEMA_BYTES_MAX = 32 * 1024
SCHEMA_DEPTH_MAX = 24

_DIGEST_CHARS = 8
# For people: these can lose characters, others cannot.
_WORDS = frozenset({"$comment", "description", "title"})


class BadTool(Exception):
    """The tool cannot be offered to a model; the message says why."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A tool as its server describes it, word for word."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None
    annotations: Mapping[str, Any] | None

    def as_json(self) -> dict[str, Any]:
        return {
            "annotations": self.annotations,
            "description": self.description,
            "inputSchema": self.input_schema,
            "name": self.name,
            "outputSchema": self.output_schema,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Definition:
        return cls(
            data["name"], data["description"], data["inputSchema"], data["outputSchema"], data["annotations"]
        )

    def hints(self, name: str) -> bool:
        return self.annotations is not None and self.annotations.get(name) is True


def changes(before: Definition, after: Definition) -> tuple[str, ...]:
    """Which parts differ, in words."""
    old, new = before.as_json(), after.as_json()
    names = {
        "annotations": "annotations",
        "description": "description",
        "inputSchema": "input schema",
        "outputSchema": "output schema",
    }
    return tuple(words for key, words in names.items() if canonical(old[key]) != canonical(new[key]))


def tool_name(server: str, tool: str) -> str:
    """`<server>__<tool>`. It always has a "__", which no name of ours has: it never is a reserved one."""
    name = f"{server}__{re.sub(r'[^a-zA-Z0-9_-]', '_', tool)}"
    if len(name) <= NAME_CHARS_MAX:
        return name
    digest = hashlib.sha256(tool.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    return f"{name[: NAME_CHARS_MAX - _DIGEST_CHARS - 1]}_{digest}"


def spec_of(server: McpServer, tool: Definition) -> ToolSpec:
    """Hints count only with consent: they are the server's own word about itself."""
    is_read_only = server.read_only_consent and tool.hints("readOnlyHint")
    return ToolSpec(
        tool_name(server.name, tool.name),
        f"(MCP server {server.name}) {plain(tool.description, DESCRIPTION_CHARS_MAX)}".rstrip(),
        parameters(tool.input_schema),
        replay_safe=is_read_only or (server.read_only_consent and tool.hints("idempotentHint")),
        read_only=is_read_only,
        needs_approval=server.wants_approval(tool.name),
        is_outward=True,
    )


def vet(tool: Definition) -> None:
    """Raises BadTool for what a provider or a person would choke on. Slow at first: it loads a library."""
    from jsonschema import Draft202012Validator, SchemaError

    if not tool.name or not is_plain(tool.name):
        raise BadTool("its name is empty or has invisible characters")
    schema = parameters(tool.input_schema)
    if len(canonical(schema)) > SCHEMA_BYTES_MAX:
        raise BadTool(f"its input schema has more than {SCHEMA_BYTES_MAX} bytes")
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        where = "/".join(str(part) for part in error.absolute_path)
        raise BadTool(f"its input schema is no JSON Schema (at {plain(where, 100) or 'the top'})") from error


def plain(text: str, length_max: int) -> str:
    """Without controls, bidi marks and invisible characters; lines stay lines."""
    kept = "".join(char for char in text[: 4 * length_max] if char in "\n\t" or is_plain(char)).strip()
    return kept if len(kept) <= length_max else f"{kept[: length_max - 1]}…"


def parameters(schema: Mapping[str, Any]) -> dict[str, Any]:
    if schema.get("type", "object") != "object" or not isinstance(schema.get("properties", {}), dict):
        raise BadTool("its input schema is not an object; arguments always have names")
    cleaned = _cleaned({"type": "object", "properties": {}, **schema}, schema, "", 0)
    assert isinstance(cleaned, dict)
    return cleaned


def _cleaned(value: object, whole: Mapping[str, Any], key: str, depth: int) -> object:
    if depth > SCHEMA_DEPTH_MAX:
        raise BadTool(f"its input schema is nested deeper than {SCHEMA_DEPTH_MAX}")
    match value:
        case str() if key in _WORDS:
            return plain(value, FIELD_DESCRIPTION_CHARS_MAX)
        case str():
            _check_text(value)
            if key == "$ref" and not _resolves(value, whole):
                raise BadTool(f"its input schema refers to {plain(value, 100)!r}, which is not in it")
            return value
        case dict():
            for name in value:
                _check_text(name)
            return {name: _cleaned(inner, whole, name, depth + 1) for name, inner in value.items()}
        case list():
            return [_cleaned(inner, whole, "", depth + 1) for inner in value]
        case _:
            return value


def _check_text(text: str) -> None:
    if not is_plain(text.replace("\n", "").replace("\t", "")):
        raise BadTool("its input schema has invisible characters outside of descriptions")


def _resolves(reference: str, whole: object) -> bool:
    if reference != "#" and not reference.startswith("#/"):
        return False
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(whole, dict) or name not in whole:
            return False
        whole = whole[name]
    return True
