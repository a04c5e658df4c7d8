"""Everything that can be said of a child can be said at the command line."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from clutch.cli.spawn import SpawnCommandOptions
from clutch.core.checks import TaskCheck
from clutch.core.fair_share import Priority
from clutch.core.policy import Limits
from clutch.errors import InvalidInput
from clutch.tools.session_tools import SpawnArguments, request_of
from tests.surfaces.typed import typed

#: An older name of the timeout, whether agents need the result, and what the commands say themselves.
ELSEWHERE = {"timeoutSeconds", "expectsCompletion", "dryRun", "count", "idempotencyKey"}


def test_every_parameter_of_a_spawn_has_its_option_and_arrives_as_it_was_said(tmp_path: Path) -> None:
    schema, file = tmp_path / "schema.json", tmp_path / "notes.txt"
    _ = schema.write_text('{"type": "object"}')
    _ = file.write_bytes(b"\xff\x00")
    wanted = SpawnCommandOptions(
        "look", label="one", agent="other", model="a:b", thinking="low", run_timeout=5, plan=True, tool=["read"],
        attach=[file], workspace="isolated", cwd="src", budget_usd="0.50", budget_tokens=900, schema=schema,
        context="fork", sandbox="require", runtime="acp", cleanup="delete", thread=True, mode="run",
        share="tenant-a", priority="high", check=["file:notes.txt"], notify_parent=True, session="agent:main:main",
    )  # fmt: skip
    said = wanted.to_json()
    names = {field.alias for field in SpawnArguments.model_fields.values()}
    assert set(said) - {"requester"} == names - ELSEWHERE
    assert said["attachments"] == [
        {"name": "notes.txt", "content": base64.b64encode(b"\xff\x00").decode(), "encoding": "base64"}
    ]
    request = request_of({name: value for name, value in said.items() if name != "requester"}, Limits())
    assert (request.task, request.cwd, request.needs_sandbox, request.runtime) == ("look", "src", True, "acp")
    assert request.notify_parent
    assert request.checks == (TaskCheck(file="notes.txt"),)
    assert (request.share, request.priority) == ("tenant-a", Priority.HIGH)


def test_what_was_not_said_is_left_to_the_gateway() -> None:
    assert SpawnCommandOptions("look").to_json() == {"task": "look"}


@pytest.mark.parametrize("command", ["run", "spawn"])
def test_blank_task_is_refused_before_a_gateway_is_started_for_it(command: str, tmp_path: Path) -> None:
    said = typed(command, " \n", state=tmp_path / "state")
    assert (said.code, said.err) == (2, f"clutch {command}: task: must not be blank: say what to do\n")
    assert not (tmp_path / "state").exists()


def test_schema_that_is_no_json_is_refused_by_its_option(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    _ = file.write_text(json.dumps({})[:-1])
    with pytest.raises(InvalidInput) as refused:
        SpawnCommandOptions("look", schema=file).to_json()
    assert refused.value.field == "--schema"
