"""A state directory whose database cannot be read, or is not the one its files belong to: nothing of it is deleted."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from clutch import Clutch
from clutch.errors import ClutchError
from tests.api.test_api import Echo

pytestmark = pytest.mark.anyio


def snapshot(state: Path) -> dict[str, bytes]:
    files = (path for path in state.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(state)): path.read_bytes() for path in files}


async def used(tmp_path: Path) -> Path:
    """A state directory with a finished task that has files."""
    async with Clutch(state=tmp_path / "state", workspace=tmp_path, models=Echo()) as clutch:
        task = await clutch.spawn("say hello", attachments={"notes": "precious"})
        assert (await task).is_ok
        folder = tmp_path / "state" / "tasks" / "77"
        (folder / "in").mkdir(parents=True)
        (folder / "in" / "notes").write_text("precious")
    return tmp_path / "state"


@pytest.mark.scenario(132)
@pytest.mark.parametrize("damage", ["torn", "garbage", "newer"])
async def test_a_store_that_cannot_be_read_stops_the_start_and_nothing_is_deleted(
    tmp_path: Path, damage: str
) -> None:
    state = await used(tmp_path)
    database = state / "clutch.db"
    whole = database.read_bytes()
    match damage:
        case "torn":
            database.write_bytes(whole[:100] + bytes(len(whole) - 100))
        case "garbage":
            database.write_bytes(b"not a database at all" * 1000)
        case _:
            with closing(sqlite3.connect(database)) as connection, connection:
                connection.execute(
                    "UPDATE meta SET value = '9999' WHERE name IN ('schema_version', 'compatible_from')"
                )
    before = snapshot(state)
    with pytest.raises(ClutchError) as caught:
        async with Clutch(state=state, workspace=tmp_path, models=Echo()):
            pass
    assert "restore" in str(caught.value)
    assert before.items() <= snapshot(state).items(), (
        "SQLite may add files of its own; nothing goes or changes"
    )


async def test_files_of_a_database_that_was_lost_are_left_alone(tmp_path: Path) -> None:
    state = await used(tmp_path)
    for file in state.glob("clutch.db*"):
        file.unlink()
    async with Clutch(state=state, workspace=tmp_path, models=Echo()) as clutch:
        _ = await (await clutch.spawn("say hello"))
    assert (state / "tasks" / "77" / "in" / "notes").read_text() == "precious"
