"""kill -9 on real processes, again and again, until each story is over; then the checks.

    this process ──fork──▶ victim: works on the story, dies at a named point or is killed at a random moment
                 ◀─pipe─── that it is up, and what it dies of; the end of the pipe is its death
    victim ──▶ the client outside, the model's own log, the tool's own file: what the checks read

Forked, not started: everything is imported already, so a life costs milliseconds. Therefore this must run in
a process without threads; `kills.py` starts those and adds up. A kill counts only if the database, looked at
right after it, says that work was unfinished.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.trust.kills.checks import CheckResult, Line, check, evidence
from tests.trust.kills.plans import Chooser, KillPlan
from tests.trust.kills.points import VARIABLE
from tests.trust.kills.story import Log
from tests.trust.kills.tables import DatabaseReader, Death, OpenRun, Snapshot, after_death
from tests.trust.kills.victim import BROKEN, QUIET, REFUSED, Assignment, live

RANDOM: Final = "random"
KILLS_PER_STORY: Final = (8, 20)


@dataclass(slots=True)
class Report:
    """What a run of many stories amounts to. `by_point` counts random kills under that name."""

    backend: str
    stories: int = 0
    kills: int = 0
    in_flight: int = 0
    in_recovery: int = 0
    idle: int = 0  #: kills that do not count: nothing was unfinished
    by_point: dict[str, int] = field(default_factory=dict)
    accepted: int = 0
    repeated_model_calls: int = 0
    lost: int = 0
    twice: int = 0
    unsafe_repeats: int = 0
    failures: list[str] = field(default_factory=list)
    is_cut: bool = False


@dataclass(slots=True)
class Victim:
    """A process that is alive, or was."""

    pid: int
    pipe: int
    plan: KillPlan
    born_at: float
    number: int | None = None  #: the worker number it registered last
    last_words: str = ""
    kill_at: float = 0.0
    rest: bytes = b""


class Story:
    """One directory or database from the first wish to quiet, with all the deaths in between."""

    def __init__(
        self,
        assignment: Assignment,
        reader: DatabaseReader,
        chooser: Chooser,
        workers: int,
        life_max_s: float,
    ) -> None:
        self.assignment, self.reader, self.chooser, self.workers = assignment, reader, chooser, workers
        self.life_max_s = life_max_s  #: a victim that lives longer hangs
        self.lines: list[Line] = []
        self.deaths: list[Death] = []
        self.pending: set[tuple[int, int, float | None]] = (
            set()
        )  #: interrupted runs that no worker has taken over yet
        self.left = chooser.dice.randint(*KILLS_PER_STORY)
        self.alive: dict[int, Victim] = {}
        self.is_over = False
        self.troubles: list[str] = []

    def run(self, report: Report) -> CheckResult:
        while not self.is_over or self.alive:
            while not self.is_over and len(self.alive) < self.workers:
                self._start()
            self._wait(report)
        look = self.reader.look()
        assert look is not None
        return self.judge(look)

    def judge(self, look: Snapshot) -> CheckResult:
        result = check(evidence(self.assignment.directory, look, self.lines, self.deaths))
        result.problems += [*self.troubles, *look.troubles]
        return result

    def write_down(self, file: Path) -> None:
        """For the analysis of a failure."""
        file.write_text("".join(f"{json.dumps(line)}\n" for line in self.lines), encoding="utf-8")

    def _start(self) -> None:
        plan = self._plan()
        victim = _fork(self.assignment, plan)
        victim.kill_at = victim.born_at + (plan.after_s or 0.0 if plan.from_birth else self.life_max_s)
        self.alive[victim.pipe] = victim

    def _plan(self) -> KillPlan:
        return self.chooser.choose(is_first=not self.deaths) if self.left > 0 else KillPlan()

    def _wait(self, report: Report) -> None:
        next_kill = min(victim.kill_at for victim in self.alive.values())
        ready, _, _ = select.select(list(self.alive), [], [], max(0.0, next_kill - time.monotonic()))
        for pipe in ready:
            self._read(self.alive[pipe], report)
        for victim in list(self.alive.values()):
            if time.monotonic() >= victim.kill_at:
                self._kill(victim, report)

    def _read(self, victim: Victim, report: Report) -> None:
        heard = os.read(victim.pipe, 1 << 16)
        if not heard:
            self._bury(victim, report)
            return
        *whole, victim.rest = (victim.rest + heard).split(b"\n")
        for line in map(json.loads, whole):
            self.lines.append(line)
            victim.last_words = line.get("dying", victim.last_words)
            victim.number = line.get("up", victim.number)
            if "up" in line and victim.plan.after_s is not None and not victim.plan.from_birth:
                victim.kill_at = time.monotonic() + victim.plan.after_s
            if "posted" in line:
                self.chooser.came_up(time.monotonic() - victim.born_at)

    def _kill(self, victim: Victim, report: Report) -> None:
        if time.monotonic() - victim.born_at >= self.life_max_s:
            self.troubles.append(f"a victim was still alive after {self.life_max_s:.0f} s")
            self.is_over = True
        os.kill(victim.pid, signal.SIGKILL)
        victim.kill_at = float("inf")
        while self.alive.get(victim.pipe) is victim:  # what it said before its death is still in the pipe
            self._read(victim, report)

    def _bury(self, victim: Victim, report: Report) -> None:
        del self.alive[victim.pipe]
        os.close(victim.pipe)
        _, status = os.waitpid(victim.pid, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            self._count(victim, report)
            return
        code = os.waitstatus_to_exitcode(status)
        if code == REFUSED:
            return
        self.is_over = True
        if code not in (QUIET, BROKEN) and not any("stuck" in line for line in self.lines):
            self.troubles.append(f"a victim ended with {code}")

    def _count(self, victim: Victim, report: Report) -> None:
        """Look at the database right after the death: only what was unfinished makes a kill count."""
        look = self.reader.look()
        if look is None:
            return
        death = after_death(look)
        self.troubles += look.troubles
        self.lines.append({"death": len(self.deaths), "at": time.monotonic()})
        self.deaths.append(death)
        if not death.unfinished:
            report.idle += 1
            return
        self.left -= 1
        open_now = {_state(run): run for run in death.open_runs if not run.is_parked}
        waiting = self.pending & open_now.keys()
        in_flight = {state for state, run in open_now.items() if run.owner == victim.number}
        self.pending = waiting | in_flight
        report.kills += 1
        report.in_flight += bool(in_flight)
        report.in_recovery += bool(waiting)
        point = victim.last_words or RANDOM
        report.by_point[point] = report.by_point.get(point, 0) + 1
        self.chooser.hit(point)


def _state(run: OpenRun) -> tuple[int, int, float | None]:
    """Changes as soon as a worker takes the run over, and with every step."""
    return run.run_id, run.head, run.progress_at


def _fork(assignment: Assignment, plan: KillPlan) -> Victim:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Victim(pid, reading, plan, time.monotonic())
    code = BROKEN
    try:
        os.close(reading)
        errors = os.open(assignment.directory / "victim.err", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(errors, sys.stderr.fileno())
        if plan.point:
            os.environ[VARIABLE] = f"{plan.point}:{plan.nth}"
        code = live(assignment, Log(writing))
    finally:
        os._exit(code)  # nothing of the parent's is cleaned up twice
