"""The states people see: every row of the store has exactly one, and beside it a line that is never empty."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.model import WAITS, Delivery, DeliveryStatus, Outcome, Path, Phase, Reason, TaskStatus
from clutch.core.questions import QuestionKind
from clutch.core.status import (
    ListGroup,
    delivery_status,
    delivery_text,
    doing_now,
    elapsed_s,
    list_group,
    question_text,
    status_of,
    task_status,
)
from clutch.core.views import CurrentTool, DeliveryView, OpenQuestion, TaskView

AT = 1000.0
ASKS = {"phase": Phase.PAUSED, "cause": Reason.NEEDS_YOU}
RUNNING = TaskView(
    7, 1, 1, "agent:main:subagent:x", "agent:main:main", "agent:main:main", 1, "leaf", "main", "survey", Phase.RUNNING,
    Reason.STARTED, "", None, None, 1, 900.0, 910.0, None, 990.0, None, DeliveryView(Delivery.NONE), step=4,
    worker_id=1, called_at=994.0, at=AT,
)  # fmt: skip
MOMENTS = st.none() | st.floats(0.0, 2 * AT)
DELIVERIES = st.builds(
    DeliveryView, st.sampled_from(Delivery), cause=st.sampled_from(Reason), detail=st.text(max_size=5)
)
VIEWS = st.builds(
    lambda **changes: replace(RUNNING, **changes),
    phase=st.sampled_from(Phase),
    cause=st.sampled_from(Reason),
    outcome=st.none() | st.sampled_from(Outcome),
    error=st.none() | st.text(max_size=20),
    question=st.none() | st.builds(OpenQuestion, st.sampled_from(QuestionKind), st.just("asks: which?")),
    parked_until=MOMENTS,
    wake_at=MOMENTS,
    started_at=MOMENTS,
    ended_at=MOMENTS,
    progress_at=MOMENTS,
    called_at=MOMENTS,
    is_paused=st.booleans(),
    worker_id=st.none() | st.just(1),
    current_tool=st.none()
    | st.builds(CurrentTool, st.text(min_size=1, max_size=9), st.text(max_size=9), st.just(AT)),
    children_active=st.integers(0, 3),
    children_total=st.integers(3, 9),
    delivery=DELIVERIES,
)


@given(VIEWS)
def test_every_task_has_one_state_and_a_line_that_is_never_empty(view: TaskView) -> None:
    assert isinstance(task_status(view), TaskStatus)
    line = doing_now(view).at(view.at)
    assert line.strip()
    assert "\n" not in line
    assert isinstance(list_group(task_status(view)), ListGroup)
    elapsed = elapsed_s(view)
    assert (elapsed is None) == (view.started_at is None)
    assert elapsed is None or elapsed >= 0


@given(VIEWS)
def test_an_outcome_alone_decides_the_state_of_an_ended_task(view: TaskView) -> None:
    if view.outcome is not None:
        assert task_status(view) is task_status(replace(RUNNING, outcome=view.outcome))


CASES: list[tuple[TaskStatus, dict[str, object], str]] = [
    (TaskStatus.STARTING, {"phase": Phase.SPAWNING}, "creating its files · 1m40s"),
    (TaskStatus.QUEUED, {"phase": Phase.QUEUED, "cause": Reason.ADMITTED}, "waiting for a free slot · 1m40s"),
    (TaskStatus.QUEUED, {"phase": Phase.PAUSED, "cause": Reason.NEEDS_YOU}, "waiting for a free slot"),
    (TaskStatus.QUEUED, {"phase": Phase.PAUSED, "cause": Reason.QUOTA, "parked_until": AT}, "waiting for a free slot"),
    (TaskStatus.RUNNING, {}, "thinking · step 4 · 6 s"),
    (TaskStatus.RUNNING, {"current_tool": CurrentTool("search", "TODO", 997.0)}, 'search "TODO" · 3 s'),
    (TaskStatus.RUNNING, {"called_at": None}, "working · step 4 · 10 s"),
    (TaskStatus.RUNNING, {"worker_id": None}, "waiting for a worker · 10 s"),
    (
        TaskStatus.WAITING,
        {"phase": Phase.PAUSED, "cause": Reason.CHILDREN, "children_active": 3, "children_total": 8},
        "waiting for 3 of 8 subagents · 10 s",
    ),
    (
        TaskStatus.WAITING,
        {"phase": Phase.ANNOUNCE_DEFERRED, "cause": Reason.DESCENDANTS, "children_active": 1, "children_total": 1},
        "waiting for 1 of 1 subagent",
    ),
    (TaskStatus.WAITING, {"phase": Phase.PAUSED, "cause": Reason.CHILDREN}, "resuming: its subagents have finished"),
    (
        TaskStatus.WAITING, {"phase": Phase.PAUSED, "cause": Reason.BUDGET, "parked_until": AT + 9},
        "waiting for budget",
    ),
    (TaskStatus.NEEDS_APPROVAL, {"phase": Phase.AWAITING_APPROVAL}, "asks to approve its plan"),
    (
        TaskStatus.NEEDS_APPROVAL,
        {**ASKS, "question": OpenQuestion(QuestionKind.BUDGET, "asks: more?")},
        "asks: more?",
    ),
    (
        TaskStatus.NEEDS_ANSWER,
        {**ASKS, "question": OpenQuestion(QuestionKind.QUESTION, "asks: who?")},
        "asks: who?",
    ),
    (TaskStatus.PAUSED, {"phase": Phase.PAUSED, "cause": Reason.PAUSE}, "paused until it is resumed"),
    (
        TaskStatus.PAUSED, {"phase": Phase.PAUSED, "cause": Reason.QUOTA, "parked_until": AT + 60, "is_paused": True},
        "paused until it is resumed",
    ),
    (
        TaskStatus.RATE_LIMITED, {"phase": Phase.PAUSED, "cause": Reason.QUOTA, "parked_until": AT + 60},
        "until 00:17:40 UTC",
    ),
    (
        TaskStatus.FAILING, {"phase": Phase.ENDING, "cause": Reason.ERROR, "error": "no\nkey", "wake_at": AT + 12},
        "retry possible for 12 s · no key",
    ),
    (
        TaskStatus.FAILING, {"phase": Phase.PAUSED, "cause": Reason.PROVIDER, "parked_until": AT + 4},
        "provider error · next attempt in 4 s",
    ),
    (
        TaskStatus.DONE,
        {"phase": Phase.ANNOUNCING, "outcome": Outcome.OK, "delivery": DeliveryView(Delivery.WAITING)},
        "unchecked · result delivering",
    ),
    (TaskStatus.FAILED, {"outcome": Outcome.ERROR, "error": "no key\n(401)"}, "no key (401)"),
    (TaskStatus.TIMED_OUT, {"outcome": Outcome.TIMEOUT}, "stopped at its time limit"),
    (TaskStatus.KILLED, {"outcome": Outcome.KILLED, "error": "enough"}, "enough"),
    (TaskStatus.LOST, {"outcome": Outcome.LOST}, "its session is gone"),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "changes", "line"), CASES)
def test_each_state_and_what_stands_beside_it(
    expected: TaskStatus, changes: dict[str, object], line: str
) -> None:
    view = replace(RUNNING, **changes)  # type: ignore[arg-type]
    assert task_status(view) is expected
    assert doing_now(view).at(AT) == line


def test_every_state_is_reachable() -> None:
    assert {expected for expected, _, _ in CASES} == set(TaskStatus)


@pytest.mark.parametrize("wait", sorted(WAITS))
def test_a_wait_is_shown_as_paused_only_if_a_user_ends_it(wait: Reason) -> None:
    found = status_of(Phase.PAUSED, wait, None, question=QuestionKind.QUESTION)
    assert (found is TaskStatus.PAUSED) == (wait is Reason.PAUSE)


@pytest.mark.parametrize(
    ("delivery", "expected", "text"),
    [
        (DeliveryView(Delivery.NONE), None, ""),
        (DeliveryView(Delivery.WAITING), DeliveryStatus.DELIVERING, "delivering"),
        (
            DeliveryView(Delivery.DEFERRED, cause=Reason.BUSY), DeliveryStatus.DEFERRED,
            "deferred (the parent agent is busy)",
        ),
        (DeliveryView(Delivery.DELIVERED, Path.DIRECT), DeliveryStatus.DELIVERED, "delivered"),
        (
            DeliveryView(Delivery.UNSURE, cause=Reason.UNSURE, detail="chat: no answer"), DeliveryStatus.DELIVERED,
            "delivered (not confirmed: chat: no answer)",
        ),
        (DeliveryView(Delivery.SKIPPED, cause=Reason.KILLED), DeliveryStatus.SKIPPED, "skipped (killed)"),
        (
            DeliveryView(Delivery.UNDELIVERED, cause=Reason.EXPIRY), DeliveryStatus.UNDELIVERED,
            "undelivered (retries expired)",
        ),
    ],
)  # fmt: skip
def test_each_delivery_has_its_word_and_its_reason(
    delivery: DeliveryView, expected: DeliveryStatus | None, text: str
) -> None:
    assert delivery_status(delivery) is expected
    assert delivery_text(delivery) == text


def test_elapsed_time_is_since_the_start_until_the_end() -> None:
    assert elapsed_s(RUNNING) == 90.0
    assert elapsed_s(replace(RUNNING, started_at=None)) is None
    assert elapsed_s(replace(RUNNING, outcome=Outcome.OK, ended_at=950.0)) == 40.0
    waiting = replace(RUNNING, phase=Phase.ANNOUNCE_DEFERRED, cause=Reason.DESCENDANTS, ended_at=950.0)
    assert elapsed_s(waiting) == 90.0, "it has not ended: it resumes with the results of its subagents"


def test_a_question_is_one_line() -> None:
    asked = {"tool": "shell", "args": {"command": "touch\nran"}}
    assert question_text(asked) == 'asks to run shell "touch\\nran"'
    assert question_text({"question": "Which\none?"}) == "asks: Which one?"
    assert question_text({}) == "asks for a decision"
