"""The outbox: words from us to people. A row is due until somebody claims it, then done, due again, or dead.

*Claim* gives a row one owner at a time; a dead owner's rows are due again (`workers.bury`), so sending is at
least once and the row's key tells a channel what it has seen already. A row whose channel nobody has
attached is never claimed: it waits.
"""

from __future__ import annotations

from dataclasses import dataclass

from clutch.core import wording
from clutch.core.policy import Announcing
from clutch.protocol.sessions import Stale
from clutch.store.door import HINT, Tx

UNSURE = "unsure"  #: sent, and no answer heard: neither done nor to be sent again


@dataclass(frozen=True, slots=True)
class Parcel:
    id: int
    key: str
    target: str
    body: str
    attempt: int  #: this one included


def post(now: float, session_id: int, key: str, channel: str, target: str, body: str) -> Tx[None]:
    yield (
        "INSERT INTO outbox(idem, session_id, channel, target, body, due) VALUES(?, ?, ?, ?, ?, ?)"
        " ON CONFLICT(idem) DO NOTHING",
        (key, session_id, channel, target, body, now),
    )
    yield HINT, ("outbox", channel)


def reply(now: float, session_id: int, run_id: int, route: str | None, text: str) -> Tx[None]:
    """The last words of a run, unless it chose to say nothing."""
    if route is None or not text.strip() or wording.silence(text) is not None:
        return
    channel, _, target = route.partition(":")
    yield from post(now, session_id, f"reply:{run_id}", channel, target, text)


def claim(now: float, worker_id: int, channel: str, count: int) -> Tx[list[Parcel]]:
    """Oldest first. Alone: two claims must not see the same free row. What a dead worker claimed nobody would free."""
    if not (yield "SELECT 1 FROM workers WHERE id = ? {lock}", (worker_id,)):
        raise Stale(f"worker {worker_id} was declared dead")
    rows = yield (
        # Materialized: see workers.claim.
        "WITH first AS MATERIALIZED (SELECT id FROM outbox WHERE due <= ? AND channel = ? AND owner IS NULL"
        " ORDER BY id LIMIT ? {skip}) UPDATE outbox SET owner = ?, attempts = attempts + 1, due = NULL"
        " WHERE id IN (SELECT id FROM first) RETURNING id, idem, target, body, attempts",
        (now, channel, count, worker_id),
    )
    return [Parcel(*row) for row in sorted(rows)]


def next_due(now: float, channel: str) -> Tx[float | None]:
    del now
    rows = yield "SELECT MIN(due) FROM outbox WHERE due IS NOT NULL AND channel = ?", (channel,)
    return None if rows[0][0] is None else float(rows[0][0])


def waits(now: float, session_id: int, channel: str) -> Tx[bool]:
    """Are there words of this session for whoever stands at the counter?"""
    del now
    rows = yield (
        "SELECT 1 FROM outbox WHERE due IS NOT NULL AND session_id = ? AND channel = ? LIMIT 1",
        (session_id, channel),
    )
    return bool(rows)


def done(now: float, worker_id: int, parcel_id: int, receipt: str | None) -> Tx[None]:
    """Whoever lost the row to another owner has no say: that one will tell."""
    yield (
        "UPDATE outbox SET done_at = ?, receipt = ?, error = NULL, owner = NULL WHERE id = ? AND owner = ?",
        (now, receipt, parcel_id, worker_id),
    )
    yield HINT, ("parcel", parcel_id)


def failed(now: float, rules: Announcing, worker_id: int, parcel: Parcel, error: str) -> Tx[float | None]:
    """Due again after a while. None: given up, and the row stays with its error."""
    delay_s = rules.delay_s(parcel.attempt, seed=parcel.id)
    due_at = None if delay_s is None else now + delay_s
    yield from _let_go(worker_id, parcel.id, error, due_at)
    return due_at


def dead(now: float, worker_id: int, parcel_id: int, error: str) -> Tx[None]:
    """Never to be sent again: a permanent error, or `UNSURE`."""
    del now
    yield from _let_go(worker_id, parcel_id, error, None)


def free(now: float, worker_id: int, channel: str) -> Tx[None]:
    """What this worker sends no more, and what nobody alive sends: after a lost answer, a stop, a start."""
    yield (
        "UPDATE outbox SET owner = NULL, due = ? WHERE channel = ? AND owner IS NOT NULL"
        " AND (owner = ? OR owner NOT IN (SELECT id FROM workers))",
        (now, channel, worker_id),
    )


def _let_go(worker_id: int, parcel_id: int, error: str, due_at: float | None) -> Tx[None]:
    yield (
        "UPDATE outbox SET owner = NULL, due = ?, error = ? WHERE id = ? AND owner = ?",
        (due_at, error, parcel_id, worker_id),
    )
    yield HINT, ("parcel", parcel_id)


def hand_out(now: float, session_id: int, channel: str) -> Tx[str | None]:
    """The oldest waiting words of one session, for a caller who stands at the counter: claimed and done."""
    rows = yield (
        "WITH first AS MATERIALIZED (SELECT id FROM outbox WHERE session_id = ? AND due IS NOT NULL AND channel = ?"
        " AND owner IS NULL ORDER BY id LIMIT 1 {skip}) UPDATE outbox SET done_at = ?, due = NULL,"
        " attempts = attempts + 1 WHERE id IN (SELECT id FROM first) RETURNING body",
        (session_id, channel, now),
    )
    return str(rows[0][0]) if rows else None
