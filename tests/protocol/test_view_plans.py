"""Views cost what they answer: SQLite finds their rows through an index, however much finished work there is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import apsw
import pytest

from clutch.core.model import Phase
from clutch.protocol import listing, views, why
from clutch.protocol.listing import Wanted
from clutch.store import migrations
from clutch.store.dialect import Dialect, statement_text
from clutch.store.door import Tx

GROWING = ("tasks", "usage", "events", "messages", "inbox", "deliveries", "runs", "sessions")


@pytest.fixture(scope="module")
def store() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    for migration in migrations.load(migrations.SCHEMA, Dialect.SQLITE):
        for statement in migration.statements:
            connection.execute(statement)
    connection.execute(
        "INSERT INTO tasks(id, requester_id, root_id, depth, spawn_order, idem, label, task, spec, timeout_s,"
        " expects_completion, has_cleanup, seq, phase, reason, generation, delivery, delivery_reason, attempts, plan,"
        " plan_round, created_at) VALUES(5, 1, 1, 1, 0, 'i', 'l', 't', '{}', 0, 1, 0, 1, 'running', '', 1, 'none', '',"
        " 0, 'none', 0, 1.0)"
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
    small = ("tasks_untold", "tasks_alive", "tasks_undelivered", "sessions_owner")
    words = [
        step
        for step in steps
        if step.startswith("SCAN") and step.split()[1] in (*GROWING, "u", "t", "s", "e")
    ]
    return [step for step in words if not any(index in step for index in small)]


@pytest.mark.parametrize(
    "transaction",
    [
        views.of(0.0, [5, 6]),
        views.tree(0.0, 5),
        views.below(0.0, 1),
        listing.page(0.0, Wanted(root_id=1)),
        listing.page(0.0, Wanted(requester_id=1)),
        listing.page(0.0, Wanted(phase=Phase.RUNNING)),
        listing.page(0.0, Wanted(is_undelivered=True)),
        listing.page(0.0, Wanted(ended_after=10.0)),
        listing.page(0.0, Wanted(root_id=1, ended_after=10.0)),
        listing.summary(0.0, Wanted(root_id=1)),
        listing.summary(0.0, Wanted(ended_after=10.0)),
        listing.result(0.0, 5),
        listing.transcript(0.0, 5),
        why.why(0.0, 5),
    ],
    ids=lambda transaction: transaction.__name__,
)
def test_nothing_that_grows_is_read_from_end_to_end(store: apsw.Connection, transaction: Tx[Any]) -> None:
    assert scans(plans(store, transaction)) == []


def test_a_list_of_everything_walks_the_order_of_creation(store: apsw.Connection) -> None:
    first = next(plans(store, listing.page(0.0)))
    assert first == "SCAN tasks USING COVERING INDEX tasks_created"
