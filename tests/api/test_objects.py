"""The JSON of a task: exactly these fields, unknown is null, times and money as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from clutch.api import objects, views
from clutch.api.actions import camel
from clutch.api.task_info import (
    BlockedOn,
    BudgetInfo,
    ChildCount,
    DeliveryInfo,
    DeliveryTry,
    Expense,
    PlanInfo,
    RunningTool,
    SkippedPath,
    TaskInfo,
    TaskUsage,
    TimelineEvent,
    TokenCount,
    UnsentNotice,
    Why,
    WorkEvidence,
    read_object,
)
from clutch.core.budget import Budget, BudgetKind
from clutch.core.model import Delivery, DeliveryStatus, Outcome, Path, Phase, Reason, TaskStatus
from clutch.core.text.tasks import freeze
from clutch.core.views import (
    CurrentTool,
    DeliveryView,
    Evidence,
    PhaseCounts,
    PlanView,
    ResultView,
    Tally,
    TaskView,
    Transcript,
    TranscriptEntry,
)

NEW = TaskView(
    2, 1, 1, "agent:main:subagent:x", "agent:main:main", "agent:main:main", 1, "leaf", "main", "survey", Phase.QUEUED,
    Reason.ADMITTED, "", None, None, 1, 1_000_000.5, None, None, None, None, DeliveryView(Delivery.NONE),
)  # fmt: skip
FIELDS = [
    "taskId",
    "runId",
    "sessionKey",
    "requesterKey",
    "rootKey",
    "parentTaskId",
    "depth",
    "role",
    "agentId",
    "label",
    "status",
    "doingNow",
    "doingSince",
    "group",
    "activity",
    "phase",
    "reason",
    "outcome",
    "error",
    "errorText",
    "modelRequested",
    "share",
    "priority",
    "model",
    "generation",
    "attempt",
    "step",
    "resumes",
    "currentTool",
    "createdAt",
    "startedAt",
    "endedAt",
    "lastProgressAt",
    "deadlineAt",
    "pausedUntil",
    "usage",
    "budget",
    "delivery",
    "plan",
    "evidence",
    "checks",
    "workerId",
    "children",
]


def test_a_task_has_exactly_the_documented_fields_and_what_is_unknown_is_null() -> None:
    shown: Mapping[str, Any] = views.task(NEW)
    assert list(shown) == FIELDS
    unknown = [
        "runId",
        "outcome",
        "model",
        "startedAt",
        "currentTool",
        "budget",
        "plan",
        "evidence",
        "workerId",
    ]
    assert [shown[name] for name in unknown] == [None] * len(unknown)
    assert shown["usage"]["own"]["usd"] is None
    assert shown["parentTaskId"] is None
    assert json.loads(json.dumps(shown)) == shown


def test_times_are_rfc_3339_in_utc_with_milliseconds() -> None:
    assert views.moment(1_000_000.5) == "1970-01-12T13:46:40.500Z"
    assert views.moment(0.0) == "1970-01-01T00:00:00.000Z"
    assert views.moment(None) is None


def test_money_is_decimal_text_and_a_known_nothing_is_not_unknown() -> None:
    assert views.money(Decimal("1E+2")) == "100"
    assert views.money(Decimal("0.000000037")) == "0.000000037"
    assert (views.money(Decimal(0)), views.money(None)) == ("0", None)


def in_full() -> TaskView:
    purse = Budget(BudgetKind.TASK, "task:2", 1000, Decimal("2.50"), 10, 20, Decimal("0.1"), Decimal(0))
    return replace(
        NEW,
        requester_id=9,
        phase=Phase.COMPLETED,
        outcome=Outcome.OK,
        run_id=3,
        worker_id=4,
        current_tool=CurrentTool("read", "a.txt", 1.0),
        own=Tally(1, 2, 3, 4, 5, Decimal("0.5"), 1),
        budget=purse,
        plan=PlanView("approved", None, 1),
        evidence=Evidence(7, ("a.txt",), 2, ("late one",), "end"),
        delivery=DeliveryView(Delivery.DELIVERED, Path.STEERED, Reason.NONE, 1, None, 2.0),
        children_active=1,
        children_total=2,
    )


def test_a_task_in_full() -> None:
    shown = views.task(in_full())
    assert (shown["runId"], shown["workerId"], shown["parentTaskId"]) == ("r_3", "w_4", "t_9")
    assert shown["currentTool"] == {"name": "read", "arg": "a.txt", "since": "1970-01-01T00:00:01.000Z"}
    assert shown["usage"]["own"] == {
        "input": 1, "output": 2, "cacheRead": 3, "cacheWrite": 4, "calls": 5, "usd": "0.5", "unpricedCalls": 1,
    }  # fmt: skip
    assert shown["budget"] == {
        "tokens": 1000, "usd": "2.50", "spent": {"tokens": 10, "usd": "0.1"}, "reserved": {"tokens": 20, "usd": "0"},
    }  # fmt: skip
    assert shown["evidence"] == {
        "toolCalls": 7, "filesTouched": ["a.txt"], "childrenJoined": 2, "childrenMissing": ["late one"],
        "stopReason": "end",
    }  # fmt: skip
    assert shown["delivery"] == {
        "state": "delivered", "status": "delivered", "text": "delivered", "path": "steered", "reason": None,
        "attempts": 1, "nextAt": None,
        "at": "1970-01-01T00:00:02.000Z",
    }  # fmt: skip
    assert (shown["plan"], shown["children"]) == (
        {"state": "approved", "hash": None, "round": 1}, {"active": 1, "total": 2},
    )  # fmt: skip


def test_a_list_has_a_summary_the_next_page_and_where_events_go_on() -> None:
    shown = views.listing([NEW], PhaseCounts(running=1, needs_you=2), "c", "0.0:t_0:0")
    assert list(shown) == ["cursor", "tasks", "summary", "next"]
    assert (shown["cursor"], shown["next"]) == ("0.0:t_0:0", "c")
    assert shown["summary"] == {
        "running": 1, "queued": 0, "waiting": 0, "needsYou": 2, "done": 0, "failed": 0, "timeout": 0,
        "killed": 0, "lost": 0, "undelivered": 0, "delivering": 0, "usd": None, "replies": 0, "repliesIn": [],
        "unsent": 0, "text": "1 running · 2 in the inbox",
    }  # fmt: skip


def test_a_tree_nests_children_in_order() -> None:
    low, lower, other = (
        replace(NEW, task_id=number, requester_id=parent) for number, parent in ((3, 2), (4, 3), (5, 2))
    )
    root = views.tree([NEW, low, lower, other], 2)["root"]
    assert [node["task"]["taskId"] for node in root["nodes"]] == ["t_3", "t_5"]
    assert (root["task"]["taskId"], root["nodes"][0]["nodes"][0]["task"]["taskId"]) == ("t_2", "t_4")


def test_a_result_knows_its_size_and_whether_it_was_cut() -> None:
    whole = ResultView(2, Phase.COMPLETED, Outcome.OK, "größe", '{"n": 1}', "ab", 1, 1.0, ("more", 2.0))
    shown = views.result(whole)
    assert (shown["bytes"], shown["truncated"], shown["value"]) == (7, False, {"n": 1})
    assert shown["late"] == {"text": "more", "at": "1970-01-01T00:00:02.000Z"}
    cut = views.result(replace(whole, text=freeze("x" * 500, 300).text))
    assert cut["truncated"]
    assert 290 < (cut["bytes"] or 0) <= 300
    silent = views.result(replace(whole, text=None, value=None, late=None))
    assert (silent["text"], silent["bytes"], silent["value"], silent["late"]) == (None, None, None, None)


def test_a_page_of_a_transcript_says_where_it_goes_on() -> None:
    lines = (
        TranscriptEntry(1, 1.0, 0, "input", '{"text": "hi"}'),
        TranscriptEntry(2, 2.0, 3, "answer", '{"text": "ho"}'),
    )
    shown = views.transcript(Transcript(lines, 2))
    assert [(line["seq"], line["runId"], line["body"]["text"]) for line in shown["messages"]] == [
        (1, None, "hi"),
        (2, "r_3", "ho"),
    ]
    assert shown["next"] == 2


# ---- the same objects in Python ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        (TaskInfo, objects.TaskObject),
        (Why, objects.WhyObject),
        (TimelineEvent, objects.Happened),
        (DeliveryTry, objects.Attempt),
        (BlockedOn, objects.Stuck),
        (UnsentNotice, objects.Unsent),
        (DeliveryInfo, objects.DeliveryAnswer),
        (TokenCount, objects.Use),
        (TaskUsage, objects.Uses),
        (RunningTool, objects.Tool),
        (BudgetInfo, objects.BudgetAnswer),
        (Expense, objects.Sum),
        (PlanInfo, objects.PlanObject),
        (WorkEvidence, objects.EvidenceAnswer),
        (ChildCount, objects.Children),
        (SkippedPath, objects.Tried),
    ],
)
def test_a_dataclass_of_python_has_every_field_of_its_json_object(kind: Any, declared: Any) -> None:
    names = {one.metadata.get("json") or camel(one.name) for one in fields(kind)}
    assert names == set(declared.__annotations__)


def test_an_object_is_read_with_times_money_and_states_of_python() -> None:
    info = read_object(
        TaskInfo, json.loads(json.dumps(views.task(in_full()))) | {"added": "by a newer gateway"}
    )
    assert info.created_at == datetime(1970, 1, 12, 13, 46, 40, 500_000, UTC)
    assert (info.status, info.outcome, info.started_at) == (TaskStatus.DONE, Outcome.OK, None)
    assert info.usage.own == TokenCount(1, 2, 3, 4, 5, Decimal("0.5"), 1)
    assert info.budget == BudgetInfo(
        1000, Decimal("2.50"), Expense(10, Decimal("0.1")), Expense(20, Decimal(0))
    )
    assert info.evidence == WorkEvidence(7, ("a.txt",), 2, ("late one",), "end")
    assert (info.delivery.status, info.delivery.text) == (DeliveryStatus.DELIVERED, "delivered")
    assert read_object(TaskInfo, views.task(NEW)).delivery.status is None
