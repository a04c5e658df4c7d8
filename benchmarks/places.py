"""Where a benchmark keeps its data: fresh databases on a SQLite file or on a PostgreSQL server of its own.

Both durable: synchronous FULL and fsync on. Knows how to start, empty and meter them; not what runs on them.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Protocol

from clutch.store.postgres import PostgresStore
from clutch.store.sqlite import SqliteStore
from clutch.store.transaction import Database
from clutch.testing.postgres import PostgresServer, temporary_server
from clutch.wiring import SystemClock

BACKENDS: Final = ("sqlite", "postgres")


class Place(Protocol):
    """One kind of database. An address is a file or a DSN; `new` makes an empty one."""

    @property
    def backend(self) -> str: ...

    def new(self) -> str: ...

    def remove(self, address: str) -> None: ...

    def open(self, address: str) -> AbstractAsyncContextManager[Database]: ...

    def server_cpu_s(self) -> float | None:
        """CPU the database has used outside this process so far; None where nobody can tell."""
        ...


class SqlitePlace:
    backend: Final = "sqlite"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count(1)

    def new(self) -> str:
        return str(self._directory / f"bench-{next(self._numbers)}.db")

    def remove(self, address: str) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(address + suffix).unlink(missing_ok=True)

    def open(self, address: str) -> SqliteStore:
        return SqliteStore(address, SystemClock())

    def server_cpu_s(self) -> float | None:
        return 0.0


class PostgresPlace:
    backend: Final = "postgres"

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._numbers = itertools.count(1)

    def new(self) -> str:
        name = f"bench_{next(self._numbers)}"
        self._server.execute(f"CREATE DATABASE {name}")
        return self._server.dsn(name)

    def remove(self, address: str) -> None:
        name = address.partition("@/")[2].partition("?")[0]
        self._server.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def open(self, address: str) -> PostgresStore:
        return PostgresStore(address, SystemClock())

    def server_cpu_s(self) -> float | None:
        """Of all live processes of the server. One that ends takes its figure with it: meter while connected."""
        postmaster = self._server.pid
        try:
            processes = [stat for stat in map(_stat, Path("/proc").glob("[0-9]*")) if stat]
        except OSError:
            return None
        ours = [stat for stat in processes if postmaster in (stat.pid, stat.parent)]
        return sum(stat.cpu_s for stat in ours) if ours else None


class _Stat:
    """The few numbers of /proc/PID/stat that are wanted here."""

    def __init__(self, pid: int, fields: list[str]) -> None:
        self.pid = pid
        self.parent = int(fields[1])
        self.cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _stat(process: Path) -> _Stat | None:
    try:
        text = (process / "stat").read_text()
    except OSError:  # it has ended meanwhile
        return None
    return _Stat(int(process.name), text.rpartition(")")[2].split())


@contextmanager
def places() -> Iterator[dict[str, Place]]:
    """A directory and a server that go away with the benchmark."""
    with ExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory(prefix="clutch-bench-"))
        server = temporary_server(fsync=True)
        server.start()
        stack.callback(server.stop)
        yield {"sqlite": SqlitePlace(Path(directory)), "postgres": PostgresPlace(server)}


class Meter:
    """Wall and CPU since it was made."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._server = place.server_cpu_s()
        self._cpu = time.process_time()
        self._wall = time.perf_counter()

    def wall_s(self) -> float:
        return time.perf_counter() - self._wall

    def cpu_s(self) -> float:
        """Of this process."""
        return time.process_time() - self._cpu

    def server_cpu_s(self) -> float | None:
        now = self._place.server_cpu_s()
        return None if now is None or self._server is None else max(0.0, now - self._server)
