"""`clutch move`, and backup and restore of PostgreSQL: everything arrives with its ids, and lives at one place."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from clutch import Clutch
from clutch.errors import ConstraintViolated, StoreMoved
from clutch.store.transaction import Database, Tx
from clutch.testing import CrashAt
from clutch.testing.postgres import PostgresServer
from clutch.transactions import blobs, workers
from clutch.transactions.move import live_workers
from clutch.wiring import opened_store
from clutch.wiring.engine import SystemClock
from clutch.wiring.move import MoveEnd, move
from tests.golden.contract import FOLDER
from tests.golden.test_in_flight import load
from tests.surfaces.served import served
from tests.surfaces.test_http_tasks import spawned
from tests.surfaces.typed import typed


class Killed(Exception):
    """The mover ends here."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A state directory with work in flight of every kind, made by an older version, and a file of a task."""
    load(FOLDER / "state_0011.sql", tmp_path / "state")
    (tmp_path / "state/tasks/17").mkdir(parents=True)
    (tmp_path / "state/tasks/17/notes.txt").write_text("note")
    (tmp_path / "state/lock").touch()
    return tmp_path / "state"


def rows_in(state: Path | str) -> dict[str, list[tuple[Any, ...]]]:
    """All rows, except the record of the move. Fences are not compared: a move raises them."""
    file = state if Path(state).is_file() else Path(state) / "clutch.db"
    with closing(sqlite3.connect(file)) as tables:
        names = [name for (name,) in tables.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        tables.execute("UPDATE sessions SET fence = 0")
        found = {name: sorted(tables.execute(f"SELECT * FROM {name}"), key=repr) for name in names}  # noqa: S608
    del found["meta"]
    found["sqlite_sequence"] = [row for row in found["sqlite_sequence"] if row[1]]
    return found


def opened(state: Path) -> None:
    """Start a gateway on it, and stop it."""

    async def start() -> None:
        async with Clutch(state=state):
            pass

    asyncio.run(start())


def ends_at(point: str) -> Callable[[Database], Database]:
    def die() -> None:
        raise Killed

    return lambda db: CrashAt(db, point, die=die)


@pytest.mark.anyio
async def test_a_machine_that_is_ahead_takes_no_live_gateway_for_a_dead_one(
    tmp_path: Path, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened_store(tmp_path / "gateway", postgres_dsn) as db:
        await db.alone(workers.register, 1, 30.0, "host", 1, version="1")
        right = time.time
        for clock, name in ((time, "time"), (SystemClock, "now")):
            monkeypatch.setattr(clock, name, lambda *_: right() + 300)
        async with AsyncExitStack() as stack:
            mover = await MoveEnd(tmp_path / "mover", postgres_dsn).open(stack)
            assert [row[0] for row in await mover.read(live_workers)] == [1]


def test_everything_goes_to_postgresql_and_back_with_its_ids(
    home: Path, tmp_path: Path, postgres_dsn: str
) -> None:
    plan = typed("move", "--to", postgres_dsn, "--dry-run", "--json", state=_current(home))
    done = typed("move", "--to", postgres_dsn, "--json", state=home)
    assert (done.code, done.body["ok"], done.body["files"]) == (0, True, 1)
    assert {**plan.body["rows"], "workers": 0} == {**done.body["rows"], "workers": 0}
    before = rows_in(home)
    assert len(before["tasks"]) > 10
    assert before["workers"] == []
    again = typed("move", "--to", postgres_dsn, "--json", state=home)
    assert again.body["moveId"] == done.body["moveId"]
    back = typed("move", "--to", tmp_path / "new", "--database", postgres_dsn, "--json", state=home)
    assert back.body["rows"] == done.body["rows"]
    assert "Next: `clutch serve --state" in back.err
    assert rows_in(tmp_path / "new") == before
    assert (tmp_path / "new/tasks/17/notes.txt").read_text() == "note"
    # Its config still names PostgreSQL, where the next gateway would be refused.
    (home / "clutch.json").write_text(json.dumps({"database": postgres_dsn}))
    (home / "clutch.json").chmod(0o600)
    # The first directory has been left twice over, so it may be filled again.
    last = typed("move", "--to", home, state=tmp_path / "new")
    assert f"Next: remove `database` from {home}/clutch.json, then `clutch serve" in last.err
    assert rows_in(home) == before


def _current(home: Path) -> Path:
    """A dry run writes nothing, so that it cannot read tables of an older version."""
    refused = typed("move", "--to", "elsewhere", "--dry-run", state=home)
    assert "schema version 11" in refused.err
    assert typed("move", "--to", home.with_name("current"), state=home).code == 0
    assert typed("move", "--to", home, state=home.with_name("current")).code == 0
    return home


def test_the_workspace_of_a_child_moves_from_a_relative_state_directory(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert typed("move", "--to", "current", state=home).code == 0  # the newest tables
    (tmp_path / "current/workspaces/17/empty").mkdir(parents=True)
    with closing(sqlite3.connect(tmp_path / "current/clutch.db")) as tables, tables:
        tables.execute("UPDATE sessions SET workspace = 'current/workspaces/17' WHERE id = 2147483649")
        tables.execute("UPDATE sessions SET workspace = 'current/else' WHERE id = 2147483650")
    (tmp_path / "current/workspaces/17/.git").write_text("gitdir: elsewhere")
    done = typed("move", "--to", "new", state=Path("current"))
    assert (done.code, f"git worktree repair {tmp_path}/new/workspaces/17" in done.err) == (0, True), done.err
    with closing(sqlite3.connect(tmp_path / "new/clutch.db")) as tables:
        found = tables.execute("SELECT workspace FROM sessions WHERE id < 2147483651 ORDER BY id").fetchall()
    assert found == [(str(tmp_path / "new/workspaces/17"),), ("current/else",)]
    assert (tmp_path / "new/workspaces/17/empty").is_dir()


@pytest.mark.parametrize("point", ["receive:after", "fence:after", "write_page:after", "settle:after"])
def test_a_move_that_ends_before_its_commit_can_be_cancelled(home: Path, tmp_path: Path, point: str) -> None:
    target = tmp_path / "new"
    with pytest.raises(Killed):
        asyncio.run(move(MoveEnd(home), MoveEnd(target), lambda _: None, ends_at(point)))
    with pytest.raises(StoreMoved, match="not all have arrived"):
        opened(target)
    if point == "receive:after":
        opened(home)
        assert typed("move", "--cancel", state=home).code == 2
    else:
        with pytest.raises(StoreMoved, match=f"being moved to {target}: .*`clutch move --cancel`"):
            opened(home)
        assert typed("move", "--to", tmp_path / "third", state=home).code == 2
        assert typed("move", "--cancel", state=home).code == 0
    opened(home)
    # What the gateway did meanwhile moves, too: nothing of the first try is left.
    assert typed("move", "--to", target, state=home).code == 0
    assert rows_in(target) == rows_in(home)


@pytest.mark.parametrize("point", ["commit:after", "open_target:before"])
def test_after_its_commit_a_move_can_only_be_finished(home: Path, tmp_path: Path, point: str) -> None:
    target = tmp_path / "new"
    with pytest.raises(Killed):
        asyncio.run(move(MoveEnd(home), MoveEnd(target), lambda _: None, ends_at(point)))
    assert "was moved to" in typed("move", "--cancel", state=home).err
    for end in (home, target):
        with pytest.raises(StoreMoved):
            opened(end)
    assert typed("move", "--to", target, state=home).code == 0
    opened(target)
    assert "was moved to" in typed("move", "--to", tmp_path / "third", state=home).err
    assert f"Not the current state: {home} was moved to {target}" in typed("ps", state=home).err


def test_files_that_only_the_database_has_are_written_to_the_directory(
    home: Path, tmp_path: Path, postgres_dsn: str
) -> None:
    async def work_elsewhere() -> None:
        async with opened_store(home, postgres_dsn) as db:
            for name in ("17.0/in/given.txt", "17.0/out/made.txt", "17.0/out/here.txt", "18.2/out/made.txt"):
                await db.alone(blobs.put, f"tasks/{name}", name.encode())

    (home / "tasks/17/out").mkdir()
    (home / "tasks/17/out/here.txt").write_text("as it is on this machine")
    assert typed("move", "--to", postgres_dsn, state=home).code == 0
    asyncio.run(work_elsewhere())
    new = tmp_path / "new"
    done = typed("move", "--to", new, "--database", postgres_dsn, "--json", state=home)
    assert (done.code, done.body["files"]) == (0, 5)
    found = {str(one.relative_to(new / "tasks")): one.read_text() for one in (new / "tasks").rglob("*.txt")}
    assert found == {
        "17/notes.txt": "note",
        "17/in/given.txt": "17.0/in/given.txt",
        "17/out/made.txt": "17.0/out/made.txt",
        "17/out/here.txt": "as it is on this machine",
        "18.2/out/made.txt": "18.2/out/made.txt",
    }
    assert (new / "tasks/17/in/.manifest.json").exists()


def test_a_process_that_slept_through_the_move_can_write_nothing(
    home: Path, tmp_path: Path, postgres_dsn: str
) -> None:
    def late(now: float) -> Tx[None]:
        del now
        yield "UPDATE tasks SET label = 'late'", ()

    async def sleep_through(source: MoveEnd, target: MoveEnd) -> None:
        async with opened_store(home, postgres_dsn) as sleeper:
            await move(source, target, lambda _: None)
            with pytest.raises(ConstraintViolated, match="was_moved"):
                await sleeper.alone(late)
            await move(target, source, lambda _: None)
            await sleeper.alone(late)  # the tasks are back, and the seal is off

    assert typed("move", "--to", postgres_dsn, state=home).code == 0
    asyncio.run(sleep_through(MoveEnd(home, postgres_dsn), MoveEnd(tmp_path / "new")))


def test_a_backup_of_postgresql_is_a_file_that_either_database_takes(
    home: Path, tmp_path: Path, postgres_dsn: str, postgres_server: PostgresServer
) -> None:
    assert typed("move", "--to", postgres_dsn, state=home).code == 0
    file, empty = tmp_path / "monday.db", postgres_server.dsn("empty")
    assert typed("backup", file, "--database", postgres_dsn, state=home).code == 0
    assert typed("restore", file, state=tmp_path / "restored").code == 0
    assert rows_in(tmp_path / "restored") == rows_in(home)
    opened(tmp_path / "restored")
    postgres_server.execute("CREATE DATABASE empty")
    done = typed("restore", file, "--database", empty, "--json", state=tmp_path / "other")
    assert (done.code, done.body["tasks"]) == (0, len(rows_in(home)["tasks"]))
    for to, more, why in (
        (postgres_dsn, (), "--database: .* holds tasks already; name an empty database"),
        (empty, (), "--database: .* holds this backup already; name an empty database"),
        (empty, ("--force",), "--force: .* PostgreSQL"),
    ):
        refused = typed("restore", file, "--database", to, *more, state=home)
        assert (refused.code, bool(re.search(why, refused.err))) == (2, True), refused.err
    assert typed("move", "--to", tmp_path / "last", "--database", empty, state=tmp_path / "other").code == 0
    assert rows_in(tmp_path / "last") == rows_in(home)


def test_no_backup_is_made_of_what_lives_elsewhere(home: Path, tmp_path: Path, postgres_dsn: str) -> None:
    """A copy of it looks like a backup, and is old or not complete."""
    assert typed("backup", tmp_path / "old.db", state=home).code == 0  # tables of an older version
    assert typed("move", "--to", postgres_dsn, state=home).code == 0
    source, target = MoveEnd(home, postgres_dsn), MoveEnd(tmp_path / "new")
    with pytest.raises(Killed):
        asyncio.run(move(source, target, lambda _: None, ends_at("write_page:after")))
    assert typed("backup", tmp_path / "fenced.db", "--database", postgres_dsn, state=home).code == 0
    assert typed("restore", tmp_path / "fenced.db", state=tmp_path / "restored").code == 0
    for place, why in ((home, "was moved to postgresql://"), (tmp_path / "new", "not all have arrived")):
        refused = typed("backup", tmp_path / "stale.db", state=place)
        assert (refused.code, why in refused.err) == (1, True), refused.err
        examined = typed("doctor", "--json", state=place).body["checks"]
        assert [(one["ok"], why in one["detail"]) for one in examined if one["id"] == "move"] == [
            (False, True)
        ]
    assert typed("move", "--to", tmp_path / "new", "--database", postgres_dsn, state=home).code == 0
    refused = typed("backup", tmp_path / "stale.db", "--database", postgres_dsn, state=home)
    assert (refused.code, f"was moved to {tmp_path / 'new'}" in refused.err) == (1, True), refused.err
    assert not list(tmp_path.glob("*stale*"))
    assert f"FAIL  move: {refused.err.split(': ', 1)[1]}" in typed("doctor", "--database", postgres_dsn).out
    assert "FAIL  move" not in typed("doctor", state=tmp_path / "new").out
    assert "invariants" not in typed("doctor", "--database", "postgresql://127.0.0.1:1/db").out


def test_what_cannot_be_moved_is_refused_before_anything_is_changed(home: Path, tmp_path: Path) -> None:
    with served(tmp_path / "running") as here:
        spawned(here.client, "quick one")
        for given in (("--to", str(tmp_path / "new")), ("--cancel",)):
            assert "`clutch stop --state" in typed("move", *given, state=here.home).err
    refusals = (
        (("move", "--to", tmp_path / "running"), "holds tasks already"),
        (("move", "--to", home), "where the tasks are already"),
        (("move",), "name the target"),
        (("move", "--cancel"), "no move of this database is under way"),
    )
    for words, why in refusals:
        done = typed(*words, state=home)
        assert (done.code, why in done.err) == (2, True), done.err
    assert "has no database" in typed("move", "--to", home, state=tmp_path / "nothing").err
    with closing(sqlite3.connect(tmp_path / "running/clutch.db")) as tables:
        # Gateways of this version may work on it. A copy would lose its new columns.
        tables.execute("UPDATE meta SET value = 999 WHERE name = 'schema_version'")
        tables.commit()
    assert "schema version 999" in typed("move", "--to", tmp_path / "new", state=tmp_path / "running").err


@pytest.mark.parametrize(
    "to",
    [
        "postgresql+asyncpg://u:sekret@h/db",
        "postgres:/sekret",
        "mysql://sekret@h/db",
        "host=h password=sekret",
    ],
)
def test_another_address_is_no_directory_and_is_not_shown(
    home: Path, tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    for more in ((), ("--dry-run",), ("--json",)):
        done = typed("move", "--to", to, *more, state=home)
        told = done.out + done.err
        assert (done.code, "sekret" in told, "./postgres" in told) == (2, False, True)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("url", ["postgresql://u:se/kret@127.0.0.1/db", "postgresql://u:kret@[::1/db"])
def test_every_command_refuses_a_broken_address_without_its_password(
    home: Path, tmp_path: Path, url: str
) -> None:
    copy = tmp_path / "copy.db"
    assert typed("backup", copy, state=home).code == 0
    for words in (
        ("doctor", "--database", url),
        ("nodes", "--database", url),
        ("move", "--to", url),
        ("move", "--to", tmp_path / "new", "--database", url),
        ("backup", tmp_path / "other.db", "--database", url),
        ("restore", copy, "--database", url),
        ("serve", "--database", url),
    ):
        said = typed(*words, state=home)
        assert said.code != 0, words
        assert "percent-encode" in said.out + said.err, words
        assert "kret" not in said.out + said.err, words
        assert "Traceback" not in said.err, words
