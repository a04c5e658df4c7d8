"""The sweeper: each step reads first and writes only on a find.

It adopts orphans, archives tasks that ended long ago, deletes their transcripts later, and removes directories without
a task. Everything may be done twice, and by several processes at once."""

from __future__ import annotations

from collections.abc import Callable

from clutch.engine.services import Services
from clutch.engine.task_files import drop, sweep
from clutch.errors import StoreError
from clutch.logs import logger
from clutch.transactions import retention, workers

log = logger(__name__)


class Sweeper:
    def __init__(self, services: Services, now: Callable[[], float]) -> None:
        self._services, self._now = services, now
        self._faded_upto = 0.0

    async def sweep(self) -> None:
        """One sweep. What fails is tried again at the next one."""
        try:
            await self._put_right()
            await self._adopt()
            await self._archive()
            await self._fade()
            await sweep(self._services)
        except StoreError as error:
            log.warning("store not available", extra={"error": str(error)})
            return
        self._services.pulses.beat("sweeper", self._now(), self._services.policy.keeping.sweep_s)

    async def _put_right(self) -> None:
        """Correct waits that began under a clock that was ahead."""
        db, policy = self._services.db, self._services.policy
        misdated = await db.read(workers.misdated, policy)
        for session_id in misdated.sessions:
            log.warning("the clock was ahead: a wait is corrected", extra={"session": session_id})
            await db.alone(workers.correct, policy, session_id)
        for task_id in misdated.tasks:
            log.warning("the clock was ahead: a timer is corrected", extra={"task": task_id})
            await db.alone(workers.reset_timer, policy, task_id)

    async def _adopt(self) -> None:
        db, policy = self._services.db, self._services.policy
        for task_id in await db.read(retention.find):
            log.warning("a task has lost its session", extra={"task": task_id})
            await db.alone(retention.adopt, policy, task_id)

    async def _archive(self) -> None:
        db, policy = self._services.db, self._services.policy
        while found := await db.read(retention.due, policy):
            await drop(self._services, await db.alone(retention.archive, policy, found))

    async def _fade(self) -> None:
        db, policy = self._services.db, self._services.policy
        after_s = policy.keeping.transcript_after_s
        if after_s is None:
            return
        upto = self._now() - after_s
        while found := await db.read(retention.fading, policy, self._faded_upto):
            await drop(self._services, await db.alone(retention.fade, policy, found))
        self._faded_upto = upto
