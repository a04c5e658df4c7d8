"""The trace of telling: one row per attempt, and one whenever telling was put off or will never be, in the words in
which `why` prints them. What an attempt waited for before it was made stands in its `tried`, too."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from clutch.core import events as fx
from clutch.core import ids
from clutch.core.model import REASONS, Delivery, Reason
from clutch.core.text.why import REQUESTER, DeliveryAttempt
from clutch.store.transaction import ManyRows, Tx
from clutch.transactions.conditions import IS_OPEN


class TracedLetter(NamedTuple):
    """A taken letter, as far as its trace shows it."""

    task_id: int
    generation: int
    path: str
    letter: str
    seq: int | None
    bubbled_from: int | None
    route_mode: str | None
    tried: str | None

    @property
    def why(self) -> str:
        return _why(self.bubbled_from)


def _why(bubbled_from: int | None) -> str:
    """Why this target."""
    return REQUESTER if bubbled_from is None else f"bubbled from {ids.task_id(bubbled_from)}"


#: What `Told` is made of, in the inbox.
COLUMNS = "task_id, generation, path, idem, taken_seq, bubbled_from, route_mode, tried"

_INTO = (
    "INSERT INTO deliveries(task_id, generation, letter, to_session, to_depth, why, route_mode, tried, at, path,"
    " run_id, transcript_seq, outcome, reason, detail, attempt, next_at)"
    " VALUES(?, ?, ?, ?, (SELECT depth FROM sessions WHERE id = ?), ?, ?, ?, ?, ?, ?, ?, "
)
_DELIVERED = _INTO + "?, ?, ?, ?, NULL)"
#: Its number is the count of failed ones, this one included.
_FAILED = (
    _INTO + "'failed', 'failed', ?, (SELECT attempts FROM tasks WHERE id = ?),"  # noqa: S608 (constant words)
    f" (SELECT ready_at FROM inbox WHERE idem = ? AND {IS_OPEN}))"
)


def delivered(
    now: float,
    session_id: int,
    run_id: int | None,
    told: Sequence[TracedLetter],
    attempts: Mapping[int, int],
    *,
    unsure: str | None = None,
) -> Tx[None]:
    """`attempts`: failed ones, by task. `unsure`: why it is not known whether what was sent arrived."""
    outcome = Delivery.DELIVERED if unsure is None else Delivery.UNSURE
    yield (
        _DELIVERED,
        ManyRows(
            (
                *_row(now, session_id, run_id, one),
                outcome,
                one.path if unsure is None else Reason.UNSURE,
                unsure or "",
                attempts[one.task_id] + 1,
            )
            for one in told
        ),
    )


def failed(
    now: float, session_id: int, run_id: int | None, told: Sequence[TracedLetter], error: str
) -> Tx[None]:
    """After the tasks were stepped: their counts and the next try are read from there."""
    yield (
        _FAILED,
        ManyRows((*_row(now, session_id, run_id, one), error[:200], one.task_id, one.letter) for one in told),
    )


#: To the session that has the letter; before there is one, to the parent.
_DECIDED = (
    "INSERT INTO deliveries(task_id, generation, letter, to_session, to_depth, at, outcome, reason, attempt, next_at)"
    " SELECT t.id, CAST(? AS {big}), 'announce:v1:' || s.key || ':' || CAST(? AS {text}),"
    " COALESCE(r.id, t.requester_id), r.depth, CAST(? AS {float}), CAST(? AS {text}), CAST(? AS {text}), t.attempts,"
    " CAST(? AS {float}) FROM tasks t JOIN sessions s ON s.id = t.id LEFT JOIN sessions r ON r.id ="
    " COALESCE((SELECT i.session_id FROM inbox i WHERE i.task_id = t.id AND i.kind = 'announce' AND i.generation = ?),"
    " t.requester_id) WHERE t.id = ?"
)


def decided(now: float, lines: Mapping[int, fx.Trace]) -> Tx[None]:
    """By task: deferred, or never to be delivered. No attempt was made; those that failed before stay counted."""
    yield (
        _DECIDED,
        ManyRows(
            (
                one.generation,
                str(one.generation),
                now,
                one.outcome,
                one.reason,
                one.next_at,
                one.generation,
                task_id,
            )
            for task_id, one in lines.items()
        ),
    )


def _row(now: float, session_id: int, run_id: int | None, one: TracedLetter) -> tuple[object, ...]:
    return (
        one.task_id, one.generation, one.letter, session_id, session_id, one.why, one.route_mode, one.tried, now,
        one.path, run_id, one.seq,
    )  # fmt: skip


def attempts(now: float, task_id: int) -> Tx[list[DeliveryAttempt]]:
    """Oldest first."""
    del now
    rows = yield (
        "SELECT (SELECT bubbled_from FROM inbox i WHERE i.idem = letter AND to_session <>"
        " (SELECT requester_id FROM tasks WHERE id = task_id)), letter,"
        " (SELECT key FROM sessions s WHERE s.id = to_session), to_depth, why, route_mode, tried, reason, path,"
        " attempt, at, next_at, outcome, detail, run_id, transcript_seq FROM deliveries WHERE task_id = ? ORDER BY id",
        (task_id,),
    )
    # Only attempts say why, and not those of the first schema.
    return [
        DeliveryAttempt(
            letter, to, depth, why or _why(bubbled_from), mode, _pairs(tried), REASONS[reason], *rest
        )
        for bubbled_from, letter, to, depth, why, mode, tried, reason, *rest in rows
    ]


def dumped(tried: Sequence[tuple[str, str]]) -> str | None:
    return json.dumps(tried) if tried else None


def _pairs(text: str | None) -> tuple[tuple[str, str], ...]:
    return tuple((path, left) for path, left in json.loads(text)) if text else ()
