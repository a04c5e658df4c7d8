"""The promises that `clutch doctor` asks of a live database: each can be asked on each, and a breach is named."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clutch.cli.doctor import examine
from clutch.core.messages import Result, Results
from clutch.errors import StoreError, TooSlow
from clutch.offline_reader import looking_at_server
from clutch.store.postgres import PostgresStore
from clutch.store.transaction import Tx
from clutch.testing.postgres import PostgresServer
from clutch.transactions import control, invariants, retention, turn
from tests.transactions.world import World, calls, write

pytestmark = pytest.mark.anyio


async def test_every_standing_promise_can_be_asked_and_holds(world: World, main: int) -> None:
    await world.end(await world.child(main), "found")
    await world.live()
    is_sqlite = not isinstance(world.db, PostgresStore)
    asked = list(invariants.standing(is_served=True, is_sqlite=is_sqlite))
    assert len({query.invariant for query in asked}) >= 20
    assert [await world.db.read(invariants.broken, query) for query in asked] == [[]] * len(asked)


async def test_a_run_of_another_runtime_that_reports_its_calls_breaks_no_promise(
    world: World, main: int
) -> None:
    """Its calls are in the transcript before its answer; a run that fails is given the same text once more."""
    run = await world.started(main, runtime="acp:tested")
    called = (calls("look"), Results((Result(0, "look", "seen"),)))
    await world.db.tx(run.session_id, turn.journal, run.owned, *called)
    is_sqlite = not isinstance(world.db, PostgresStore)
    asked = list(invariants.standing(is_served=True, is_sqlite=is_sqlite))
    assert [await world.db.read(invariants.broken, query) for query in asked] == [[]] * len(asked)
    await run.fail("it ended itself")
    assert [await world.db.read(invariants.broken, query) for query in asked] == [[]] * len(asked)


@pytest.mark.parametrize("keeps_transcript", [False, True])
async def test_a_result_that_a_person_deleted_by_force_breaks_no_promise(
    world: World, main: int, keeps_transcript: bool
) -> None:
    """It is a dead letter without a record in the lists, and can be redelivered."""
    task = await world.child(main)
    await world.end(task, "found")
    await world.db.alone(
        retention.delete, world.policy, task, force=True, keep_transcript=keeps_transcript, actor="person"
    )
    is_sqlite = not isinstance(world.db, PostgresStore)
    asked = list(invariants.standing(is_served=True, is_sqlite=is_sqlite))
    assert [await world.db.read(invariants.broken, query) for query in asked] == [[]] * len(asked)
    await world.db.alone(control.redeliver, world.policy, task, "person")
    assert [await world.db.read(invariants.broken, query) for query in asked] == [[]] * len(asked)
    await world.live()


@pytest.mark.parametrize("db", ["postgres"], indirect=True)
async def test_doctor_asks_a_server_and_names_what_is_broken(
    world: World, main: int, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    task = await world.child(main)
    await world.end(task, "found")
    await world.live()

    async def invariants() -> dict[str, object]:
        report = await asyncio.to_thread(examine, tmp_path, database=postgres_server.dsn())
        assert [
            check for check in report.checks if check.id in ("database", "clock") and not check.is_ok
        ] == []
        told: dict[str, object] = report.to_json()["invariants"]
        return told

    well = await invariants()
    assert (well["broken"], well["held"]) == ([], well["total"])
    await world.db.alone(write, "UPDATE tasks SET outcome = NULL WHERE id = ?", task)
    ill = await invariants()
    assert "T1" in str(ill["broken"])
    await world.db.alone(write, "UPDATE tasks SET outcome = 'ok' WHERE id = ?", task)


def _sleeps(now: float) -> Tx[None]:
    del now
    yield "SELECT pg_sleep(60)", ()


def _writes(now: float) -> Tx[None]:
    del now
    yield "DELETE FROM tasks", ()


def test_whoever_looks_at_a_server_neither_keeps_it_busy_nor_writes(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clutch.offline_reader.SERVER_S", 2.0)
    with looking_at_server(postgres_server.dsn()) as look:
        with pytest.raises(TooSlow):
            look(_sleeps)
        with pytest.raises(StoreError, match="may only read"):
            look(_writes)


def test_server_that_is_not_there_is_a_failed_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clutch.offline_reader.SERVER_S", 0.1)
    report = examine(tmp_path, database="postgresql://clutch:secret@127.0.0.1:1/none")
    (found,) = [check for check in report.checks if check.id == "database"]
    assert not found.is_ok
    assert "secret" not in str(report.to_json())
