"""The drill of deploy/backup-drill.sh: a backup of a database with work in it is restored and holds every invariant."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clutch import Clutch
from clutch.testing.postgres import PostgresServer
from tests.policies import QUICK
from tests.postgres_server import postgres_dsn, postgres_server

__all__ = ["postgres_dsn", "postgres_server"]

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

DRILL = Path(__file__).parents[2] / "deploy/backup-drill.sh"


async def _drilled(*words: str, programs: str = "") -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{programs}:{os.environ['PATH']}"
    return await asyncio.to_thread(
        subprocess.run, [str(DRILL), *words], env={**os.environ, "PATH": path}, capture_output=True, text=True
    )


async def test_a_copy_of_a_state_directory_at_work_is_restored(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with Clutch(state, policy=QUICK, workspace=tmp_path / "work", port=0) as c:
        await (await c.spawn("question: sizes"))
        drilled = await _drilled(str(state))
    assert drilled.returncode == 0, drilled.stderr
    told = drilled.stdout.splitlines()[-1]
    assert told.startswith("restored: ")
    held, total = (int(word) for word in told.split() if word.isdigit())
    assert held == total > 10


async def test_a_dump_of_postgresql_is_restored(
    tmp_path: Path, postgres_server: PostgresServer, postgres_dsn: str
) -> None:
    postgres_server.execute("CREATE DATABASE drilled")
    try:
        async with Clutch(
            tmp_path / "s", database=postgres_dsn, policy=QUICK, workspace=tmp_path / "work"
        ) as c:
            await (await c.spawn("question: sizes"))
            scratch = postgres_server.dsn("drilled")
            drilled = await _drilled("unused", postgres_dsn, scratch, programs=str(postgres_server.programs))
    finally:
        postgres_server.execute("DROP DATABASE drilled WITH (FORCE)")
    assert drilled.returncode == 0, drilled.stdout + drilled.stderr
    assert "invariants hold" in drilled.stdout
