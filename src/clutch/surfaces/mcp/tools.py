"""The tools a client is offered: every path of HTTP that has a name as one, with its parameters and its answer.

Nothing is written down twice: a parameter, a check or a field of an answer that HTTP has is here, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from clutch.errors import InvalidInput
from clutch.surfaces.http.app import ENTRIES
from clutch.surfaces.http.routes import Entry

WAIT_S, WAIT_S_MAX = 25.0, 50.0  #: clients give up on a call after a minute
_NAMED = re.compile(r"{(\w+)}")
_ABOUT = {
    "target": "The task: its id or label, a unique beginning of either, its session key, or `last`.",
    "id": "Of an item, as `inbox` shows it.",
}
#: A client spawns for itself, and nobody reads its lists aloud.
_NOT_SAID = frozenset({"requester", "numbered"})


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    entry: Entry

    @property
    def is_read_only(self) -> bool:
        return not self.entry.is_write

    @property
    def is_destructive(self) -> bool:
        return self.name == "kill"

    @property
    def about(self) -> str:
        return (self.entry.handler.__doc__ or "").partition("\n")[0]

    @property
    def in_path(self) -> list[str]:
        return _NAMED.findall(self.entry.path)

    def input_schema(self) -> dict[str, Any]:
        schema = _schema(self.entry.body if self.entry.is_write else self.entry.query)
        named = {name: {"type": "string", "description": _ABOUT[name]} for name in self.in_path}
        said = {name: one for name, one in schema.get("properties", {}).items() if name not in _NOT_SAID}
        schema["properties"] = {**named, **said}
        schema["required"] = [*named, *schema.get("required", ())]
        schema.pop("description", None)
        if self.name == "wait":
            said["timeoutSeconds"] |= {"default": WAIT_S, "maximum": WAIT_S_MAX}
        return schema

    def output_schema(self) -> dict[str, Any]:
        assert self.entry.answer is not None, "a tool says what it answers"
        return _schema(self.entry.answer)

    def place(self, arguments: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
        """What belongs into the path, and the rest. Raises InvalidInput."""
        path = {name: str(arguments.get(name, "")) for name in self.in_path}
        for name, text in path.items():
            if not text.strip():
                raise InvalidInput(name, "must be given")
        return path, {name: value for name, value in arguments.items() if name not in path}


TOOLS: Mapping[str, Tool] = {entry.tool: Tool(entry.tool, entry) for entry in ENTRIES if entry.tool}


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    schema: dict[str, Any] = _bare(model.model_json_schema(mode="serialization"))
    return schema


def _bare(schema: Any) -> Any:
    """Without what repeats the names, and a null where a field may be left out: every word is read by a model."""
    if isinstance(schema, list):
        return [_bare(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: one for name, one in schema.items() if not (name == "title" and isinstance(one, str))}
    return {name: _bare(one) for name, one in kept.items() if (name, one) != ("default", None)}
