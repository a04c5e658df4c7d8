"""Worlds of schedules: several gateways that die, freeze and are skewed, a user who pauses, and days on which the clock
changes. Every slot is counted by a reader of its own, which shares no line with the rule.

Kept apart from the other kinds of worlds: their seeds and logs stay what they were."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from clutch.core.messages import Answer, Usage
from clutch.core.schedule import LATE_S, Missed, Overlap, ScheduleSpec, SkipReason
from clutch.ports import ModelRequest, OnDelta
from clutch.testing.clock import START
from clutch.testing.simulation.disk import Made
from clutch.testing.simulation.gateway import Gateway
from clutch.testing.simulation.report import Report
from clutch.testing.simulation.settings import Setting
from clutch.testing.simulation.world import World, finish, simulate
from clutch.tools.registry import Tools
from clutch.transactions import schedules
from clutch.transactions.schedules import ScheduleStepped, StoredSchedule

NAME: Final = "schedules"
PROMISE: Final = "T20"  #: every slot of a schedule runs exactly once, or is skipped with a reason
SETTING: Final = Setting(NAME, "tasks that start by the clock", mains=1, nemesis_s=15.0, storm_s=240.0)
#: Moments at which a clock changes: forward, back, and by half an hour.
CHANGES: Final = (
    ("Europe/Berlin", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
)
WORKS_S: Final = (0.1, 2.0, 20.0, 90.0)
BUDGET: Final = 10**9  # tokens; no run asks for more of it
ENDS_S: Final = 30.0  # of calm: a slot that is due has been decided by then


class SlotModel:
    """A run takes a while, and ends."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        del request, on_delta
        await asyncio.sleep(self._world.rng.choice(WORKS_S))
        return Answer("done", (), Usage(10, 5), "scripted")


@dataclass(slots=True)
class Watched:
    """What an observer saw of one schedule. `moves`: (from, to] of each step, in commits."""

    spec: ScheduleSpec
    begins: int
    started: list[int] = field(default_factory=list)
    skipped: list[tuple[int, int, int]] = field(default_factory=list)
    queued: tuple[int, ...] = ()
    cursor: int = 0
    pause_ends: int = 0
    is_paused: bool = False


def expected(spec: ScheduleSpec, begins: int, ends: int) -> list[int]:
    """The slots in (begins, ends], found by looking at every minute, and at every date of a fixed time."""
    if spec.every_s is not None:
        return [at for at in range(begins + 1, ends + 1) if at % int(spec.every_s) == 0]
    minute, hour = (spec.cron or "").split()[:2]
    zone = ZoneInfo(spec.timezone)
    found = (
        _each_minute(minute, zone, begins, ends) if hour == "*" else _fixed(minute, hour, zone, begins, ends)
    )
    return sorted({at for at in found if begins < at <= ends})


