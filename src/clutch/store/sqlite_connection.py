"""One SQLite connection: how it is opened, how it runs one transaction, and its errors in our words.

Knows the driver. Knows nothing of batches, threads or the event loop."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import apsw

from clutch.errors import (
    ConstraintViolated,
    DiskFull,
    StoreBusy,
    StoreError,
    StoreGone,
    StoreIOError,
    StoreRefused,
    StoreUnreadable,
    TooSlow,
    UnsupportedStore,
)
from clutch.store import dialect
from clutch.store.dialect import Dialect, is_answering, statement_text, text_of_one
from clutch.store.transaction import ManyRows, Row, Spoiled, TransactionOutcome, Tx

if TYPE_CHECKING:
    from clutch.store.jobs import Answers, StatementGroup

MEMORY: Final = ":memory:"

#: 3.7.0 to 3.51.2 can corrupt a database in WAL mode when two connections write or checkpoint at once.
OLDEST_SQLITE: Final = (3, 51, 3)

#: Pages of write-ahead log before a commit copies them home, ~16 MB. The default of 1,000 is reached several
#: times a second under load, and every time costs two more syncs.
_CHECKPOINT_PAGES: Final = 4000

#: After a burst the log is cut back to this; otherwise it would stay as large as it ever was.
_LOG_BYTES_MAX: Final = 64 * 1024 * 1024

#: Of pages that a reader keeps. Every commit makes them stale, so they serve one look; one that counts a whole table
#: would hold as much as it has read until the end of the process: the default of 2 MB for each reader.
_READ_CACHE_KB: Final = 512

#: As many as the driver keeps. Every run of a statement takes a new place in its ring, so rare ones are compiled again.
_CACHED_STATEMENTS: Final = 512

#: Instructions of SQLite between two questions whether the answer is still wanted: about a millisecond.
_STEPS: Final = 20_000

#: A statement as the driver wants it, the same for lists of one if it takes lists, and whether it has an answer.
_Plan: TypeAlias = tuple[str, str | None, bool]


class SqliteConnection:
    """Used by one thread at a time; BEGIN and COMMIT are the caller's. `is_sole`: no other process has it open."""

    def __init__(
        self, path: str, *, read_only: bool = False, is_sole: bool = False, busy_timeout_s: float = 5.0
    ) -> None:
        refuse_old_sqlite(library_version())
        self._plans: dict[str, _Plan] = {}
        self._files = None if path == MEMORY else OpenFiles(path)
        with _in_our_words():
            self.raw = _open_alone(path) if is_sole else _open(path, read_only)
            try:
                self.raw.set_busy_timeout(int(busy_timeout_s * 1000))
                self._configure(in_memory=path == MEMORY, read_only=read_only)
            except BaseException:
                self.raw.close()
                raise
        if self._files is not None:
            self._files.check()
        cursor = self.raw.cursor()
        self._execute, self._execute_many = cursor.execute, cursor.executemany

    def _configure(self, *, in_memory: bool, read_only: bool) -> None:
        self.raw.execute("PRAGMA foreign_keys=ON")
        # The plan may not depend on the values: otherwise most statements are compiled anew for each of them.
        self.raw.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        if read_only:
            self.raw.execute("PRAGMA query_only=ON")
            self.raw.execute(f"PRAGMA cache_size=-{_READ_CACHE_KB}")
        elif not in_memory:
            self._use_durable_log()

    def _use_durable_log(self) -> None:
        ((mode,),) = self.raw.execute("PRAGMA journal_mode=WAL").fetchall()
        if mode != "wal":
            raise UnsupportedStore("SQLite cannot keep a write-ahead log here; use a local filesystem")
        self.raw.execute("PRAGMA synchronous=FULL")
        # On macOS fsync leaves data in the cache of the drive, where a power failure loses it. Elsewhere it is enough.
        self.raw.execute("PRAGMA fullfsync=ON")
        self.raw.execute("PRAGMA checkpoint_fullfsync=ON")
        self.raw.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
        self.raw.execute(f"PRAGMA journal_size_limit={_LOG_BYTES_MAX}")

    @property
    def in_transaction(self) -> bool:
        return self.raw.in_transaction

    def changes(self) -> int:
        """Rows written since the connection was opened: unchanged means there is nothing to undo."""
        return self.raw.total_changes()

    def control(self, sql: str) -> None:
        """Run a statement of ours: BEGIN, COMMIT, PRAGMA, a line of the schema."""
        with _in_our_words():
            self._execute(sql).fetchall()

    def begin(self, sql: str = "BEGIN IMMEDIATE") -> None:
        """Begin a transaction. Raises StoreGone if the files are no longer the ones this connection opened."""
        if self._files is not None:
            self._files.check()
        self.control(sql)

    def rollback(self) -> None:
        """A full disk or an I/O error may have ended the transaction already."""
        if self.raw.in_transaction:
            self.control("ROLLBACK")

    def run(self, start: Callable[[float], Tx[Any]], now: float) -> TransactionOutcome:
        outcome = TransactionOutcome()
        try:
            self._drive(start(now), outcome)
        except Exception as error:  # noqa: BLE001 - whatever it raised belongs to the one who asked for it
            outcome.error = error
            outcome.hints.clear()
        return outcome

    def transact(self, start: Callable[[float], Tx[Any]], now: float) -> TransactionOutcome:
        """One transaction in a BEGIN and COMMIT of its own. After an error nothing of it is written."""
        outcome = TransactionOutcome()
        try:
            self.begin()
            outcome = self.run(start, now)
            if outcome.error is None:
                self.control("COMMIT")
        except StoreError as error:
            outcome = TransactionOutcome(error=error, statements=outcome.statements)
        finally:
            self.rollback()
        return outcome

    def send(self, group: StatementGroup) -> Answers:
        """A failing statement ends the whole batch, as it would on PostgreSQL."""
        given = [each.parameters for each in group.operations]
        try:
            if not group.is_many:
                return self.statements(group.sql, given)
            self.statements(group.sql, [row for rows in given for row in rows])
            return ()
        except Exception as error:
            raise Spoiled(error) from error

    def look(
        self, start: Callable[[float], Tx[Any]], now: float, is_unwanted: Callable[[], bool] | None = None
    ) -> TransactionOutcome:
        """One transaction on a connection that may only read: one snapshot, nothing to commit. `is_unwanted`: asked
        while a statement runs; True ends it."""
        try:
            self.begin("BEGIN")
            self.raw.set_progress_handler(is_unwanted, _STEPS)
            return self.run(start, now)
        except StoreError as error:
            return TransactionOutcome(error=error)
        finally:
            self.raw.set_progress_handler(None)
            self.rollback()

    @contextmanager
    def reading_only(self) -> Iterator[None]:
        """For a connection that otherwise writes."""
        self.control("PRAGMA query_only=ON")
        try:
            yield
        finally:
            self.control("PRAGMA query_only=OFF")

    def _drive(self, transaction: Tx[Any], outcome: TransactionOutcome) -> None:
        send, statement = transaction.send, self.statement
        rows: Sequence[Row] | None = None  # what a generator that has not begun wants to be sent
        count = 0
        try:
            while True:
                sql, parameters = send(rows)  # type: ignore[arg-type]
                if sql is None:
                    outcome.hints.append(parameters)
                    rows = ()
                else:
                    count += 1
                    rows = statement(sql, parameters)
        except StopIteration as stop:
            outcome.value = stop.value
        finally:
            outcome.statements = count

    def statement(self, sql: str, parameters: Any) -> Sequence[Row]:
        if type(parameters) is ManyRows:
            self.statements(sql, parameters)
            return ()
        answers = self.statements(sql, (parameters,))
        return answers[0] if answers else ()

    def statements(self, sql: str, rows: Sequence[Row]) -> list[Sequence[Row]]:
        """One text, run for each of the parameter rows. Their answers, or nothing where the text has none.

        In one piece, since it runs dozens of times for a task. Refuses the one character PostgreSQL cannot keep,
        so that both agree."""
        text, text_of_one, is_answering = self._plans.get(sql) or self._plan(sql)
        execute = self._execute
        if "\0" in "".join([value for value in chain.from_iterable(rows) if type(value) is str]):
            raise StoreRefused("text with a NUL character cannot be stored")
        try:
            if text_of_one is not None:
                return [execute(*_listed(text, text_of_one, row)).fetchall() for row in rows]
            if is_answering:
                return [execute(text, row).fetchall() for row in rows]
            self._execute_many(text, rows)
            return []
        except apsw.Error as error:
            raise in_our_words(error) from error
        except UnicodeEncodeError as error:
            raise StoreRefused("text with half a surrogate pair cannot be stored") from error

    def _plan(self, sql: str) -> _Plan:
        """Made once for each connection."""
        self._plans[sql] = (statement_text(sql, Dialect.SQLITE), text_of_one(sql), is_answering(sql))
        return self._plans[sql]

    def close(self) -> None:
        self.raw.close()


