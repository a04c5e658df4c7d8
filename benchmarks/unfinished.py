"""Unfinished tasks as a worker leaves them that died in the middle of everything.

Of ten: four had just read their task, three had a tool call out, two wait in the queue, one has ended and its result
waits in the requester's inbox. Every requester has some of each.
"""

from __future__ import annotations

from typing import Final

from benchmarks.floor_rows import CHILD_RIGHTS
from benchmarks.task import ROOT_RIGHTS
from clutch.core import messages
from clutch.core.messages import Answer, Call, Input, Usage
from clutch.store.transaction import Database, Tx

_TASKS_PER_REQUESTER: Final = 50
_FIRST_REQUESTER: Final = 1000
_FIRST_TASK: Final = 1_000_000  # both below the first block of numbers that a process gets
_CHUNK: Final = 5000
_DEAD: Final = 1
#: A dead owner's session is buried at 2 and owned again at 3; the others begin where the buried ones are.
OWNED_AGAIN: Final = 3

_INPUT: Final = messages.dump(Input("Say what part it plays.", "task"))
_ANSWER: Final = messages.dump(
    Answer("", (Call("read", {"path": "part.py"}),), Usage(900, 60), "bench", "tools")
)

_REQUESTERS: Final = (
    "INSERT INTO sessions(id, key, agent_id, root_id, depth, lane, role, is_task, rights, workspace, fence, due,"
    " created_at) WITH RECURSIVE number(i) AS"
    " (SELECT CAST(? AS {big}) UNION ALL SELECT i + 1 FROM number WHERE i + 1 < ?)"
    " SELECT i, 'agent:main:chat:boot-' || CAST(i AS {text}), 'main', i, 0, 'main', 'main', 0, CAST(? AS {text}), '.',"
    " 2, CAST(? AS {float}), CAST(? AS {float}) FROM number"
)
_TASKS: Final = (
    "INSERT INTO tasks(id, requester_id, root_id, depth, spawn_order, idem, label, task, spec, timeout_s,"
    " expects_completion, has_cleanup, seq, phase, reason, generation, outcome, result, delivery, delivery_reason,"
    " attempts, plan, plan_round, started_at, ended_at, created_at)"
    " WITH RECURSIVE number(i) AS (SELECT CAST(? AS {big}) UNION ALL SELECT i + 1 FROM number WHERE i + 1 < ?),"
    " phased(i, requester, phase) AS (SELECT i, CAST(? AS {big}) + i / CAST(? AS {big}),"
    " CASE WHEN i % 10 < 7 THEN 'running' WHEN i % 10 < 9 THEN 'queued' ELSE 'announcing' END FROM number)"
    " SELECT CAST(? AS {big}) + i, requester, requester, 1, i, 'boot:' || CAST(i AS {text}), 'part',"
    " 'Say what part it plays.', '{}', 0, 1, 0, CASE phase WHEN 'running' THEN 2 WHEN 'queued' THEN 1 ELSE 4 END,"
    " phase, '', 1, CASE phase WHEN 'announcing' THEN 'ok' END, CASE phase WHEN 'announcing' THEN 'It filters.' END,"
    " CASE phase WHEN 'announcing' THEN 'waiting' ELSE 'none' END, '', 0, 'none', 0, CAST(? AS {float}),"
    " CASE phase WHEN 'announcing' THEN CAST(? AS {float}) END, CAST(? AS {float}) FROM phased"
)
_SESSIONS: Final = (
    "INSERT INTO sessions(id, key, agent_id, parent_id, root_id, depth, lane, role, is_task, rights, workspace, owner,"
    " fence, head, due, closed, run_id, progress_at, created_at)"
    " SELECT id, 'agent:main:subagent:00000000-0000-4000-8000-' || CAST(100000000000 + id AS {text}), 'main',"
    " requester_id, root_id, 1, 'subagent', 'leaf', 1, CAST(? AS {text}), '.',"
    " CASE phase WHEN 'running' THEN CAST(? AS {big}) END, CASE phase WHEN 'running' THEN 1 ELSE 2 END,"
    " CASE WHEN phase = 'queued' THEN 0 WHEN spawn_order % 10 < 4 THEN 1 ELSE 2 END,"
    " CASE phase WHEN 'queued' THEN created_at END, CASE phase WHEN 'announcing' THEN 1 ELSE 0 END,"
    " CASE phase WHEN 'running' THEN id END, created_at, created_at FROM tasks WHERE id >= ? AND id < ?"
)
_REST: Final = (
    "INSERT INTO events(task_id, seq, at, actor, from_phase, to_phase, reason, generation)"
    " SELECT id, 1, created_at, 'clutch', 'spawning', 'queued', 'admitted', 1 FROM tasks WHERE id >= ? AND id < ?",
    "INSERT INTO events(task_id, seq, at, actor, from_phase, to_phase, reason, generation)"
    " SELECT id, 2, created_at, 'clutch', 'queued', 'running', 'started', 1 FROM tasks WHERE id >= ? AND id < ?"
    " AND phase <> 'queued'",
    "INSERT INTO runs(id, session_id, generation, by_person, started_at)"
    " SELECT id, id, 1, 0, created_at FROM tasks WHERE id >= ? AND id < ? AND phase = 'running'",
    "INSERT INTO calls(session_id, seq, idx, run_id, name, replay_safe)"
    " SELECT id, 2, 0, id, 'read', 1 FROM tasks WHERE id >= ? AND id < ? AND phase = 'running'"
    " AND spawn_order % 10 >= 4",
    "INSERT INTO inbox(session_id, idem, kind, silent, body, route, at, ready_at, seen)"
    " SELECT id, 'task:' || CAST(id AS {text}), 'task', 0, task, '', created_at, created_at, 1 FROM tasks"
    " WHERE id >= ? AND id < ? AND phase = 'queued'",
    "INSERT INTO inbox(session_id, idem, kind, silent, body, route, task_id, generation, at, ready_at, seen)"
    " SELECT requester_id, 'announce:v1:' || CAST(id AS {text}) || ':1', 'announce', 0, '', '', id, 1, created_at,"
    " created_at, 1 FROM tasks WHERE id >= ? AND id < ? AND phase = 'announcing'",
)
_INPUTS: Final = (
    "INSERT INTO messages(session_id, seq, run_id, kind, body, at)"
    " SELECT id, 1, id, 'input', CAST(? AS {text}), created_at FROM tasks WHERE id >= ? AND id < ?"
    " AND phase <> 'queued'"
)
_ANSWERS: Final = (
    "INSERT INTO messages(session_id, seq, run_id, kind, body, at)"
    " SELECT id, 2, id, 'answer', CAST(? AS {text}), created_at FROM tasks WHERE id >= ? AND id < ?"
    " AND phase <> 'queued' AND spawn_order % 10 >= 4"
)


