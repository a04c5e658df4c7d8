"""One simulated world: the real engine of several gateways over one real SQLite, in virtual time, from a seed.

    storm     jobs, a user, faults; every commit is checked
    calm      everything is healed and the user does nothing: all tasks must come to an end, soon
    end       the tables and what the observer outside has seen must agree

The same seed and setting give the same log, byte for byte.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import sys
import traceback
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from clutch.core.attachments import FileVersion, Side
from clutch.core.model import reason_text
from clutch.errors import ClutchError, ConstraintViolated, StoreRefused
from clutch.testing.invariants.checker import InvariantChecker
from clutch.testing.simulation.agents import SimModel, SimToolbox
from clutch.testing.simulation.background import Background
from clutch.testing.simulation.disk import Made, SimDisk
from clutch.testing.simulation.faults import Dice, Fault
from clutch.testing.simulation.gateway import Gateway, SimClock
from clutch.testing.simulation.loop import Deadlock, VirtualLoop
from clutch.testing.simulation.observer import Observer
from clutch.testing.simulation.report import Report, Violation
from clutch.testing.simulation.script import Author
from clutch.testing.simulation.settings import SETTINGS, Setting, policy_of
from clutch.testing.simulation.user import SimUser
from clutch.testing.simulation.workspaces import Directory

LIVES_MAX_S = 900.0  # virtual, after healing: longer than every timer of a setting together
LOOKS_EVERY_S = 3.0
COMMITS_MAX = 6_000  # several times what a busy world needs: more is an endless loop
DEAF = 0.4  # of the hints of other processes: one that hears is enough, and the others need not look, too
HINTS_WITHIN_S = 0.06  # to another process; what comes within this time is sent together
REMOVES_MAX_S = (
    0.5  # for the files of a spawn that was undone just now; what a dead maker left waits for a sweep
)
JOINS_MAX_S = 30.0  # for a healthy gateway to be at work after healing

_UNFINISHED = """
SELECT 'task', id, phase, reason FROM tasks
  WHERE phase NOT IN ('completed', 'completed_giveup') OR (delivery = 'skipped' AND wake_at IS NOT NULL)
UNION ALL SELECT 'session', id, due, hold FROM sessions
  WHERE closed = 0 AND (owner IS NOT NULL OR due IS NOT NULL OR hold = 1 OR run_id IS NOT NULL)
UNION ALL SELECT 'letter', i.id, i.kind, i.state FROM inbox i JOIN sessions s ON s.id = i.session_id
  WHERE i.seen = 0 OR (s.closed = 0 AND i.state = 0 AND i.silent = 0)
UNION ALL SELECT 'parcel', id, due, owner FROM outbox
  WHERE due IS NOT NULL OR owner IS NOT NULL
LIMIT 5"""

#: What happened to tasks and to their results, in the words of the tables and without a name of the code.
_TIMELINE = """
SELECT at, task_id, seq, 'by ' || actor || ':', from_phase, '>', to_phase, 'generation ' || generation,
  reason, detail, COALESCE(' (' || outcome || ')', '') FROM events
UNION ALL SELECT at, task_id, id, 'delivery', 'attempt ' || attempt, 'generation ' || generation, COALESCE(path, '-'),
  outcome, COALESCE(NULLIF(detail, ''), reason), '', '' FROM deliveries
