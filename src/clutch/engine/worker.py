"""A worker: finds what is due, does it, waits until there is more.

One loop *peeks* (a read) and acts (a transaction) only on a find: letters, timers, dead workers, claims. Claimed
sessions become turns (`HeldTurns`). Hints wake the loop early; a lost one costs a tick.
A worker that was declared dead while alive drops everything it held and registers again under a new number.
There is no other recovery after a restart than this loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Concatenate

from clutch import __version__
from clutch.core import provider_limits, run
from clutch.core.delivery import is_put_back
from clutch.core.policy import Policy
from clutch.engine.external_run import stop_all
from clutch.engine.lease import Lease
from clutch.engine.open_run import Interrupt
from clutch.engine.schedules import run_due
from clutch.engine.services import Services, patiently, say_unavailable
from clutch.engine.spawn import undo
from clutch.engine.task_files import Sweeper, clean, hand_over, sweep
from clutch.engine.turn import take_turn
from clutch.errors import (
    ClutchError,
    ConstraintViolated,
    StoreError,
    StoreLost,
    StoreRefused,
    StoreUnreadable,
)
from clutch.logs import logger
from clutch.ports import Clock
from clutch.store.transaction import P, T, Tx, TxFunction
from clutch.transactions import claims, schedules, task_files, turn_end, usage, wake, workers
from clutch.transactions.claims import Claimed, Prospect, Trial
from clutch.transactions.sessions import Stale
from clutch.transactions.wake import Ringing

# --------------------------------------------------------------------------------------------------
# Transactions that a worker must get committed, however long the store needs to come back.

log = logger(__name__)


async def persist(services: Services, fn: TxFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await patiently(services, lambda: services.db.alone(fn, *args, **kwargs))


# --------------------------------------------------------------------------------------------------
# Runs that may be the cause of the crashes of their process: each is tried alone (`core.run.admission`).


class Trials:
    """What a worker remembers between two claims. It is lost with the process, which ends every trial anyway."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._tried: Claimed | None = None
        self._waits_since: float | None = None

    @property
    def crashes(self) -> int:
        return run.suspect_from(self._services.policy.life)

    def known(self, prospect: Prospect, now: float) -> Trial:
        """A suspect that is due begins to wait when no other one is tried."""
        trial = Trial(self.crashes, self._tried, self._waits_since)
        is_tried = trial.tried_since(prospect.suspects, self._services.worker_id) is not None
        is_due = any(suspect.is_due(now, prospect.due_lanes) for suspect in prospect.suspects)
        if is_tried or not is_due:
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = now
        return Trial(self.crashes, self._tried, self._waits_since)

    def claimed(self, claimed: Sequence[Claimed]) -> None:
        self._tried = next((one for one in claimed if one.tried_at is not None), self._tried)


# --------------------------------------------------------------------------------------------------
# What the loop does on a find: each function runs transactions that share commits, and returns whether it did anything.


async def deliver_mail(services: Services, hinted: Iterable[int], unseen: Sequence[int]) -> bool:
    """Compute anew when sessions with new letters are due."""
    waiting = sorted({*hinted, *unseen})
    policy, db = services.policy, services.db
    # A full list is not filtered: the letters left unseen would hide all others.
    if waiting and len(unseen) < claims.UNSEEN_MAX:
        waiting = await db.read(wake.worth_waking, waiting)
    homeless = await each(waiting, lambda one: db.tx(one, wake.wake, policy, one))
    await each(
        [one for one, is_homeless in homeless.items() if is_homeless],
        lambda one: db.alone(wake.orphan, policy, one),
    )
    return bool(homeless)


async def ring(services: Services, alarms: Sequence[int]) -> bool:
    """Run the timers of these tasks, which are due."""
    policy, db = services.policy, services.db
    versions = await db.read(task_files.file_versions, alarms) if alarms else {}
    # A timer may end its task, so the files that the task hands over are listed first.
    await each(alarms, lambda one: hand_over(services, versions[one]))
    if policy.limits.on_parent_end:
        # A timeout may kill the children, so it writes sessions that no key names.
        rung = await each(alarms, lambda one: db.alone(workers.ring, policy, one))
    else:
        # A timeout drops the model call under way, and returns its reservation to the budgets.
        budgets = await db.read(usage.budgets_of, alarms) if alarms else {}
        keys = {one: (one, *usage.keys(policy, budgets.get(one, ""))) for one in alarms}
        rung = await each(alarms, lambda one: db.tx(keys[one], workers.ring, policy, one))
    overdue = {one: why for one, why in rung.items() if why is not None}
    await each(list(overdue), lambda one: undo(services, one, overdue[one]))
    return bool(rung)