async def leave(db: Database, count: int) -> None:
    await db.alone(_worker_and_requesters, 1 + (count - 1) // _TASKS_PER_REQUESTER)
    for first in range(0, count, _CHUNK):
        await db.alone(_tasks, first, min(first + _CHUNK, count))


def _worker_and_requesters(now: float, requesters: int) -> Tx[None]:
    yield "UPDATE counters SET value = ? WHERE name = 'process'", (_DEAD,)
    yield (
        "INSERT INTO workers(id, lease_until, host, pid, version, started_at) VALUES(?, ?, 'gone', 0, '', ?)",
        (_DEAD, now - 60, now - 600),
    )
    last = _FIRST_REQUESTER + requesters
    yield _REQUESTERS, (_FIRST_REQUESTER, last, ROOT_RIGHTS, now - 60, now - 600)


def _tasks(now: float, first: int, last: int) -> Tx[None]:
    then = now - 60
    born = (_FIRST_REQUESTER, _TASKS_PER_REQUESTER, _FIRST_TASK, then, then, then)
    yield _TASKS, (first, last, *born)
    those = (_FIRST_TASK + first, _FIRST_TASK + last)
    yield _SESSIONS, (CHILD_RIGHTS, _DEAD, *those)
    yield _INPUTS, (_INPUT, *those)
    yield _ANSWERS, (_ANSWER, *those)
    for sql in _REST:
        yield sql, those


def not_owned_yet(now: float) -> Tx[int]:
    """Sessions with something to do that the new worker has not claimed."""
    del now
    rows = yield "SELECT COUNT(*) FROM sessions WHERE fence < ? AND closed = 0", (OWNED_AGAIN,)
    return int(rows[0][0])
