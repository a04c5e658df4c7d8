"""Two real gateways on one PostgreSQL, one of them killed with SIGKILL: every slot of a schedule starts one task."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from clutch import Clutch
from clutch.core.schedule import origin
from tests.engine.house import _select as select
from tests.patience import PATIENCE_S

RUNS = 6
PROGRAM = """
import asyncio, sys
from clutch import Clutch
async def main():
    async with Clutch(sys.argv[2], database=sys.argv[1], serve=False) as c:
        print("up", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.anyio
@pytest.mark.postgres
@pytest.mark.slow
async def test_a_killed_gateway_neither_loses_nor_repeats_a_slot(tmp_path: Path, postgres_dsn: str) -> None:
    command = [sys.executable, "-c", PROGRAM, postgres_dsn, str(tmp_path / "other")]
    async with Clutch(tmp_path / "own", database=postgres_dsn, serve=False) as c:
        other = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert other.stdout is not None
        assert await other.stdout.readline() == b"up\n"
        often = await c.schedule(
            "often", "question: sizes", every_seconds=1, missed="all", overlap="queue", max_runs=RUNS
        )
        changes = c.services.changes
        async with asyncio.timeout(PATIENCE_S):
            while (await often.info())["runs"] < RUNS:
                change = changes.next_change
                if (await often.info())["runs"] >= 2 and other.returncode is None:
                    other.send_signal(signal.SIGKILL)
                    await other.wait()
                await changes.until(change)
        keys = [row[0] for row in await c.services.db.read(select, "SELECT idem FROM tasks")]
        started = [slot["slot"] for slot in (await often.info())["history"] if slot["state"] == "started"]
        assert len({origin(key) for key in keys}) == len(keys) == len(set(started)) == RUNS
        assert other.returncode == -signal.SIGKILL
