"""Cleanup after the telling: what is to go, the word that it is gone, the word that it would not go.

Files are removed outside, between asking and saying so. Whoever dies in between leaves the task's timer, and
everything is done again without harm.
"""

from __future__ import annotations

import json

from clutch.core import cleaning
from clutch.core import events as ev
from clutch.core.admission import Cleanup
from clutch.core.cleaning import Removal
from clutch.core.hooks import Removal as Reason
from clutch.core.model import Delivery, Outcome
from clutch.core.policy import Policy
from clutch.protocol import sessions, tasks
from clutch.protocol.forgetting import forget
from clutch.store.door import Tx

FAILED = "cleanup failed"
ERROR_CHARS_MAX = 200

_AWAITING = (
    "SELECT outcome, delivery, started_at, spec, shelf, generation FROM tasks WHERE id = ?"
    " AND (phase = 'cleanup_pending' OR (phase = 'completed_giveup' AND delivery <> 'undelivered'"
    " AND has_cleanup = 1 AND wake_at IS NOT NULL))"
)


def awaited(now: float, policy: Policy, task_id: int) -> Tx[Removal | None]:
    """None: a late hint. It is done, or the task lives again."""
    del now
    rows = yield _AWAITING, (task_id,)
    if not rows:
        return None
    outcome, delivery, started_at, spec, number, generation = rows[0]
    wanted = cleaning.removal(
        outcome=None if outcome is None else Outcome(outcome),
        delivery=Delivery(delivery),
        is_begun=started_at is not None,
        is_deleted=json.loads(spec).get("cleanup") == Cleanup.DELETE,
        is_retained=policy.limits.attachments.retain_on_keep,
    )
    return wanted._replace(number=number, generation=generation)


def cleaned(now: float, policy: Policy, task_id: int, done: Removal) -> Tx[None]:
    """Alone. The files are gone: now the rest, and the end, in one commit.

    Whoever is late has removed what an earlier end left; that is not the word that this one waits for."""
    session = yield from sessions.lock(task_id)
    if session is None or (yield from awaited(now, policy, task_id)) != done:
        return
    if done.session:
        yield from forget(now, policy, session, Reason.DELETED)
    yield from tasks.record(now, policy, session, ev.Cleaned(now))
    yield from sessions.save(now, policy, session)


def failed(now: float, policy: Policy, task_id: int, wanted: Removal, error: str) -> Tx[None]:
    """Alone. It stays where it is, says why, and waits longer each time."""
    session = yield from sessions.lock(task_id)
    if session is None or (yield from awaited(now, policy, task_id)) != wanted:
        return
    rows = yield (
        "SELECT COUNT(*) FROM events WHERE task_id = ? AND SUBSTR(reason, 1, 14) = ?",
        (task_id, FAILED),
    )
    said = ev.CleanupFailed(now, f"{FAILED}: {error[:ERROR_CHARS_MAX]}", int(rows[0][0]))
    yield from tasks.record(now, policy, session, said)
    yield from sessions.save(now, policy, session)
