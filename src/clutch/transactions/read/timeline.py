"""Reads of a task's history: timeline, delivery attempts, what blocks it, and the cost of the work below a root."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from clutch.core import ids
from clutch.core.budget import CallState
from clutch.core.diagnosis import Blocker, BlockingSession, Facts, gate_of, unserved
from clutch.core.model import REASONS, Outcome, Phase, Reason, RunState, reason_text
from clutch.core.text.why import Arrived, DeliveryAttempt, ReplayStep, TimelineEntry, steps
from clutch.core.views import TaskView, TranscriptEntry
from clutch.errors import InvalidInput
from clutch.store.transaction import Tx
from clutch.transactions import timeline as timeline_tx
from clutch.transactions.conditions import IS_OPEN, IS_WORKING
from clutch.transactions.read import tasks
from clutch.transactions.read.inbox import UnsentMessage, sent_for

OVERLAP_S = 2.0
LIMIT = 200
_PLACE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,17})?(?:e[+-]?[0-9]{1,3})?):(t_[0-9a-z]+):([0-9]{1,9})")


class Cursor(NamedTuple):
    at: float
    task_id: int
    seq: int

    def __str__(self) -> str:
        return f"{self.at!r}:{ids.task_id(self.task_id)}:{self.seq}"


BEGINNING = Cursor(0.0, 0, 0)


def parse(text: str) -> Cursor:
    place = _PLACE.fullmatch(text)
    number = None if place is None else ids.parse_task_id(place[2])
    if place is None or number is None:
        raise InvalidInput("after", "must be a cursor as an event named it")
    return Cursor(float(place[1]), number, int(place[3]))


@dataclass(frozen=True, slots=True)
class Moment:
    """One line of a timeline."""

    cursor: Cursor
    root_id: int
    from_phase: str
    to_phase: str
    cause: str
    detail: str
    outcome: str | None

    @property
    def reason(self) -> str:
        return reason_text(self.cause, self.detail)

    @property
    def name(self) -> str:
        """One of the stable names of live events."""
        if self.from_phase == self.to_phase:
            return "phase"
        match Phase(self.to_phase):
            case Phase.RUNNING:
                return "lifecycle:start"
            case Phase.ENDING:
                return "lifecycle:end" if self.cause in (Reason.OK, Reason.ENDED) else "lifecycle:error"
            case Phase.CLEANUP_PENDING if self.outcome == Outcome.KILLED:
                return "lifecycle:error"
            case Phase.ANNOUNCING | Phase.ANNOUNCE_DEFERRED | Phase.CLEANUP_PENDING:
                return "announce"
            case Phase.AWAITING_APPROVAL:
                return "question"
            case Phase.PAUSED if self.cause == Reason.NEEDS_YOU:
                return "question"
            case _:
                return "phase"


def newest(now: float) -> Tx[Cursor]:
    del now
    rows = yield "SELECT at, task_id, seq FROM events ORDER BY at DESC, task_id DESC, seq DESC LIMIT 1", ()
    return Cursor(*rows[0]) if rows else BEGINNING


def after(now: float, place: Cursor, limit: int = LIMIT) -> Tx[list[Moment]]:
    del now
    rows = yield (
        "SELECT e.at, e.task_id, e.seq, t.root_id, e.from_phase, e.to_phase, e.reason, e.detail, e.outcome"
        " FROM events e JOIN tasks t ON t.id = e.task_id WHERE (e.at, e.task_id, e.seq) > (?, ?, ?)"
        " ORDER BY e.at, e.task_id, e.seq LIMIT ?",
        (*place, limit),
    )
    return [Moment(Cursor(*row[:3]), *row[3:]) for row in rows]


def root_of(now: float, session_id: int) -> Tx[int | None]:
    del now
    rows = yield "SELECT root_id FROM sessions WHERE id = ?", (session_id,)
    return int(rows[0][0]) if rows else None


@dataclass(frozen=True, slots=True)
class Figures:
    root_turns: int  #: runs of the root session itself
    tool_calls: int  #: of the whole tree
    models: tuple[str, ...]  #: that answered, by their own names
    replies: tuple[str, ...]  #: what the root said to its person, in order


def figures(now: float, root_id: int) -> Tx[Figures]:
    del now
    turns = yield "SELECT COUNT(*) FROM runs WHERE session_id = ?", (root_id,)
    calls = yield (
        "SELECT COUNT(*) FROM calls c JOIN sessions s ON s.id = c.session_id WHERE s.root_id = ?",
        (root_id,),
    )
    models = yield (
        "SELECT DISTINCT u.effective FROM usage u JOIN sessions s ON s.id = u.session_id"  # noqa: S608
        f" WHERE s.root_id = ? AND u.state = {CallState.ANSWERED:d} ORDER BY u.effective",
        (root_id,),
    )
    said = yield "SELECT body FROM outbox WHERE session_id = ? ORDER BY id", (root_id,)
    return Figures(
        int(turns[0][0]), int(calls[0][0]), tuple(row[0] for row in models), tuple(row[0] for row in said)
    )


def frozen_results(now: float, root_id: int) -> Tx[dict[int, str]]:
    """The text of each ended task below a root."""
    del now
    rows = yield "SELECT id, result FROM tasks WHERE root_id = ? AND result IS NOT NULL", (root_id,)
    return {row[0]: str(row[1]) for row in rows}


def is_registered(now: float, pid: int) -> Tx[bool]:
    """Has this process taken up work?"""
    del now
    return bool((yield "SELECT 1 FROM workers WHERE pid = ?", (pid,)))


def held(now: float, pid: int) -> Tx[int]:
    """How many sessions a process holds; of a dead one, how many it held when it died."""
    del now
    rows = yield "SELECT COUNT(*) FROM sessions s JOIN workers w ON w.id = s.owner WHERE w.pid = ?", (pid,)
    return int(rows[0][0])


# --------------------------------------------------------------------------------------------------
# Why a task is in its state: timeline, delivery attempts, and the rows that decide what blocks it


@dataclass(frozen=True, slots=True)
class TaskExplanation:
    task: TaskView
    timeline: tuple[TimelineEntry, ...]
    attempts: tuple[DeliveryAttempt, ...]
    stuck: Blocker | None
    unsent: tuple[UnsentMessage, ...] = ()  #: messages to people that were to tell of it


def why(now: float, task_id: int, is_served: bool = True) -> Tx[TaskExplanation | None]:
    """`is_served`: a gateway works on this store. On SQLite the rows of a dead process look as if it lived."""
    view = yield from tasks.one(now, task_id)
    if view is None:
        return None
    lines = yield from timeline(now, task_id)
    attempts = yield from timeline_tx.attempts(now, task_id)
    facts = yield from _facts(now, view, lines)
    messages = yield from sent_for(now, task_id)
    stuck = gate_of(facts if is_served else unserved(facts))
    return TaskExplanation(view, lines, tuple(attempts), stuck, tuple(messages))


def timeline(now: float, task_id: int) -> Tx[tuple[TimelineEntry, ...]]:
    """Also of a spawn that was undone."""
    del now
    rows = yield (
        "SELECT seq, at, actor, from_phase, to_phase, reason, generation, outcome, detail FROM events WHERE task_id = ?"
        " ORDER BY seq",
        (task_id,),
    )
    return tuple(
        TimelineEntry(seq, at, actor, Phase(came), Phase(went), REASONS[reason], *rest)
        for seq, at, actor, came, went, reason, *rest in rows
    )


def journal(now: float, task_id: int) -> Tx[list[ReplayStep]]:
    """Everything that happened to a task and in its session, in order.

    Letters that were read have no index, which every letter would pay for: this looks at all there are."""
    lines = yield from timeline(now, task_id)
    said = yield (
        "SELECT seq, at, run_id, kind, body FROM messages WHERE session_id = ? ORDER BY seq",
        (task_id,),
    )
    letters = yield (
        "SELECT id, at, kind, body, task_id, taken_seq FROM inbox WHERE session_id = ? ORDER BY id",
        (task_id,),
    )
    return steps(lines, [Arrived(*row) for row in letters], [TranscriptEntry(*row) for row in said])


def _facts(now: float, view: TaskView, lines: tuple[TimelineEntry, ...]) -> Tx[Facts]:

    moved = [line.at for line in lines if line.to_phase is view.phase and not line.is_note]
    rows = yield "SELECT wake_at FROM tasks WHERE id = ?", (view.task_id,)
    letter = yield (
        "SELECT session_id, ready_at, seen, taken_run FROM inbox WHERE task_id = ? AND generation = ?"  # noqa: S608
        f" AND kind = 'announce' AND {IS_OPEN} ORDER BY id DESC LIMIT 1",
        (view.task_id, view.generation),
    )
    reader_id, ready_at, seen, taken_run = letter[0] if letter else (view.requester_id, None, 1, None)
    lanes = yield (
        "SELECT name, cap, (SELECT COUNT(*) FROM sessions s WHERE s.lane = lanes.name AND s.owner IS NOT NULL)"
        " FROM lanes",
        (),
    )
    alive = yield "SELECT COUNT(*) FROM workers WHERE lease_until >= ?", (now,)
    asked = yield (
        "SELECT id FROM questions WHERE session_id = ? AND answered_at IS NULL ORDER BY id",
        (view.task_id,),
    )
    return Facts(
        at=now,
        task_id=view.task_id,
        phase=view.phase,
        reason=view.cause,
        delivery=view.delivery.state,
        since=moved[-1] if moved else view.created_at,
        own=(yield from _room(view.task_id)),
        outcome=view.outcome,
        wake_at=rows[0][0],
        reader=(yield from _room(reader_id)),
        ready_at=ready_at,
        put_off=view.delivery.cause,
        is_seen=bool(seen),
        is_taken=taken_run is not None,
        lanes={name: (int(used), int(cap)) for name, cap, used in lanes},
        workers=int(alive[0][0]),
        questions=tuple(ids.question_id(row[0]) for row in asked),
        plan_hash=None if view.plan is None else view.plan.hash,
    )


def _room(session_id: int) -> Tx[BlockingSession | None]:
    from clutch.transactions.workers import NO_TRIAL  # here: it loads the policy, and lists load this module

    rows = yield (
        "SELECT s.key, s.is_task, s.lane, s.owner, w.lease_until, s.due, s.paused, s.hold, s.closed, s.run_id,"
        " r.state, r.parked_until, s.hold_until,"
        " CASE WHEN r.progress_head = s.head THEN r.crashes ELSE 0 END FROM sessions s"
        " LEFT JOIN workers w ON w.id = s.owner"
        " LEFT JOIN runs r ON r.id = s.run_id WHERE s.id = ?",
        (session_id,),
    )
    if not rows:
        return None
    working = yield (
        f"SELECT id FROM tasks WHERE requester_id = ? AND {IS_WORKING} AND outcome IS NULL ORDER BY spawn_order, id",  # noqa: S608
        (session_id,),
    )
    key, is_task, lane, owner, lease_until, due, paused, hold, closed, run_id, *rest, crashes = rows[0]
    run, parked_until, hold_until = rest
    # The latest death is counted when the run resumes.
    suspected = crashes + (run == RunState.RUNNING) if crashes and crashes >= NO_TRIAL.crashes else 0
    return BlockingSession(
        session_id, key, bool(is_task), lane, owner is not None, lease_until, due, bool(paused), bool(hold),
        bool(closed), run_id is not None, parked_until, run == RunState.ANSWERED, hold_until,
        tuple(row[0] for row in working), suspected,
    )  # fmt: skip
