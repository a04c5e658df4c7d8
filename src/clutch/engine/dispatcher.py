"""A worker: looks what is due, does it, sleeps until there is more.

One loop *peeks* (a read) and acts (a transaction) only on a find: the mailman's rounds, timers, burying
the dead, claiming. Claimed sessions become turns. Hints wake the loop early; a lost one costs a tick.
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
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from clutch import __version__
from clutch.core.model import Lane
from clutch.engine import heartbeat, spawning
from clutch.engine.cleaning import clean
from clutch.engine.errands import dismiss
from clutch.engine.handing import hand_over
from clutch.engine.interrupt import Interrupt
from clutch.engine.kit import Kit
from clutch.engine.sweeping import Sweeper
from clutch.engine.turn import take_turn
from clutch.errors import (
    ClutchError,
    ConstraintViolated,
    StoreError,
    StoreLost,
    StoreRefused,
    StoreUnreadable,
)
from clutch.ports import Clock
from clutch.protocol import heartbeat as pulses
from clutch.protocol import inbox, preparing, turns, usage, workers
from clutch.protocol.sessions import Stale
from clutch.protocol.workers import Claimed, Prospect

log = logging.getLogger(__name__)

RESTED_MAX = 10_000  # whoever waits for one of these waits for seconds
NO_LEASE_S = 1e12  # whoever holds the process lock of a state directory lives; no heartbeat needed


class Worker:
    """`has_leases`: several processes share the database, so each must prove that it is alive."""

    def __init__(self, kit: Kit, clock: Clock, *, has_leases: bool) -> None:
        self.kit, self.clock, self.has_leases = kit, clock, has_leases
        self.id = 0
        self.turns: dict[int, tuple[Claimed, asyncio.Task[None]]] = {}
        self._interrupts: dict[int, Interrupt] = {}
        self.ready = asyncio.Event()  #: registered, and whatever a dead predecessor held is free
        self.sweeper = Sweeper(kit, clock.now)
        self._hinted = asyncio.Event()
        self._stopped = asyncio.Event()
        self._is_prepared = kit.prepare is None  #: claims wait for it, nothing else does
        self._sleeps_until = float("inf")  #: while it looks, everything is news
        self._mail: set[int] = set()
        self._to_clean: set[int] = set()
        self._rested: set[tuple[int, int]] = (
            set()
        )  #: turns that were cut, by session and fence; others may wait for it
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
                    self._stop_turn(session_id, fence)
                case ("supersede", session_id, fence):
                    self._stop_turn(session_id, fence, is_superseded=True)
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

    def _stop_turn(self, session_id: int, fence: int, *, is_superseded: bool = False) -> None:
        held = self.turns.get(session_id)
        if held is None or held[0].fence >= fence:
            return
        if is_superseded:
            self._interrupts[session_id].pull(held[1], self.kit.policy.work.tool_grace_s)
        else:
            held[1].cancel()

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
                    await self._drain()
                    heart.cancel()
                    loading.cancel()
            except* Stale:
                log.warning("declared dead while alive; coming back", extra={"worker": self.id})

    async def _register(self) -> None:
        lease_s = self.kit.policy.work.lease_s if self.has_leases else NO_LEASE_S
        self.id = self.kit.worker_id = await self._persist(workers.next_number)
        self.kit.ids.take_block(self.id)
        if self.kit.lives is not None:
            await self._patiently(self.kit.lives.hold, self.id)
        about = (platform.node(), os.getpid(), __version__, self.kit.policy.work.lanes)
        await self._persist(workers.register, self.id, lease_s, *about)
        if not self.has_leases:
            await self._persist(workers.bury_all_but, self.id)
        await self._patiently(spawning.sweep, self.kit)
        if self.kit.policy.agents:
            await self._persist(pulses.arm, self.kit.policy)
        self.ready.set()

    async def _persist(self, fn: Callable[..., Any], *args: Any) -> Any:
        return await self._patiently(self.kit.door.alone, fn, *args)

    async def _patiently(self, call: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """A busy or lost store is no reason to give up; the next tick tries again. Unless we stop: then whoever
        buries us does what we could not."""
        while True:
            try:
                return await call(*args)
            except (StoreUnreadable, StoreRefused, ConstraintViolated):
                raise  # waiting mends nothing
            except StoreError as error:
                log.warning("store not available", extra={"error": str(error)})
                if self.kit.stopping.is_set():
                    raise
                await asyncio.sleep(self.kit.policy.work.tick_s)

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

    async def _drain(self) -> None:
        """Turns end at their next boundary, or are cut after a while."""
        held = [turn for _, turn in self.turns.values()]
        if held:
            await asyncio.wait(held, timeout=self.kit.policy.work.stop_s)
        for claimed, turn in list(self.turns.values()):
            turn.cancel()
            await asyncio.wait([turn])
            await self._give_back(claimed)
        for beside in (*self._cleaning.values(), *([self._sweeping] if self._sweeping else [])):
            beside.cancel()  # whoever is next does it again
        await self._patiently(self._tell_rested)  # a kill elsewhere waits for what has ended here meanwhile
        await self._persist(workers.leave, self.id)

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
        acted = await self._bury(prospect, now)  # first: the clock of a run whose owner is dead stands
        acted |= await self._deliver_mail(prospect.unseen)
        acted |= await self._ring(prospect.alarms)
        acted |= await self._tell_rested()
        acted |= self._clean(group)
        self._sweep(group, now)
        if prospect.beat_at is not None and prospect.beat_at <= now:
            acted |= await heartbeat.ring_all(self.kit)
        if prospect.due_lanes and self._is_prepared and self._room() > 0:
            acted |= await self._claim(group, prospect.due_lanes)
        return acted

    async def _bury(self, prospect: Prospect, now: float) -> bool:
        """A lease ran out; or the database knows already that a process is gone."""
        dead = await self.kit.lives.dead(prospect.others) if self.kit.lives is not None else []
        buried: list[int] = []
        for worker_id in dead:
            buried += await self.kit.door.alone(workers.bury, worker_id)
        if prospect.lease_at is not None and prospect.lease_at < now:
            buried += await self.kit.door.alone(workers.bury)
        return bool(buried)

    async def _deliver_mail(self, unseen: Sequence[int]) -> bool:
        waiting = sorted(self._mail.union(unseen))
        self._mail.clear()
        policy, door = self.kit.policy, self.kit.door
        if waiting and len(unseen) < workers.UNSEEN_MAX:  # else what is left unseen would hide the rest
            waiting = await door.read(inbox.worth_waking, waiting)
        homeless = await _each(waiting, lambda one: door.tx(one, inbox.wake, policy, one))
        await _each(
            [one for one, is_homeless in homeless.items() if is_homeless],
            lambda one: door.alone(inbox.orphan, policy, one),
        )
        return bool(homeless)

    async def _ring(self, alarms: Sequence[int]) -> bool:
        policy, door = self.kit.policy, self.kit.door
        shelves = await door.read(preparing.shelves, alarms) if alarms else {}
        await _each(alarms, lambda one: hand_over(self.kit, shelves[one]))  # a timer may be the end of a task
        if policy.limits.on_parent_end:  # a timeout may kill the children: many sessions
            rung = await _each(alarms, lambda one: door.alone(workers.ring, policy, one))
        else:  # a timeout gives up the call under way, and with it what it had reserved
            purses = await door.read(usage.purses_of, alarms) if alarms else {}
            keys = {one: (one, *usage.keys(policy, purses.get(one, ""))) for one in alarms}
            rung = await _each(alarms, lambda one: door.tx(keys[one], workers.ring, policy, one))
        overdue = [one for one, why in rung.items() if why is not None]
        await _each(overdue, lambda one: spawning.undo(self.kit, one, rung[one]))
        return bool(rung)

    async def _tell_rested(self) -> bool:
        rested = sorted(self._rested)
        if rested:
            await self.kit.door.tx((), workers.rested, rested)
            self._rested.difference_update(rested)
        return bool(rested)

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
        """Out of rest only a few: they are at work while the others are claimed, of which there may be thousands."""
        room = self._room() if self.turns else min(self._room(), self.kit.policy.work.claim_first)
        try:
            claimed = await self.kit.door.alone(workers.claim, self.id, room, lanes)
        except StoreLost:
            await self._persist(workers.disown, self.id, [claimed for claimed, _ in self.turns.values()])
            raise
        for one in claimed:
            interrupt = self._interrupts[one.session_id] = Interrupt()
            task = group.create_task(self._turn(one, interrupt))
            self.turns[one.session_id] = (one, task)
            self.kit.turns[one.session_id] = task
            task.add_done_callback(functools.partial(self._turn_ended, one))
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

    # ---- turns ---------------------------------------------------------------------------------------

    async def _turn(self, claimed: Claimed, interrupt: Interrupt) -> None:
        try:
            await take_turn(self.kit, claimed, interrupt)
        except Stale:
            log.info("lost the session", extra={"session": claimed.session_id})
            self._was_cut(claimed)
        except (StoreRefused, ConstraintViolated) as error:
            log.exception("a turn broke", extra={"session": claimed.session_id})
            await self._broke(claimed, str(error))
        except StoreError as error:
            log.warning("store not available", extra={"session": claimed.session_id, "error": str(error)})
            await asyncio.sleep(self.kit.policy.work.tick_s)  # whoever claims it next would meet the same
            await self._give_back(claimed)
        except Exception as error:
            log.exception("a turn broke", extra={"session": claimed.session_id})
            await self._broke(claimed, repr(error))

    async def _broke(self, claimed: Claimed, why: str) -> None:
        await self._let_go(claimed, turns.crash, f"internal error: {why}"[:500])

    def _turn_ended(self, claimed: Claimed, turn: asyncio.Task[None]) -> None:
        """Also of one that was cancelled before its first step."""
        if turn.cancelled():
            self._was_cut(claimed)
        if self.kit.turns.get(claimed.session_id) is turn:
            del self.kit.turns[claimed.session_id]
        held = self.turns.get(claimed.session_id)
        if held is not None and held[0] is claimed:
            del self.turns[claimed.session_id], self._interrupts[claimed.session_id]
        self._hinted.set()

    def _was_cut(self, claimed: Claimed) -> None:
        if self.has_leases:
            self._rested.add((claimed.session_id, claimed.fence))

    async def _give_back(self, claimed: Claimed) -> None:
        """What the store made of our last write is unknown; whoever claims next reads it from the transcript."""
        await self._let_go(claimed, turns.hand_over)

    async def _let_go(self, claimed: Claimed, fn: Callable[..., Any], *args: Any) -> None:
        """What cannot even be written down stays as it is until the next start: trying on would burn the machine."""
        try:
            await self._persist(fn, self.kit.policy, claimed.session_id, claimed.fence, *args)
        except Stale:
            pass  # somebody else has it already
        except (StoreRefused, ConstraintViolated):
            log.exception("a session cannot be let go", extra={"session": claimed.session_id})


def _is_its_own(error: Exception) -> bool:
    """About this one, and not about the store or our place in it."""
    return isinstance(error, StoreRefused | ConstraintViolated) or not isinstance(error, ClutchError)


async def _each(ids: Sequence[int], call: Callable[[int], Awaitable[Any]]) -> dict[int, Any]:
    """All at once, so that they share a commit. A defect in one must not stop the others: it is left out."""
    ended = await asyncio.gather(*map(call, ids), return_exceptions=True)
    done = {}
    for one, outcome in zip(ids, ended, strict=True):
        if isinstance(outcome, Exception) and _is_its_own(outcome):
            log.error("left out", exc_info=outcome, extra={"session": one})
            continue
        if isinstance(outcome, BaseException):
            raise outcome
        done[one] = outcome
    return done
