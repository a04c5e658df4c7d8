"""Reasons of earlier versions were one text. The migration splits them, and a person reads the same as before."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from clutch.core.model import Reason, reason_text
from clutch.store.dialect import SCHEMA
from clutch.store.postgres import PostgresStore
from clutch.store.sqlite import SqliteStore
from clutch.store.transaction import ManyRows, Tx
from tests.store import transactions as t
from tests.store.conftest import Store, TickingClock

Opener: TypeAlias = Callable[[], Store]

(MIGRATION,) = SCHEMA.glob("*_reasons.sql")
OLD = {
    "admitted": (Reason.ADMITTED, ""),
    "steered": (Reason.STEERED, ""),
    "steered: joins what it reads next": (Reason.STEER_JOINS, ""),
    "no longer waiting: quota": (Reason.UNPARKED, "quota"),
    "resumed": (Reason.UNPAUSED, ""),
    "resumed @step 12": (Reason.RESUMED, "12"),
    "process was frozen for 31 s": (Reason.THAWED, "31 s"),
    "error": (Reason.ERROR, ""),
    "error: boom: twice": (Reason.ERROR, "boom: twice"),
    "killed: killed": (Reason.KILLED, "killed"),
    "attempt 2 failed: busy": (Reason.ATTEMPT, "2 failed: busy"),
    "undelivered: expiry": (Reason.UNDELIVERED, "expiry"),
    "nobody came back": (Reason.NOBODY_BACK, ""),
    "cleanup failed: busy": (Reason.CLEANUP_FAILED, "busy"),
    "session ended: killed: enough": (Reason.SESSION_ENDED, "killed: enough"),
    "spawn-failed: no disk": (Reason.SPAWN_FAILED, "no disk"),
    "late: words": (Reason.LATE, "words"),
    "a message was sent to it": (Reason.NOTE, "a message was sent to it"),
    "removed": (Reason.REMOVED, ""),
}
ADDED_LATER = frozenset(
    {Reason.NOT_REQUESTED, Reason.FILES_MISSING, Reason.CHECKED}
)  #: by versions that have this migration
_TASK = (
    "INSERT INTO tasks(id, requester_id, root_id, depth, spawn_order, idem, label, task, spec, timeout_s,"
    " expects_completion, has_cleanup, seq, phase, reason, generation, delivery, delivery_reason, attempts, plan,"
    " plan_round, created_at)"
    " VALUES(?, 1, 1, 1, 1, ?, '', '', '{}', 0, 1, 0, 1, 'completed', ?, 1, ?, ?, 0, 'none', 0, 0)"
)
_EVENT = (
    "INSERT INTO events(task_id, seq, at, actor, from_phase, to_phase, reason, generation)"
    " VALUES(1, ?, 0, 'clutch', 'queued', 'queued', ?, 1)"
)
_DELIVERY = (
    "INSERT INTO deliveries(task_id, generation, letter, to_session, attempt, at, outcome, reason)"
    " VALUES(1, 1, '', 1, 1, 0, ?, ?)"
)


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    folder = tmp_path / "schema"
    folder.mkdir()
    for file in SCHEMA.glob("*.sql"):
        if file.name < MIGRATION.name:
            shutil.copy(file, folder)
    return folder


@pytest.fixture(params=["sqlite file", "postgres"])
def opener(request: pytest.FixtureRequest, tmp_path: Path, schema: Path) -> Opener:
    if request.param == "postgres":
        dsn: str = request.getfixturevalue("postgres_dsn")
        return lambda: PostgresStore(dsn, TickingClock(), schema=schema)
    return lambda: SqliteStore(tmp_path / "test.db", TickingClock(), schema=schema)


def _old_rows(now: float) -> Tx[None]:
    del now
    yield _EVENT, ManyRows(enumerate(OLD, start=1))
    yield _TASK, (1, "a", "killed: enough", "skipped", "killed")
    yield _TASK, (2, "b", "unsure: telegram: timeout", "unsure", "telegram: timeout")
    yield (
        _DELIVERY,
        ManyRows([("failed", "overloaded"), ("deferred", "requester-busy"), ("delivered", "direct")]),
    )


@pytest.mark.anyio
async def test_old_texts_become_reason_and_detail_and_read_as_before(opener: Opener, schema: Path) -> None:
    async with opener() as store:
        await store.alone(_old_rows)
    shutil.copy(MIGRATION, schema)
    async with opener() as store:
        events = await store.read(t.select, "SELECT reason, detail FROM events ORDER BY seq")
        tasks = await store.read(t.select, "SELECT reason, detail, delivery_reason FROM tasks ORDER BY id")
        told = await store.read(t.select, "SELECT reason, detail FROM deliveries ORDER BY id")
    assert [(Reason(reason), detail) for reason, detail in events] == list(OLD.values())
    assert [reason_text(*row) for row in events] == list(OLD)
    assert tasks == [("killed", "enough", "killed"), ("unsure", "telegram: timeout", "unsure")]
    assert told == [("failed", "overloaded"), ("requester-busy", ""), ("direct", "")]


def test_the_migration_knows_every_reason_that_earlier_versions_wrote() -> None:
    known = MIGRATION.read_text(encoding="utf-8").partition("INSERT INTO reason_words")[2].partition(";")[0]
    assert set(re.findall(r"\('([^']*)'\)", known)) == set(Reason) - ADDED_LATER
