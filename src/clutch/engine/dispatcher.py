"""A worker: looks for what is due, does it, sleeps until there is more.

One loop *peeks* (a read) and acts (a transaction) only on a find: the rounds (`rounds`: mail, timers, burying
the dead) and claiming. Claimed sessions become turns (`holding`). Hints wake the loop early; a lost one costs a tick.
A worker that was declared dead while alive drops everything it held and comes back under a new number.
Restart recovery is nothing but this loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import platform
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from clutch import __version__
from clutch.core.model import Lane
from clutch.engine import heartbeat, rounds, spawning
from clutch.engine.cleaning import clean
from clutch.engine.errands import dismiss
from clutch.engine.holding import Holding
from clutch.engine.kit import Kit
from clutch.engine.patience import patiently, persist
from clutch.engine.sweeping import Sweeper
from clutch.errors import StoreError, StoreLost, StoreRefused, StoreUnreadable
from clutch.ports import Clock
from clutch.protocol import heartbeat as pulses
from clutch.protocol import workers
from clutch.protocol.sessions import Stale
from clutch.protocol.workers import Prospect

log = logging.getLogger(__name__)

RESTED_MAX = 10_000  # whoever waits for one of these waits for seconds
NO_LEASE_S = 1e12  # whoever holds the process lock of a state directory lives; no heartbeat needed


class Worker:
    """`has_leases`: several processes share the database, so each must prove that it is alive."""

    def __init__(self, kit: Kit, clock: Clock, *, has_leases: bool) -> None:
        self.kit, self.clock, self.has_leases = kit, clock, has_leases
        self.id = 0
        self.ready = asyncio.Event()  #: registered, and whatever a dead predecessor held is free
        self.sweeper = Sweeper(kit, clock.now)
        #: how to end what works under our number beside the loop
        self.before_leaving: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()
        self._hinted = asyncio.Event()
        self._holding = Holding(kit, self._hinted.set, has_leases=has_leases)
        self.turns = self._holding.turns
        self._stopped = asyncio.Event()
        self._is_prepared = kit.prepare is None  #: claims wait for it, nothing else does
        self._sleeps_until = float("inf")  #: while it looks, everything is news
        self._mail: set[int] = set()
        self._to_clean: set[int] = set()
        self._cleaning: dict[int, asyncio.Task[None]] = {}
        self._sweeping: asyncio.Task[None] | None = None
        self._sweeps_at = 0.0
        kit.door.listen(self.hear)

    def hear(self, hints: Sequence[Any]) -> None:
        """After a commit, of any process. May be lost, late or doubled: only ever a reason to look."""
        for hint in hints:
            match hint:
                case ("mail", session_id):
                    self._mail.add(session_id)
                    self._hinted.set()
                case ("due", moment):
                    if moment < self._sleeps_until:
                        self._hinted.set()
                case ("stop", session_id, fence):
                    self._holding.cut(session_id, fence)
                case ("supersede", session_id, fence):
                    self._holding.cut(session_id, fence, is_superseded=True)
                case ("pause", session_id):
                    if session_id in self.kit.errands:
                        self.kit.errands[session_id].pause()
                case ("rested", session_id, fence):
                    self._remember(session_id, fence)
                case ("clean", task_id):
                    self._to_clean.add(task_id)
                    self._hinted.set()
                case _:
                    self._hinted.set()

    def _remember(self, session_id: int, fence: int) -> None:
        if len(self.kit.rested) >= RESTED_MAX:
            self.kit.rested.clear()
        self.kit.rested.add((session_id, fence))

    # ---- life ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until `stop`."""
        try:
            await self._lives()
        except* StoreError:
            if not self.kit.stopping.is_set():
                raise
        finally:
            await dismiss(self.kit.errands)
            self._stopped.set()

    async def _lives(self) -> None:
        """Each pass of the loop is one life under one number."""
        while not self.kit.stopping.is_set():
            await self._register()
            try:
                async with asyncio.TaskGroup() as group:
                    heart = group.create_task(self._beat())
                    loading = group.create_task(self._prepare())
                    await self._dispatch(group)
                    await self._drain(group)
                    heart.cancel()
                    loading.cancel()
            except* Stale:
                log.warning("declared dead while alive; coming back", extra={"worker": self.id})

    async def _register(self) -> None:
        lease_s = self.kit.policy.work.lease_s if self.has_leases else NO_LEASE_S
        self.id = self.kit.worker_id = await persist(self.kit, workers.next_number)
        self.kit.ids.take_block(self.id)
        if self.kit.lives is not None:
            await patiently(self.kit, self.kit.lives.hold, self.id)
        about = (platform.node(), os.getpid(), __version__, self.kit.policy.work.lanes)
        await persist(self.kit, workers.register, self.id, lease_s, *about)
        if not self.has_leases:
            await persist(self.kit, workers.bury_all_but, self.id)
        await patiently(self.kit, spawning.sweep, self.kit)
        if self.kit.policy.agents:
            await persist(self.kit, pulses.arm, self.kit.policy)
        self.ready.set()

    async def _beat(self) -> None:
        work = self.kit.policy.work
        while self.has_leases:
            await asyncio.sleep(work.lease_s / 5)
            try:
                await self.kit.door.tx((), workers.heartbeat, self.id, work.lease_s)
            except StoreError as error:
                log.warning("heartbeat failed", extra={"error": str(error)})

    async def _prepare(self) -> None:
        await self.kit.prepared(self.kit.policy.defaults.model)
        self._is_prepared = True
        self._hinted.set()

    async def stop(self) -> None:
        """No new claims; back when all turns have ended or were handed over. Nothing is marked failed."""
        self.kit.stopping.set()
        self._hinted.set()
        await self._stopped.wait()

    async def _drain(self, group: asyncio.TaskGroup) -> None:
        """Turns end at their next boundary, or are cut after a while, and so does what is beside them."""
        beside_us = [group.create_task(end()) for end in self.before_leaving]
        await self._holding.give_all_back()
        for beside in (*self._cleaning.values(), *([self._sweeping] if self._sweeping else [])):
            beside.cancel()  # whoever is next does it again
        await asyncio.gather(*beside_us)
        # A kill elsewhere waits for what has ended here meanwhile.
        await patiently(self.kit, self._holding.tell_rested)
        await persist(self.kit, workers.leave, self.id)

    # ---- the loop ------------------------------------------------------------------------------------

    async def _dispatch(self, group: asyncio.TaskGroup) -> None:
        while not self.kit.stopping.is_set():
            self._hinted.clear()
            self._sleeps_until = float("inf")
            looked_at = self.clock.now()
            self.kit.pulses.beat("heartbeat", looked_at, self.kit.policy.work.lease_s)
            try:
                prospect = await self.kit.door.read(workers.peek, self.id)
                acted = await self._act(prospect, group)
            except (StoreUnreadable, StoreRefused):
                raise
            except StoreError as error:
                log.warning("store not available", extra={"error": str(error)})
                await asyncio.sleep(self.kit.policy.work.tick_s)
                continue
            if not acted:
                await self._rest(prospect, looked_at)

    async def _act(self, prospect: Prospect, group: asyncio.TaskGroup) -> bool:
        """True: something was done, so look again before sleeping."""
        now = self.clock.now()
        # First: the clock of a run whose owner is dead stands.
        acted = await rounds.bury(self.kit, prospect, now)
        hinted, self._mail = self._mail, set()
        acted |= await rounds.deliver_mail(self.kit, hinted, prospect.unseen)
        acted |= await rounds.ring(self.kit, prospect.alarms)
        acted |= await self._holding.tell_rested()
        acted |= self._clean(group)
        self._sweep(group, now)
        if prospect.beat_at is not None and prospect.beat_at <= now:
            acted |= await heartbeat.ring_all(self.kit)
        if prospect.due_lanes and self._is_prepared and self._room() > 0:
            acted |= await self._claim(group, prospect.due_lanes)
        return acted

    def _clean(self, group: asyncio.TaskGroup) -> bool:
        """Beside the loop, because a large directory takes its time. The task's timer forgets nobody."""
        waiting, self._to_clean = sorted(self._to_clean), set()
        for task_id in waiting:
            if task_id not in self._cleaning:
                task = self._cleaning[task_id] = group.create_task(clean(self.kit, task_id))
                task.add_done_callback(functools.partial(self._cleaned, task_id))
        return bool(waiting)

    def _cleaned(self, task_id: int, _: asyncio.Task[None]) -> None:
        """Also one that was cancelled before its first step."""
        del self._cleaning[task_id]

    def _sweep(self, group: asyncio.TaskGroup, now: float) -> None:
        """One tick at a time."""
        if now >= self._sweeps_at and (self._sweeping is None or self._sweeping.done()):
            self._sweeps_at = now + self.kit.policy.keeping.sweep_s
            self._sweeping = group.create_task(self.sweeper.sweep())

    def _room(self) -> int:
        return self.kit.policy.work.sessions_max - len(self.turns)

    async def _claim(self, group: asyncio.TaskGroup, lanes: Sequence[Lane]) -> bool:
        """After a rest only a few at first: they are at work while the others, maybe thousands, are claimed."""
        room = self._room() if self.turns else min(self._room(), self.kit.policy.work.claim_first)
        try:
            claimed = await self.kit.door.alone(workers.claim, self.id, room, lanes)
        except StoreLost:
            await persist(self.kit, workers.disown, self.id, [claimed for claimed, _ in self.turns.values()])
            raise
        await self._holding.start(group, claimed)
        return bool(claimed)

    async def _rest(self, prospect: Prospect, looked_at: float) -> None:
        """What lay ahead when it looked may be due by now: then it looks again at once."""
        now = self.clock.now()
        known = (prospect.due_at, prospect.alarm_at, prospect.beat_at, prospect.lease_at)
        ahead = [
            moment - now for moment in (*known, self._sweeps_at) if moment is not None and moment > looked_at
        ]
        self._sleeps_until = now + min([self.kit.policy.work.tick_s, *ahead])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.001, self._sleeps_until - now)):
                await self._hinted.wait()
