"""Views cost what they answer: SQLite finds their rows through an index, however much finished work there is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import apsw
import pytest

from clutch.core.fair_share import Positions, Queue
from clutch.core.model import Outcome, Phase
from clutch.store import dialect
from clutch.store.dialect import Dialect, statement_text
from clutch.store.transaction import Tx
from clutch.transactions import claims, control, workers
from clutch.transactions.read import answers, chats, forecast, lists, tasks, timeline, why
from clutch.transactions.read.lists import ListState, TaskFilter

GROWING = ("tasks", "usage", "events", "messages", "inbox", "deliveries", "runs", "sessions")


@pytest.fixture(scope="module")
def store() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.execute(dialect.META)
    for migration in dialect.load(dialect.SCHEMA, Dialect.SQLITE):
        for statement in migration.statements:
            connection.execute(statement)
    connection.execute(
        "INSERT INTO tasks(id, requester_id, root_id, depth, spawn_order, idem, label, task, spec, timeout_s,"
        " expects_completion, has_cleanup, seq, phase, reason, generation, delivery, delivery_reason, attempts, plan,"
        " plan_round, created_at) VALUES(5, 1, 1, 1, 0, 'i', 'l', 't', '{}', 0, 1, 0, 1, 'running', '', 1, 'none', '',"
        " 0, 'none', 0, 1.0)"
    )
    connection.execute(
        "INSERT INTO workers(id, lease_until, host, pid, version, started_at) VALUES(1, 100.0, 'h', 1, 'v', 0.0)"
    )
    return connection


def plans(store: apsw.Connection, transaction: Tx[Any]) -> Iterator[str]:
    """How each of its statements is carried out."""
    rows: list[Any] | None = None
    while True:
        try:
            sql, values = next(transaction) if rows is None else transaction.send(rows)
        except StopIteration:
            return
        text = statement_text(str(sql), Dialect.SQLITE)
        bound = [json.dumps(value) if isinstance(value, list) else value for value in values]
        yield from (str(row[3]) for row in store.execute(f"EXPLAIN QUERY PLAN {text}", bound))
        rows = list(store.execute(text, bound))


def scans(steps: Iterator[str]) -> list[str]:
    """Of a growing table from end to end; an index that holds only what is alive is no such thing."""
    small = (
        "tasks_untold",
        "tasks_alive",
        "tasks_undelivered",
        "sessions_owner",
        "runs_crashed",
        "inbox_new",
        "sessions_main",
    )
    walked = ("tasks_finished",)  # in its order, until the page is full
    words = [
        step
        for step in steps
        if step.startswith("SCAN") and step.split()[1] in (*GROWING, "u", "t", "s", "e", "r")
    ]
    return [step for step in words if not any(index in step for index in (*small, *walked))]


SLOTS, QUEUE = claims.Slots("subagent", {}, {}, 0, Positions()), Queue(1, "default")


@pytest.mark.parametrize(
    "transaction",
    [
        tasks.of(0.0, [5, 6]),
        tasks.tree(0.0, 5),
        tasks.below(0.0, 1),
        lists.task_page(0.0, TaskFilter(root_id=1)),
        lists.task_page(0.0, TaskFilter(requester_id=1)),
        lists.task_page(0.0, TaskFilter(phase=Phase.RUNNING)),
        lists.task_page(0.0, TaskFilter(is_undelivered=True)),
        lists.task_page(0.0, TaskFilter(ended_after=10.0)),
        lists.task_page(0.0, TaskFilter(root_id=1, ended_after=10.0)),
        lists.task_page(0.0, TaskFilter(), 50, "finished:10.0:t_1"),
        lists.task_page(0.0, TaskFilter(state=ListState.ATTENTION)),
        lists.task_page(0.0, TaskFilter(state=ListState.FAILED, ended_after=10.0)),
        lists.task_page(0.0, TaskFilter(text="x", agent="main", ended_after=10.0)),
        timeline.segments(0.0, []),
        control.would_stop(0.0, [5]),
        lists.summary(0.0, TaskFilter(root_id=1)),
        lists.summary(0.0, TaskFilter(ended_after=10.0)),
        lists.result(0.0, 5),
        lists.transcript(0.0, 5),
        why.why(0.0, 5),
        forecast.past(0.0),
        forecast.open_tasks(0.0),
        chats.chats(0.0),
        chats.one_chat(0.0, 1),
        claims.peek(0.0),
        claims.claim(0.0, 1, 8),
        workers.heartbeat(0.0, 1, 5.0),
        claims.first_due(0.0, SLOTS, 8),
        claims.first_due(0.0, SLOTS, 8, QUEUE),
        claims.first_due(0.0, SLOTS, 8, QUEUE, 1),
        claims.queues_due(0.0, SLOTS),
        claims.roots_due(0.0, SLOTS, QUEUE),
    ],
    ids=lambda transaction: transaction.__name__,
)
def test_nothing_that_grows_is_read_from_end_to_end(store: apsw.Connection, transaction: Tx[Any]) -> None:
    assert scans(plans(store, transaction)) == []


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (TaskFilter(), "tasks_finished"),
        (TaskFilter(outcome=Outcome.OK), "tasks_finished"),
        (TaskFilter(ended_after=10.0), "tasks_unarchived"),
        (TaskFilter(root_id=1, ended_after=10.0), "tasks_unarchived"),
    ],
)
def test_finished_tasks_are_walked_from_the_newest(
    store: apsw.Connection, wanted: TaskFilter, index: str
) -> None:
    steps = list(plans(store, lists.task_page(0.0, wanted)))
    walks = [step for step in steps if index in step]
    assert len(walks) == 1
    assert not any("TEMP B-TREE" in step for step in steps[steps.index(walks[0]) + 1 :][:1])


def test_messages_around_one_are_found_by_their_session(store: apsw.Connection) -> None:
    """Each look at a response asks for them: the other messages of a session may be far away, or none."""
    steps = [step for step in plans(store, answers.state_of(0.0, "letter")) if step.split()[1] in "np"]
    assert len(steps) == 2
    assert all("session_id=?" in step for step in steps)