class OpenFiles:
    """The database file and its log, as they were when the connection first saw them.

    SQLite keeps writing to a file that was deleted or replaced: every commit succeeds and is lost with the process.
    So each transaction compares the files under these names with the ones that are open. Both are compared, because
    commits stand in the log until a checkpoint. Two calls of `stat` cost about 3 µs a batch.
    """

    def __init__(self, path: str) -> None:
        self._seen: dict[str, tuple[int, int] | None] = {path: None, f"{path}-wal": None}

    def check(self) -> None:
        for path, seen in self._seen.items():
            if (found := self._identity(path)) == seen:
                continue
            if seen is not None:
                raise StoreGone(path, "deleted" if found is None else "replaced by another file")
            self._seen[path] = found

    @staticmethod
    def _identity(path: str) -> tuple[int, int] | None:
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino


def migrate(connection: SqliteConnection, directory: Path) -> None:
    known = dialect.load(directory, Dialect.SQLITE)
    still_missing = must(connection.transact(lambda now: dialect.missing(now, known), 0.0))
    for migration in still_missing:
        must(connection.transact(partial(dialect.apply, migration=migration), 0.0))


def must(outcome: TransactionOutcome) -> Any:
    """Return the value of a transaction, or raise its error."""
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


def copy_database(source: str, target: str, *, is_at_rest: bool = False) -> None:
    """In one read of one snapshot; durable when this returns. `is_at_rest`: no process uses the source."""
    with (
        _in_our_words(),
        closing(_open_at_rest(source) if is_at_rest else _open(source, read_only=True)) as here,
        closing(_open(target, read_only=False)) as there,
        there.backup("main", here, "main") as copying,
    ):
        copying.step()


