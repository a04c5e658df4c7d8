"""The trace of telling: one row per attempt, in the words in which `why` prints it.

Only attempts have rows. What was deferred, skipped or given up stands in the timeline of the task, and what an
attempt waited for before it was made in its `tried`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from clutch.core import keys
from clutch.core.wording.why import Attempt
from clutch.store.door import Many, Tx

REQUESTER = "requester"


class Told(NamedTuple):
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
        """Why this target."""
        return REQUESTER if self.bubbled_from is None else f"bubbled from {keys.task_id(self.bubbled_from)}"


#: What `Told` is made of, in the inbox.
COLUMNS = "task_id, generation, path, idem, taken_seq, bubbled_from, route_mode, tried"

_INTO = (
    "INSERT INTO deliveries(task_id, generation, letter, to_session, to_depth, why, route_mode, tried, at, path,"
    " run_id, transcript_seq, outcome, reason, attempt, next_at)"
    " VALUES(?, ?, ?, ?, (SELECT depth FROM sessions WHERE id = ?), ?, ?, ?, ?, ?, ?, ?, "
)
_DELIVERED = _INTO + "?, ?, ?, NULL)"
#: Its number is the count of failed ones, this one included.
_FAILED = (
    _INTO + "'failed', ?, (SELECT attempts FROM tasks WHERE id = ?),"  # noqa: S608 (constant words)
    " (SELECT ready_at FROM inbox WHERE idem = ? AND state = 0))"
)


def delivered(
    now: float,
    session_id: int,
    run_id: int | None,
    told: Sequence[Told],
    attempts: Mapping[int, int],
    outcome: str = "delivered",
) -> Tx[None]:
    """`attempts`: failed ones, by task. `outcome`: also `unsure`, of what was sent and not answered."""
    yield (
        _DELIVERED,
        Many(
            (*_row(now, session_id, run_id, one), outcome, one.path, attempts[one.task_id] + 1)
            for one in told
        ),
    )


def failed(now: float, session_id: int, run_id: int | None, told: Sequence[Told], error: str) -> Tx[None]:
    """After the tasks were stepped: their counts and the next try are read from there."""
    yield (
        _FAILED,
        Many((*_row(now, session_id, run_id, one), error[:200], one.task_id, one.letter) for one in told),
    )


def _row(now: float, session_id: int, run_id: int | None, one: Told) -> tuple[object, ...]:
    return (
        one.task_id, one.generation, one.letter, session_id, session_id, one.why, one.route_mode, one.tried, now,
        one.path, run_id, one.seq,
    )  # fmt: skip


def attempts(now: float, task_id: int) -> Tx[list[Attempt]]:
    """Oldest first."""
    del now
    rows = yield (
        "SELECT letter, (SELECT key FROM sessions s WHERE s.id = to_session), to_depth, why, route_mode, tried, path,"
        " attempt, at, next_at, outcome, reason, run_id, transcript_seq FROM deliveries WHERE task_id = ? ORDER BY id",
        (task_id,),
    )
    # Rows of the first schema do not say why.
    return [
        Attempt(letter, to, depth, why or REQUESTER, mode, _pairs(tried), *rest)
        for letter, to, depth, why, mode, tried, *rest in rows
    ]


def dumped(tried: Sequence[tuple[str, str]]) -> str | None:
    return json.dumps(tried) if tried else None


def _pairs(text: str | None) -> tuple[tuple[str, str], ...]:
    return tuple((path, left) for path, left in json.loads(text)) if text else ()