async def each(ids: Sequence[int], call: Callable[[int], Awaitable[T]]) -> dict[int, T]:
    """Call for all ids at once, so that they share a commit. One that fails by a defect is left out of the result.

    Every outcome is awaited, so that a cancellation wins over an error of the store that arrives with it. A plain
    `gather` raises the error and loses the cancellation: the worker would start turns in a group that is ending.
    """
    ended = await asyncio.gather(*map(call, ids), return_exceptions=True)
    done = {}
    for one, outcome in zip(ids, ended, strict=True):
        if isinstance(outcome, Exception) and _is_its_own(outcome):
            log.error("Session %d skipped in this pass: %s", one, outcome, exc_info=outcome)
            continue
        if isinstance(outcome, BaseException):
            raise outcome
        done[one] = outcome
    return done


def _is_its_own(error: Exception) -> bool:
    """Whether the error is about this id, and not about the store or this worker's place in it."""
    return isinstance(error, StoreRefused | ConstraintViolated) or not isinstance(error, ClutchError)


# --------------------------------------------------------------------------------------------------
# Heartbeats: the checklist is read from the workspace outside of the transaction, the rest is `transactions.wake`.


async def ring_all(services: Services) -> bool:
    """Run all heartbeats that are due. True: there was one."""
    due = await services.db.read(wake.ringing)
    ringing = {one.session_id: one for one in due}
    await each(list(ringing), lambda session_id: _ring(services, ringing[session_id]))
    return bool(due)


async def _ring(services: Services, one: Ringing) -> None:
    checklist = ""
    if services.checklists is not None and one.workspace:
        checklist = await services.checklists.section(one.workspace)
    await services.db.tx(one.session_id, wake.ring, services.policy, one.session_id, checklist)


async def _run_schedules(services: Services) -> bool:
    """Decide the slots that are due. False: none could be decided, and another look at once would not help."""
    waiting = {one.id: one for one in await services.db.read(schedules.due)}
    return bool(await each(list(waiting), lambda one: run_due(services, waiting[one])))


# --------------------------------------------------------------------------------------------------
# The turns a worker holds: started with a claim, cut when the session got another owner, given back when it stops.
#
# This part knows what becomes of a session whose turn failed; not what a turn does.


BATCH = 200  # turns that begin take the event loop for some ten milliseconds


