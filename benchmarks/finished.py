"""Finished tasks by the million, written by the database itself: the tables of an engine that has run for a year.

Three kinds of requesters: one has a tree of fixed size, those that will be measured have a tenth of all tasks, and
many strangers have the rest. Fewer messages than in life, so that a million are made in a minute.
"""

from __future__ import annotations

from typing import Final

from benchmarks.task import ROOT_RIGHTS
from clutch.store.transaction import Database, Tx

TREE_ROOT: Final = 1
TREE_TASKS: Final = 50
FIRST_MEASURED: Final = 100
_FIRST_STRANGER: Final = 1000
_TASKS_PER_STRANGER: Final = 20
_FIRST_TASK: Final = 1_000_000  # all below the first block of numbers that a process gets
_CHUNK: Final = 20_000  # tasks per commit: the log stays small
_RETAINED: Final = 10  # of each measured requester: those that have not left the quota yet

_PARENTS: Final = (
    "INSERT INTO sessions(id, key, agent_id, root_id, depth, lane, role, is_task, rights, workspace, created_at)"
    " WITH RECURSIVE number(i) AS (SELECT CAST(? AS {big}) UNION ALL SELECT i + 1 FROM number WHERE i + 1 < ?)"
    " SELECT i, 'agent:main:chat:old-' || CAST(i AS {text}), 'main', i, 0, 'main', 'main', 0, CAST(? AS {text}), '.', 0"
    " FROM number"
)
_TASKS: Final = (
    "INSERT INTO tasks(id, requester_id, root_id, depth, spawn_order, idem, label, task, spec, timeout_s,"
    " expects_completion, has_cleanup, seq, phase, reason, detail, generation, outcome, result, delivery,"
    " delivery_reason, attempts, plan, plan_round, started_at, ended_at, created_at, retained)"
    " WITH RECURSIVE number(i) AS (SELECT CAST(? AS {big}) UNION ALL SELECT i + 1 FROM number WHERE i + 1 < ?),"
    " owned(i, requester) AS (SELECT i, CASE WHEN i < ? THEN CAST(? AS {big})"
    " WHEN i % 10 = 0 THEN CAST(? AS {big}) + (i / 10) % CAST(? AS {big})"
    " ELSE CAST(? AS {big}) + i / CAST(? AS {big}) END FROM number)"
    " SELECT CAST(? AS {big}) + i, requester, requester, 1, i * 1000, 'old:' || CAST(i AS {text}), 'old',"
    " 'Say what part it plays.', '', 0, 1, 0, 6, 'completed', 'delivered', 'direct', 1, 'ok', 'It filters tokens.',"
    " 'delivered', 'direct', 0, 'none', 0, i, i, i, CASE WHEN i % 10 = 0 AND i >= ? THEN 1 ELSE 0 END FROM owned"
)
_KEY: Final = "'agent:main:subagent:00000000-0000-4000-8000-' || CAST(100000000000 + id AS {text})"

#: what else a finished task leaves, read from its own row
_REST: Final = (
    "INSERT INTO sessions(id, key, agent_id, parent_id, root_id, depth, lane, role, is_task, rights, workspace, fence,"  # noqa: S608 - our own text
    f" head, closed, progress_at, idle_at, created_at) SELECT id, {_KEY}, 'main', requester_id, root_id, 1, 'subagent',"
    " 'leaf', 1, '', '.', 1, 1, 1, ended_at, ended_at, created_at FROM tasks WHERE id >= ? AND id < ?",
    "INSERT INTO events(task_id, seq, at, actor, from_phase, to_phase, reason, generation)"
    " SELECT id, 1, created_at, 'clutch', 'spawning', 'queued', 'admitted', 1 FROM tasks WHERE id >= ? AND id < ?",
    "INSERT INTO events(task_id, seq, at, actor, from_phase, to_phase, reason, detail, generation, outcome)"
    " SELECT id, 6, ended_at, 'clutch', 'cleanup_pending', 'completed', reason, detail, 1, outcome FROM tasks"
    " WHERE id >= ? AND id < ?",
    "INSERT INTO inbox(session_id, idem, kind, silent, body, route, task_id, generation, at, ready_at, seen, state,"  # noqa: S608 - our own text
    f" taken_run, taken_seq, path) SELECT requester_id, 'announce:v1:' || {_KEY} || ':1', 'announce', 0, '', '', id, 1,"
    " ended_at, ended_at, 1, 1, id, 1, 'direct' FROM tasks WHERE id >= ? AND id < ?",
    "INSERT INTO messages(session_id, seq, run_id, kind, body, at)"
    ' SELECT id, 1, id, \'input\', \'{"v":1,"text":"Say what part it plays.","source":"task"}\', created_at'
    " FROM tasks WHERE id >= ? AND id < ?",
    "INSERT INTO runs(id, session_id, generation, by_person, started_at, ended_at, stop_reason)"
    " SELECT id, id, 1, 0, started_at, ended_at, 'end' FROM tasks WHERE id >= ? AND id < ?",
    "INSERT INTO usage(session_id, call_no, run_id, at, state, model, effective, input, output)"
    " SELECT id, 1, id, ended_at, 1, 'bench', 'bench', 900, 60 FROM tasks WHERE id >= ? AND id < ?",
)


async def fill(db: Database, stored: int, measured: int) -> None:
    """`measured`: how many requesters, from FIRST_MEASURED on."""
    last_stranger = _FIRST_STRANGER + stored // _TASKS_PER_STRANGER
    for first, last in (
        (TREE_ROOT, TREE_ROOT + 1),
        (FIRST_MEASURED, FIRST_MEASURED + measured),
        (_FIRST_STRANGER, last_stranger + 1),
    ):
        await db.alone(_parents, first, last)
    for first in range(0, stored, _CHUNK):
        await db.alone(_finished, first, min(first + _CHUNK, stored), stored, measured)


def _parents(now: float, first: int, last: int) -> Tx[None]:
    del now
    yield _PARENTS, (first, last, ROOT_RIGHTS)


def _finished(now: float, first: int, last: int, stored: int, measured: int) -> Tx[None]:
    del now
    retained_from = stored - 10 * measured * _RETAINED
    yield (
        _TASKS,
        (
            first, last, TREE_TASKS, TREE_ROOT, FIRST_MEASURED, measured, _FIRST_STRANGER, _TASKS_PER_STRANGER,
            _FIRST_TASK, retained_from,
        ),
    )  # fmt: skip
    for sql in _REST:
        yield sql, (_FIRST_TASK + first, _FIRST_TASK + last)


async def settle(db: Database, backend: str) -> None:
    """PostgreSQL knows the sizes of its tables from time to time by itself; here it is told."""
    if backend == "postgres":
        await db.alone(_analyze)


def _analyze(now: float) -> Tx[None]:
    del now
    yield "ANALYZE", ()