def read_at_rest(path: str, *queries: str) -> list[list[Row]]:
    """Run queries on a file that no process uses. Nothing is written, and no file is created beside it."""
    with _in_our_words(), closing(_open_at_rest(path)) as raw:
        return [raw.execute(query).fetchall() for query in queries]


def _open_at_rest(path: str) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_NOMUTEX
    return apsw.Connection(f"{Path(path).absolute().as_uri()}?immutable=1", flags=flags)


def library_version() -> str:
    return apsw.sqlite_lib_version()


def refuse_old_sqlite(version: str) -> None:
    if tuple(int(part) for part in version.split(".")) < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        raise UnsupportedStore(
            f"SQLite {version} can corrupt a database that two connections use; "
            f"{oldest} or newer is needed: install a current `apsw`"
        )


def in_our_words(error: apsw.Error) -> StoreError:
    match error:
        case apsw.FullError():
            return DiskFull()
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusy()
        case apsw.ConstraintError():
            return ConstraintViolated(str(error))
        case apsw.InterruptError():
            return TooSlow()
        case apsw.CorruptError() | apsw.NotADBError():
            return StoreUnreadable(str(error))
        case (
            apsw.SQLError()
            | apsw.MismatchError()
            | apsw.RangeError()
            | apsw.TooBigError()
            | apsw.BindingsError()
        ):
            return StoreRefused(f"SQLite refuses a statement: {error}")
        case apsw.IOError():
            return StoreIOError(f"SQLite: {error}")
        case apsw.ReadOnlyError():
            return StoreError(f"this transaction may only read: {error}")
        case _:
            return StoreError(f"SQLite: {error}")


@contextmanager
def _in_our_words() -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise in_our_words(error) from error
    except OSError as error:
        raise StoreError(f"cannot open the database: {error}") from error


def _open(path: str, read_only: bool) -> apsw.Connection:
    if path != MEMORY and not read_only:
        _create_private(path)
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
    # One thread at a time uses a connection, so SQLite need not lock it for each of a statement's dozen calls.
    flags |= apsw.SQLITE_OPEN_NOMUTEX
    return apsw.Connection(path, flags=flags, statementcachesize=_CACHED_STATEMENTS)


def _open_alone(path: str) -> apsw.Connection:
    """Lock the file, so that the index of its log can be kept in memory instead of on a disk that is full.

    SQLite takes that lock on a writable connection only; nothing is written, not even when it is closed."""
    raw = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOMUTEX)
    raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    raw.execute("PRAGMA locking_mode=EXCLUSIVE")
    return raw


def _create_private(path: str) -> None:
    """SQLite gives the log and its index the mode of the database file, so this decides all three."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(file, 0o600)
    finally:
        os.close(file)


def _listed(text: str, text_of_one: str, row: Row) -> tuple[str, Row]:
    """Lists as JSON for `{any}`."""
    for value in row:
        if type(value) is list and len(value) != 1:
            break
    else:
        return text_of_one, tuple([value[0] if type(value) is list else value for value in row])
    return text, tuple([json.dumps(value) if type(value) is list else value for value in row])


# --------------------------------------------------------------------------------------------------
# Which kind of filesystem a path lies on. SQLite's locks and shared memory fail silently over a network.

NETWORK_FILESYSTEMS: Final = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph", "fuse.cephfs", "fuse.glusterfs",
    "fuse.juicefs", "fuse.gcsfuse", "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "gfs2", "glusterfs", "gpfs",
    "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb3", "smbfs",
})  # fmt: skip

_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def filesystem_of(path: Path) -> str:
    """Its type as the kernel names it; "" where the system does not tell."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return ""
    return filesystem_in(mounts.read_text(encoding="utf-8", errors="surrogateescape"), path.resolve())


def filesystem_in(mounts: str, path: Path) -> str:
    """The type of the mount nearest to `path`; of two on one point the later one hides the other."""
    nearest, kind = -1, ""
    for line in mounts.splitlines():
        _, point, candidate, *_ = line.split(" ")
        mount = Path(_ESCAPED.sub(lambda code: chr(int(code[1], 8)), point))
        if path.is_relative_to(mount) and len(mount.parts) >= nearest:
            nearest, kind = len(mount.parts), candidate
    return kind


def refuse_network_filesystem(path: Path, kind: str) -> None:
    if kind in NETWORK_FILESYSTEMS:
        raise UnsupportedStore(
            f"{path} lies on a network filesystem ({kind}), where SQLite loses data; "
            "set CLUTCH_HOME to a local disk, or use --database postgresql://…"
        )
