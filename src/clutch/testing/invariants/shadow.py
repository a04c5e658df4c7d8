"""Tables of the checker beside those of the world: the rows before a commit, and what callers were answered.

    was.tasks, was.sessions   as they were before the commit that is checked
    was.told                  every task that a spawn was answered with
    was.unseen                letters that the mailman should have looked at, and since when

They have no row numbers: SQLite's update hook does not report them, so they are never taken for rows of the world.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from clutch.core import ids
from clutch.testing.simulation.disk import Made, SimDisk
from clutch.transactions.invariants.core import IS_ALIVE
from clutch.transactions.spawn import Accepted

_COLUMNS: Final = {
    "tasks": "id, phase, generation, outcome, result_sha, attempts, seq, deadline_at",
    "sessions": "id, owner, fence",
}
_REMEMBER: Final = {
    table: f"INSERT OR REPLACE INTO was.{table} SELECT {columns} FROM main.{table}"  # noqa: S608 - our own names
    " WHERE id IN (SELECT value FROM json_each(?))"
    for table, columns in _COLUMNS.items()
}


_UNSEEN: Final = (
    "SELECT i.id FROM inbox i JOIN sessions s ON s.id = i.session_id WHERE i.seen = 0 AND i.state = 0"  # noqa: S608 - constant text
    " AND NOT (s.hold = 1 AND s.closed = 0 AND i.kind = 'announce' AND i.taken_seq IS NULL AND EXISTS"
    f" (SELECT 1 FROM tasks t WHERE t.requester_id = s.id AND {IS_ALIVE.format('t')}))"
)
_READY: Final = "INSERT OR IGNORE INTO was.told SELECT requester_id, idem, id FROM tasks WHERE id = ?"


def as_list(ids: Iterable[int]) -> str:
    """For `json_each`."""
    return f"[{','.join(map(str, sorted(ids)))}]"


class Shadow:
    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        disk.ask("ATTACH ':memory:' AS was")
        for table, columns in _COLUMNS.items():
            disk.ask(f"CREATE TABLE was.{table}({columns}, PRIMARY KEY(id)) WITHOUT ROWID")
        disk.ask("CREATE TABLE was.unseen(id PRIMARY KEY, since) WITHOUT ROWID")
        disk.ask(
            "CREATE TABLE was.told(requester_id, idem, task_id, PRIMARY KEY(requester_id, idem, task_id))"
            " WITHOUT ROWID"
        )

    def look(self, now: float) -> None:
        """Which letters wait to be seen. A session that waits for its children needs no look meanwhile."""
        self._disk.ask(f"DELETE FROM was.unseen WHERE id NOT IN ({_UNSEEN})")  # noqa: S608 - constant text
        self._disk.ask(f"INSERT OR IGNORE INTO was.unseen SELECT id, {now!r} FROM ({_UNSEEN})")  # noqa: S608

    def hear(self, made: Sequence[Made]) -> None:
        """What the transactions of a commit are answered with. A spawn with side work is accepted when it is ready."""
        for one in made:
            if one.name == "ready" and one.value:
                self._disk.ask(_READY, (one.args[1],))
            for idem, task_id in _accepted(one):
                told = (one.session_id, idem, task_id)
                self._disk.ask("INSERT OR IGNORE INTO was.told VALUES(?, ?, ?)", told)

    def remember(self, moved: Sequence[int], refenced: Sequence[int], gone: Iterable[int]) -> None:
        """The commit was checked: its rows are what the next one is compared with."""
        for task_id in gone:
            self._disk.ask("DELETE FROM was.tasks WHERE id = ?", (task_id,))
            self._disk.ask("DELETE FROM was.sessions WHERE id = ?", (task_id,))
        if moved:
            self._disk.ask(_REMEMBER["tasks"], (as_list(moved),))
        if refenced:
            self._disk.ask(_REMEMBER["sessions"], (as_list(refenced),))


def _accepted(made: Made) -> Iterator[tuple[str, int]]:
    """Key and number of every task that the caller of this transaction, or its model, was shown as accepted."""
    if made.name == "spawn":
        for order, answer in zip(made.args[3], made.value, strict=True):
            if isinstance(answer, Accepted) and not answer.is_spawning:
                yield order.idem, answer.task_id
    if made.name == "delegate":
        keys_by_place = {order.place: order.idem for order in made.args[1].orders}
        for result in made.value[0].results:
            if result.index in keys_by_place and not result.failed:
                yield keys_by_place[result.index], ids.parse_task_id(json.loads(result.text)["taskId"]) or 0
