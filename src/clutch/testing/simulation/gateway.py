"""A simulated gateway: the real worker on a database that is slow, fails, and dies on either side of a commit.

Worker ── SimDatabase ── SimDisk (shared by all gateways)
             └── delays, store errors, crashes, freezes, hints lost, doubled, late
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clutch.engine.live import Bus
from clutch.engine.outbox import work
from clutch.engine.services import BlockIds, Services
from clutch.engine.worker import Worker
from clutch.errors import DiskFull, StoreBusy, StoreLost
from clutch.store.jobs import function_name
from clutch.store.postgres_clock import DatabaseClock
from clutch.store.transaction import DatabaseStats, Keys, Listener, P, T, TxFunction
from clutch.testing.clock import START
from clutch.testing.simulation.agents import SimPrices
from clutch.testing.simulation.channel import NAMES, SimChannel
from clutch.testing.simulation.disk import Made
from clutch.testing.simulation.faults import Dead, Fault
from clutch.testing.simulation.files import SimFiles
from clutch.testing.simulation.workspaces import SimWorkspaces

if TYPE_CHECKING:
    from clutch.testing.simulation.world import World

BATCH_MAX = 6
UNLOCKED_S = 3.0  # more than a heartbeat, so that a free lock alone would look like a death
LEASES = (0.2, 1.0)  # of the length that the settings name, by the number of the gateway
STEP_S = 0.1  # of a clock: more than a measurement that only became more precise
RESTARTS_S = (0.01, 0.5, 2.0, 8.0)
SHORT_FREEZES_S = (0.5, 2.0, 6.0)
LONG_FREEZES_S = (14.0, 18.0, 24.0)


class SimClock:
    """The wall clock of one process: virtual time, plus what it was set to."""

    def __init__(self, loop: asyncio.AbstractEventLoop, parent: SimClock | None = None) -> None:
        self._loop, self._parent = loop, parent
        self.offset = 0.0

    def now(self) -> float:
        if self._parent is not None:
            return self._parent.now() + self.offset
        return START + self._loop.time() + self.offset


class SimServerClock(DatabaseClock):
    """The server's clock as a gateway follows it; `wall` is the clock of the gateway's machine."""

    def __init__(self, world: World, machine: SimClock) -> None:
        self._world, self._machine = world, machine
        super().__init__()
        self.hear()

    def steady(self) -> float:
        return self._world.loop.time()

    def wall(self) -> float:
        return self._machine.now()

    def hear(self) -> None:
        """A new connection asks first."""
        self.measured(self._world.clock.now(), 0.0)

    def measured(self, server: float, waited_s: float) -> None:
        before = self.now()
        super().measured(server, waited_s)
        if abs(self.now() - before) > STEP_S:
            self._world.checker.history.note_clock()


class SimLives:
    """The process locks of the server. A gateway that loses its connection holds its lock again after a while."""

    def __init__(self, world: World, gateway: Gateway) -> None:
        self._world, self._gateway = world, gateway

    async def hold(self, number: int) -> None:
        self._world.locks[number] = (self._gateway, self._gateway.life)

    async def dead(self, numbers: Sequence[int]) -> list[int]:
        return [number for number in numbers if self._is_free(number)]

    def _is_free(self, number: int) -> bool:
        if number not in self._world.locks:
            return True
        holder, life = self._world.locks[number]
        is_held = holder.is_up and holder.life == life and holder.worker.id == number
        return not is_held or holder.unlocked_until > self._world.loop.time()


def sim_uuid4(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


class SimIds(BlockIds):
    """Numbers from the worker's block, secrets from the seed."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def uuid4(self) -> str:
        return sim_uuid4(self._world.rng)

    def nonce(self) -> str:
        return f"{self._world.rng.getrandbits(128):032x}"


@dataclass(slots=True, eq=False)
class _Waiting:
    made: Made
    future: asyncio.Future[Any]


