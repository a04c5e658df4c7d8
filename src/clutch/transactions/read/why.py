"""Why a task is in its state: its timeline, its delivery attempts, and the rows that decide what blocks it."""

from __future__ import annotations

from dataclasses import dataclass

from clutch.core import ids
from clutch.core.diagnosis import Blocker, BlockingSession, Facts, SlotLine, gate_of, session_gate, unserved
from clutch.core.fair_share import Positions
from clutch.core.model import REASONS, Delivery, Phase, Reason, RunState
from clutch.core.text.why import Arrived, DeliveryAttempt, ReplayStep, TimelineEntry, steps
from clutch.core.views import TaskView, TranscriptEntry
from clutch.store.transaction import Tx
from clutch.transactions import inbox as timeline_tx
from clutch.transactions.claims import NO_TRIAL, NO_WEIGHTS, Slots, queues_due
from clutch.transactions.conditions import IS_OPEN, IS_WHOLE, IS_WORKING
from clutch.transactions.read import tasks
from clutch.transactions.read.chats import ChatRow, one_chat
from clutch.transactions.read.inbox import InboxItem, UnsentMessage, sent_for, waiting_items


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


@dataclass(frozen=True, slots=True)
class SessionExplanation:
    """Of a main session, which has no task. `items`: decisions that it and its subagents wait for."""

    chat: ChatRow
    stuck: Blocker | None
    items: tuple[InboxItem, ...]


def session_why(now: float, session_id: int, is_served: bool = True) -> Tx[SessionExplanation | None]:
    chat = yield from one_chat(now, session_id)
    if chat is None:
        return None
    items = yield from waiting_items(now, session_id)
    lanes, workers = yield from _machine(now)
    facts = Facts(
        at=now,
        task_id=session_id,
        phase=Phase.RUNNING,
        reason=Reason.NONE,
        delivery=Delivery.WAITING,
        since=chat.moved_at,
        own=(yield from _room(session_id)),
        lanes=lanes,
        workers=workers,
        questions=tuple(one.id for one in items if one.session_id == session_id),
    )
    return SessionExplanation(chat, session_gate(facts if is_served else unserved(facts)), tuple(items))


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
        f"SELECT seq, at, run_id, kind, body FROM messages WHERE session_id = ? AND {IS_WHOLE} ORDER BY seq",  # noqa: S608
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
    lanes, workers = yield from _machine(now)
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
        lanes=lanes,
        workers=workers,
        line=(yield from _line(now, view.task_id)),
        questions=tuple(ids.question_id(row[0]) for row in asked),
        plan_hash=None if view.plan is None else view.plan.hash,
    )


def _machine(now: float) -> Tx[tuple[dict[str, tuple[int, int]], int]]:
    """Return used slots and capacity by lane, and how many workers are alive."""
    lanes = yield (
        "SELECT name, cap, (SELECT COUNT(*) FROM sessions s WHERE s.lane = lanes.name AND s.owner IS NOT NULL)"
        " FROM lanes",
        (),
    )
    alive = yield "SELECT COUNT(*) FROM workers WHERE lease_until >= ?", (now,)
    return {name: (int(used), int(cap)) for name, cap, used in lanes}, int(alive[0][0])


URGENT_MAX = 1000  # counted no further
SHARES_SHOWN_MAX = 5


def _line(now: float, session_id: int) -> Tx[SlotLine | None]:
    """None: it waits for no slot."""
    rows = yield (
        "SELECT lane, share, priority FROM sessions WHERE id = ? AND owner IS NULL AND due <= ?",
        (session_id, now),
    )
    if not rows:
        return None
    lane, share, rank = rows[0]
    waiting = "FROM sessions WHERE lane = ? AND owner IS NULL AND due IS NOT NULL AND due <= ?"
    working = yield (
        "SELECT COUNT(*) FROM sessions WHERE lane = ? AND owner IS NOT NULL AND share = ?",
        (lane, share),
    )
    urgent = yield (
        f"SELECT COUNT(*) FROM (SELECT 1 {waiting} AND priority < ? AND share = ? LIMIT ?) u",  # noqa: S608
        (lane, now, rank, share, URGENT_MAX),
    )
    heads = yield from queues_due(now, Slots(lane, {}, NO_WEIGHTS, 0, Positions()))
    others = sorted({queue.share for queue in heads} - {share})
    return SlotLine(share, int(working[0][0]), int(urgent[0][0]), tuple(others[:SHARES_SHOWN_MAX]))


def _room(session_id: int) -> Tx[BlockingSession | None]:
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
