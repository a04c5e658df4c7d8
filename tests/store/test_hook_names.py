"""A hook that waited to be sent under its earlier name is sent under the present one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from clutch.core.model import Hook
from clutch.store.dialect import SCHEMA
from clutch.store.postgres import PostgresStore
from clutch.store.sqlite import SqliteStore
from clutch.store.transaction import ManyRows, Tx
from tests.store import transactions as t
from tests.store.conftest import Store, TickingClock

(MIGRATION,) = SCHEMA.glob("*_attention_required.sql")
ROWS = [
    ("waits", "hook", "needs_me", None),
    ("sent", "hook", "needs_me", 5.0),
    ("other hook", "hook", "subagent_ended", None),
    ("reply", "needs_me", "needs_me", None),
]


def _old_rows(now: float) -> Tx[None]:
    del now
    yield (
        "INSERT INTO outbox(idem, session_id, channel, target, body, done_at) VALUES(?, 1, ?, ?, '{{}}', ?)",
        ManyRows(ROWS),
    )


@pytest.mark.anyio
@pytest.mark.parametrize("backend", ["sqlite file", "postgres"])
async def test_an_unsent_hook_has_its_present_name(
    backend: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    schema = tmp_path / "schema"
    schema.mkdir()
    for file in SCHEMA.glob("*.sql"):
        if file.name < MIGRATION.name:
            shutil.copy(file, schema)
    opener: Callable[[], Store]
    if backend == "postgres":
        dsn: str = request.getfixturevalue("postgres_dsn")
        opener = lambda: PostgresStore(dsn, TickingClock(), schema=schema)  # noqa: E731
    else:
        opener = lambda: SqliteStore(tmp_path / "test.db", TickingClock(), schema=schema)  # noqa: E731
    async with opener() as store:
        await store.alone(_old_rows)
    shutil.copy(MIGRATION, schema)
    async with opener() as store:
        found = await store.read(t.select, "SELECT idem, target FROM outbox ORDER BY id")
    present = [("waits", Hook.ATTENTION_REQUIRED.value), *((idem, target) for idem, _, target, _ in ROWS[1:])]
    assert found == present
