"""The questions that no user has answered, as tests look at them."""

from __future__ import annotations

from dataclasses import dataclass

from clutch.core.questions import QuestionKind
from clutch.store.transaction import Tx


@dataclass(frozen=True, slots=True)
class PendingQuestion:
    """One question of a run."""

    id: int
    session_id: int
    kind: QuestionKind
    body: str
    hash: str
    asked_at: float
    session_key: str
    is_task: int  #: 0 = a main session asks


def waiting(now: float, root_id: int | None = None) -> Tx[list[PendingQuestion]]:
    """Oldest first; of one root or of all."""
    del now
    rows = yield (
        "SELECT q.id, q.session_id, q.kind, q.body, q.hash, q.asked_at, s.key, s.is_task FROM questions q"
        " JOIN sessions s ON s.id = q.session_id WHERE q.answered_at IS NULL"
        " AND (CAST(? AS {big}) IS NULL OR s.root_id = ?) ORDER BY q.asked_at, q.id",
        (root_id, root_id),
    )
    return [
        PendingQuestion(number, session, QuestionKind(kind), *rest) for number, session, kind, *rest in rows
    ]
