"""Signs of life from below: whoever waits for descendants asks whether one of them still moves."""

from __future__ import annotations

from clutch.store.door import Tx


def progress_below(session_id: int) -> Tx[float | None]:
    """The latest sign of life of any descendant."""
    rows = yield (
        "WITH RECURSIVE below(id, at) AS (SELECT id, progress_at FROM sessions WHERE parent_id = ?"
        " UNION SELECT s.id, s.progress_at FROM sessions s JOIN below b ON s.parent_id = b.id)"
        " SELECT MAX(at) FROM below",
        (session_id,),
    )
    return None if rows[0][0] is None else float(rows[0][0])


def person_waits(session_id: int) -> Tx[bool]:
    """Does a descendant wait for a person? Then nobody below can be late."""
    rows = yield (
        "WITH RECURSIVE below(id) AS (SELECT id FROM tasks WHERE requester_id = ?"
        " UNION SELECT t.id FROM tasks t JOIN below b ON t.requester_id = b.id)"
        " SELECT COUNT(*) FROM tasks t JOIN sessions s ON s.id = t.id WHERE t.id IN (SELECT id FROM below)"
        " AND (s.paused = 1 OR t.phase = 'awaiting_approval' OR (t.phase = 'paused' AND t.reason = 'needs-you'))",
        (session_id,),
    )
    return bool(rows[0][0])
