"""The row of a provider: one exchange of a worker with all others. Alone, and on PostgreSQL only: on SQLite there is
one process, which knows everything already."""

from __future__ import annotations

from clutch.core import provider_limits
from clutch.core.provider_limits import LimitGrant, LimitRequest
from clutch.core.rate_limit import Bounds
from clutch.store.transaction import HINT, Tx
from clutch.transactions.sessions import Stale

_LOCK = "SELECT state FROM provider_limits WHERE name = ? {lock}"


def exchange(now: float, worker_id: int, name: str, bounds: Bounds, request: LimitRequest) -> Tx[LimitGrant]:
    """Raises Stale for a worker that was declared dead: it holds no slots."""
    rows = yield _LOCK, (name,)
    if not rows:
        yield "INSERT INTO provider_limits(name, state) VALUES(?, '{}') ON CONFLICT(name) DO NOTHING", (name,)
        rows = yield _LOCK, (name,)
    alive = {row[0] for row in (yield "SELECT id FROM workers", ())}
    if worker_id not in alive:
        raise Stale(f"worker {worker_id} was declared dead")
    before = provider_limits.from_text(rows[0][0])
    after, grant = provider_limits.exchanged(before, bounds, worker_id, request, alive=alive, now=now)
    if after != before:
        state = provider_limits.to_text(after)
        yield "UPDATE provider_limits SET state = ? WHERE name = ?", (state, name)
    if provider_limits.is_news(before.pace, after.pace):
        yield HINT, (provider_limits.CHANGED, name, 0, worker_id)
    for other in grant.others:
        yield HINT, (provider_limits.CHANGED, name, other, worker_id)
    return grant
