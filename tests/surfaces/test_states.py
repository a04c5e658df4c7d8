"""One table of tasks in every state, through every surface: each shows the same word, and what the task does now."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from clutch.api import objects, views
from clutch.api.timeline import why
from clutch.cli import output
from clutch.core import ids
from clutch.core.model import RETRYABLE, Delivery, Reason, TaskStatus
from clutch.core.status import doing_now
from clutch.core.text.format import typed
from clutch.core.text.tasks import Contract, info_text, list_text
from clutch.core.views import DeliveryView, PhaseCounts, TaskView
from clutch.surfaces.mcp_results import progress_text
from clutch.transactions.read.why import TaskExplanation
from tests.core.test_status import AT, CASES, RUNNING


def tasks() -> list[TaskView]:
    """One task for each case, each with an id and a label of its own. An ended one is being delivered."""
    made = [
        replace(RUNNING, task_id=7 + place, label=f"case {place}", **changes)  # type: ignore[arg-type]
        for place, (_, changes, _) in enumerate(CASES)
    ]
    return [one if one.outcome is None else replace(one, delivery=DELIVERING) for one in made]


DELIVERING = DeliveryView(Delivery.DEFERRED, cause=Reason.BUSY)
TABLE = [(expected, view) for (expected, _, _), view in zip(CASES, tasks(), strict=True)]


def received(view: TaskView) -> dict[str, Any]:
    """The task as an HTTP or MCP client receives it; checked against the published schema."""
    body: dict[str, Any] = json.loads(json.dumps(views.task(view)))
    TypeAdapter(objects.TaskObject).validate_python(body)
    return body


@pytest.mark.parametrize(("expected", "view"), TABLE, ids=[expected.name for expected, _ in TABLE])
def test_every_surface_shows_the_same_state_and_the_same_line(expected: TaskStatus, view: TaskView) -> None:
    task, line = received(view), doing_now(view).at(AT)
    assert task["status"] == expected
    shown = {
        "ps": output.table([task], AT, typed),
        "tree": output.forest([{**task, "nodes": []}], AT, typed),
        "run --wait": "\n".join(filter(None, (output.one_line(task, AT), output.failure(task, typed)))),
        "/subagents": list_text([view]),
        "/subagents info": info_text(view, Contract("survey", "agent:main:main")),
        "mcp": progress_text(task),
    }
    assert {name: text for name, text in shown.items() if expected not in text} == {}
    # Lines of 80 columns are cut.
    beside = {"ps": line[:20], "tree": line[:20], "mcp": task["doingNow"]}
    missing = {name: text for name, text in shown.items() if beside.get(name, line) not in text}
    assert missing == {}
    explained = why(AT, TaskExplanation(view, (), (), None))
    assert explained["text"].splitlines()[0].endswith(f": {expected}")
    assert explained["task"] == views.task(view)


@pytest.mark.parametrize(("expected", "view"), TABLE, ids=[expected.name for expected, _ in TABLE])
def test_a_failed_task_shows_the_command_that_runs_it_again(expected: TaskStatus, view: TaskView) -> None:
    task = received(view)
    for text in (output.table([task], AT, typed), output.forest([{**task, "nodes": []}], AT, typed)):
        assert (f"-> clutch retry {ids.task_id(view.task_id)}" in text) == (expected in RETRYABLE)


def test_the_state_of_a_result_has_one_wording() -> None:
    for view in (one for _, one in TABLE if one.outcome is not None):
        delivery = received(view)["delivery"]
        assert (delivery["status"], delivery["text"]) == ("deferred", "deferred (the parent agent is busy)")
        assert f"Delivery: {delivery['text']}" in info_text(view, Contract("survey", "agent:main:main"))


def page_of_all() -> dict[str, Any]:
    """The answer to `GET /v1/tasks` with the whole table, for the page."""
    listing = views.listing([view for _, view in TABLE], PhaseCounts(running=len(TABLE)), None, "0.0:t_0:0")
    return {**json.loads(json.dumps(listing)), "stalledAfterSeconds": 300.0}
