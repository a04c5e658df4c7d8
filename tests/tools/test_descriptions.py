"""What every request carries: few bytes for the tools, and nothing heavy loaded to describe them."""

from __future__ import annotations

import json
import subprocess
import sys

from clutch.ports import ToolSpec
from clutch.tools.arguments import schema_of
from clutch.tools.registry import standard_tools
from clutch.tools.session_tools import SpawnArguments
from clutch.tools.shell import Shell, ShellArguments

LEAF = ("read", "list", "search", "write", "edit", "shell", "web_fetch", "ask_human")


def wire(spec: ToolSpec) -> str:
    """As OpenAI-compatible providers are told."""
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return json.dumps({"type": "function", "function": function})


def test_the_tools_of_a_leaf_take_few_bytes_of_every_request() -> None:
    specs = {spec.name: spec for spec in standard_tools().specs()}
    shell = ToolSpec("shell", str(Shell.run.__doc__), schema_of(ShellArguments))
    told = [wire(specs.get(name, shell)) for name in LEAF]
    assert sum(map(len, told)) <= 3200, {name: len(text) for name, text in zip(LEAF, told, strict=True)}


def test_sessions_spawn_takes_few_bytes_and_every_name_it_tells_is_taken() -> None:
    spec = next(spec for spec in standard_tools().specs() if spec.name == "sessions_spawn")
    assert len(wire(spec)) <= 1150
    taken = {info.alias for info in SpawnArguments.model_fields.values()}
    assert set(spec.parameters["properties"]) <= taken


def test_no_schema_carries_words_for_people() -> None:
    for spec in standard_tools().specs():
        for word in ('"title"', '"additionalProperties": false', '"null"', "$ref", '"default": null'):
            assert word not in wire(spec)


def test_describing_the_tools_loads_no_http_client_and_the_file_tools_no_checker() -> None:
    for module, heavy in (("registry", {"aiohttp"}), ("files", {"pydantic", "clutch.ports"})):
        program = f"import sys, clutch.tools.{module}; sys.exit(bool({heavy!r} & set(sys.modules)))"
        assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0, (module, heavy)
