"""The floor, what it writes: the rows of one task by hand, and only those reads that keep such a program correct.

The same tables, rows and bytes as `traffic` leaves, and the same number of durable waits: one list of statements
each. Texts are made once; a test compares what both leave behind.

What it looks at, in one statement each:
- whoever owns a session locks its row and compares the fence before it writes: a worker that was buried must not;
- a spawn locks its parent, counts the children against the limit and looks for its own key: no child too many,
  none twice;
- a turn begins with the letters that wait, and what a child found and used is read from its task and its usage;
- a task ends with the number of its calls, which is counted.

It holds no state machine and no authority, encodes nothing, and is not steered, paused or killed.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from benchmarks import task as work
from clutch.core import authority, ids, messages
from clutch.core.authority import to_text as rights_text
from clutch.core.messages import Input
from clutch.core.model import Outcome
from clutch.core.text import announce, prompts
from clutch.transactions.conditions import IS_WORKING

#: A SELECT is a guard: it must find one row.
Statement: TypeAlias = tuple[str, tuple[Any, ...]]
Step: TypeAlias = list[Statement]

_SESSION: Final = (
    "INSERT INTO sessions(id, key, agent_id, parent_id, root_id, depth, lane, role, is_task, rights, workspace, due,"
    " created_at, model) VALUES(?, ?, 'main', ?, ?, 1, 'subagent', 'leaf', 1, ?, ?, ?, ?, 'offline')"
)
_PARENT: Final = (
    "INSERT INTO sessions(id, key, agent_id, root_id, depth, lane, role, is_task, rights, workspace, created_at)"
    " VALUES(?, ?, 'main', ?, 0, 'main', 'main', 0, ?, ?, ?)"
)
_TASK: Final = (
    "INSERT INTO tasks(id, requester_id, root_id, depth, spawn_order, idem, label, task, spec, timeout_s,"
    " expects_completion, has_cleanup, seq, phase, reason, generation, delivery, delivery_reason, attempts, plan,"
    " plan_round, created_at)"
    " VALUES(?, ?, ?, 1, ?, ?, ?, ?, ?, 0.0, 1, 0, 1, 'queued', 'admitted', 1, 'none', '', 0, 'none', 0, ?)"
)
_EVENT: Final = (
    "INSERT INTO events(task_id, seq, at, actor, from_phase, to_phase, reason, detail, generation, outcome)"
    " VALUES(?, ?, ?, 'clutch', ?, ?, ?, ?, 1, ?)"
)
_LETTER: Final = (
    "INSERT INTO inbox(session_id, idem, kind, silent, body, route, task_id, generation, at, ready_at, seen)"
    " VALUES(?, ?, ?, 0, ?, '', ?, ?, ?, ?, ?)"
)
_MAY_SPAWN: Final = (
    f"SELECT id FROM sessions WHERE id = ? AND closed = 0"  # noqa: S608 - constant words
    f" AND (SELECT COUNT(*) FROM tasks WHERE requester_id = ? AND {IS_WORKING}) < ?"
    " AND NOT EXISTS (SELECT 1 FROM tasks WHERE requester_id = ? AND idem = ?) {lock}"
)
_OWNED: Final = "SELECT head FROM sessions WHERE id = ? AND owner = ? AND fence = ? {lock}"
_WAITS: Final = (
    "SELECT id, kind, body, task_id FROM inbox WHERE session_id = ? AND state = 0"
    " AND taken_run IS NULL ORDER BY id"
)
_FOUND: Final = (
    "SELECT label, outcome, result, started_at, ended_at, evidence,"
    " (SELECT SUM(input) FROM usage u WHERE u.session_id = tasks.id),"
    " (SELECT SUM(output) FROM usage u WHERE u.session_id = tasks.id) FROM tasks WHERE id = ? {lock}"
)
_COUNTED: Final = "SELECT COUNT(*) FROM calls WHERE session_id = ?"
_CLAIM: Final = (
    "UPDATE sessions SET owner = ?, fence = fence + 1, due = NULL, progress_at = ?"
    " WHERE id = ? AND owner IS NULL AND due IS NOT NULL"
)
_TAKE: Final = (
    "UPDATE inbox SET taken_run = ?, taken_seq = ?, path = 'direct', route_mode = 'fallback' WHERE idem = ?"
)
_ANSWERED: Final = "UPDATE inbox SET state = 1 WHERE idem = ?"
_MESSAGE: Final = "INSERT INTO messages(session_id, seq, run_id, kind, body, at) VALUES(?, ?, ?, ?, ?, ?)"
_RUN: Final = "INSERT INTO runs(id, session_id, generation, by_person, started_at) VALUES(?, ?, ?, 0, ?)"
_STARTED: Final = (
    "UPDATE tasks SET seq = 2, phase = 'running', reason = 'started', started_at = ? WHERE id = ?"
)
_OPENED: Final = "UPDATE sessions SET head = ?, run_id = ?, progress_at = ? WHERE id = ?"
_MOVED: Final = "UPDATE sessions SET head = ?, progress_at = ? WHERE id = ?"
_FORESEEN: Final = "INSERT INTO usage(session_id, call_no, run_id, at, model) VALUES(?, ?, ?, ?, 'offline')"
_USAGE: Final = (
    "UPDATE usage SET state = 1, effective = ?, input = ?, output = ? WHERE session_id = ? AND call_no = ?"
)
_CALL: Final = (
    "INSERT INTO calls(session_id, seq, idx, run_id, name, replay_safe) VALUES(?, ?, 0, ?, 'read', 1)"
)
_RUN_ENDED: Final = "UPDATE runs SET state = 'ended', ended_at = ?, stop_reason = 'end' WHERE id = ?"
_EVIDENCE: Final = (
    '{"generation": 1, "toolCalls": 2, "filesTouched": [], "childrenJoined": 0, "childrenMissing": [],'
    ' "stopReason": "end"}'
)
_ENDED: Final = (
    "UPDATE tasks SET seq = 4, phase = 'announcing', reason = 'ok', outcome = 'ok', result = ?, result_sha = ?,"  # noqa: S608
    f" delivery = 'waiting', ended_at = ?, evidence = '{_EVIDENCE}' WHERE id = ?"
)
_CLOSED: Final = (
    "UPDATE sessions SET owner = NULL, head = ?, closed = ?, run_id = NULL, progress_at = ?, idle_at = ?"
    " WHERE id = ?"
)
_SEEN: Final = "UPDATE inbox SET seen = 1 WHERE idem = ?"
_DUE: Final = "UPDATE sessions SET due = ? WHERE id = ? AND owner IS NULL"
_TOLD: Final = (
    "UPDATE tasks SET seq = 6, phase = 'completed', reason = 'delivered', detail = 'direct', delivery = 'delivered',"
    " delivery_reason = 'direct' WHERE id = ?"
)
_DELIVERY: Final = (
    "INSERT INTO deliveries(task_id, generation, letter, to_session, attempt, at, path, outcome, reason, run_id,"
    " transcript_seq, why, to_depth, route_mode)"
    " VALUES(?, 1, ?, ?, 1, ?, 'direct', 'delivered', 'direct', ?, ?, 'requester', 0, 'fallback')"
)


def _child_rights() -> str:
    grant = authority.AgentGrant(depth_max=work.POLICY.limits.depth_max)
    given = authority.child_rights(
        authority.root_rights(grant), grant, authority.Request(), work.POLICY.tools
    )
    assert isinstance(given, authority.Rights)
    return rights_text(given)


def _announcement() -> str:
    finding = announce.AnnouncedResult(
        label=work.REQUEST.label or "",
        task_id=ids.task_id(1 << 31),
        session_key=f"agent:main:subagent:{uuid.uuid4()}",
        outcome=Outcome.OK,
        text=work.FINDING.text,
        runtime_s=1.0,
        tokens_in=sum(answer.usage.input for answer in (*_answers, work.FINDING)),
        tokens_out=sum(answer.usage.output for answer in (*_answers, work.FINDING)),
    )
    return announce.announcement([finding], announce.Audience.WAITING_PERSON, "0" * 32)


_answers = [answer for answer, _ in work.STEPS]
CHILD_RIGHTS: Final = _child_rights()
_SPEC: Final = "{}"
_FIRST_WORDS: Final = prompts.first_message(work.REQUEST.task, 1, work.POLICY.limits.depth_max)
_FIRST: Final = messages.dump(Input(_FIRST_WORDS, "task"))
_STEPS: Final = [
    (messages.dump(answer), messages.dump(outcome), answer.usage) for answer, outcome in work.STEPS
]
_FINDING: Final = messages.dump(work.FINDING)
_SHA: Final = hashlib.sha256(work.FINDING.text.encode()).hexdigest()
_ANNOUNCE: Final = messages.dump(Input(_announcement(), "announce"))
_REPLY: Final = messages.dump(work.REPLY)


_WORKER: Final = 1


def _fence(head: int) -> int:
    """A parent is claimed once for each result, and its transcript grows by two every time."""
    return head // 2 + 1


def new_parent(number: int) -> Step:
    key = f"agent:main:chat:bench-{number}"
    return [(_PARENT, (number, key, number, work.ROOT_RIGHTS, work.WORKSPACE, time.time()))]


def of_one_task(parent: int, head: int, next_id: Callable[[], int]) -> Iterator[Step]:
    """`head`: how long the parent's transcript is before; it is two longer after."""
    child, run = next_id(), next_id()
    letter = f"announce:v1:agent:main:subagent:{uuid.uuid4()}:1"
    yield _spawn(parent, head, child, letter)
    yield [(_CLAIM, (_WORKER, time.time(), child))]
    yield _begin(child, run)
    owned = (_OWNED, (child, _WORKER, 1))
    for number, (answer, outcome, usage) in enumerate(_STEPS):
        seq, now = 2 + 2 * number, time.time()
        yield [
            owned,
            (_MESSAGE, (child, seq, run, "answer", answer, now)),
            (_USAGE, (work.MODEL, usage.input, usage.output, child, number + 1)),
            *([(_ANSWERED, (f"task:{child}",))] if not number else []),
            (_CALL, (child, seq, run)),
            (_MOVED, (seq, now, child)),
        ]
        yield [
            owned,
            (_MESSAGE, (child, seq + 1, run, "results", outcome, now)),
            (_MOVED, (seq + 1, now, child)),
            (_FORESEEN, (child, number + 2, run, now)),
        ]
    yield _finish(parent, child, run, letter, seq=2 + 2 * len(_STEPS))
    yield [(_SEEN, (letter,)), (_DUE, (time.time(), parent))]
    yield [(_CLAIM, (_WORKER, time.time(), parent))]
    told = next_id()
    yield _hear(parent, head, child, told, letter)
    yield _answer(parent, head, child, told, letter)


