"""Schema files: forward only, each whole or not at all, a newer one refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import asyncpg
import pytest

from clutch.errors import SchemaTooNew, StoreError
from clutch.store import dialect
from clutch.store.dialect import Dialect
from clutch.store.postgres import PostgresStore
from clutch.store.sqlite import SqliteStore
from tests.patience import PATIENCE_S
from tests.store import transactions as t
from tests.store.conftest import SCHEMA, Store, TickingClock

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


INDEX = "CREATE INDEX {concurrently} notes_at ON notes(at);\nALTER TABLE notes ADD COLUMN extra {text};\n"


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    """The tables of these tests, and an index of the next version."""
    folder = tmp_path / "growing"
    folder.mkdir()
    (folder / "0001.sql").write_text((SCHEMA / "0001.sql").read_text())
    return folder


@pytest.mark.anyio
async def test_an_index_is_built_beside_a_writer_and_by_one_of_two_gateways(
    growing: Path, postgres_dsn: str
) -> None:
    """The writer holds a transaction open until both gateways are at it: a lock on the table would wait for it."""
    async with PostgresStore(postgres_dsn, TickingClock(), schema=growing) as old:
        await old.tx(1, t.note, 1, "before")
        (growing / "0002.sql").write_text(INDEX)
        writer, other = await asyncpg.connect(postgres_dsn), await asyncpg.connect(postgres_dsn)
        open_tx = writer.transaction()
        await open_tx.start()
        await writer.execute("INSERT INTO notes(counter, body) VALUES(2, 'held')")
        news = [PostgresStore(postgres_dsn, TickingClock(), schema=growing) for _ in range(2)]
        opening = [asyncio.create_task(new.open()) for new in news]
        building = "SELECT COUNT(*) FROM pg_stat_progress_create_index"
        while not await other.fetchval(building):
            assert not any(one.done() for one in opening)
        async with asyncio.timeout(PATIENCE_S):
            assert await old.tx(1, t.note, 1, "meanwhile")
            assert not any(one.done() for one in opening)
            await open_tx.commit()
            await asyncio.gather(*opening)
        assert await other.fetchval(VALID)
        assert [body for (body,) in await news[0].read(t.select, "SELECT body FROM notes ORDER BY body")] == [
            "before",
            "held",
            "meanwhile",
        ]
        for each in news:
            await each.close()
        await writer.close()
        await other.close()


@pytest.mark.anyio
async def test_others_work_while_a_change_of_a_table_waits_for_a_long_read(
    growing: Path, postgres_dsn: str
) -> None:
    """Such as a backup: a change that stood in line for its end would hold up everyone behind it."""
    async with PostgresStore(postgres_dsn, TickingClock(), schema=growing) as old:
        (growing / "0002.sql").write_text("ALTER TABLE notes ADD COLUMN extra {text};\n")
        reader, other = await asyncpg.connect(postgres_dsn), await asyncpg.connect(postgres_dsn)
        open_tx = reader.transaction()
        await open_tx.start()
        await reader.fetch("SELECT * FROM notes")
        new = PostgresStore(postgres_dsn, TickingClock(), schema=growing)
        opening = asyncio.create_task(new.open())
        async with asyncio.timeout(PATIENCE_S):
            waiting = "SELECT COUNT(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
            while not await other.fetchval(waiting):
                assert not opening.done()
            assert await old.tx(1, t.note, 1, "meanwhile")
            assert not opening.done()
            await open_tx.commit()
            await opening
        assert await new.read(t.select, "SELECT extra FROM notes") == [(None,)]
        await new.close()
        await reader.close()
        await other.close()


@pytest.mark.anyio
async def test_an_index_that_a_crash_left_half_built_is_built_again(growing: Path, postgres_dsn: str) -> None:
    async with PostgresStore(postgres_dsn, TickingClock(), schema=growing) as store:
        for _ in range(2):
            await store.tx(1, t.note, 1, "twice")
    (growing / "0002.sql").write_text(INDEX)
    stranger = await asyncpg.connect(postgres_dsn)
    with pytest.raises(asyncpg.UniqueViolationError):
        await stranger.execute("CREATE UNIQUE INDEX CONCURRENTLY notes_at ON notes(body)")
    assert await stranger.fetchval(VALID) is False
    for _ in range(2):
        async with PostgresStore(postgres_dsn, TickingClock(), schema=growing) as store:
            assert await store.tx(1, t.note, 1, "twice")
    assert await stranger.fetchval(VALID)
    await stranger.close()


def test_sqlite_builds_such_an_index_in_the_transaction_of_its_file() -> None:
    first, _ = dialect.statements(INDEX, Dialect.SQLITE)
    assert first.split() == ["CREATE", "INDEX", "notes_at", "ON", "notes(at)"]
    migration = dialect.Migration(1, dialect.statements(INDEX, Dialect.POSTGRES))
    assert list(dialect.concurrent_indexes(migration)) == ["notes_at"]


VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('notes_at')"
