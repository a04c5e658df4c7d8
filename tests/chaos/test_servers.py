"""A primary and its standby exchange their places, as in the chaos run."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from clutch.testing.postgres import PostgresServer
from tests.postgres_server import caught_up, standby

pytestmark = pytest.mark.slow


def count(server: PostgresServer) -> str:
    return server.execute("SELECT count(*) FROM kept").strip()


def test_an_old_primary_becomes_the_standby_of_the_new_one() -> None:
    with TemporaryDirectory(prefix="clutch-pg-") as folder:
        old = PostgresServer(Path(folder), fsync=False)
        old.start()
        old.execute("CREATE TABLE kept(n int)", "INSERT INTO kept VALUES (1)")
        with standby(old) as new:
            caught_up(old, new)
            old.demote()
            new.promote()
            old.restart()  # it has ended by itself, as far as `restart` knows
            with pytest.raises(RuntimeError, match="read-only"):
                old.execute("INSERT INTO kept VALUES (2)")
            new.execute("INSERT INTO kept VALUES (2)")
            old.stop()
            old = new.standby(Path(folder))
            old.start()
            caught_up(new, old)
            assert count(old) == count(new) == "2"
            old.stop()
