"""Where a story is played: a directory of its own for each, on PostgreSQL also a database of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Protocol

from clutch.testing.killing.books import Books, PostgresBooks, SqliteBooks, migrate
from clutch.testing.killing.victim import Assignment


class Stage(Protocol):
    @property
    def workers_max(self) -> int: ...

    def open(self, number: int, plant: str) -> tuple[Assignment, Books]: ...

    def close(self, assignment: Assignment, books: Books, *, keep: bool) -> None: ...

    def end(self) -> None: ...


class SqliteStage:
    workers_max = 1  #: a state directory has one owner

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="clutch-kill-"))

    def open(self, number: int, plant: str) -> tuple[Assignment, Books]:
        directory = self.root / str(number)
        directory.mkdir()
        return Assignment(directory, None, plant), SqliteBooks(directory / "state")

    def close(self, assignment: Assignment, books: Books, *, keep: bool) -> None:
        del books
        if not keep:
            shutil.rmtree(assignment.directory)

    def end(self) -> None:
        if not any(self.root.iterdir()):
            self.root.rmdir()


class PostgresStage:
    workers_max = 2  #: the survivor takes over while the other one comes back

    def __init__(self, server: str) -> None:
        self._server = server
        self._admin = PostgresBooks(server)
        self._prefix = f"kill_{os.getpid()}"
        self._admin.run(f"CREATE DATABASE {self._prefix}")
        migrate(self._dsn(self._prefix))
        self._files = SqliteStage()

    def _dsn(self, name: str) -> str:
        return self._server.replace("/postgres?", f"/{name}?")

    def open(self, number: int, plant: str) -> tuple[Assignment, Books]:
        name = f"{self._prefix}_{number}"
        self._admin.run(f"CREATE DATABASE {name} TEMPLATE {self._prefix}")
        assignment, _ = self._files.open(number, plant)
        dsn = self._dsn(name)
        return Assignment(assignment.directory, dsn, plant), PostgresBooks(dsn)

    def close(self, assignment: Assignment, books: Books, *, keep: bool) -> None:
        assert isinstance(books, PostgresBooks)
        books.close()
        if not keep:
            self._admin.run(f"DROP DATABASE {self._prefix}_{assignment.directory.name} WITH (FORCE)")
        self._files.close(assignment, books, keep=keep)

    def end(self) -> None:
        self._admin.run(f"DROP DATABASE {self._prefix} WITH (FORCE)")
        self._admin.close()
        self._files.end()
