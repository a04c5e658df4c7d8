"""What is different about a tool, in plain words for the person who decides.

Everything that a model would be shown is in it, whole: words behind a cut are where somebody would hide theirs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from clutch.core.pins import canonical
from clutch.core.shown import quoted, visible
from clutch.tools.mcp.naming import DESCRIPTION_CHARS_MAX, Definition, parameters

DESCRIPTION_CHARS_SEEN = 4 * DESCRIPTION_CHARS_MAX  # of these a model may be shown some
ESCAPE_CHARS = 10  # as \U0001f600
OUTPUT_CHARS_MAX = 2000  # no model is shown an output schema


def words(server: str, before: Definition | None, after: Definition) -> str:
    tool = quoted(after.name, 80)
    if before is None:
        lines = [
            f"MCP server {server} offers a new tool {tool}. It is withheld until you approve it.",
            f"description: {_description(after)}",
            f"input schema: {json.dumps(parameters(after.input_schema), sort_keys=True)}",
        ]
    else:
        heading = f"MCP server {server} has changed its tool {tool}. It is withheld until you approve what it is now."
        lines = [heading, *_changes(before, after)]
    return "\n  ".join(lines)


def _changes(before: Definition, after: Definition) -> Iterator[str]:
    if before.description != after.description:
        yield f"description, approved: {_description(before)}"
        yield f"description, now: {_description(after)}"
    old, new = parameters(before.input_schema), parameters(after.input_schema)
    schemas = [f"input schema, {line}" for line in _apart(old, new, "")]
    is_other = canonical(before.input_schema) != canonical(after.input_schema)
    yield from schemas or (["input schema: only what no model is shown"] if is_other else [])
    yield from (f"hints, {line}" for line in _apart(before.annotations or {}, after.annotations or {}, ""))
    if canonical(before.output_schema) != canonical(after.output_schema):
        yield f"output schema, now: {visible(json.dumps(after.output_schema, sort_keys=True), OUTPUT_CHARS_MAX)}"


def _apart(before: Mapping[str, Any], after: Mapping[str, Any], path: str) -> Iterator[str]:
    """Key by key; what is no object is told whole."""
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        where = f"{path}{visible(key, 200)}"
        if key in before and key in after:
            if isinstance(old, dict) and isinstance(new, dict):
                yield from _apart(old, new, f"{where}.")
            elif canonical(old) != canonical(new):
                yield f"{where}: was {json.dumps(old, sort_keys=True)}, now {json.dumps(new, sort_keys=True)}"
        elif key in after:
            yield f"{where} is new: {json.dumps(new, sort_keys=True)}"
        else:
            yield f"{where} is gone: {json.dumps(old, sort_keys=True)}"


def _description(tool: Definition) -> str:
    seen = tool.description[:DESCRIPTION_CHARS_SEEN]
    return quoted(seen, ESCAPE_CHARS * DESCRIPTION_CHARS_SEEN)