class HeldTurns:
    """`on_end`: called when a place is free. `has_leases`: other processes may wait for the end of a turn here."""

    def __init__(self, services: Services, on_end: Callable[[], None], *, has_leases: bool) -> None:
        self.services, self._on_end, self._has_leases = services, on_end, has_leases
        self.turns: dict[int, tuple[Claimed, asyncio.Task[None]]] = {}
        self._interrupts: dict[int, Interrupt] = {}
        self._rested: set[tuple[int, int]] = set()  #: turns that were cut, by session and fence

    async def start(self, group: asyncio.TaskGroup, claimed: Sequence[Claimed]) -> None:
        """Start a few hundred at a time: thousands would hold up the turns that are at work already."""
        for first in range(0, len(claimed), BATCH):
            if first:
                await asyncio.sleep(0)
            for one in claimed[first : first + BATCH]:
                self._start(group, one)

    def _start(self, group: asyncio.TaskGroup, claimed: Claimed) -> None:
        # The hint that ends an older turn may be lost or come late, and after this it would find the new one only.
        self.cut(claimed.session_id, claimed.fence, is_superseded=True)
        interrupt = self._interrupts[claimed.session_id] = Interrupt()
        task = group.create_task(self._turn(claimed, interrupt))
        self.turns[claimed.session_id] = (claimed, task)
        self.services.turns[claimed.session_id] = task
        task.add_done_callback(partial(self._ended, claimed))

    def cut(self, session_id: int, fence: int, *, is_superseded: bool = False) -> None:
        """End the turn of a session that got a new owner or was stopped, if it is older than this fence."""
        held = self.turns.get(session_id)
        if held is None or held[0].fence >= fence:
            return
        if is_superseded:
            self._interrupts[session_id].pull(held[1], self.services.policy.work.tool_grace_s)
        else:
            held[1].cancel()

    async def give_all_back(self) -> None:
        """Cut the turns that wait for a model or a repeatable tool; the others end at their next boundary, or are cut
        after a while. Release all sessions."""
        # Those of now: a drained node may be in service again, with new turns, before the wait is over.
        held = list(self.turns.values())
        for session_id, (_, turn) in self.turns.items():
            self._interrupts[session_id].stop(turn)
        if held:
            await asyncio.wait([turn for _, turn in held], timeout=self.services.policy.work.stop_s)
        left = [one for one in held if self.turns.get(one[0].session_id) == one]
        for _, turn in left:
            turn.cancel()  # all at once: each may take a while to store its files
        for claimed, turn in left:
            await asyncio.wait([turn])
            await self.give_back(claimed)

    async def tell_rested(self) -> bool:
        """Report the turns that were cut and have ended: a kill in another process waits for that."""
        rested = sorted(self._rested)
        if rested:
            await self.services.db.tx((), workers.rested, rested)
            self._rested.difference_update(rested)
        return bool(rested)

    async def _turn(self, claimed: Claimed, interrupt: Interrupt) -> None:
        try:
            await take_turn(self.services, claimed, interrupt)
        except asyncio.CancelledError:
            if interrupt.is_stopping:
                # Before the other turns have ended: another worker may resume it at once.
                await self._try_give_back(claimed)
            raise
        except Stale:
            log.info("Turn of session %d ended: another worker owns it now", claimed.session_id)
            self._was_cut(claimed)
        except (StoreRefused, ConstraintViolated) as error:
            log.exception("Turn of session %d failed", claimed.session_id)
            await self._broke(claimed, str(error))
        except StoreError as error:
            log.warning(
                "Turn of session %d interrupted: %s (resumed by the next claim)", claimed.session_id, error
            )
            # The next owner would meet the same error at once.
            await asyncio.sleep(self.services.policy.work.tick_s)
            await self.give_back(claimed)
        except Exception as error:
            log.exception("Turn of session %d failed", claimed.session_id)
            await self._broke(claimed, repr(error))

    def _ended(self, claimed: Claimed, turn: asyncio.Task[None]) -> None:
        """Called also for a turn that was cancelled before its first step."""
        if turn.cancelled():
            self._was_cut(claimed)
        if self.services.turns.get(claimed.session_id) is turn:
            del self.services.turns[claimed.session_id]
        held = self.turns.get(claimed.session_id)
        if held is not None and held[0] is claimed:
            del self.turns[claimed.session_id], self._interrupts[claimed.session_id]
        self._on_end()

    def _was_cut(self, claimed: Claimed) -> None:
        if self._has_leases:
            self._rested.add((claimed.session_id, claimed.fence))

    async def _broke(self, claimed: Claimed, why: str) -> None:
        await self._let_go(claimed, turn_end.crash, f"internal error: {why}"[:500])

    async def give_back(self, claimed: Claimed) -> None:
        """Release the session. Whether its last write was committed, the next owner reads from the transcript."""
        await self._let_go(claimed, turn_end.hand_over)

    async def _try_give_back(self, claimed: Claimed) -> None:
        """Release the session of a turn that is being cancelled: an error in its place would cut the other turns."""
        try:
            await self.give_back(claimed)
        except StoreError as error:
            log.warning(
                "Session %d not released: %s (next try: when this worker leaves)", claimed.session_id, error
            )

    async def _let_go(
        self,
        claimed: Claimed,
        fn: Callable[Concatenate[float, Policy, int, int, P], Tx[None]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Run `fn` on a session whose turn is over. If the store refuses it, the session stays as it is until the next
        start: endless retries would only use up the machine."""
        policy, db = self.services.policy, self.services.db
        session_id, fence = claimed.session_id, claimed.fence
        try:
            await patiently(self.services, lambda: db.alone(fn, policy, session_id, fence, *args, **kwargs))
        except Stale:
            pass  # another worker owns it already
        except (StoreRefused, ConstraintViolated):
            log.exception("Session %d not released (next try: the next start)", claimed.session_id)


RESTED_MAX = 10_000  # a kill waits for one of these for seconds only


class Worker:
    """`has_leases`: several processes share the database, so each must prove that it is alive."""

    def __init__(self, services: Services, clock: Clock, *, has_leases: bool) -> None:
        self.services, self.clock, self.has_leases = services, clock, has_leases
        self.id = 0
        services.now = clock.now
        self.ready = asyncio.Event()  #: registered, and what a dead predecessor held is released
        self.sweeper = Sweeper(services, clock.now)
        #: end what works under this worker's number beside the loop
        self.before_leaving: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()
        self._hinted = asyncio.Event()
        self.lease = Lease(services, clock, self._hinted.set, has_leases=has_leases)
        self._held = HeldTurns(services, self._hinted.set, has_leases=has_leases)
        self.turns = self._held.turns
        self._trials = Trials(services)
        self._stopped = asyncio.Event()
        self._is_prepared = services.prepare is None  #: only claims wait for it
        self._sleeps_until = float("inf")  #: while it is awake, every moment is earlier
        self._mail: set[int] = set()
        self._to_clean: set[int] = set()
        self._cleaning: dict[int, asyncio.Task[None]] = {}
        self._sweeping: asyncio.Task[None] | None = None
        self._handing_over: asyncio.Task[None] | None = None
        self._sweeps_at = 0.0
        services.db.listen(self.hear)

    def hear(self, hints: Sequence[Any]) -> None:
        """Take hints of a commit of any process. Hints may be lost, late or doubled: they are only reasons to look."""
        for hint in hints:
            match hint:
                case ("mail", session_id):
                    self._mail.add(session_id)
                    self._hinted.set()
                case ("due", moment):
                    if moment < self._sleeps_until:
                        self._hinted.set()
                case ("stop", session_id, fence):
                    self._held.cut(session_id, fence)
                case ("supersede", session_id, fence):
                    self._held.cut(session_id, fence, is_superseded=True)
                case ("pause", session_id):
                    if session_id in self.services.external_runs:
                        self.services.external_runs[session_id].pause()
                case ("rested", session_id, fence):
                    self._remember(session_id, fence)
                case (provider_limits.CHANGED, *_):
                    pass  # of the limiter only
                case ("clean", task_id):
                    self._to_clean.add(task_id)
                    self._hinted.set()
                case _:
                    self._hinted.set()

    def _remember(self, session_id: int, fence: int) -> None:
        if len(self.services.rested) >= RESTED_MAX:
            self.services.rested.clear()
        self.services.rested.add((session_id, fence))

    # ---- life ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until `stop`."""
        try:
            await self._lives()
        except* StoreError:
            if not self.services.stopping.is_set():
                raise
        finally:
            await stop_all(self.services.external_runs)
            self._stopped.set()

    async def _lives(self) -> None:
        """Each pass of the loop is one registration under one number."""
        while not self.services.stopping.is_set():
            await self._register()
            try:
                async with asyncio.TaskGroup() as group:
                    heart = group.create_task(self.lease.keep())
                    loading = group.create_task(self._prepare())
                    await self._dispatch(group)
                    await self._drain(group)
                    heart.cancel()
                    loading.cancel()
            except* Stale:
                log.warning("Worker %d lost its lease and registers again", self.id)

    async def _register(self) -> None:
        self.id = self.services.worker_id = await persist(self.services, workers.next_number)
        self.services.ids.take_block(self.id)
        if self.services.lives is not None:
            await patiently(self.services, partial(self.services.lives.hold, self.id))
        self.lease.begin()
        host, pid, lanes = platform.node(), os.getpid(), self.services.policy.work.lanes
        who, is_drained = (self.id, self.lease.length_s, host, pid), self.services.is_draining
        files = self.services.session_files
        await persist(
            self.services,
            workers.register,
            *who,
            version=__version__,
            lanes=lanes,
            is_draining=is_drained,
            place=None if files is None else files.place,
        )
        if not self.has_leases:
            await persist(self.services, workers.bury_all_but, self.id)
        await patiently(self.services, partial(sweep, self.services))
        if self.services.policy.agents:
            await persist(self.services, wake.arm, self.services.policy)
        self.ready.set()

    async def _prepare(self) -> None:
        await self.services.prepared(self.services.policy.defaults.model)
        self._is_prepared = True
        self._hinted.set()

    async def stop(self) -> None:
        """Claim no more; return when all turns have ended or were handed over. Nothing is marked failed."""
        self.services.stopping.set()
        self._hinted.set()
        await self._stopped.wait()

    async def _drain(self, group: asyncio.TaskGroup) -> None:
        """Turns end at their next boundary or are cut after a while; the tasks beside them end with them."""
        beside_us = [group.create_task(end()) for end in self.before_leaving]
        await self._held.give_all_back()
        started = [one for one in (self._sweeping, self._handing_over) if one is not None]
        for beside in (*self._cleaning.values(), *started):
            beside.cancel()  # the next worker does it again
        await asyncio.gather(*beside_us)
        # A kill elsewhere waits for what has ended here meanwhile.
        await patiently(self.services, self._held.tell_rested)
        await persist(self.services, workers.leave, self.id)

    # ---- the loop ------------------------------------------------------------------------------------

    async def _dispatch(self, group: asyncio.TaskGroup) -> None:
        while not self.services.stopping.is_set():
            self._hinted.clear()
            self._sleeps_until = float("inf")
            looked_at = self.clock.now()
            self.services.pulses.beat("heartbeat", looked_at, self.services.policy.work.lease_s)
            try:
                prospect = await self.services.db.read(claims.peek, self._trials.crashes)
                acted = await self._act(prospect, group)
            except (StoreUnreadable, StoreRefused):
                raise
            except StoreError as error:
                say_unavailable(self.services, error)
                await asyncio.sleep(self.services.policy.work.tick_s)
                continue
            if not acted:
                await self._rest(prospect, looked_at)

    async def _act(self, prospect: Prospect, group: asyncio.TaskGroup) -> bool:
        """True: something was done, so look again before sleeping."""
        now = self.clock.now()
        # This comes first: the clock of a run whose owner is dead stands.
        acted = await self.lease.bury()
        await self.services.thaw()
        hinted, self._mail = self._mail, set()
        acted |= await deliver_mail(self.services, hinted, prospect.unseen)
        acted |= await ring(self.services, prospect.alarms)
        acted |= await self._held.tell_rested()
        acted |= self._clean(group)
        self._sweep(group, now)
        if prospect.beat_at is not None and prospect.beat_at <= now:
            acted |= await ring_all(self.services)
        if prospect.slot_at is not None and prospect.slot_at <= now and self.services.starts_slots:
            acted |= await _run_schedules(self.services)
        if self.services.is_draining:
            self._hand_over(group)
        elif prospect.due_lanes and self._is_prepared and self._room() > 0:
            acted |= await self._claim(group, prospect)
        return acted

    def _hand_over(self, group: asyncio.TaskGroup) -> None:
        """Give the turns of a drained node to the others, as at a stop; the process stays."""
        if self.turns and (self._handing_over is None or self._handing_over.done()):
            self._handing_over = group.create_task(self._held.give_all_back())

    def _clean(self, group: asyncio.TaskGroup) -> bool:
        """Clean up beside the loop: a large directory takes long. The task's timer repeats a lost hint."""
        waiting, self._to_clean = sorted(self._to_clean), set()
        for task_id in waiting:
            if task_id not in self._cleaning:
                task = self._cleaning[task_id] = group.create_task(clean(self.services, task_id))
                task.add_done_callback(partial(self._cleaned, task_id))
        return bool(waiting)

    def _cleaned(self, task_id: int, _: asyncio.Task[None]) -> None:
        """Called also for one that was cancelled before its first step."""
        del self._cleaning[task_id]

    def _sweep(self, group: asyncio.TaskGroup, now: float) -> None:
        """Start a sweep when it is due and the last one has ended."""
        is_due = now >= self._sweeps_at or is_put_back(
            self._sweeps_at, now, self.services.policy.keeping.sweep_s
        )
        if is_due and (self._sweeping is None or self._sweeping.done()):
            self._sweeps_at = now + self.services.policy.keeping.sweep_s
            self._sweeping = group.create_task(self.sweeper.sweep())

    def _room(self) -> int:
        return self.services.policy.work.sessions_max - len(self.turns)

    async def _claim(self, group: asyncio.TaskGroup, prospect: Prospect) -> bool:
        """Claim only a few sessions after a rest: they are at work while the others, maybe thousands, are claimed."""
        room = self._room() if self.turns else min(self._room(), self.services.policy.work.claim_first)
        trial = self._trials.known(prospect, self.clock.now())
        try:
            claimed = await self.services.db.alone(
                claims.claim,
                self.id,
                room,
                prospect.due_lanes,
                trial,
                weights=self.services.policy.work.shares,
            )
        except StoreLost:
            await persist(
                self.services, workers.disown, self.id, [claimed for claimed, _ in self.turns.values()]
            )
            raise
        self._trials.claimed(claimed)
        await self._held.start(group, claimed)
        return bool(claimed)

    async def _rest(self, prospect: Prospect, looked_at: float) -> None:
        """Wait until the next moment that is known. A moment that is past by now makes it look again at once."""
        now = self.clock.now()
        known = (prospect.due_at, prospect.alarm_at, prospect.beat_at, prospect.slot_at)
        ahead = [
            moment - now for moment in (*known, self._sweeps_at) if moment is not None and moment > looked_at
        ]
        is_waiting = self.turns or prospect.due_lanes or prospect.is_lane_full or prospect.suspects
        tick_s = self.services.policy.work.tick_s if is_waiting else self.services.look_s
        self._sleeps_until = now + min([tick_s, *ahead])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.001, self._sleeps_until - now)):
                await self._hinted.wait()
