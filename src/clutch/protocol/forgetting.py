"""Forgetting a session: its words go, its row stays.

The row holds the tree together: a kill finds through it what still works below, and what comes late from there
rises through it. Outcome, result, usage, timeline and deliveries are the task's and stay, too.
"""

from __future__ import annotations

from clutch.core.hooks import Removal
from clutch.core.policy import Policy
from clutch.protocol import hooks
from clutch.protocol.sessions import SessionRow
from clutch.store.door import Tx

_WORDS = ("messages", "calls", "questions", "system_events", "bindings", "doing")


def forget(now: float, policy: Policy, session: SessionRow, why: Removal) -> Tx[None]:
    """Of a closed session; the caller saves the row. What lies in its inbox unread is passed on, not lost.

    The one place where words go, whatever the reason."""
    if session.is_task:
        rows = yield "SELECT workspace FROM sessions WHERE id = ?", (session.id,)
        yield from hooks.removed(now, policy, session.id, session.key, why, rows[0][0])
    for table in _WORDS:
        yield f"DELETE FROM {table} WHERE session_id = ?", (session.id,)  # noqa: S608 (constant words)
    yield "DELETE FROM inbox WHERE session_id = ? AND state <> 0 AND kind <> 'announce'", (session.id,)
    yield "DELETE FROM outbox WHERE session_id = ? AND done_at IS NOT NULL", (session.id,)
    yield "UPDATE sessions SET deleted_at = COALESCE(deleted_at, ?) WHERE id = ?", (now, session.id)
    session.head = session.base = 0


def is_forgotten(session_id: int) -> Tx[bool]:
    rows = yield "SELECT 1 FROM sessions WHERE id = ? AND deleted_at IS NOT NULL", (session_id,)
    return bool(rows)
