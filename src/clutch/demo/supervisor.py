"""Keeps a worker running until the work is done, draws its tasks, and kills it as the job says.

A kill counts as *in flight* when the dead process still owned sessions, read from the database after its death."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from clutch.core.model import Phase
from clutch.core.text.format import counted
from clutch.core.views import TaskView
from clutch.demo.job import DemoJob, Log, lines
from clutch.demo.report import Picture, news, picture_of, tree_lines
from clutch.errors import ClutchError, StoreError
from clutch.offline_reader import DATABASE_FILE, Look, looking_at
from clutch.transactions.read import timeline

if TYPE_CHECKING:
    from rich.live import Live

T = TypeVar("T")


class DemoScreen:
    """The progress on a stream: a live tree at a terminal, else one line per event; None: nothing."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream, self._seen, self._started_at = stream, 0, time.monotonic()
        self.live: Live | None = None
        self.has_tree = False  #: the tree is on the screen
        if stream is not None and stream.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(file=stream, highlight=False, markup=False, emoji=False)
            self.live = Live(console=console, auto_refresh=False)
            self.live.start()

    def show(self, picture: Picture) -> None:
        for text in news(picture, self._seen):
            # The tree shows the rest.
            if self.live is None:
                self.say(f"{time.monotonic() - self._started_at:5.1f}s  {text}")
            elif ": done: " in text:
                self.say(text)
        self._seen = len(picture.timeline)
        if self.live is not None:
            from rich.text import Text

            drawn = Text("\n", no_wrap=True, overflow="ellipsis").join(
                Text(*line) for line in tree_lines(picture)
            )
            self.live.update(drawn, refresh=True)
            self.has_tree = True

    def say(self, text: str) -> None:
        if self.live is not None:
            self.live.console.print(text, no_wrap=True, overflow="ellipsis")
        elif self._stream is not None:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()


KILLS, WORKER_LOG = "kills.jsonl", "worker.log"
LOG_FILE = f"{DATABASE_FILE}-wal"  #: exists as soon as a process has the database open

LOOK_S = 0.1
LIFE_S = (0.4, 1.0)  #: of a worker to be killed, from its first work
STOP_S = 5.0  #: then a worker that was asked to stop is killed; it loses nothing


class WorkerFailed(ClutchError):
    """The worker ended by itself before the work was done."""


class Supervisor:
    def __init__(self, job: DemoJob, screen: DemoScreen) -> None:
        self.job, self.screen = job, screen
        self._kills = Log(job.state / KILLS)
        self._moments = random.Random(job.seed)  # noqa: S311 (the same seed kills at the same moments)
        self._look: Look | None = None
        self._stack = ExitStack()

    def run(self) -> None:
        """Run workers until the work is done. Ctrl-C stops the worker in order and is raised again."""
        with self._stack:
            while not self._one_life():
                pass

    def _one_life(self) -> bool:
        """Run one worker. True: it finished the work; False: it was killed."""
        worker = self._start()
        try:
            return self._attend(worker)
        except KeyboardInterrupt:
            self.screen.say("Stopping …")
            _stop(worker)
            raise
        finally:
            if worker.poll() is None:
                worker.kill()
                worker.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        # In a session of its own: Ctrl-C is for this process, which then stops the worker in order.
        with open(self.job.state / WORKER_LOG, "ab") as log:
            return subprocess.Popen(  # noqa: S603 (our own module)
                [sys.executable, "-P", "-m", "clutch.demo.worker", str(self.job.state)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _attend(self, worker: subprocess.Popen[bytes]) -> bool:
        dies_at = None
        while True:
            try:
                code = worker.wait(LOOK_S)
            except subprocess.TimeoutExpired:
                code = None
            picture = self._draw()
            if code is not None:
                return self._ended(code)
            if dies_at is None and self._wants_kill() and self._is_moment(worker, picture):
                dies_at = time.monotonic() + (self._moments.uniform(*LIFE_S) if self.job.is_chaos else 0.0)
            if dies_at is not None and time.monotonic() >= dies_at and self._holds(worker):
                self._kill(worker)
                return False

    def _ended(self, code: int) -> bool:
        if code != 0:
            said = (self.job.state / WORKER_LOG).read_text(errors="replace").strip().split("\n")[-1]
            raise WorkerFailed(f"the worker ended with code {code}: {said[:500]}")
        return True

    def _wants_kill(self) -> bool:
        in_flight = sum(1 for kill in kills_of(self.job.state) if kill["in_flight"])
        return in_flight < self.job.kills

    def _is_moment(self, worker: subprocess.Popen[bytes], picture: Picture | None) -> bool:
        """Whether the worker is at work and, without chaos, in the middle of it: a subagent of a subagent was started,
        one is done, and another one has steps behind it."""
        if self.job.is_chaos:
            return self._read(lambda look: look(timeline.is_registered, worker.pid), False)
        tasks = () if picture is None else picture.tasks
        is_one_done = any(task.outcome is not None for task in tasks)
        is_nested = any(task.depth > 1 for task in tasks)
        return is_one_done and is_nested and any(_is_half_done(task) for task in tasks)

    def _kill(self, worker: subprocess.Popen[bytes]) -> None:
        worker.kill()
        worker.wait()
        held = self._holds(worker)
        self._kills.write(pid=worker.pid, in_flight=held)
        agents = f"{counted(held, 'agent')} at work"
        self.screen.say(f"kill -9 {worker.pid}: worker killed with {agents}; the next one resumes them")

    # ---- looking -------------------------------------------------------------------------------------

    def _read(self, read: Callable[[Look], T], otherwise: T) -> T:
        """Read from the database. Return `otherwise` while it does not exist or is being created."""
        try:
            if self._look is None:
                if not (self.job.state / LOG_FILE).exists():
                    # A reader must not block the process that creates it.
                    return otherwise
                self._look = self._stack.enter_context(looking_at(self.job.state))
            return read(self._look)
        except StoreError:
            return otherwise

    def _holds(self, worker: subprocess.Popen[bytes]) -> int:
        return self._read(lambda look: look(timeline.held, worker.pid), 0)

    def _draw(self) -> Picture | None:
        picture = self._read(picture_of, None)
        if picture is not None:
            self.screen.show(picture)
        return picture


def _is_half_done(task: TaskView) -> bool:
    return task.phase is Phase.RUNNING and task.step > 1


def _stop(worker: subprocess.Popen[bytes]) -> None:
    assert worker.stdin is not None
    worker.stdin.close()
    try:
        worker.wait(STOP_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        worker.kill()
        worker.wait()


def kills_of(state: Path) -> list[dict[str, Any]]:
    return lines(state / KILLS)
