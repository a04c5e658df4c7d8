"""The judge's own tables beside the world's: what stood there before a commit, and what callers were told.

    was.tasks, was.sessions   as they were before the commit that is judged
    was.told                  every task that a spawn was answered with

They have no row numbers: SQLite's update hook does not hear of them, so nobody takes them for the world's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from clutch.protocol.spawn import Accepted
from clutch.testing.simulation.disk import Made, SimDisk

_COLUMNS: Final = {
    "tasks": "id, phase, generation, outcome, result_sha, attempts, seq, deadline_at",
    "sessions": "id, owner, fence",
}
_REMEMBER: Final = {
    table: f"INSERT OR REPLACE INTO was.{table} SELECT {columns} FROM main.{table}"  # noqa: S608 - our own names
    " WHERE id IN (SELECT value FROM json_each(?))"
    for table, columns in _COLUMNS.items()
}


def as_list(ids: Iterable[int]) -> str:
    """For `json_each`."""
    return f"[{','.join(map(str, sorted(ids)))}]"


class Shadow:
    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        disk.ask("ATTACH ':memory:' AS was")
        for table, columns in _COLUMNS.items():
            disk.ask(f"CREATE TABLE was.{table}({columns}, PRIMARY KEY(id)) WITHOUT ROWID")
        disk.ask(
            "CREATE TABLE was.told(requester_id, idem, task_id, PRIMARY KEY(requester_id, idem, task_id))"
            " WITHOUT ROWID"
        )

    def hear(self, made: Sequence[Made]) -> None:
        """What the transactions of a commit are answered with."""
        for one in made:
            if one.name == "spawn":
                for order, answer in zip(one.args[4], one.value, strict=True):
                    if isinstance(answer, Accepted):
                        self._disk.ask(
                            "INSERT OR IGNORE INTO was.told VALUES(?, ?, ?)",
                            (one.args[1], order.idem, answer.task_id),
                        )

    def remember(self, moved: Sequence[int], refenced: Sequence[int]) -> None:
        """The commit was judged: its rows are what stands there before the next one."""
        if moved:
            self._disk.ask(_REMEMBER["tasks"], (as_list(moved),))
        if refenced:
            self._disk.ask(_REMEMBER["sessions"], (as_list(refenced),))
