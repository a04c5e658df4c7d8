"""The limits of providers, which workers share. The slots of a worker are its own until it may be declared dead."""

from __future__ import annotations

from clutch.core.provider_limits import LimitGrant, LimitRequest
from clutch.core.rate_limit import Bounds
from clutch.engine.worker import Worker
from clutch.store.transaction import Database
from clutch.transactions import provider_limits


class StoredLimits:
    """Implements the port `SharedLimits`."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._worker: Worker | None = None
        self.listen = db.listen

    def held_by(self, worker: Worker) -> Worker:
        """Exchange under the number of this worker from now on."""
        self._worker = worker
        return worker

    def holder(self) -> int | None:
        worker = self._worker
        is_leased = worker is not None and worker.id and not worker.lease.is_over
        return worker.id if worker is not None and is_leased else None

    async def exchange(self, name: str, bounds: Bounds, request: LimitRequest) -> LimitGrant:
        worker_id = self.holder() or 0
        return await self._db.alone(provider_limits.exchange, worker_id, name, bounds, request)
