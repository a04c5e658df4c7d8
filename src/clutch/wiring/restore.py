"""Restore a backup: a copy that `clutch backup` made becomes the database of a state directory.

The backup is verified before anything is written, and its copy is verified before it gets its name. The lock of the
state directory is held meanwhile, so no gateway works on it."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from clutch.core.move import EndState, read_record
from clutch.errors import ClutchError, InvalidInput, StateDirectoryInUse, StoreError
from clutch.offline_reader import DATABASE_FILE
from clutch.store import dialect
from clutch.store.sqlite_connection import SqliteConnection, copy_database, read_at_rest
from clutch.store.state_directory import StateDirectory

LOG_FILES = ("-wal", "-shm", "-journal")  #: of SQLite, beside a database that is or was in use


@dataclass(frozen=True, slots=True)
class BackupContent:
    """`unfinished`: tasks that resume when the backup is restored and a gateway starts."""

    schema: int
    tasks: int
    unfinished: int


@dataclass(frozen=True, slots=True)
class Restored:
    """`kept`: where the previous database is now; None: there was none."""

    content: BackupContent
    bytes: int
    kept: Path | None


def examine(file: Path) -> BackupContent:
    """Verify a backup and return what it holds. Nothing is written. Raises InvalidInput."""
    if not file.is_file():
        raise InvalidInput("FILE", f"{file} is not a file; name a file that `clutch backup` wrote")
    log = _beside(file, "-wal")
    if log.exists() and log.stat().st_size:
        raise InvalidInput(
            "FILE", f"{file} is a database in use (it has the log {log.name}); use `clutch backup`"
        )
    try:
        damage, version, moves, counted = read_at_rest(
            str(file),
            "PRAGMA integrity_check(5)",
            "SELECT value FROM meta WHERE name = 'schema_version'",
            "SELECT value FROM meta WHERE name = 'move'",
            "SELECT COUNT(*), COUNT(CASE WHEN outcome IS NULL THEN 1 END) FROM tasks",
        )
    except StoreError as error:
        raise InvalidInput("FILE", f"{file} is not a backup of Clutch, or is damaged: {error}") from error
    if damage != [("ok",)]:
        raise InvalidInput("FILE", f"{file} is damaged: {'; '.join(str(row[0]) for row in damage)}")
    if not version:
        raise InvalidInput("FILE", f"{file} is not a backup of Clutch: it has no schema version")
    known = dialect.newest_version(dialect.SCHEMA)
    if int(version[0][0]) > known:
        rule = f"has schema version {version[0][0]}, this Clutch knows up to {known}; upgrade Clutch first"
        raise InvalidInput("FILE", f"{file} {rule}")
    if moves and read_record(moves[0][0]).state in (EndState.RECEIVING, EndState.RECEIVED):
        raise InvalidInput("FILE", f"{file} is the target of an unfinished `clutch move`; back up its source")
    return BackupContent(int(version[0][0]), *map(int, counted[0]))


def restore(file: Path, home: Path, *, is_forced: bool, stamp: str) -> Restored:
    """Make the backup the database of the state directory `home`, which gets created. With `is_forced` a database that
    is there is kept aside under a name with `stamp`. Raises InvalidInput, StateDirectoryInUse, UnsafeStateDirectory."""
    content, target = examine(file), home / DATABASE_FILE
    _refuse_database(target, is_forced=is_forced)
    try:
        with StateDirectory(home):
            # Another process may have created one before this one held the lock.
            _refuse_database(target, is_forced=is_forced)
            part = home / f".{DATABASE_FILE}.restoring"
            for end in ("", *LOG_FILES):
                _beside(part, end).unlink(missing_ok=True)
            copy_database(str(file), str(part), is_at_rest=True)
            examine(part)
            _forget_move(part)
            kept = _set_aside(target, stamp)
            part.rename(target)
            _flush(home)
    except StateDirectoryInUse as error:
        raise StateDirectoryInUse(
            f"{error}: a database cannot be restored while a gateway uses it", "clutch stop"
        ) from error
    return Restored(content, target.stat().st_size, kept)


def _forget_move(part: Path) -> None:
    """A backup of a database that was moved later, or before, is a database of its own."""
    with closing(SqliteConnection(str(part))) as file:
        file.control("DELETE FROM meta WHERE name = 'move'")
        file.control("PRAGMA journal_mode=DELETE")  # the rename takes one file


def _refuse_database(target: Path, *, is_forced: bool) -> None:
    if target.exists() and not is_forced:
        rule = "has a database already; name a new directory, or keep that one aside with --force"
        raise InvalidInput("--state", f"{target.parent} {rule}")


def _set_aside(target: Path, stamp: str) -> Path | None:
    """Rename a database together with its log, which holds its latest commits. Return its new name; None: there was no
    database. A log without a database is set aside as well: SQLite would replay it into the restored one.

    The log is copied before the database gets its new name, and removed after it: a crash at any moment leaves the
    database beside its log, under the old name or under the new one."""
    kept = target.with_name(f"{target.name}.before-restore-{stamp}")
    if any(_beside(kept, end).exists() for end in ("", *LOG_FILES)):
        raise ClutchError(f"{kept} is there already; wait a second and repeat the command")
    logs = [end for end in LOG_FILES if _beside(target, end).exists()]
    for end in logs:
        shutil.copy2(_beside(target, end), _beside(kept, end))
        _flush(_beside(kept, end))
    _flush(target.parent)
    has_database = target.exists()
    if has_database:
        target.rename(kept)
        _flush(target.parent)
    for end in logs:
        _beside(target, end).unlink()
    _flush(target.parent)
    return kept if has_database else None


def _flush(path: Path) -> None:
    """Make a file, or the names in a directory, durable."""
    here = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(here)
    finally:
        os.close(here)


def _beside(path: Path, end: str) -> Path:
    return path.with_name(path.name + end)
