"""What a model may say to the session tools, and what it is told when it says something else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clutch.core.ids import KeyKind
from clutch.core.schedule import ScheduleSpec
from clutch.core.session_tools import (
    TOOLS,
    Act,
    Action,
    ChangeSchedule,
    ListAgents,
    ListSessions,
    ReadHistory,
    ScheduleAction,
    SendTo,
    SessionCall,
    ShowStatus,
)
from clutch.errors import InvalidInput
from clutch.ports import ToolSpec
from clutch.tools.registry import Tools
from clutch.tools.session_tools import SPECS

GOOD: list[tuple[str, dict[str, Any], SessionCall]] = [
    ("subagents", {}, Act(Action.LIST)),
    ("subagents", {"action": "kill", "target": "all"}, Act(Action.KILL, "all")),
    ("subagents", {"action": "kill", "target": "1", "text": "enough"}, Act(Action.KILL, "1", "enough")),
    ("subagents", {"action": "steer", "target": "last", "text": " go "}, Act(Action.STEER, "last", "go")),
    (
        "subagents",
        {"action": "send", "target": "a", "text": "hi", "timeoutSeconds": 0},
        Act(Action.SEND, "a", "hi", wait_s=0),
    ),
    (
        "subagents",
        {"action": "approve", "target": "t_1", "planHash": "ab"},
        Act(Action.APPROVE, "t_1", plan_hash="ab"),
    ),
    ("subagents", {"action": "continue", "target": "a"}, Act(Action.CONTINUE, "a")),
    ("sessions_subagent_remove", {"target": "a"}, Act(Action.REMOVE, "a")),
    ("sessions_send", {"sessionKey": "main", "message": "hi"}, SendTo("hi", "main")),
    ("sessions_send", {"target": "main", "message": "hi"}, SendTo("hi", "main")),
    (
        "sessions_send",
        {"label": "x", "agentId": "y", "message": "hi", "timeoutSeconds": 1.5},
        SendTo("hi", label="x", agent_id="y", wait_s=1.5),
    ),
    ("sessions_list", {}, ListSessions()),
    (
        "sessions_list",
        {"kinds": ["main", "subagent"], "limit": 3, "activeMinutes": 2, "messageLimit": 1},
        ListSessions((KeyKind.MAIN, KeyKind.SUBAGENT), 3, 120.0, 1),
    ),
    ("sessions_history", {"sessionKey": "a"}, ReadHistory("a")),
    (
        "sessions_history",
        {"sessionKey": "a", "limit": 2, "before": 9, "includeTools": True},
        ReadHistory("a", 2, 9, with_tools=True),
    ),
    ("agents_list", {}, ListAgents()),
    ("session_status", {}, ShowStatus()),
    ("session_status", {"sessionKey": "1"}, ShowStatus("1")),
    (
        "cron",
        {"name": "nightly", "task": "look", "cron": "30 2 * * *", "timezone": "Europe/Berlin"},
        ChangeSchedule(
            ScheduleAction.ADD,
            "nightly",
            ScheduleSpec(
                "nightly", cron="30 2 * * *", timezone="Europe/Berlin", task="look", notify_parent=True
            ),
        ),
    ),
    ("cron", {"action": "remove", "name": "nightly"}, ChangeSchedule(ScheduleAction.REMOVE, "nightly")),
]

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("subagents", {"action": "explode"}, "action"),
    ("subagents", {"action": "kill"}, "target"),
    ("subagents", {"action": "pause", "target": "all"}, "target"),
    ("subagents", {"action": "steer", "target": "a", "text": "  "}, "text"),
    ("subagents", {"action": "reject", "target": "a", "planHash": "ab"}, "text"),
    ("subagents", {"action": "approve", "target": "a"}, "planHash"),
    ("subagents", {"action": "kill", "target": "a", "callerKey": "agent:main:main"}, "callerKey"),
    ("sessions_send", {"message": "hi"}, "sessionKey"),
    ("sessions_send", {"sessionKey": "a", "target": "a", "message": "hi"}, "sessionKey"),
    ("sessions_send", {"sessionKey": "a", "agentId": "b", "message": "hi"}, "agentId"),
    ("sessions_send", {"sessionKey": "a", "message": "  "}, "message"),
    ("sessions_send", {"sessionKey": "a", "message": "hi", "timeoutSeconds": "soon"}, "timeoutSeconds"),
    ("sessions_list", {"kinds": ["cron"]}, "kinds.0"),
    ("sessions_history", {}, "sessionKey"),
    ("sessions_history", {"sessionKey": "a", "before": 2**63}, "before"),
    ("agents_list", {"all": True}, "all"),
    ("cron", {"name": "a", "task": "x"}, "cron"),
    ("cron", {"name": "a", "task": "x", "cron": "61 * * * *"}, "cron"),
    ("cron", {"name": "a", "everySeconds": 60}, "task"),
    ("cron", {"name": "a", "task": "x", "everySeconds": 0.5}, "every"),
    ("cron", {"name": "a", "task": "x", "everySeconds": 60, "session": "agent:ops:main"}, "session"),
    ("cron", {"action": "pause", "name": "a", "task": "x"}, "task"),
]


@pytest.mark.parametrize(("name", "args", "meant"), GOOD)
def test_words_mean_what_they_say(name: str, args: dict[str, Any], meant: SessionCall) -> None:
    assert Tools().session_call(name, args) == meant


@pytest.mark.parametrize(("name", "args", "field"), BAD)
def test_other_words_are_refused_by_field(name: str, args: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Tools().session_call(name, args)
    assert refused.value.field == field


@pytest.mark.scenario(144)
def test_session_key_and_label_are_one_too_many() -> None:
    with pytest.raises(InvalidInput, match="exactly one of sessionKey and label"):
        Tools().session_call("sessions_send", {"sessionKey": "a", "label": "b", "message": "hi"})


def test_every_session_tool_is_described_and_read() -> None:
    assert {spec.name for spec in SPECS} == TOOLS
    assert {name for name, _, _ in GOOD} == TOOLS


def test_they_take_few_bytes_of_every_request() -> None:
    def wire(spec: ToolSpec) -> str:
        return json.dumps({"name": spec.name, "description": spec.description, "parameters": spec.parameters})

    sizes = {spec.name: len(wire(spec)) for spec in SPECS}
    assert sum(sizes.values()) <= 3150, sizes