ORDER BY 1, 2, 3, 4"""


class World:
    def __init__(self, seed: int, setting: Setting, *, is_mutant: bool = False) -> None:
        self.seed, self.setting, self.is_mutant = seed, setting, is_mutant
        self.rng = random.Random(f"{setting.name}:{seed}")
        self.loop = VirtualLoop(self.rng.getrandbits(63))
        self.log: list[str] = []
        self.violations: list[Violation] = []
        self.raised: list[str] = []  #: unexpected exceptions of the product
        self.is_over = False
        self.is_lockstep = setting.is_lockstep
        self.clock = SimClock(self.loop)
        self.dice = Dice(self.rng, setting.severity, setting.provider, self.tell)
        self.policy = policy_of(setting, self.rng)
        self.author = Author(self.rng, setting.children, setting.asks, setting.thrift)
        self.directories: dict[int, Directory] = {}  #: of isolated children; they outlive every process
        self.files: dict[FileVersion, set[Side]] = {}  #: which sides each has, as long-lived
        self.disk = SimDisk(self.clock, self._observe)
        self.observer = Observer(self.disk, self.directories, self.files, self.tell, self.violated)
        self.checker = InvariantChecker(self.disk, self.policy, self.violated)
        self.locks: dict[
            int, tuple[Gateway, int]
        ] = {}  #: who holds the process lock of a number, in which life
        self.gateways = [Gateway(self, number) for number in range(1, setting.gateways + 1)]
        self.user = SimUser(self)
        self._ended = asyncio.Event()
        self._refused: set[str] = set()
        self._unknown_before: set[tuple[int, ...]] = set()

    # ---- what the others need ------------------------------------------------------------------------

    def tell(self, line: str) -> None:
        self.log.append(f"{self.loop.time():.6f} {line}")

    def models(self, gateway: Gateway) -> SimModel:
        return SimModel(gateway)

    def toolbox(self, gateway: Gateway) -> SimToolbox:
        return SimToolbox(gateway)

    def failed(self, error: BaseException, where: str) -> None:
        """Record an unexpected exception of the product."""
        self.raised.append(repr(error))
        if self.is_mutant:
            return
        lines = traceback.format_exception(error)
        self.violated("no-crash", f"{where}: {''.join(lines)[-1500:]}")

    def broke(self, error: Exception, where: str) -> None:
        """Record an exception that no caller can expect. The product may log it; here it is a violation."""
        if isinstance(error, ConstraintViolated | StoreRefused):
            self._refused.add(f"internal error: {error}"[:500])
            if not self.is_mutant:
                self.violated("constraint", f"{where}: {error}")
        elif not isinstance(error, ClutchError):
            self.failed(error, where)

    def _broken_turn(self, error: str) -> None:
        """What the tables refused is no exception of the product: they are a part of it."""
        if error not in self._refused:
            self.raised.append(error)
        if not self.is_mutant:
            self.violated("no-crash", error)

    def violated(self, invariant: str, detail: str) -> None:
        self.tell(f"VIOLATION {invariant} {detail}")
        self.violations.append(Violation(invariant, detail, self.loop.time()))
        self._ended.set()

    def spread(self, hints: Sequence[Any], origin: Gateway) -> None:
        """To everybody, but not surely, not once and not at once."""
        if not hints:
            return
        for gateway in self.gateways:
            if not gateway.is_up or (gateway is not origin and self.rng.random() < DEAF):
                continue
            if self.dice.strikes(Fault.HINT_LOST, gateway.name):
                continue
            if self.dice.strikes(Fault.HINT_LATE, gateway.name):
                self.loop.call_later(self.rng.choice((0.5, 3.0, 8.0)), gateway.hear, hints, gateway.life)
                continue
            if self.dice.is_hot and (cleaning := [hint for hint in hints if hint[0] == "clean"]):
                self._doubled(gateway, cleaning)
            gateway.hear_soon(hints, self.rng.random() * (0.005 if gateway is origin else HINTS_WITHIN_S))
            if self.dice.strikes(Fault.HINT_DOUBLED, gateway.name):
                self.loop.call_later(self.rng.random() * 5, gateway.hear, hints, gateway.life)

    def _doubled(self, gateway: Gateway, cleaning: Sequence[Any]) -> None:
        """Always: removing files is what a late hint must never do to a task that works again."""
        for _ in range(2):
            self.loop.call_later(self.rng.random() * 12, gateway.hear, cleaning, gateway.life)

    def _observe(self, made: Sequence[Made]) -> None:
        for one in made:
            self.tell(f"{one.actor} {one.name} {one.numbers}")
            if one.name in ("register", "heartbeat"):
                self.observer.beat(one.args[0], self.loop.time(), one.args[1])
            if one.name == "bury" and one.value:
                self.observer.buried(one.args[0], self.loop.time())
            if one.name == "crash":
                self._broken_turn(str(one.args[-1]))
        self.observer.evaluations["constraint"] += len(made)
        self.checker.check(made, self.clock.now())
        if self.disk.stats.commits == COMMITS_MAX:
            self.violated("N6", f"{COMMITS_MAX} commits, and no end")

    # ---- the story -----------------------------------------------------------------------------------

    async def play(self) -> None:
        for gateway in self.gateways:
            gateway.start()
        story = self.loop.create_task(self._story())
        over = self.loop.create_task(self._ended.wait())
        await asyncio.wait([story, over], return_when=asyncio.FIRST_COMPLETED)
        self.is_over = True
        over.cancel()
        await self._end(story)
        for gateway in self.gateways:
            gateway.crash(restart=False)
        if not story.cancelled() and (error := story.exception()) is not None:
            self.failed(error, "person")

    async def _end(self, *tasks: asyncio.Task[Any]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def _story(self) -> None:
        await self._storm()
        await self._calm()

    async def _storm(self) -> None:
        setting = self.setting
        doing: list[Coroutine[Any, Any, None]] = []
        if setting.severity:
            doing.append(self._nemesis(setting.nemesis_s))
        if setting.meddle_s:
            doing.append(self.user.meddle(setting.meddle_s))
            doing.append(self.user.help_out(4 * setting.meddle_s))
        if setting.rolls_s:
            doing.append(self._roll(setting.rolls_s))
        if setting.tidies_s:
            doing.append(self.user.tidy(setting.tidies_s))
        if setting.leaves_s:
            doing.append(self.user.wander(setting.leaves_s))
        if setting.company_s:
            doing.append(Background(self, self.user).socialise(setting.company_s))
        helpers = [self.loop.create_task(one) for one in doing]
        try:
            await self.user.arrive(setting.mains, setting.depth_max + setting.is_tight)
            for _ in range(int(setting.storm_s / LOOKS_EVERY_S)):
                await asyncio.sleep(LOOKS_EVERY_S)
                self._judge_abandoned()
                if not self.disk.query(_UNFINISHED) and self.rng.random() < 0.5:
                    break
        finally:
            if helpers:
                await self._end(*helpers)
        for helper in helpers:
            if not helper.cancelled() and (error := helper.exception()) is not None:
                self.failed(error, "person")

    async def _nemesis(self, pause_s: float) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / pause_s))
            await self._visit(self.dice.visit())

    async def _roll(self, pause_s: float) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / pause_s))
            await self._visit(Fault.ORDERLY_RESTART)

    async def _visit(self, fault: Fault) -> None:
        victim = self.rng.choice(self.gateways)
        match fault:
            case Fault.REQUESTER_GONE:
                return await self.user.go_away()
            case Fault.CRASH_ANYWHERE:
                victim.crash()
            case Fault.POWER_CUT:
                for gateway in self.gateways:
                    gateway.crash()
            case Fault.ORDERLY_RESTART if victim.is_up:
                self.dice.note(fault, victim.name)
                return await victim.stop()
            case Fault.CLOCK_FORWARD:
                self.clock.offset += self.rng.choice((2.0, 10.0, 40.0))
            case Fault.CLOCK_BACK:
                self.clock.offset -= self.rng.choice((2.0, 10.0, 40.0))
            case Fault.CLOCK_SKEW:
                victim.machine.offset = self.rng.choice((-600.0, -60.0, 60.0, 600.0))
            case _:
                return
        self.checker.history.note_clock()
        self.dice.note(fault, victim.name)

    async def _calm(self) -> None:
        """Heal everything; then all must come to an end."""
        self.tell("CALM")
        self.dice.cool()
        for gateway in self.gateways:
            gateway.frozen_until = 0.0
            gateway.machine.offset = 0.0
            gateway.start()
        self.checker.history.note_clock()
        ends_at = self.loop.time() + LIVES_MAX_S
        while left := await self._left():
            if self.loop.time() > ends_at:
                return self.violated("N6", f"after {LIVES_MAX_S} s there is still {left}")
            self._judge_calm(ends_at)
            await self.user.put_right()
            await asyncio.sleep(LOOKS_EVERY_S)
        self.checker.check_end()
        self.observer.check_end(self.checker.history.bases)

    async def _left(self) -> object:
        """What is unfinished, also after a while: a process that was frozen does late what it was asked."""
        if left := self.disk.query(_UNFINISHED) or await self.user.thinks_again():
            return left
        await asyncio.sleep(REMOVES_MAX_S + self.policy.keeping.sweep_s)
        return self.disk.query(_UNFINISHED)

    def _judge_calm(self, ends_at: float) -> None:
        if self.loop.time() < ends_at - LIVES_MAX_S + JOINS_MAX_S:
            return
        self.checker.check_calm(self.clock.now(), [gateway.worker.id for gateway in self.gateways])
        alive = {row[0] for row in self.disk.query("SELECT id FROM workers")}
        for gateway in self.gateways:
            if gateway.worker.id not in alive:
                self.violated("T8", f"{gateway.name} runs, but is no worker ({gateway.worker.id})")
        self._judge_abandoned()

    def _judge_abandoned(self) -> None:
        """A living owner that does not know what it owns is as bad as a dead one."""
        since = self.loop.time() - LOOKS_EVERY_S
        awake = [gateway for gateway in self.gateways if gateway.is_up and gateway.frozen_until < since]
        turns = {gateway.worker.id: gateway.worker.turns for gateway in awake}
        owned = self.disk.query("SELECT id, owner, fence FROM sessions WHERE owner IS NOT NULL")
        unknown = {row for row in owned if row[1] in turns and row[0] not in turns[row[1]]}
        for session_id, owner, _ in sorted(unknown & self._unknown_before):
            self.violated("T8", f"session {session_id} is owned by {owner}, who does not know")
        self._unknown_before = unknown

    def report(self) -> Report:
        edges = self.disk.query(
            "SELECT DISTINCT from_phase, to_phase FROM events WHERE from_phase <> to_phase"
        )
        ((tasks,),) = self.disk.query(
            "SELECT COUNT(*) FROM tasks WHERE phase IN ('completed', 'completed_giveup')"
        )
        return Report(
            seed=self.seed,
            world=self.setting.name,
            tasks=tasks,
            commits=self.disk.stats.commits,
            faults=Counter({fault.value: count for fault, count in self.dice.counted.items()}),
            verbs=self.user.counted,
            edges=frozenset((before, after) for before, after in edges),
            evaluations=self.checker.evaluations + self.observer.evaluations,
            asked=self.checker.asked,
            violations=tuple(self.violations),
            raised=tuple(self.raised),
            virtual_s=self.loop.time(),
            log=tuple(self.log),
            timeline=tuple(
                f"{at:.3f} {' '.join(map(str, line))} {reason_text(reason, detail)}{outcome}"
                for at, *line, reason, detail, outcome in self.disk.query(_TIMELINE)
            ),
            digest=hashlib.sha256("\n".join(self.log).encode()).hexdigest(),
        )


def simulate(seed: int, world: str = "storm", *, is_mutant: bool = False) -> Report:
    """Play one world to its end, or to its first violation.

    `is_mutant`: a bug is planted. What the patched code raises is then no find: processes are just restarted."""
    return finish(World(seed, SETTINGS[world], is_mutant=is_mutant))


def finish(played: World) -> Report:
    with _quiet(), _running(played.loop):
        try:
            played.loop.run_until_complete(played.play())
        except Deadlock as deadlock:
            played.violated("N6", str(deadlock))
    report = played.report()
    played.disk.close()
    return report


def replay(seed: int, world: str = "storm") -> Report:
    """Play a world again and print what happened: the same bytes each time, whatever PYTHONHASHSEED is."""
    report = simulate(seed, world)
    sys.stdout.write("".join(f"{line}\n" for line in report.log))
    return report


@contextmanager
def _running(loop: VirtualLoop) -> Iterator[None]:
    asyncio.set_event_loop(loop)
    try:
        yield
        left = sorted(asyncio.all_tasks(loop), key=hash)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


@contextmanager
def _quiet() -> Iterator[None]:
    """The engine logs every fault; here they are the weather."""
    logger = logging.getLogger("clutch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
