"""Everybody's timelines as one stream, and places in it: what happened after a cursor, in the order it was written.

A line has the time of its commit, and its task and number tell lines of one moment apart. Two gateways on one
PostgreSQL commit side by side: a line may appear a little behind one that was read already. Whoever follows
looks back by `OVERLAP_S` and leaves out what it has seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from clutch.core import keys
from clutch.core.model import ENDED, Outcome, Phase, Wait
from clutch.errors import InvalidInput
from clutch.store.door import Tx

OVERLAP_S = 2.0
LIMIT = 200
_PLACE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,17})?(?:e[+-]?[0-9]{1,3})?):(t_[0-9a-z]+):([0-9]{1,9})")


class Cursor(NamedTuple):
    at: float
    task_id: int
    seq: int

    def __str__(self) -> str:
        return f"{self.at!r}:{keys.task_id(self.task_id)}:{self.seq}"


BEGINNING = Cursor(0.0, 0, 0)


def parse(text: str) -> Cursor:
    place = _PLACE.fullmatch(text)
    number = None if place is None else keys.parse_task_id(place[2])
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
    reason: str
    outcome: str | None

    @property
    def name(self) -> str:
        """One of the stable names of live events."""
        if self.from_phase == self.to_phase:
            return "phase"
        match Phase(self.to_phase):
            case Phase.RUNNING:
                return "lifecycle:start"
            case Phase.ENDING:
                return "lifecycle:end" if self.reason in (Outcome.OK, ENDED) else "lifecycle:error"
            case Phase.CLEANUP_PENDING if self.outcome == Outcome.KILLED:
                return "lifecycle:error"
            case Phase.ANNOUNCING | Phase.ANNOUNCE_DEFERRED | Phase.CLEANUP_PENDING:
                return "announce"
            case Phase.AWAITING_APPROVAL:
                return "question"
            case Phase.PAUSED if self.reason == Wait.NEEDS_YOU:
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
        "SELECT e.at, e.task_id, e.seq, t.root_id, e.from_phase, e.to_phase, e.reason, e.outcome FROM events e"
        " JOIN tasks t ON t.id = e.task_id WHERE (e.at, e.task_id, e.seq) > (?, ?, ?)"
        " ORDER BY e.at, e.task_id, e.seq LIMIT ?",
        (*place, limit),
    )
    return [Moment(Cursor(*row[:3]), *row[3:]) for row in rows]


def root_of(now: float, session_id: int) -> Tx[int | None]:
    del now
    rows = yield "SELECT root_id FROM sessions WHERE id = ?", (session_id,)
    return int(rows[0][0]) if rows else None
