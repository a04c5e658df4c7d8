"""The promises that `clutch doctor` asks of a live database: each can be asked on each, and a breach is named."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clutch.cli.doctor import examine
from clutch.errors import StoreError, TooSlow
from clutch.looking import looking_at_server
from clutch.protocol.promises import checkup
from clutch.store.door import Tx
from clutch.store.postgres import PostgresStore
from clutch.testing.postgres import PostgresServer
from tests.protocol.world import World, write

pytestmark = pytest.mark.anyio


async def test_every_standing_promise_can_be_asked_and_holds(world: World, main: int) -> None:
    await world.end(await world.child(main), "found")
    await world.live()
    is_sqlite = not isinstance(world.door, PostgresStore)
    asked = list(checkup.standing(is_served=True, is_sqlite=is_sqlite))
    assert len({query.invariant for query in asked}) >= 20
    assert [await world.door.read(checkup.broken, query) for query in asked] == [[]] * len(asked)


@pytest.mark.parametrize("door", ["postgres"], indirect=True)
async def test_doctor_asks_a_server_and_names_what_is_broken(
    world: World, main: int, server: PostgresServer, tmp_path: Path
) -> None:
    task = await world.child(main)
    await world.end(task, "found")
    await world.live()

    async def invariants() -> dict[str, object]:
        report = await asyncio.to_thread(examine, tmp_path, database=server.dsn())
        assert [
            check for check in report.checks if check.id in ("database", "clock") and not check.is_ok
        ] == []
        told: dict[str, object] = report.to_json()["invariants"]
        return told

    well = await invariants()
    assert (well["broken"], well["held"]) == ([], well["total"])
    await world.door.alone(write, "UPDATE tasks SET outcome = NULL WHERE id = ?", task)
    ill = await invariants()
    assert "T1" in str(ill["broken"])
    await world.door.alone(write, "UPDATE tasks SET outcome = 'ok' WHERE id = ?", task)


def _sleeps(now: float) -> Tx[None]:
    del now
    yield "SELECT pg_sleep(60)", ()


def _writes(now: float) -> Tx[None]:
    del now
    yield "DELETE FROM tasks", ()


def test_whoever_looks_at_a_server_neither_keeps_it_busy_nor_writes(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clutch.looking.SERVER_S", 2.0)
    with looking_at_server(server.dsn()) as look:
        with pytest.raises(TooSlow):
            look(_sleeps)
        with pytest.raises(StoreError, match="may only read"):
            look(_writes)


def test_server_that_is_not_there_is_a_failed_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clutch.looking.SERVER_S", 0.1)
    report = examine(tmp_path, database="postgresql://clutch:secret@127.0.0.1:1/none")
    (found,) = [check for check in report.checks if check.id == "database"]
    assert not found.is_ok
    assert "secret" not in str(report.to_json())
