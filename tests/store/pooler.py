"""A real PgBouncer in front of the test server, for the tests of what a pooler does to sessions."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from clutch.testing.postgres import PostgresServer
from tests.patience import PATIENCE_S

#: Debian installs it where only root's PATH looks.
PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def pooler(
    server: PostgresServer, mode: str, *, ignored: tuple[str, ...] = (), options: str = "", port: int = 6432
) -> Iterator[str]:
    """The address prefix of a PgBouncer in `mode`; `ignored` are the startup parameters it drops silently."""
    if PROGRAM is None:
        pytest.skip("NO POOLER: pgbouncer is not installed (Debian, Ubuntu: apt install pgbouncer)")
    here = Path(tempfile.mkdtemp(prefix="clutch-pool-"))
    here.chmod(0o777)  # PgBouncer refuses to run as root, so root runs it as the server's account
    upstream = server.dsn().rpartition("host=")[2]
    (here / "users").write_text('"postgres" ""\n')
    (here / "settings").write_text(
        f"[databases]\n* = host={upstream} user=postgres\n[pgbouncer]\nlisten_port = {port}\nlisten_addr =\n"
        f"unix_socket_dir = {here}\nauth_type = any\nauth_file = {here}/users\npool_mode = {mode}\n"
        f"logfile = {here}/log\nmax_client_conn = 1000\ndefault_pool_size = 60\n{options}\n"
        + (f"ignore_startup_parameters = {','.join(ignored)}\n" if ignored else "")
    )
    account = ("-u", Path(upstream).owner()) if os.geteuid() == 0 else ()
    process = subprocess.Popen(
        [PROGRAM, "-q", *account, str(here / "settings")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(here / f".s.PGSQL.{port}", process)
        yield f"host={here}&port={port}"
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(here)


def _wait_for(socket: Path, process: subprocess.Popen[bytes]) -> None:
    """Return when the pooler listens; it says so by nothing but the socket."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not socket.exists():
        assert process.poll() is None, "PgBouncer ended"
        assert time.monotonic() < give_up_at, "PgBouncer does not listen"
        os.sched_yield()


def through(where: str, direct: str) -> str:
    """The address of the database of `direct` through the pooler at `where`."""
    return f"postgresql://postgres@{urlsplit(direct).path}?{where}"


def pooled(where: str, direct: str) -> str:
    """The same with the way around it."""
    return f"{through(where, direct)}&direct={quote(direct, safe='')}"
