"""What became of a send: done, to be tried again, never to be tried again, or nobody knows.

Words of an agent are tried again by their own row. A task's result that goes to a person as it is has one retry loop
already, its letter's: the task is told of every outcome, and what failed is given back to the requester's inbox.
"""

from __future__ import annotations

from clutch.core import events as ev
from clutch.core.model import LetterKind, Path
from clutch.core.policy import Policy
from clutch.protocol import tasks, trace
from clutch.protocol.outbox import Parcel
from clutch.protocol.trace import Told
from clutch.store.door import HINT, Tx

UNSURE = "unsure"  #: sent, and no answer heard: neither done nor to be sent again


def done(now: float, policy: Policy, worker_id: int, parcel: Parcel, receipt: str | None) -> Tx[None]:
    """Whoever lost the row to another owner has no say: that one will tell."""
    rows = yield (
        "UPDATE outbox SET done_at = ?, receipt = ?, error = NULL, owner = NULL WHERE id = ? AND owner = ?"
        " RETURNING id",
        (now, receipt, parcel.id, worker_id),
    )
    if rows:
        yield from _told(now, policy, parcel)
    yield HINT, ("parcel", parcel.id)


def failed(now: float, policy: Policy, worker_id: int, parcel: Parcel, error: str) -> Tx[float | None]:
    """Due again after a while. None: given up, and the row stays with its error."""
    delay_s = policy.announcing.delay_s(parcel.attempt, seed=parcel.id)
    due_at = None if delay_s is None or parcel.task_id is not None else now + delay_s
    if (yield from _let_go(worker_id, parcel, error, due_at)):
        yield from _refused(now, policy, parcel, error, is_permanent=False)
    return due_at


def refused(now: float, policy: Policy, worker_id: int, parcel: Parcel, error: str) -> Tx[None]:
    """A permanent error: never to be sent again by itself."""
    if (yield from _let_go(worker_id, parcel, error, None)):
        yield from _refused(now, policy, parcel, error, is_permanent=True)


def unheard(now: float, policy: Policy, worker_id: int, parcel: Parcel) -> Tx[None]:
    """Sent, and no answer heard. A second send might be the second time a person reads it."""
    if (yield from _let_go(worker_id, parcel, UNSURE, None)):
        yield from _told(now, policy, parcel, is_sure=False)


def hand_out(
    now: float, policy: Policy, session_id: int, channel: str, parcel_id: int | None = None
) -> Tx[str | None]:
    """The oldest waiting words of one session, for a caller who stands at the counter: claimed and done.

    `parcel_id`: those that were shown to it, if nobody else has taken them."""
    which, values = ("", ()) if parcel_id is None else (" AND id = ?", (parcel_id,))
    rows = yield (
        "WITH first AS MATERIALIZED (SELECT id FROM outbox WHERE session_id = ? AND due IS NOT NULL AND channel = ?"  # noqa: S608
        f" AND owner IS NULL{which} ORDER BY id LIMIT 1 {{skip}}) UPDATE outbox SET done_at = ?, due = NULL,"
        " attempts = attempts + 1 WHERE id IN (SELECT id FROM first)"
        " RETURNING id, idem, target, body, attempts, task_id, generation",
        (session_id, channel, *values, now),
    )
    if not rows:
        return None
    parcel = Parcel(*rows[0])
    yield from _told(now, policy, parcel)
    return parcel.body


def known_already(now: float, policy: Policy, session_id: int, channel: str, task_id: int) -> Tx[None]:
    """The person has this task's result in hand: words that told of it and of nothing else need not be read.

    Nothing else: no other task, and nothing that somebody said, asked or was to hear in the same turn."""
    rows = yield (
        "SELECT id FROM outbox WHERE session_id = ? AND idem IN (SELECT 'reply:' || d.run_id FROM deliveries d"
        " WHERE d.task_id = ? AND NOT EXISTS (SELECT 1 FROM deliveries o WHERE o.run_id = d.run_id"
        " AND o.task_id <> d.task_id) AND NOT EXISTS (SELECT 1 FROM inbox i WHERE i.session_id = ?"
        " AND i.taken_run = d.run_id AND i.kind <> ?))",
        (session_id, task_id, session_id, LetterKind.ANNOUNCE.value),
    )
    for (parcel_id,) in rows:
        yield from hand_out(now, policy, session_id, channel, parcel_id)


def _let_go(worker_id: int, parcel: Parcel, error: str, due_at: float | None) -> Tx[bool]:
    rows = yield (
        "UPDATE outbox SET owner = NULL, due = ?, error = ? WHERE id = ? AND owner = ? RETURNING id",
        (due_at, error, parcel.id, worker_id),
    )
    yield HINT, ("parcel", parcel.id)
    return bool(rows)


def _told(now: float, policy: Policy, parcel: Parcel, *, is_sure: bool = True) -> Tx[None]:
    if parcel.task_id is None or parcel.generation is None:
        return
    event = (
        ev.Delivered(now, Path.DIRECT, parcel.generation) if is_sure else ev.Unheard(now, parcel.generation)
    )
    (task,) = yield from tasks.record_senders(now, policy, {parcel.task_id: event})
    rows = yield (
        f"UPDATE inbox SET state = 1 WHERE idem = ? AND state = 0 RETURNING session_id, taken_run, {trace.COLUMNS}",  # noqa: S608
        (parcel.key,),
    )
    outcome = "delivered" if is_sure else UNSURE
    for session_id, run_id, *letter in rows:
        yield from trace.delivered(
            now, session_id, run_id, [Told(*letter)], {task.id: task.attempts}, outcome
        )


def _refused(now: float, policy: Policy, parcel: Parcel, error: str, *, is_permanent: bool) -> Tx[None]:
    if parcel.task_id is None or parcel.generation is None:
        return
    rows = yield (
        f"SELECT session_id, taken_run, {trace.COLUMNS} FROM inbox WHERE idem = ?",  # noqa: S608 (constant columns)
        (parcel.key,),
    )
    event = ev.DeliveryFailed(now, error, parcel.generation, is_permanent)
    yield from tasks.record_senders(now, policy, {parcel.task_id: event})
    for session_id, run_id, *letter in rows:
        yield from trace.failed(now, session_id, run_id, [Told(*letter)], error)
        yield "UPDATE inbox SET seen = 0 WHERE idem = ? AND state = 0", (parcel.key,)
        yield HINT, ("mail", session_id)
