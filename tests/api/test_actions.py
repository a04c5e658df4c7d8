"""Each declared action is on every surface: a path, a tool, a method of `Task`, a command, a slash command."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from typing import Any

import pytest
import typer
from pydantic import TypeAdapter

from clutch import Task
from clutch.api.actions import ACTIONS, ANSWER, ApiAction, json_of
from clutch.api.slash import ACTIONS as SLASH
from clutch.cli.app import app
from clutch.surfaces.http.app import ENTRIES
from clutch.surfaces.mcp import TOOLS

ON_TASKS = [action for action in ACTIONS if not action.at]
#: The least that each body needs, as a request carries it.
LEAST: dict[str, dict[str, Any]] = {
    "steer": {"text": "x"},
    "send": {"text": "x"},
    "approve": {"planHash": "0"},
    "reject": {"planHash": "0", "reason": "x"},
    "answer": {"decision": "answer", "hash": "0"},
    "add_schedule": {"task": "x", "everySeconds": 60.0},
}
#: Methods of `Task` with another name than their HTTP path: a word of Python, and one that people read.
METHODS = {"continue": "continue_", "remove": "archive"}


@pytest.mark.parametrize("action", ACTIONS, ids=lambda one: one.path)
def test_an_action_is_a_path_of_http_and_a_tool_if_it_says_so(action: ApiAction[Any]) -> None:
    (entry,) = [one for one in ENTRIES if (one.method, one.path) == ("POST", action.path)]
    assert (entry.scope, entry.body, entry.status) == (action.scope, action.body, action.status)
    assert entry.answer.__name__ in inspect.get_annotations(action.run)["return"]
    assert entry.about == inspect.cleandoc(action.run.__doc__ or "")
    assert entry.tool == (action.name if action.is_tool else None)
    if action.is_tool:
        assert TOOLS[action.name].entry is entry


@pytest.mark.parametrize("action", ON_TASKS, ids=lambda one: one.name)
def test_an_action_on_a_task_is_a_method_a_command_and_a_slash_command(action: ApiAction[Any]) -> None:
    method = METHODS.get(action.name, action.name)
    parameters = set(inspect.signature(vars(Task)[method]).parameters) - {"self"}
    assert parameters == {one.name for one in fields(action.body)}
    assert action.name in SLASH
    assert action.name in typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("action", ACTIONS, ids=lambda one: one.path)
def test_a_body_is_sent_as_it_is_read(action: ApiAction[Any]) -> None:
    given = LEAST.get(action.name, {})
    body = TypeAdapter(action.body).validate_json(json.dumps(given))
    assert given.items() <= json_of(body).items()
    assert TypeAdapter(action.body).validate_json(json.dumps(json_of(body))) == body


def test_an_answer_is_a_command_of_its_own() -> None:
    assert ANSWER.name in typer.main.get_command(app).commands  # type: ignore[attr-defined]
