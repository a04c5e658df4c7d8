"""What a commit changed: the rows it wrote, before and after. The checker's memory of the tables.

SQLite tells which rows were written; their new contents are read once, the old ones are remembered.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from clutch.testing.simulation.disk import Made, SimDisk
from clutch.transactions.sessions import OwnedRun


@cache
def _fence_at(fn: Callable[..., Any]) -> int | None:
    """Which argument is the fence; None: it has none of its own. The second is always the session."""
    names = list(inspect.signature(fn).parameters)[1:]
    return names.index("fence") if names[1:2] == ["session_id"] and "fence" in names else None


def _guard(made: Made) -> tuple[int, int, int] | None:
    """Session, worker and fence, if an owner made it."""
    if isinstance(owned := made.args[0] if made.args else None, OwnedRun):
        return owned.session_id, made.worker_id, owned.fence
    at = _fence_at(made.fn)
    fence = None if at is None else made.named.get("fence", None if at >= len(made.args) else made.args[at])
    return None if fence is None else (made.args[1], made.worker_id, fence)


class SessionShot(NamedTuple):
    id: int
    parent_id: int | None
    root_id: int
    depth: int
    is_task: int
    owner: int | None
    fence: int
    head: int
    base: int
    due: float | None
    hold: int
    hold_until: float | None
    paused: int
    closed: int
    run_id: int | None


class TaskShot(NamedTuple):
    id: int
    requester_id: int
    phase: str
    reason: str
    generation: int
    outcome: str | None
    result_sha: str | None
    delivery: str
    attempts: int
    seq: int
    deadline_at: float | None


class LetterShot(NamedTuple):
    id: int
    session_id: int
    idem: str
    kind: str
    silent: int
    state: int
    seen: int
    taken_run: int | None
    taken_seq: int | None
    task_id: int | None
    generation: int | None
    ready_at: float


class RunShot(NamedTuple):
    id: int
    session_id: int
    by_person: int
    state: str
    crashes: int
    ended_at: float | None


_SHOTS: dict[str, type[Any]] = {
    "sessions": SessionShot,
    "tasks": TaskShot,
    "inbox": LetterShot,
    "runs": RunShot,
}
_READ = {
    table: f"SELECT {', '.join(shot._fields)} FROM {table} WHERE id IN (SELECT value FROM json_each(?))"  # noqa: S608
    for table, shot in _SHOTS.items()
}


@dataclass(slots=True)
class Change:
    """One commit. Pairs of (before, after); before is None for a new row."""

    number: int
    now: float
    made: Sequence[Made]
    sessions: dict[int, tuple[SessionShot | None, SessionShot]] = field(default_factory=dict)
    tasks: dict[int, tuple[TaskShot | None, TaskShot]] = field(default_factory=dict)
    letters: dict[int, tuple[LetterShot | None, LetterShot]] = field(default_factory=dict)
    runs: dict[int, tuple[RunShot | None, RunShot]] = field(default_factory=dict)
    gone: dict[int, TaskShot] = field(default_factory=dict)  #: tasks that are there no more, as they were
    has_new_owners: bool = False

    def now_of(self, session_id: int) -> float:
        """The time on the clock of the process that wrote the session."""
        for made in self.made:
            if ("sessions", session_id) in made.written:
                return made.now
        return self.now

    def tasks_to_check(self) -> set[int]:
        """Tasks that changed, and those whose letter did. Rows that did not change need no check."""
        touched = set(self.moved())
        touched.update(
            after.task_id
            for before, after in self.letters.values()
            if after.task_id is not None and before != after
        )
        return touched

    def lives_to_check(self) -> set[int]:
        """Tasks that changed, and those whose session did."""
        touched = set(self.moved())
        touched.update(
            after.id for before, after in self.sessions.values() if after.is_task and before != after
        )
        return touched

    def sessions_to_check(self) -> set[int]:
        """Sessions that changed, those that got or lost a letter, and the requesters of tasks that moved."""
        touched = {after.id for before, after in self.sessions.values() if before != after}
        for before, after in self.letters.values():
            if before != after:
                touched.add(after.session_id)
                if before is not None:
                    touched.add(before.session_id)
        touched.update(after.requester_id for before, after in self.tasks.values() if before != after)
        touched.update(task.requester_id for task in self.gone.values())
        return touched

    def read(self) -> list[int]:
        """Letters that were put into a transcript."""
        return [
            after.id
            for before, after in self.letters.values()
            if after.taken_seq is not None and (before is None or before.taken_seq is None)
        ]

    def requesters_to_count(self) -> set[int]:
        """Whose children became more: by a spawn, or because one of them works again."""
        return {
            after.requester_id
            for before, after in self.tasks.values()
            if before is None or before.generation != after.generation
        }

    def guarded(self) -> list[tuple[int, int, int]]:
        """Session, worker and fence of every write by an owner."""
        guards = [guard for made in self.made if made.written and (guard := _guard(made))]
        return [guard for guard in guards if guard[0] in self.sessions]

    def moved(self) -> list[int]:
        """Tasks that changed."""
        return [after.id for before, after in self.tasks.values() if before != after]

    def refenced(self) -> list[int]:
        """Sessions with another owner or another fence."""
        return [
            after.id
            for before, after in self.sessions.values()
            if before is None or before.owner != after.owner or before.fence != after.fence
        ]

    def cut_off(self) -> set[int]:
        """Sessions whose owner was removed by another process."""
        lost = {
            after.id
            for before, after in self.sessions.values()
            if after.owner is None and before is not None and before.owner is not None
        }
        return lost - {guard[0] for made in self.made if (guard := _guard(made))} if lost else lost

    def purses(self) -> set[str]:
        """The names of the budgets whose amounts were written."""
        return {name for made in self.made for name in made.purses}

    def steered(self) -> list[int]:
        return [made.args[1] for made in self.made if made.name == "steer" and made.args[1] in self.tasks]


class History:
    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._known: dict[str, dict[int, Any]] = {table: {} for table in _SHOTS}
        self.commits = 0
        #: per session, the last commit that changed anything its next claim depends on
        self.touched_at: dict[int, int] = {}
        #: per session, the commit of its last claim, and whether it was due only because its owner had died
        self.claims: dict[int, tuple[int, bool]] = {}
        self._clock_moved_at = 0
        #: per session, after which messages its transcript began anew
        self.bases: dict[int, set[int]] = {}

    def change(self, made: Sequence[Made], now: float) -> Change:
        self.commits += 1
        written: dict[str, set[int]] = {table: set() for table in _SHOTS}
        change = Change(self.commits, now, made)
        for one in made:
            for table, row_id in one.written:
                if table in written:
                    written[table].add(row_id)
                elif table == "workers":
                    change.has_new_owners = True
        change.sessions = self._pairs("sessions", written["sessions"])
        for _, session in change.sessions.values():
            if session.base:
                self.bases.setdefault(session.id, set()).add(session.base)
        change.tasks = self._pairs("tasks", written["tasks"])
        change.gone = self._forget(written["tasks"].difference(change.tasks))
        change.letters = self._pairs("inbox", written["inbox"])
        change.runs = self._pairs("runs", written["runs"])
        change.has_new_owners |= any(
            after.owner is not None and (before is None or before.owner != after.owner)
            for before, after in change.sessions.values()
        )
        return change

    def _pairs(self, table: str, ids: set[int]) -> dict[int, tuple[Any, Any]]:
        if not ids:
            return {}
        known = self._known[table]
        make = _SHOTS[table]._make
        rows = self._disk.ask(_READ[table], (f"[{','.join(map(str, ids))}]",))
        pairs = {}
        for row in rows:
            before, after = known.get(row[0]), make(row)
            known[row[0]] = after
            pairs[row[0]] = (before, after)
        return pairs

    def _forget(self, task_ids: set[int]) -> dict[int, TaskShot]:
        for task_id in task_ids:
            self._known["sessions"].pop(task_id, None)
        known = self._known["tasks"]
        return {task_id: known.pop(task_id) for task_id in sorted(task_ids) if task_id in known}

    def note_touched(self, sessions: Iterable[int]) -> None:
        for session_id in sessions:
            self.touched_at[session_id] = self.commits

    def note_clock(self) -> None:
        """A clock was set: what was due a moment ago may no longer be due."""
        self._clock_moved_at = self.commits + 1

    def has_changed_since_claim(self, session_id: int) -> bool:
        claimed_at, was_interrupted = self.claims.get(session_id, (0, True))
        changed_at = max(self.touched_at.get(session_id, 0), self._clock_moved_at)
        return was_interrupted or changed_at > claimed_at

    def note_claims(self, change: Change) -> None:
        for before, after in change.sessions.values():
            if after.owner is not None and before is not None and before.owner != after.owner:
                self.claims[after.id] = (self.commits, before.due == 0.0)

    def session(self, session_id: int) -> SessionShot | None:
        """As of the last commit."""
        shot: SessionShot | None = self._known["sessions"].get(session_id)
        return shot

    def task(self, task_id: int) -> TaskShot | None:
        shot: TaskShot | None = self._known["tasks"].get(task_id)
        return shot
