"""`clutch restore` beside the log of a previous database, and after a crash at every step of it."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from clutch.errors import InvalidInput
from clutch.store.sqlite_connection import SqliteConnection
from clutch.wiring.restore import restore
from tests.surfaces.served import served
from tests.surfaces.typed import typed

ENDS = ("", "-wal", "-shm")


class Crashed(BaseException):
    """The process ends here."""


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("backup")
    with served(folder / "state") as here:
        assert typed("backup", folder / "monday.db", state=here.home).code == 0
    return folder / "monday.db"


@pytest.fixture
def home(backup: Path, tmp_path: Path) -> Path:
    """A state directory after a crash: the latest commit of its database, a mark, is only in the log."""
    live, home = tmp_path / "live.db", tmp_path / "state"
    home.mkdir(0o700)
    (home / "lock").touch()
    shutil.copy(backup, live)
    with closing(sqlite3.connect(live)) as tables:
        tables.execute("INSERT INTO meta (name, value) VALUES ('mark', 1)")
        tables.commit()
        for end in ENDS:
            shutil.copy(f"{live}{end}", f"{home / 'clutch.db'}{end}")
    return home


def is_marked(database: Path) -> bool:
    with closing(sqlite3.connect(database)) as tables:
        return bool(tables.execute("SELECT value FROM meta WHERE name = 'mark'").fetchall())


def kept_in(home: Path) -> list[Path]:
    return [one for one in home.glob("clutch.db.before-restore-*") if not one.name.endswith(ENDS[1:])]


def steps(patch: pytest.MonkeyPatch, before: Callable[[str, Any], None]) -> None:
    """Call `before` ahead of every change of a directory and every flush to the disk."""

    def step(name: str, really: Callable[..., Any], *given: Any, **more: Any) -> Any:
        before(name, given[0])
        return really(*given, **more)

    for name in ("rename", "unlink", "fsync"):
        patch.setattr(os, name, partial(step, name, getattr(os, name)))


def test_a_log_without_its_database_is_not_replayed_into_the_restored_one(backup: Path, home: Path) -> None:
    log = (home / "clutch.db-wal").read_bytes()
    (home / "clutch.db").unlink()
    done = restore(backup, home, is_forced=False, stamp="A")
    assert done.kept is None
    assert not is_marked(home / "clutch.db")
    assert (home / "clutch.db.before-restore-A-wal").read_bytes() == log


def test_a_crash_at_any_step_keeps_the_previous_database_with_its_log(
    backup: Path, home: Path, tmp_path: Path
) -> None:
    crashes = 0
    while True:
        here, after = tmp_path / f"state-{crashes}", crashes
        shutil.copytree(home, here)

        def crash(_: str, __: Any) -> None:
            nonlocal after
            if not after:
                raise Crashed
            after -= 1

        with pytest.MonkeyPatch.context() as patch:
            steps(patch, crash)
            try:
                restore(backup, here, is_forced=True, stamp="A")
                break
            except Crashed:
                crashes += 1
        again = tmp_path / f"again-{crashes}"
        shutil.copytree(here, again)
        # A gateway may start next. It creates a database where there is none.
        SqliteConnection(str(here / "clutch.db")).close()
        with closing(sqlite3.connect(here / "clutch.db")) as tables:
            is_new = tables.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone() == (0,)
        found = [*kept_in(here), *([] if is_new else [here / "clutch.db"])]
        assert any(map(is_marked, found)), f"lost by a crash before step {crashes}"
        # Or the command is repeated.
        restore(backup, again, is_forced=True, stamp="B")
        assert not is_marked(again / "clutch.db")
        assert any(map(is_marked, kept_in(again))), (
            f"lost by a crash before step {crashes}, and a second restore"
        )
    assert crashes > 3
    assert not is_marked(here / "clutch.db")


def test_the_directory_is_flushed_after_the_restored_database_got_its_name(backup: Path, home: Path) -> None:
    done: list[tuple[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        steps(
            patch, lambda name, on: done.append((name, os.fstat(on).st_ino if name == "fsync" else str(on)))
        )
        restore(backup, home, is_forced=True, stamp="A")
    assert done[-2:] == [("rename", str(home / ".clutch.db.restoring")), ("fsync", home.stat().st_ino)]


def test_a_database_that_appears_before_the_lock_is_held_is_not_replaced(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, take = tmp_path / "state", fcntl.flock

    def late(lock: int, how: int) -> None:
        (home / "clutch.db").write_bytes(b"of another process")
        take(lock, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(InvalidInput, match="has a database already"):
        restore(backup, home, is_forced=False, stamp="A")
    assert (home / "clutch.db").read_bytes() == b"of another process"
