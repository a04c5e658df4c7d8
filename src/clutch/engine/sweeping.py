"""The sweeper: one tick after the other, each a look first and a write only on a find.

Orphans are adopted, what is long over is archived, its words fade, and directories that nobody wants any more are
removed. Everything may be done twice, and by several processes at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from clutch.engine import spawning
from clutch.engine.kit import Kit
from clutch.errors import StoreError
from clutch.protocol import archiving, orphans

log = logging.getLogger(__name__)


class Sweeper:
    def __init__(self, kit: Kit, now: Callable[[], float]) -> None:
        self._kit, self._now = kit, now
        self._faded_upto = 0.0

    async def sweep(self) -> None:
        """What fails is tried at the next tick."""
        try:
            await self._adopt()
            await self._archive()
            await self._fade()
            await spawning.sweep(self._kit)
        except StoreError as error:
            log.warning("store not available", extra={"error": str(error)})
            return
        self._kit.pulses.beat("sweeper", self._now(), self._kit.policy.keeping.sweep_s)

    async def _adopt(self) -> None:
        door, policy = self._kit.door, self._kit.policy
        for task_id in await door.read(orphans.find):
            log.warning("a task has lost its session", extra={"task": task_id})
            await door.alone(orphans.adopt, policy, task_id)

    async def _archive(self) -> None:
        door, policy = self._kit.door, self._kit.policy
        while found := await door.read(archiving.due, policy):
            await spawning.drop(self._kit, await door.alone(archiving.archive, policy, found))

    async def _fade(self) -> None:
        door, policy = self._kit.door, self._kit.policy
        after_s = policy.keeping.transcript_after_s
        if after_s is None:
            return
        upto = self._now() - after_s
        while found := await door.read(archiving.fading, policy, self._faded_upto):
            await spawning.drop(self._kit, await door.alone(archiving.fade, policy, found))
        self._faded_upto = upto
