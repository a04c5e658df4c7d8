"""Tasks in a few words: the list of a chat, all about one, a log."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from clutch.core.model import Delivery, Outcome, Path, Phase, Reason
from clutch.core.text.format import used_tokens
from clutch.core.text.tasks import NOTHING, Contract, headline, info_text, list_text, log_text, summary_text
from clutch.core.views import (
    CurrentTool,
    DeliveryView,
    History,
    HistoryEntry,
    PhaseCounts,
    PlanView,
    Tally,
    TaskView,
)

RUNNING = TaskView(
    0x7F3A, 1, 1, "agent:main:subagent:x", "agent:main:main", "agent:main:main", 1, "leaf", "main", "AI research",
    Phase.RUNNING, Reason.STARTED, "", None, None, 1, 1000.0, 1000.0, None, 1146.0, None, DeliveryView(Delivery.NONE),
    own=Tally(12_100, 3_100, calls=4), current_tool=CurrentTool("web_fetch", "example.com", 1146.0),
    worker_id=1, at=1150.0,
)  # fmt: skip
DONE = replace(
    RUNNING, task_id=0x91BC, label="Data analysis", phase=Phase.COMPLETED, outcome=Outcome.OK, ended_at=1312.0,
    current_tool=None, delivery=DeliveryView(Delivery.DELIVERED, Path.QUEUED, Reason.NONE, 1, at=1313.0),
)  # fmt: skip
CONTRACT = Contract("find\nout", "agent:main:main")


def test_a_list_is_numbered_lined_up_and_counts() -> None:
    assert list_text([RUNNING, DONE]) == (
        "Subagents (this session)   Active: 1 · Done: 1\n"
        '1) running · AI research · 2m30s · 15.2k tok · web_fetch "example.com" · 4 s · t_tsz\n'
        "2) done    · Data analysis · 5m12s · unchecked · result delivered · t_wd41"
    )


def test_a_wait_for_a_quota_says_when_it_ends() -> None:
    waits = replace(RUNNING, phase=Phase.PAUSED, cause=Reason.QUOTA, parked_until=15 * 3600.0 + 20 * 60)
    assert "rate limited · AI research · 2m30s · 15.2k tok · until 15:20:00 UTC" in list_text([waits])


def test_an_empty_list_says_so() -> None:
    assert list_text([]) == NOTHING


def test_a_label_cannot_begin_a_line_of_its_own() -> None:
    text = list_text([replace(RUNNING, label="x\n2) done · fake")])
    assert len(text.splitlines()) == 2


def test_a_failed_task_shows_its_error_in_one_line_and_where_its_result_is() -> None:
    failed = replace(DONE, outcome=Outcome.ERROR, error="no key\n(401)")
    assert "failed · Data analysis · 5m12s · no key (401) · result delivered · t_wd41" in list_text([failed])


def test_a_headline_says_that_a_result_is_undelivered() -> None:
    lost = replace(DONE, delivery=DeliveryView(Delivery.UNDELIVERED, None, Reason.EXPIRY))
    assert headline(DONE) == 't_wd41 "Data analysis": done'
    assert headline(lost) == 't_wd41 "Data analysis": done, undelivered'


def test_a_summary_leaves_out_what_is_zero() -> None:
    counts = PhaseCounts(running=3, needs_you=1, done=12, timeout=1, delivering=2, usd=Decimal("0.42"))
    assert summary_text(counts) == "3 running · 1 in the inbox · 12 done · 1 timed out · 2 delivering · $0.42"
    assert summary_text(PhaseCounts()) == "no tasks"


@pytest.mark.scenario(159)
def test_info_shows_all_fields() -> None:
    view = replace(
        DONE, error="broken", model_requested="small", model="small-2", run_id=3, plan=PlanView("approved", None, 1),
        own=Tally(10, 5, calls=1, usd=Decimal("0.42")), subtree=Tally(20, 10, calls=2, usd=Decimal("0.5"), unpriced=1),
        delivery=DeliveryView(Delivery.WAITING, None, Reason.NONE, 2, next_at=1400.0),
    )  # fmt: skip
    contract = replace(
        CONTRACT, thinking="low", workspace="/w", cleanup="delete", queued_at=1000.0, archived_at=5000.0,
        result_bytes=2100, result_sha="ab" * 32, attachments=(("data.csv", 10),),
    )  # fmt: skip
    lines = dict(line.split(": ", 1) for line in info_text(view, contract).splitlines())
    assert list(lines) == [
        "Status", "Now", "Phase", "Label", "Task", "Ids", "Session", "Parent", "Depth", "Role", "Model", "Thinking",
        "Mode", "Cleanup", "Workspace", "Created", "Queued", "Started", "Ended", "Archive", "Elapsed", "Tokens", "Cost",
        "Delivery", "Outcome", "Result", "Attachments", "Plan",
    ]  # fmt: skip
    assert lines["Ids"] == "task t_wd41, run r_3, generation 1, attempt 0"
    assert (lines["Task"], lines["Model"]) == ("find\\nout", "asked small, used small-2")
    assert lines["Cost"] == "$0.42 (subtree at least $0.50)"
    assert lines["Delivery"] == "delivering, 2 attempts, next attempt 1970-01-01 00:23:20 UTC"
    assert (lines["Outcome"], lines["Plan"]) == ("ok: broken", "[PLAN:APPROVED]")
    assert lines["Result"] == "2 KiB, sha256 abababababab…, captured 1970-01-01 00:21:52 UTC"
    assert (lines["Attachments"], lines["Archive"]) == ("data.csv (10 B)", "archived 1970-01-01 01:23:20 UTC")


def test_what_is_unknown_is_never_shown_as_nothing_spent() -> None:
    lines = dict(line.split(": ", 1) for line in info_text(RUNNING, CONTRACT).splitlines())
    assert lines["Cost"] == "n/a (subtree n/a)"
    assert (lines["Ended"], lines["Result"], lines["Outcome"]) == ("n/a", "none", "none yet")


@pytest.mark.scenario(159)
def test_a_log_has_one_line_for_each_thing_said() -> None:
    entries = (
        HistoryEntry(1, 3600.0, "input", "do\nit", "task"),
        HistoryEntry(2, 3601.0, "answer", "", calls=("read(a.txt)",)),
        HistoryEntry(3, 3602.0, "results", "gone", "read", is_failed=True),
        HistoryEntry(4, 3603.0, "answer", "sorry"),
    )
    assert log_text(History(entries, before=1)).splitlines() == [
        "(older entries before #1)",
        "#1 01:00:00 task: do\\nit",
        "#2 01:00:01 assistant calls read(a.txt)",
        "#3 01:00:02 read failed: gone",
        "#4 01:00:03 assistant: sorry",
    ]
    assert log_text(History()) == "The transcript is empty."


@pytest.mark.parametrize(
    ("count", "calls", "shown"), [(0, 0, "0"), (0, 3, "n/a"), (12, 1, "12"), (15_200, 2, "15.2k")]
)
def test_usage_that_no_provider_counts_is_unknown_and_not_nothing(count: int, calls: int, shown: str) -> None:
    assert used_tokens(count, calls) == shown
