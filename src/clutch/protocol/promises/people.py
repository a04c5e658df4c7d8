"""What is promised to and by people who are asked, as SQL. No rows, ever."""

from __future__ import annotations

from typing import Final

from clutch.core.model import UNTIL_ANSWERED
from clutch.protocol.promises.form import Query, Scope

_IS_OPEN: Final = "EXISTS (SELECT 1 FROM questions q WHERE q.session_id = s.id AND q.answered_at IS NULL)"

PEOPLE: Final[tuple[Query, ...]] = (
    Query(
        "N31",
        Scope.SESSION,
        "a run waits for a person, without an owner, exactly as long as a question is open",
        "SELECT s.id, 'is parked until ' || COALESCE(CAST(r.parked_until AS TEXT), 'nothing') FROM sessions s"  # noqa: S608
        " LEFT JOIN runs r ON r.id = s.run_id WHERE s.id {touched}"
        f" AND (COALESCE(r.parked_until, 0) = {UNTIL_ANSWERED} AND s.owner IS NULL) <> {_IS_OPEN}",
    ),
    Query(
        "N31",
        Scope.END,
        "no question is left open",
        "SELECT q.id, q.kind || ' of session ' || q.session_id FROM questions q WHERE q.answered_at IS NULL",
    ),
)