def _spawn(parent: int, head: int, child: int, letter: str) -> Step:
    now, idem = time.time(), f"bench:{child}"
    key = letter.removeprefix("announce:v1:").removesuffix(":1")
    request = work.REQUEST
    return [
        (_MAY_SPAWN, (parent, parent, work.POLICY.limits.children_max, parent, idem)),
        (_SESSION, (child, key, parent, parent, CHILD_RIGHTS, work.WORKSPACE, now, now)),
        (_TASK, (child, parent, parent, head * 1000, idem, request.label, request.task, _SPEC, now)),
        (_EVENT, (child, 1, now, "spawning", "queued", "admitted", "", None)),
        (_LETTER, (child, f"task:{child}", "task", _FIRST_WORDS, None, None, now, now, 1)),
    ]


def _begin(child: int, run: int) -> Step:
    now = time.time()
    return [
        (_OWNED, (child, _WORKER, 1)),
        (_WAITS, (child,)),
        (_TAKE, (run, 1, f"task:{child}")),
        (_MESSAGE, (child, 1, run, "input", _FIRST, now)),
        (_STARTED, (now, child)),
        (_EVENT, (child, 2, now, "queued", "running", "started", "", None)),
        (_RUN, (run, child, 1, now)),
        (_OPENED, (1, run, now, child)),
        (_FORESEEN, (child, 1, run, now)),
    ]