def _each_minute(minute: str, zone: ZoneInfo, begins: int, ends: int) -> Iterator[int]:
    every = int(minute.removeprefix("*/"))
    for at in range(begins // 60 * 60, ends + 60, 60):
        if datetime.fromtimestamp(at, zone).minute % every == 0:
            yield at


def _fixed(minute: str, hour: str, zone: ZoneInfo, begins: int, ends: int) -> Iterator[int]:
    day = datetime.fromtimestamp(begins, zone).date() - timedelta(days=1)
    while day <= datetime.fromtimestamp(ends, zone).date():
        at = int(datetime(day.year, day.month, day.day, int(hour), int(minute), tzinfo=zone).timestamp())
        wall = datetime.fromtimestamp(at, zone)
        if (wall.hour, wall.minute) != (
            int(hour),
            int(minute),
        ):  # it is missing: the first minute after the gap
            while datetime.fromtimestamp(at - 60, zone).utcoffset() == wall.utcoffset():
                at -= 60
        yield at
        day += timedelta(days=1)


class ScheduleWorld(World):
    def __init__(self, seed: int, setting: Setting = SETTING, *, is_mutant: bool = False) -> None:
        super().__init__(seed, setting, is_mutant=is_mutant)
        self.zone, change = self.rng.choice(CHANGES)
        self.clock.offset = change.timestamp() - START - self.rng.uniform(0, 7200)
        self.watched: dict[str, Watched] = {}
        self.tools = Tools(self.policy.limits)

    def models(self, gateway: Gateway) -> Any:
        del gateway
        return SlotModel(self)

    def toolbox(self, gateway: Gateway) -> Any:
        del gateway
        return self.tools

    # ---- the story -----------------------------------------------------------------------------------

    async def _storm(self) -> None:
        for number in range(self.rng.randint(2, 4)):
            await self._as_user(schedules.add, 1000 + number, self._any_schedule(number))
        nemesis = self.loop.create_task(self._nemesis(self.setting.nemesis_s))
        ends_at = self.loop.time() + self.setting.storm_s
        try:
            while self.loop.time() < ends_at:
                await asyncio.sleep(self.rng.expovariate(1 / 12))
                await self._meddle()
        finally:
            await self._end(nemesis)
        for name, one in self.watched.items():
            if one.is_paused:
                await self._as_user(schedules.resume, name)

    async def _meddle(self) -> None:
        name = self.rng.choice(sorted(self.watched))
        match self.rng.randrange(5):
            case 0:
                await self._as_user(schedules.pause, name)
            case 1 | 2:
                await self._as_user(schedules.resume, name)
            case 3:  # all machines are suspended, or all gateways are down
                self.clock.offset += self.rng.choice((90.0, 700.0, 4000.0))
            case _:
                pass

    async def _as_user(self, fn: Any, *args: Any) -> None:
        """As a surface does: through the database of a gateway that is up, again until it is committed."""
        made = Made("user", None, fn, args)
        outcome = self.disk.commit(made, self.clock)
        if outcome.error is not None:
            raise outcome.error
        self.spread(outcome.hints, self.gateways[0])

    def _any_schedule(self, number: int) -> ScheduleSpec:
        rng = self.rng
        missed = rng.choice(tuple(Missed))
        overlap = Overlap.QUEUE if missed is Missed.ALL else rng.choice(tuple(Overlap))
        when: dict[str, Any] = rng.choice(
            (
                {"every_s": float(rng.choice((7, 30, 60)))},
                {"cron": rng.choice(("*/1 * * * *", "*/5 * * * *", "*/20 * * * *"))},
                {"cron": f"{rng.choice((0, 15, 30, 59))} {rng.choice((0, 1, 2, 3))} * * *"},
            )
        )
        return ScheduleSpec(
            f"s{number}",
            task="work",
            timezone=self.zone,
            missed=missed,
            overlap=overlap,
            catch_up=rng.choice((1, 3, 10)),
            jitter_s=rng.choice((0.0, 0.0, 20.0)),
            max_runs=rng.choice((None, None, None, 4)),
            total_tokens=rng.choice((None, BUDGET)),
            **when,
        )

    async def _calm(self) -> None:
        self.tell("CALM")
        self.dice.cool()
        for gateway in self.gateways:
            gateway.frozen_until, gateway.machine.offset = 0.0, 0.0
            gateway.start()
        await asyncio.sleep(ENDS_S)
        for name, one in self.watched.items():
            self._check_end(name, one)

    # ---- the observer --------------------------------------------------------------------------------

    def _observe(self, made: Any) -> None:
        for one in made:
            self.tell(f"{one.actor} {one.name} {one.numbers}")
            match one.fn.__name__, one.value:
                case "add", StoredSchedule() as found:
                    self.watched[found.name] = Watched(
                        found.schedule, found.state.cursor, cursor=found.state.cursor
                    )
                case "pause", StoredSchedule() as found:
                    self.watched[found.name].is_paused = True
                case "resume", StoredSchedule() as found:
                    watched = self.watched[found.name]
                    if watched.is_paused:
                        watched.is_paused, watched.pause_ends = False, math.floor(one.now)
                case "run_due", ScheduleStepped() as done:
                    self._step(self.watched[done.name], done, one.now)
                case _:
                    pass

    def _step(self, watched: Watched, done: ScheduleStepped, now: float) -> None:
        self.observer.evaluations[PROMISE] += 1
        spec = watched.spec
        ((cursor, queue, task_id),) = self.disk.query(
            "SELECT cursor, queue, task_id FROM schedules WHERE name = ?", done.name
        )
        before, watched.cursor = watched.cursor, cursor
        held = (*watched.queued,)
        watched.queued = tuple(int(slot) for slot in queue.strip("[]").split(", ") if slot)
        watched.skipped += [(slots.first, slots.last, slots.count) for slots, _ in done.skipped]
        self._judge_reasons(done.name, watched, {reason for _, reason in done.skipped})
        ran = self.disk.query("SELECT first_slot FROM schedule_slots h WHERE h.task_id = ?", task_id or 0)
        new = [slot for (slot,) in ran if slot not in watched.started]
        if new and spec.total_tokens is not None:
            ((budgets,),) = self.disk.query("SELECT purses FROM sessions WHERE id = ?", task_id)
            if "schedule:" not in budgets:
                self.violated(PROMISE, f"{done.name}: a run does not draw on the budget of all runs")
        watched.started += new
        taken = [slot for slot in (*new, *watched.queued) if slot not in held]
        self._judge(done.name, watched, taken, (before, math.floor(now - spec.delay_s)))

    def _judge_reasons(self, name: str, watched: Watched, reasons: set[SkipReason]) -> None:
        spec = watched.spec
        is_meant = {
            SkipReason.OVERLAP: spec.overlap is Overlap.SKIP,
            SkipReason.QUEUE_FULL: spec.overlap is Overlap.QUEUE,
            SkipReason.PAUSED: watched.pause_ends > 0,
            SkipReason.MAX_RUNS: spec.max_runs is not None,
        }
        if wrong := sorted(reason for reason in reasons if not is_meant.get(reason, True)):
            self.violated(PROMISE, f"{name}: skipped with {wrong[0]}, which does not apply")
        if watched.queued and spec.overlap is not Overlap.QUEUE:
            self.violated(PROMISE, f"{name}: a slot waits although overlap is {spec.overlap}")

    def _judge(self, name: str, watched: Watched, taken: list[int], span: tuple[int, int]) -> None:
        """The rules of the contract, each for one step: `taken` are slots that are to run and were not before."""
        spec, (before, until) = watched.spec, span
        late = [slot for slot in taken if until - slot > LATE_S]
        newer = [
            slot for slot in taken if any(slot < other <= until for other in expected(spec, slot, until)[:1])
        ]
        missed = sorted({*late, *newer})
        most = {Missed.SKIP: 0, Missed.ONCE: 1, Missed.ALL: spec.catch_up}[spec.missed]
        if len(missed) > most:
            self.violated(PROMISE, f"{name}: {len(missed)} missed slots are to run, at most {most} may")
        if spec.missed is Missed.ONCE and newer:
            self.violated(PROMISE, f"{name}: {newer[0]} is to run although a later slot was due")
        if watched.is_paused:
            self.violated(PROMISE, f"{name}: decided while it was paused")
        if any(slot <= watched.pause_ends for slot in taken):
            self.violated(PROMISE, f"{name}: a slot of a pause is to run")
        if any(not before < slot <= until for slot in taken):
            self.violated(PROMISE, f"{name}: {taken} are not due between {before} and {until}")
        working = self.disk.query(
            "SELECT COUNT(*) FROM tasks WHERE idem LIKE ? AND outcome IS NULL", f"schedule:{name}:%"
        )
        if working[0][0] > 1:
            self.violated(PROMISE, f"{name}: {working[0][0]} runs work at once")
        if spec.max_runs is not None and len(watched.started) > spec.max_runs:
            self.violated(PROMISE, f"{name}: more than {spec.max_runs} runs")

    def _check_end(self, name: str, watched: Watched) -> None:
        """Every slot up to the cursor, once; and the cursor is at the last slot that was due."""
        spec = watched.spec
        self.observer.evaluations[PROMISE] += 1
        counted: dict[int, int] = dict.fromkeys(expected(spec, watched.begins, watched.cursor), 0)
        for slot in (*watched.started, *watched.queued):
            counted[slot] = counted.get(slot, 0) + 1
        for first, last, count in watched.skipped:
            within = [slot for slot in counted if first <= slot <= last]
            if len(within) != count:
                self.violated(PROMISE, f"{name}: {count} slots skipped where there are {len(within)}")
            for slot in within:
                counted[slot] += 1
        for slot, times in counted.items():
            if times != 1:
                self.violated(PROMISE, f"{name}: slot {slot} was decided {times} times")
        keys = self.disk.query("SELECT COUNT(*) FROM tasks WHERE idem LIKE ?", f"schedule:{name}:%")
        if keys[0][0] != len(watched.started):
            self.violated(PROMISE, f"{name}: {keys[0][0]} tasks for {len(watched.started)} slots")
        is_over = spec.max_runs is not None and len(watched.started) >= spec.max_runs
        until = math.floor(self.clock.now() - ENDS_S - spec.delay_s)
        if not is_over and (left := expected(spec, watched.cursor, until)):
            self.violated(PROMISE, f"{name}: {left[:3]} were due and are not decided")


def play(seed: int, world: str = NAME, *, is_mutant: bool = False) -> Report:
    """Play a world of any kind."""
    if world == NAME:
        return finish(ScheduleWorld(seed, is_mutant=is_mutant))
    return simulate(seed, world, is_mutant=is_mutant)