class SimDatabase:
    """One per life of a gateway: all that a caller may meet at a real database, and death."""

    def __init__(self, world: World, gateway: Gateway) -> None:
        self.stats = DatabaseStats()
        self._world, self._gateway = world, gateway
        self.is_dead = False
        self._queue: list[_Waiting] = []
        self._is_pumping = False

    async def tx(self, keys: Keys, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        named = (keys,) if isinstance(keys, int) else tuple(dict.fromkeys(keys))
        value: T = await self._write(named, fn, args, kwargs)
        return value

    async def alone(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        value: T = await self._write(None, fn, args, kwargs)
        return value

    async def urgent(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.tx((), fn, *args, **kwargs)

    is_hearing = True  # though hints are lost

    async def read(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        assert not kwargs
        await self._pass()
        try:
            value: T = self._world.disk.look(fn, args, self._gateway.clock)
        except Exception as error:
            self._world.broke(error, function_name(fn))
            raise
        return value

    def listen(self, callback: Listener) -> None:
        self._gateway.listeners.append(callback)

    async def close(self) -> None:
        self.die()

    def die(self) -> None:
        self.is_dead = True
        for one in self._queue:
            if not one.future.done():
                one.future.set_exception(Dead())

    async def _write(
        self,
        keys: tuple[int, ...] | None,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        named: Mapping[str, Any],
    ) -> Any:
        await self._pass()
        made = Made(self._gateway.name, keys, fn, args, self._gateway.worker.id, named)
        if made.name == "late_in_turn":
            self._world.observer.reported_late(made.session_id, made.args[1])
        self._fail_before(made)
        value = await self._commit(made)
        if made.name == "heartbeat":  # SQLite stands for a server here, and has no clock
            value = value._replace(clock=self._world.clock.now())
        self._fail_after(made)
        await self._pass()
        return value

    async def _pass(self) -> None:
        """A little time, and all of it while the process is frozen."""
        rng, loop = self._world.rng, self._world.loop
        if rng.random() < 0.2:
            await asyncio.sleep(rng.random() * 0.02)
        while self._gateway.frozen_until > loop.time():  # noqa: ASYNC110 - it may be frozen again meanwhile
            await asyncio.sleep(self._gateway.frozen_until - loop.time())
        if self.is_dead:
            raise Dead

    async def takes(self, seconds: float) -> None:
        """Whatever else this process does, no sooner than it is awake again."""
        await asyncio.sleep(seconds)
        await self._pass()

    def _fail_before(self, made: Made) -> None:
        dice, about = self._world.dice, (self._gateway.name, made.name)
        if not dice.is_hot:
            return
        if dice.strikes(Fault.CRASH_BEFORE_COMMIT, about):
            self._gateway.crash()
            raise Dead
        if dice.strikes(Fault.STORE_BUSY, about):
            raise StoreBusy
        if dice.strikes(Fault.DISK_FULL, about):
            raise DiskFull
        if dice.strikes(Fault.STORE_LOST, about):
            self._gateway.lose_connection()
            raise StoreLost

    def _fail_after(self, made: Made) -> None:
        dice, about = self._world.dice, (self._gateway.name, made.name)
        if self.is_dead:
            raise Dead
        if not dice.is_hot:
            return
        if dice.strikes(Fault.CRASH_AFTER_COMMIT, about):
            self._gateway.crash()
            raise Dead
        if dice.strikes(Fault.FREEZE_PAST_LEASE, about):
            self._gateway.freeze(self._world.rng.choice(LONG_FREEZES_S))
        elif dice.strikes(Fault.FREEZE_SHORT, about):
            self._gateway.freeze(self._world.rng.choice(SHORT_FREEZES_S))
        if dice.strikes(Fault.STORE_LOST_COMMITTED, about):
            self._gateway.lose_connection()
            raise StoreLost

    # ---- committing ----------------------------------------------------------------------------------

    async def _commit(self, made: Made) -> Any:
        if self._world.is_lockstep and made.keys is not None:
            waiting = _Waiting(made, self._world.loop.create_future())
            self._queue.append(waiting)
            self._pump_soon()
            return await waiting.future
        outcome = self._world.disk.commit(made, self._gateway.clock)
        if outcome.error is not None:
            self._world.broke(outcome.error, made.name)
            raise outcome.error
        self._world.spread(outcome.hints, self._gateway)
        return outcome.value

    def _pump_soon(self) -> None:
        if not self._is_pumping and self._queue:
            self._is_pumping = True
            self._world.loop.call_later(self._world.rng.random() * 0.01, self._pump)

    def _pump(self) -> None:
        """The next batch: in order, and no two that share a key."""
        self._is_pumping = False
        if self.is_dead:
            return
        batch = self._take()
        outcomes = self._world.disk.commit_batch([one.made for one in batch], self._gateway.clock)
        hints: dict[Any, None] = {}
        for one, outcome in zip(batch, outcomes, strict=True):
            hints.update(dict.fromkeys(outcome.hints))
            if outcome.error is not None:
                self._world.broke(outcome.error, one.made.name)
            if one.future.done():
                continue
            if outcome.error is None:
                one.future.set_result(outcome.value)
            else:
                one.future.set_exception(outcome.error)
        self._world.spread(list(hints), self._gateway)
        self._pump_soon()

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        passed: list[_Waiting] = []
        held: set[int] = set()
        for one in self._queue:
            if one.future.cancelled():
                continue
            keys = one.made.keys or ()
            fits = len(batch) < BATCH_MAX and held.isdisjoint(keys)
            (batch if fits else passed).append(one)
            held.update(keys)
        self._queue = passed
        return batch


class Gateway:
    """One place where a worker runs; after a crash a new worker, with a new database."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.name = f"g{number}"
        #: with leases of different lengths
        lease_s = world.policy.work.lease_s * LEASES[number % len(LEASES)]
        self.policy = replace(world.policy, work=replace(world.policy.work, lease_s=lease_s))
        self.machine = SimClock(world.loop, world.clock)  #: the clock of its machine, which may be wrong
        self.frozen_until = 0.0
        self.unlocked_until = 0.0  #: its process lock is free until then, though it lives
        self.listeners: list[Listener] = []
        self.life = 0
        self._coming: dict[Any, None] = {}
        self.is_up = False

    def start(self) -> None:
        if self.is_up:
            return
        world = self.world
        self.is_up, self.life, self.frozen_until = True, self.life + 1, 0.0
        self.db, self.clock = SimDatabase(world, self), SimServerClock(world, self.machine)
        services = Services(
            self.db,
            world.models(self),
            world.toolbox(self),
            self.policy,
            SimIds(world),
            Bus(),
            prices=SimPrices(),
            workspaces=SimWorkspaces(world, self.db),
            files=SimFiles(world, self.db),
            channels=dict.fromkeys(NAMES, SimChannel(self, self.db)),
            lives=SimLives(world, self),
        )
        self.worker = Worker(services, self.clock, has_leases=True)
        world.tell(f"{self.name} starts")
        self.main = world.loop.create_task(self._live(self.worker, self.life))

    async def _live(self, worker: Worker, life: int) -> None:
        """A worker that ends by an exception of its own is a bug; the process is started again."""
        try:
            await work(worker, worker.services.channels)
        except Dead:
            pass
        except BaseExceptionGroup as group:
            self._report(group.split((Dead, asyncio.CancelledError))[1])
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            self._report(error)
        if self.life == life:
            self.crash()

    def _report(self, error: BaseException | None) -> None:
        if error is not None:
            self.world.failed(error, self.name)

    def crash(self, restart: bool = True) -> None:
        """kill -9, now. Cancelling stands for it: through a dead database nothing can be written any more."""
        if not self.is_up:
            return
        self.is_up, self.listeners = False, []
        self.db.die()
        self.main.cancel()
        self.world.tell(f"{self.name} is dead")
        if restart and not self.world.is_over:
            self.world.loop.call_later(self.world.rng.choice(RESTARTS_S), self._restart)

    def _restart(self) -> None:
        if not self.world.is_over:
            self.start()

    async def stop(self) -> None:
        """SIGTERM, then a new start."""
        life, began, hurt = self.life, self.world.loop.time(), self.world.dice.counted.total()
        await self.worker.stop()
        if self.life == life:
            took_s = self.world.loop.time() - max(began, self.frozen_until)
            self.world.observer.stopped(self, took_s, hurt != self.world.dice.counted.total())
            await asyncio.wait([self.main])

    def lose_connection(self) -> None:
        """All connections of the process: its lock is free until it has connected again."""
        self.unlocked_until = self.world.loop.time() + UNLOCKED_S
        self.clock.hear()

    def freeze(self, seconds: float) -> None:
        self.frozen_until = self.world.loop.time() + seconds

    def hear_soon(self, hints: Sequence[Any], delay_s: float) -> None:
        """With others that are on their way already."""
        if not self._coming:
            self.world.loop.call_later(delay_s, self._hear_coming, self.life)
        self._coming.update(dict.fromkeys(hints))

    def _hear_coming(self, life: int) -> None:
        hints, self._coming = list(self._coming), {}
        self.hear(hints, life)

    def hear(self, hints: Sequence[Any], life: int) -> None:
        """A frozen process hears when it wakes; a dead one never."""
        if not self.is_up or life != self.life:
            return
        if self.frozen_until > self.world.loop.time():
            self.world.loop.call_at(self.frozen_until, self.hear, hints, life)
        else:
            for listener in self.listeners:
                listener(hints)