def _finish(parent: int, child: int, run: int, letter: str, *, seq: int) -> Step:
    now, usage = time.time(), work.FINDING.usage
    return [
        (_OWNED, (child, _WORKER, 1)),
        (_MESSAGE, (child, seq, run, "answer", _FINDING, now)),
        (_USAGE, (work.MODEL, usage.input, usage.output, child, len(_STEPS) + 1)),
        (_RUN_ENDED, (now, run)),
        (_COUNTED, (child,)),
        (_ENDED, (work.FINDING.text, _SHA, now, child)),
        (_EVENT, (child, 3, now, "running", "ending", "ok", "", None)),
        (_EVENT, (child, 4, now, "ending", "announcing", "ok", "", "ok")),
        (_LETTER, (parent, letter, "announce", "", child, 1, now, now, 0)),
        (_CLOSED, (seq, 1, now, now, child)),
    ]


def _hear(parent: int, head: int, child: int, run: int, letter: str) -> Step:
    now = time.time()
    return [
        (_OWNED, (parent, _WORKER, _fence(head))),
        (_WAITS, (parent,)),
        (_FOUND, (child,)),
        (_TAKE, (run, head + 1, letter)),
        (_MESSAGE, (parent, head + 1, run, "input", _ANNOUNCE, now)),
        (_RUN, (run, parent, 0, now)),
        (_OPENED, (head + 1, run, now, parent)),
        (_FORESEEN, (parent, head // 2 + 1, run, now)),
    ]


def _answer(parent: int, head: int, child: int, run: int, letter: str) -> Step:
    now, usage = time.time(), work.REPLY.usage
    return [
        (_OWNED, (parent, _WORKER, _fence(head))),
        (_MESSAGE, (parent, head + 2, run, "answer", _REPLY, now)),
        (_USAGE, (work.MODEL, usage.input, usage.output, parent, head // 2 + 1)),
        (_ANSWERED, (letter,)),
        (_TOLD, (child,)),
        (_EVENT, (child, 5, now, "announcing", "cleanup_pending", "delivered", "direct", "ok")),
        (_EVENT, (child, 6, now, "cleanup_pending", "completed", "delivered", "direct", "ok")),
        (_DELIVERY, (child, letter, parent, now, run, head + 1)),
        (_RUN_ENDED, (now, run)),
        (_CLOSED, (head + 2, 0, now, now, parent)),
    ]
