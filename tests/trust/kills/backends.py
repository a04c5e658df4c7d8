"""Where a story is played: a directory of its own for each, on PostgreSQL also a database of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Protocol

from tests.trust.kills.tables import DatabaseReader, PostgresReader, SqliteReader, migrate
from tests.trust.kills.victim import Assignment


class Backend(Protocol):
    @property
    def workers_max(self) -> int: ...

    def open(self, number: int, plant: str) -> tuple[Assignment, DatabaseReader]: ...

    def close(self, assignment: Assignment, reader: DatabaseReader, *, keep: bool) -> None: ...

    def end(self) -> None: ...


class SqliteBackend:
    workers_max = 1  #: a state directory has one owner

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="clutch-kill-"))

    def open(self, number: int, plant: str) -> tuple[Assignment, DatabaseReader]:
        directory = self.root / str(number)
        directory.mkdir()
        return Assignment(directory, None, plant), SqliteReader(directory / "state")

    def close(self, assignment: Assignment, reader: DatabaseReader, *, keep: bool) -> None:
        del reader
        if not keep:
            shutil.rmtree(assignment.directory)

    def end(self) -> None:
        if not any(self.root.iterdir()):
            self.root.rmdir()


class PostgresBackend:
    workers_max = 2  #: the survivor takes over while the other one comes back

    def __init__(self, server: str) -> None:
        self._server = server
        self._admin = PostgresReader(server)
        self._prefix = f"kill_{os.getpid()}"
        self._admin.run(f"CREATE DATABASE {self._prefix}")
        migrate(self._dsn(self._prefix))
        self._files = SqliteBackend()

    def _dsn(self, name: str) -> str:
        return self._server.replace("/postgres?", f"/{name}?")

    def open(self, number: int, plant: str) -> tuple[Assignment, DatabaseReader]:
        name = f"{self._prefix}_{number}"
        self._admin.run(f"CREATE DATABASE {name} TEMPLATE {self._prefix}")
        assignment, _ = self._files.open(number, plant)
        dsn = self._dsn(name)
        return Assignment(assignment.directory, dsn, plant), PostgresReader(dsn)

    def close(self, assignment: Assignment, reader: DatabaseReader, *, keep: bool) -> None:
        assert isinstance(reader, PostgresReader)
        reader.close()
        if not keep:
            self._admin.run(f"DROP DATABASE {self._prefix}_{assignment.directory.name} WITH (FORCE)")
        self._files.close(assignment, reader, keep=keep)

    def end(self) -> None:
        self._admin.run(f"DROP DATABASE {self._prefix} WITH (FORCE)")
        self._admin.close()
        self._files.end()
