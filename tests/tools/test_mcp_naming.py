"""A stranger's tools in our own terms: names, words, schemas, hashes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.authority import ALIASES, NEVER_FOR_CHILDREN, SESSION_TOOLS
from clutch.core.model import canonical
from clutch.tools.mcp import McpServer
from clutch.tools.mcp.definitions import BadTool, Definition, changes, spec_of, tool_name, vet

SERVER = McpServer(name="web", command="x")


def definition(**more: Any) -> Definition:
    parts = {
        "name": "say",
        "description": "Says.",
        "input_schema": {"type": "object"},
        "output_schema": None,
        "annotations": None,
    }
    return Definition(**{**parts, **more})


@given(st.from_regex(r"[a-zA-Z0-9]{1,12}([_-][a-zA-Z0-9]{1,8})?", fullmatch=True), st.text(min_size=1))
def test_every_tool_gets_a_name_that_all_providers_take(server: str, tool: str) -> None:
    name = tool_name(server, tool)
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name)
    assert name.split("__", 1)[0] == server
    assert name not in NEVER_FOR_CHILDREN | SESSION_TOOLS | ALIASES.keys()


def test_no_name_of_ours_could_be_a_servers() -> None:
    assert not [name for name in NEVER_FOR_CHILDREN | SESSION_TOOLS | ALIASES.keys() if "__" in name]


def test_long_names_that_begin_alike_stay_apart() -> None:
    assert tool_name("web", "x" * 80 + "a") != tool_name("web", "x" * 80 + "b")


def test_description_is_marked_cleaned_and_capped() -> None:
    words = "Safe.\u202e\u200b\x1b[31m\U000e0041\nNext line." + "y" * 5000
    shown = spec_of(SERVER, definition(description=words)).description
    assert shown.startswith("(MCP server web) Safe.[31m\nNext line.yyy")
    assert len(shown) < 2050


def test_descriptions_inside_the_schema_are_cleaned_and_capped() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "description": "x\u202e" + "y" * 900}}}
    cleaned = spec_of(SERVER, definition(input_schema=schema)).parameters["properties"]["a"]["description"]
    assert cleaned.startswith("xyyy")
    assert len(cleaned) == 500


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "array"}, "not an object"),
        ({"type": "string"}, "not an object"),
        ({"type": "object", "properties": ["a"]}, "not an object"),
        (
            {"type": "object", "properties": {"a": {"type": "strnig"}}},
            "no JSON Schema (at properties/a/type)",
        ),
        ({"type": "object", "required": "a"}, "no JSON Schema (at required)"),
        ({"type": "object", "properties": {"a": {"$ref": "https://evil.example/x"}}}, "not in it"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/gone"}}}, "not in it"),
        ({"type": "object", "properties": {"a": {"enum": ["x\u200b"]}}}, "invisible"),
        ({"type": "object", "properties": {"a\u202e": {}}}, "invisible"),
        ({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(2000)}}, "bytes"),
        (json.loads('{"type": "object", "not":' * 30 + "{}" + "}" * 30), "deeper"),
    ],
)
def test_schema_that_a_provider_would_choke_on_is_refused(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(BadTool, match=re.escape(words)):
        vet(definition(input_schema=schema))


def test_sound_schema_passes_unchanged() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"type": "string", "pattern": "^\\d+$"}},
        "$defs": {"A": {"type": "integer"}},
    }
    vet(definition(input_schema=schema))
    assert spec_of(SERVER, definition(input_schema=schema)).parameters == schema


def test_hints_count_only_with_consent() -> None:
    trusting = McpServer(name="web", command="x", read_only_consent=True)
    reads = definition(annotations={"readOnlyHint": True})
    repeats = definition(annotations={"idempotentHint": True})
    lies = definition(annotations={"readOnlyHint": "yes"})
    for server, tool, expected in (
        (SERVER, reads, (False, False)),
        (SERVER, repeats, (False, False)),
        (trusting, reads, (True, True)),
        (trusting, repeats, (False, True)),
        (trusting, lies, (False, False)),
    ):
        spec = spec_of(server, tool)
        assert (spec.read_only, spec.replay_safe) == expected


def test_every_tool_reaches_outward_and_approval_follows_the_settings() -> None:
    asking = McpServer(name="web", command="x", approve=frozenset({"say"}))
    assert spec_of(asking, definition()).needs_approval
    assert not spec_of(SERVER, definition()).needs_approval
    assert spec_of(SERVER, definition()).is_outward


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"description": "Says!"}, "description"),
        ({"input_schema": {"type": "object", "properties": {}}}, "input schema"),
        ({"output_schema": {"type": "object"}}, "output schema"),
        ({"annotations": {"readOnlyHint": True}}, "annotations"),
        ({"input_schema": {"type": "object", "a": 1}}, "input schema"),
    ],
)
def test_any_change_changes_the_hash_and_is_named(more: dict[str, Any], words: str) -> None:
    assert canonical(definition(**more).as_json()) != canonical(definition().as_json())
    assert changes(definition(), definition(**more)) == (words,)


def test_true_and_one_are_different_and_the_order_of_keys_is_not() -> None:
    one, true = ({"type": "object", "const": value} for value in (1, True))
    assert changes(definition(input_schema=one), definition(input_schema=true)) == ("input schema",)
    turned = dict(reversed(one.items()))
    assert canonical(definition(input_schema=turned).as_json()) == canonical(
        definition(input_schema=one).as_json()
    )
