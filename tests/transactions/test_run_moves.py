"""The life of a run is the table of the core, and rows of earlier versions get the state that their float meant.

Every test of this folder runs on a database that refuses other moves (`conftest.new_file`)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from clutch.core.model import RunState
from clutch.core.run import RUN_MOVES
from clutch.store.sqlite import SqliteStore
from clutch.testing.clock import FakeClock
from clutch.transactions import runs

OLD = Path(__file__).parents[1] / "golden" / "state_0011.sql"


@pytest.mark.parametrize("before", RunState)
@pytest.mark.parametrize("after", RunState)
def test_there_is_sql_for_the_moves_of_the_table_and_for_no_other(before: RunState, after: RunState) -> None:
    if (before, after) not in RUN_MOVES:
        with pytest.raises(AssertionError, match=f"from {before} to {after}"):
            runs._move(before, to=after, also="route = NULL")
    else:
        sql = f"UPDATE runs SET state = '{after}', route = NULL WHERE state IN ('{before}')"  # noqa: S608
        assert runs._move(before, to=after, also="route = NULL") == sql


def test_an_ended_run_never_moves_again_and_every_other_can_end() -> None:
    assert not [move for move in RUN_MOVES if move[0] is RunState.ENDED]
    ending = {before for before, after in RUN_MOVES if after is RunState.ENDED}
    assert ending == {None, *RunState} - {RunState.ENDED}


@pytest.mark.anyio
async def test_the_migration_gives_each_run_the_state_that_its_float_meant(tmp_path: Path) -> None:
    file = tmp_path / "clutch.db"
    with closing(sqlite3.connect(file)) as database:
        database.executescript(OLD.read_text(encoding="utf-8"))
        added = "INSERT INTO runs(id, session_id, generation, by_person, started_at, parked_until, ended_at)"
        floats = {901: (None, None), 902: (500.0, None), 903: (1e18, None), 904: (0.0, None), 905: (7.0, 9.0)}
        for run_id, (parked_until, ended_at) in floats.items():
            row = (run_id, run_id, parked_until, ended_at)
            database.execute(f"{added} VALUES(?, ?, 1, 0, 1.0, ?, ?)", row)
        database.commit()
    async with SqliteStore(file, FakeClock()):
        pass
    with closing(sqlite3.connect(file)) as database:
        found = database.execute(
            "SELECT id, state, parked_until FROM runs WHERE id BETWEEN 901 AND 905 ORDER BY id"
        ).fetchall()
        assert found == [
            (901, RunState.RUNNING, None),
            (902, RunState.PARKED, 500.0),
            (903, RunState.ASKING, None),
            (904, RunState.ANSWERED, None),
            (905, RunState.ENDED, None),
        ]
        wrong = "SELECT id FROM runs WHERE (state = 'ended') <> (ended_at IS NOT NULL)"
        assert database.execute(wrong).fetchall() == []
