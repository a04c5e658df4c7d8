"""Reads for the health of a gateway: its workers, its queues and the size of its database."""

from __future__ import annotations

from clutch.core.health import LaneView, WorkerView, WorkState
from clutch.core.model import Delivery
from clutch.store.transaction import Tx
from clutch.transactions.conditions import IS_UNTOLD
from clutch.transactions.read.inbox import unread_replies

_BYTES = {
    True: "SELECT c.page_count * s.page_size FROM pragma_page_count() c, pragma_page_size() s",
    False: "SELECT pg_database_size(current_database())",
}


def state(now: float, is_sqlite: bool) -> Tx[WorkState]:
    workers = yield (
        "SELECT w.id, w.host, w.pid, w.version, w.started_at, w.lease_until,"
        " (SELECT COUNT(*) FROM sessions s WHERE s.owner = w.id) FROM workers w ORDER BY w.started_at, w.id",
        (),
    )
    lanes = yield (
        "SELECT l.name, l.cap, (SELECT COUNT(*) FROM sessions s WHERE s.lane = l.name AND s.owner IS NOT NULL),"
        " (SELECT COUNT(*) FROM sessions s WHERE s.lane = l.name AND s.owner IS NULL AND s.due IS NOT NULL"
        " AND s.due <= ?) FROM lanes l ORDER BY l.name",
        (now,),
    )
    counted = yield (
        f"SELECT (SELECT COUNT(*) FROM tasks WHERE delivery = ? AND {IS_UNTOLD}),"  # noqa: S608 (constant words)
        f" (SELECT COUNT(*) FROM tasks WHERE delivery = '{Delivery.UNDELIVERED}'),"
        " (SELECT COUNT(*) FROM outbox WHERE due IS NOT NULL)",
        (Delivery.DEFERRED.value,),
    )
    size = yield _BYTES[is_sqlite], ()
    deferred, undelivered, outbox = map(int, counted[0])
    return WorkState(
        [WorkerView(*row) for row in workers],
        [LaneView(*row) for row in lanes],
        deferred,
        undelivered,
        outbox,
        (yield from unread_replies(now)).unsent,
        int(size[0][0]),
    )
