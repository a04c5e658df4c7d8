"""Reads of the timeline of all tasks: its entries after a cursor, and what the work below a root cost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from clutch.core import ids, status
from clutch.core.budget import CallState
from clutch.core.model import REASONS, Outcome, Phase, Reason, reason_text
from clutch.core.status import Activity, Change, Segment, phase_activity, transcript_activity
from clutch.core.views import TaskView
from clutch.errors import InvalidInput
from clutch.store.transaction import Tx

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
    said = yield (
        "SELECT body FROM outbox WHERE session_id = ? AND channel <> 'hook' AND channel <> 'push' ORDER BY id",
        (root_id,),
    )
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
# The bars of a list: what the time of each task went into


def segments(
    now: float, views: Sequence[TaskView], most: int = status.SEGMENTS_MAX
) -> Tx[dict[int, list[Segment]]]:
    """Return the segments of each task. One statement, however many tasks there are."""
    numbers = [view.task_id for view in views]
    rows = yield (
        "SELECT task_id, at, 1 AS is_move, to_phase, reason, seq FROM events WHERE task_id {any}"
        " AND from_phase <> to_phase UNION ALL SELECT session_id, at, 0, kind, '', seq FROM messages"
        " WHERE session_id {any} ORDER BY 1, 2, 3, 6",
        (numbers, numbers),
    )
    changes: dict[int, list[Change]] = {
        view.task_id: [Change(view.created_at, Activity.QUEUED)] for view in views
    }
    phase: dict[int, str] = {}
    for task_id, at, is_move, word, reason, _ in rows:
        if is_move:
            phase[task_id] = word
            changes[task_id].append(Change(at, phase_activity(Phase(word), REASONS[reason])))
        elif phase.get(task_id) == Phase.RUNNING:
            changes[task_id].append(Change(at, transcript_activity(word)))
    return {
        view.task_id: status.segments(view.created_at, now, changes[view.task_id], most) for view in views
    }
