"""Move everything from one database to another: between state directories, and to and from PostgreSQL.

Which step is next is decided in `core/move.py` from the records of both ends, read anew before every step; so the same
command finishes what a killed one began."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from clutch.core import move as rules
from clutch.core.attachments import MANIFEST, Attachment, FileVersion, Side
from clutch.core.move import EndState, MoveRecord, MoveStep
from clutch.core.text.format import typed
from clutch.errors import InvalidInput, StateDirectoryInUse, StoreError
from clutch.offline_reader import DATABASE_FILE, Look, looking_at, looking_at_nothing, looking_at_server
from clutch.store import dialect
from clutch.store.postgres_address import parse_address
from clutch.store.sqlite import SqliteStore
from clutch.store.sqlite_connection import SqliteConnection, copy_database, migrate, must
from clutch.store.transaction import P, TxFunction
from clutch.surfaces.discovery import named_state
from clutch.tools.task_files import LocalTaskFiles
from clutch.transactions import blobs
from clutch.transactions import move as rows_of
from clutch.transactions.read.move import move_record
from clutch.wiring.engine import RESULTS, TASKS, WORKSPACES, SystemClock, clock_for, open_file, place_of

if TYPE_CHECKING:
    from clutch.store.transaction import Database, Row
    from clutch.transactions.move import TableShape

FOLDERS: Final = (TASKS, WORKSPACES, RESULTS)
LONG_S: Final = 3600.0  #: for a statement that reads or empties a whole table
LOOK_S: Final = 0.5
#: In a folder of the state directory: the files of another database (`place_of`).
_OF_ANOTHER: Final = re.compile(r"(?=.*[a-f])[0-9a-f]{16}")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class MoveEnd:
    """`home`: the state directory, with the files of tasks. `database`: address of PostgreSQL; None: the file in
    `home`. `backup`: a file that is restored."""

    home: Path
    database: str | None = None
    backup: Path | None = None

    def __post_init__(self) -> None:
        if self.database is not None:
            parse_address(self.database)  # before anything of it is shown or written

    @property
    def address(self) -> str:
        """What an operator types to name it."""
        if self.backup is not None:
            return str(self.backup.absolute())
        return str(self.home.absolute()) if self.database is None else rules.address_text(self.database)

    @property
    def identity(self) -> str:
        """The same directory on two machines are two."""
        return self.address if self.database is not None else f"{platform.node()}:{self.address}"

    async def open(self, stack: AsyncExitStack) -> Database:
        """Migrates. Raises StateDirectoryInUse, SchemaTooNew."""
        if self.backup is not None:
            return await self._open_backup(stack, self.backup)
        if self.database is None:
            return await self._open_file(stack)
        from clutch.store.postgres import PostgresStore  # an optional dependency
        from clutch.store.postgres_connection import PostgresSettings

        settings = PostgresSettings(
            statement_timeout_s=LONG_S, transaction_s=LONG_S, application_name="clutch move"
        )
        return await stack.enter_async_context(
            PostgresStore(self.database, clock_for(self.database), settings=settings)
        )

    async def _open_file(self, stack: AsyncExitStack) -> Database:
        try:
            return await open_file(stack, self.home, SystemClock())
        except StateDirectoryInUse as error:
            stop = typed("stop", state=named_state(self.home))
            raise StateDirectoryInUse(
                f"{self.home} is in use: stop its gateway with `{stop}`", stop
            ) from error

    async def _open_backup(self, stack: AsyncExitStack, backup: Path) -> Database:
        """Open a copy: it is migrated, and the workers of the time of the backup are dead."""
        copy = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clutch-restore-"))) / DATABASE_FILE
        )
        await asyncio.to_thread(copy_database, str(backup), str(copy), is_at_rest=True)
        db = await stack.enter_async_context(SqliteStore(copy, SystemClock()))
        await db.alone(rows_of.evict)
        return db

    def folder(self, what: str) -> Path:
        return place_of(self.home, what, self.database)


@dataclass(slots=True)
class FileCopy:
    """`worktrees`: copies of git worktrees, which git finds only after `git worktree repair`."""

    files: int = 0
    bytes: int = 0
    worktrees: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MoveReport:
    move_id: str
    rows: dict[str, int]
    files: FileCopy
    seconds: float


def _unwrapped(db: Database) -> Database:
    return db


async def move(
    source: MoveEnd, target: MoveEnd, say: Say, wrap: Callable[[Database], Database] = _unwrapped
) -> MoveReport:
    """Move everything, or finish a move that was interrupted. `wrap`: for tests. Raises InvalidInput, StoreError."""
    if source.identity == target.identity:
        raise InvalidInput("--to", f"{target.address} is where the tasks are already; name another place")
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        here, there = await source.open(stack), await target.open(stack)
        mover = Mover(source, target, wrap(here), wrap(there), say)
        await mover.run()
        rows = await there.read(rows_of.count, mover.tables)
    return MoveReport(mover.move_id, rows, mover.files, time.monotonic() - began)


async def cancel(source: MoveEnd) -> None:
    """Let gateways work on the source again. What has arrived at the target is deleted by the next move to it."""
    async with AsyncExitStack() as stack:
        db = await source.open(stack)
        record = await db.read(move_record)
        await db.alone(rows_of.reopen, all_tables(), record, rules.cancelled(record))


def all_tables() -> list[TableShape]:
    with looking_at_nothing() as look:
        return look(rows_of.shapes)


class Mover:
    """One move. The databases are open; no other process of this machine has the files open."""

    def __init__(self, source: MoveEnd, target: MoveEnd, here: Database, there: Database, say: Say) -> None:
        self._source, self._target, self._here, self._there, self._say = source, target, here, there, say
        self.move_id, self.files, self.tables = uuid4().hex, FileCopy(), all_tables()

    async def run(self) -> None:
        """Take steps until the target is open."""
        for db in (self._here, self._there):
            await db.read(rows_of.check_version, dialect.newest_version(dialect.SCHEMA))
        while True:
            # The target first. A target that belongs to a move for which the source is not fenced after this read can
            # never be opened by that move, so it may be emptied. The other way round it might be opened meanwhile.
            there = await self._there.read(move_record)
            here = await self._source_record()
            if here.state is not EndState.OPEN:
                self.move_id = here.move_id
            is_empty = await self._there.read(rows_of.is_empty, self.tables)
            places = (self._source.identity, self._target.address)
            step = rules.next_step(here, there, self.move_id, places, is_empty=is_empty)
            await self._take(step, here, there)
            if step in (MoveStep.OPEN, MoveStep.DONE):
                break

    async def _source_record(self) -> MoveRecord:
        backup = self._source.backup
        if backup is None:
            return await self._here.read(move_record)
        found = backup.stat()
        # The same in each try, so that an interrupted one is resumed.
        move_id = f"restore-{found.st_size:x}-{found.st_mtime_ns:x}"
        return MoveRecord(EndState.BACKUP, move_id, self._target.address)

    async def _take(self, step: MoveStep, here: MoveRecord, there: MoveRecord) -> None:
        source, target, move_id = self._source, self._target, self.move_id
        match step:
            case MoveStep.RECEIVE:
                self._say(f"Preparing {target.address} …")
                new = MoveRecord(EndState.RECEIVING, move_id, source.identity)
                has_leases = await _outlive_dead_gateways(target, self._there)
                await self._there.alone(rows_of.receive, self.tables, there, new, has_leases=has_leases)
            case MoveStep.FENCE:
                self._say(f"Closing {source.address} for work …")
                new = replace(here, state=EndState.FENCED, move_id=move_id, peer=target.address)
                has_leases = await _outlive_dead_gateways(source, self._here)
                await self._here.alone(rows_of.fence, self.tables, here, new, has_leases=has_leases)
            case MoveStep.COPY:
                await self._copy(there)
            case MoveStep.COMMIT:
                await self._here.alone(rows_of.commit, here, replace(here, state=EndState.MOVED))
            case MoveStep.OPEN:
                await self._there.alone(rows_of.open_target, there, rules.opened(here, move_id))
            case MoveStep.DONE:
                pass

    async def _copy(self, record: MoveRecord) -> None:
        totals, names = await self._here.read(rows_of.count, self.tables), [one.name for one in self.tables]
        for table in self.tables[names.index(record.table) if record.table else 0 :]:
            done, after = 0, record.after if table.name == record.table else ()
            while rows := await self._here.read(rows_of.page, table, after):
                after = rows_of.key_of(table, rows[-1])
                new = replace(record, table=table.name, after=after)
                await self._there.alone(rows_of.write_page, record, new, table, self._relocated(table, rows))
                record, done = new, done + len(rows)
                self._say(f"{table.name}: {done:,} of {totals.get(table.name, 0):,} rows")
        await asyncio.to_thread(self._copy_files)
        if self._source.database is not None and self._target.database is None:
            await self._write_blobs()
        await self._compare(record)
        given = await self._here.read(rows_of.numbers, self.tables)
        await self._there.alone(rows_of.settle, record, replace(record, state=EndState.RECEIVED), given)

    async def _compare(self, record: MoveRecord) -> None:
        self._say("Comparing both databases …")
        for table in self.tables:
            here, there = await self._digest(self._here, table), await self._digest(self._there, table)
            if here != there:
                # Without its id the next try empties the target and copies everything again.
                await self._there.alone(rows_of.change, record, replace(record, move_id=""))
                raise StoreError(
                    f"{table.name} differs: {here[0]} rows at {self._source.address}, {there[0]} at"
                    f" {self._target.address}; run the same command again, which copies everything again"
                )

    async def _digest(self, db: Database, table: TableShape) -> tuple[int, int]:
        count, total, after = 0, 0, ()
        while rows := await db.read(rows_of.page, table, after):
            count, after = count + len(rows), rows_of.key_of(table, rows[-1])
            total += rules.digest(self._relocated(table, rows) if db is self._here else rows)
        return count, total

    def _relocated(self, table: TableShape, rows: Sequence[Row]) -> Sequence[Row]:
        """The workspace of an isolated child lies in the state directory; its path changes with the place."""
        was, new = (f"{end.folder(WORKSPACES).absolute()}/" for end in (self._source, self._target))
        if table.name != "sessions" or was == new or self._source.backup is not None:
            return rows
        column = table.columns.index("workspace")
        # A gateway that was given a relative state directory has written a relative path.
        places = [row[column] and str(Path(row[column]).absolute()) for row in rows]
        return [
            (*row[:column], new + place.removeprefix(was), *row[column + 1 :])
            if place is not None and place.startswith(was)
            else row
            for row, place in zip(rows, places, strict=True)
        ]

    # Where files go is decided here and nowhere else: to the folders of the target in its state directory. PostgreSQL
    # has none, so its files stay in the state directory of this machine, where the next gateway looks for them.

    def _copy_files(self) -> None:
        if self._source.backup is not None:
            return
        self.files = FileCopy()
        for what in FOLDERS:
            was, new = self._source.folder(what), self._target.folder(what)
            for folder, _ in _folders_below(was) if what == WORKSPACES else ():
                (new / folder.relative_to(was)).mkdir(0o700, parents=True, exist_ok=True)
            for path in files_below(was):
                _copy_file(path, new / path.relative_to(was))
                self.files.files += 1
                self.files.bytes += path.lstat().st_size
                if what == WORKSPACES and path.name == ".git" and path.is_file():
                    self.files.worktrees.append(str((new / path.relative_to(was)).parent.absolute()))
        os.sync()  # the rows that name these files are durable, too

    async def _write_blobs(self) -> None:
        """Write the files that only the database has: those of tasks that worked on other machines. The gateway of a
        state directory does not look for them in its database. What is in the directory stays."""
        files, names = LocalTaskFiles(self._target.folder(TASKS)), await self._here.read(blobs.names, TASKS)
        for folder, keys in groupby(sorted(names), lambda key: key.rpartition("/")[0]):
            _, name, side = folder.split("/")
            version = FileVersion(*map(int, name.split(".")))
            place = Path(files.path(version), side)
            if side == Side.IN and (place / MANIFEST).exists():
                continue
            wanted = [key for key in keys if side == Side.IN or not (place / Path(key).name).exists()]
            read = [(Path(key).name, await self._here.read(blobs.get, key)) for key in wanted]
            found = [Attachment(name, content) for name, content in read if content is not None]
            await files.restore(version, Side(side), found)
            self.files.files += len(found)
            self.files.bytes += sum(len(one.content) for one in found)


async def _outlive_dead_gateways(end: MoveEnd, db: Database) -> bool:
    """Wait until the leases of killed gateways have run out. One that renews its lease is alive: the transaction that
    follows refuses it. Return whether this database has leases."""
    first: dict[int, float] | None = None
    while end.database is not None:
        leases = {row[0]: row[3] for row in await db.read(rows_of.live_workers)}
        if not leases or (first is not None and leases != {one: first.get(one) for one in leases}):
            break
        first = first or leases
        await asyncio.sleep(LOOK_S)
    return end.database is not None


def files_below(folder: Path) -> Iterator[Path]:
    """Files and links below a folder of the state directory. Links are not followed."""
    for here, names in _folders_below(folder):
        yield from (path for name in names if (path := here / name).is_symlink() or path.is_file())


def _folders_below(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """The folder and those below it, each with the names in it. Links are not followed."""
    for here, folders, files in os.walk(folder):
        if Path(here) == folder:
            folders[:] = [name for name in folders if not _OF_ANOTHER.fullmatch(name)]
        yield Path(here), [*files, *folders]


def _copy_file(path: Path, target: Path) -> None:
    """A file that was copied by an earlier try is left alone. Half a copy never has the name."""
    was = path.lstat()
    try:
        now = target.lstat()
        if (now.st_size, now.st_mtime_ns) == (was.st_size, was.st_mtime_ns):
            return
    except FileNotFoundError:
        target.parent.mkdir(0o700, parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    part.unlink(missing_ok=True)
    shutil.copy2(path, part, follow_symlinks=False)
    part.rename(target)


# --------------------------------------------------------------------------------------------------
# What would move, and a backup of PostgreSQL: both read beside the gateways that work.


def rehearse(source: MoveEnd) -> MoveReport:
    """Count what would move; nothing is changed."""
    looking = looking_at(source.home) if source.database is None else looking_at_server(source.database)
    began, files = time.monotonic(), FileCopy()
    with looking as look:
        rows = look(rows_of.count, all_tables())
    for path in (path for what in FOLDERS for path in files_below(source.folder(what))):
        files.files += 1
        files.bytes += path.lstat().st_size
    return MoveReport("", rows, files, time.monotonic() - began)


def back_up_server(database: str, target: Path) -> int:
    """Copy a PostgreSQL database at one moment to a new SQLite file, while others write. Return its bytes."""
    if target.exists():
        raise InvalidInput("FILE", f"{target} is there already; name another")
    part = target.with_name(f".{target.name}.part")
    part.unlink(missing_ok=True)
    with looking_at_server(database, LONG_S) as look:
        rules.refuse_copy(look(move_record), rules.address_text(database))
        look(rows_of.check_version, dialect.newest_version(dialect.SCHEMA))
        _write_snapshot(look, part)
    part.rename(target)
    return target.stat().st_size


def _write_snapshot(look: Look, target: Path) -> None:
    tables = all_tables()
    with closing(SqliteConnection(str(target))) as file:

        def write(fn: TxFunction[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
            must(file.transact(lambda now: fn(now, *args, **kwargs), 0.0))

        migrate(file, dialect.SCHEMA)
        write(rows_of.empty, tables)
        given = look(rows_of.snapshot, tables, lambda table, rows: write(rows_of.insert, table, rows))
        write(rows_of.set_numbers, given)
        file.control("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
