"""Schema files: forward only, each whole or not at all, a newer one refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from clutch.errors import SchemaTooNew, StoreError
from clutch.store import dialect
from clutch.store.dialect import Dialect
from clutch.store.postgres import PostgresStore
from clutch.store.sqlite import SqliteStore
from tests.store import transactions as t
from tests.store.conftest import Store, TickingClock

Opener: TypeAlias = Callable[[], Store]

FIRST = "CREATE TABLE a(id {big} PRIMARY KEY);\nINSERT INTO a(id)\n  VALUES(1);\n"
SECOND = "-- the second one;\nALTER TABLE a ADD COLUMN name {text};\nINSERT INTO a(id) VALUES(2); \n"
BROKEN = "INSERT INTO a(id) VALUES(3);\nINSERT INTO nowhere(id) VALUES(1);\n"


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    folder = tmp_path / "schema"
    folder.mkdir()
    (folder / "0001_first.sql").write_text(FIRST)
    (folder / "notes.txt").write_text("not a migration")
    return folder


@pytest.fixture(params=["sqlite file", "postgres"])
def opener(request: pytest.FixtureRequest, tmp_path: Path, schema: Path) -> Opener:
    if request.param == "postgres":
        dsn: str = request.getfixturevalue("postgres_dsn")
        return lambda: PostgresStore(dsn, TickingClock(), schema=schema)
    return lambda: SqliteStore(tmp_path / "test.db", TickingClock(), schema=schema)


async def identities(store: Store) -> list[int]:
    return [identity for (identity,) in await store.read(t.select, "SELECT id FROM a ORDER BY id")]


@pytest.mark.anyio
async def test_each_file_runs_once_and_later_ones_follow(opener: Opener, schema: Path) -> None:
    for _ in range(2):
        async with opener() as store:
            assert await identities(store) == [1]
    (schema / "0002_second.sql").write_text(SECOND)
    async with opener() as store:
        assert await identities(store) == [1, 2]
        version = await store.read(t.select, "SELECT value FROM meta WHERE name = 'schema_version'")
        assert version == [("2",)]


@pytest.mark.anyio
async def test_a_file_that_fails_leaves_nothing_of_itself(opener: Opener, schema: Path) -> None:
    (schema / "0002_broken.sql").write_text(BROKEN)
    with pytest.raises(StoreError, match="nowhere"):
        await opener().open()
    (schema / "0002_broken.sql").unlink()
    async with opener() as store:
        assert await identities(store) == [1]


@pytest.mark.anyio
async def test_a_newer_schema_is_refused_with_both_versions_and_a_remedy(
    opener: Opener, schema: Path
) -> None:
    (schema / "0002_second.sql").write_text(SECOND)
    async with opener():
        pass
    (schema / "0002_second.sql").unlink()
    said = r"version 2, which versions from 2 on may open; this Clutch knows up to 1: upgrade"
    with pytest.raises(SchemaTooNew, match=said):
        await opener().open()


@pytest.mark.anyio
async def test_a_newer_schema_that_names_this_version_as_compatible_is_opened(
    opener: Opener, schema: Path
) -> None:
    (schema / "0002_second.sql").write_text(
        f"{SECOND}\nINSERT INTO meta(name, value) VALUES('compatible_from', '1');\n"
    )
    async with opener():
        pass
    (schema / "0002_second.sql").unlink()
    async with opener():
        pass
    (schema / "0001_first.sql").unlink()
    with pytest.raises(SchemaTooNew, match=r"from 1 on may open; this Clutch knows up to 0"):
        await opener().open()


@pytest.mark.parametrize("names", [["0001.sql", "0003.sql"], ["0001.sql", "0001_b.sql"], ["0002.sql"]])
def test_a_gap_or_a_double_in_the_numbers_is_noticed(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_text(FIRST)
    with pytest.raises(ValueError, match="must be numbered"):
        dialect.load(tmp_path, Dialect.SQLITE)


def test_statements_end_at_the_end_of_a_line_and_comments_do_not_count() -> None:
    text = "-- one; two;\nCREATE TABLE a(\n  -- inner;\n  id {identity}\n);\n\nSELECT ';' ;\n;\n"
    assert dialect.statements(text, Dialect.SQLITE) == (
        "CREATE TABLE a(\n\n  id INTEGER PRIMARY KEY AUTOINCREMENT\n)",
        "SELECT ';'",
    )


def test_a_statement_for_postgresql_is_none_of_sqlite() -> None:
    text = "{postgres} ALTER TABLE a SET (fillfactor = 70);\nSELECT 1;\n"
    assert dialect.statements(text, Dialect.SQLITE) == ("SELECT 1",)
    assert dialect.statements(text, Dialect.POSTGRES) == (" ALTER TABLE a SET (fillfactor = 70)", "SELECT 1")


@pytest.mark.anyio
async def test_the_tables_that_every_step_updates_have_room_on_their_pages(postgres_dsn: str) -> None:
    async with PostgresStore(postgres_dsn, TickingClock()) as store:
        found = await store.read(
            t.select,
            "SELECT relname FROM pg_class WHERE array_to_string(reloptions, ' ') LIKE '%fillfactor%'",
        )
    assert {name for (name,) in found} >= {"sessions", "tasks", "runs", "inbox", "workers", "provider_limits"}
