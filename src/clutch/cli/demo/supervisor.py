"""Keeps a worker running until the work is done, and kills it about every second if the job says so.

A death counts as *in flight* when the dead process still owned sessions: read from the database after the
death, when nobody can change it any more.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from clutch.cli.demo.job import SESSION, Job
from clutch.cli.demo.view import Picture, View
from clutch.cli.demo.witness import Log, lines
from clutch.errors import ClutchError, StoreError
from clutch.looking import DATABASE_FILE, looking_at
from clutch.protocol import figures, queries

KILLS, WORKER_LOG = "kills.jsonl", "worker.log"
LOG_FILE = f"{DATABASE_FILE}-wal"  #: there as soon as somebody has the database open

LOOK_S = 0.1
LIFE_S = (0.4, 1.0)  # of a worker that shall die, from the moment it takes up work
KILLS_MAX = 60  # "until the work is done" ends, also on a machine on which it never would
STOP_S = 5.0  # after that a worker that was asked to stop is killed; it loses nothing

Look = Callable[..., Any]


class WorkerFailed(ClutchError):
    """The worker ended by itself before the work was done."""


class Supervisor:
    def __init__(self, job: Job, view: View) -> None:
        self.job, self.view = job, view
        self._kills = Log(job.state / KILLS)
        self._moments = random.Random(job.seed)  # noqa: S311 (the same seed kills at the same moments)
        self._look: Look | None = None
        self._stack = ExitStack()

    def run(self) -> None:
        """Until the work is done. Ctrl-C stops the worker in order and goes on upwards."""
        with self._stack:
            while not self._one_life():
                pass

    def _one_life(self) -> bool:
        """One worker. True: it finished the work; False: it was killed."""
        worker = self._start()
        try:
            return self._attend(worker)
        except KeyboardInterrupt:
            self.view.say("Stopping …")
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
                [sys.executable, "-m", "clutch.cli.demo.worker", str(self.job.state)],
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
            self._draw()
            if code is not None:
                return self._ended(code)
            if dies_at is None and self._wants_kill() and self._is_at_work(worker):
                dies_at = time.monotonic() + self._moments.uniform(*LIFE_S)
            if dies_at is not None and time.monotonic() >= dies_at and self._holds(worker):
                self._kill(worker)
                return False

    def _ended(self, code: int) -> bool:
        if code != 0:
            said = (self.job.state / WORKER_LOG).read_text(errors="replace").strip().split("\n")[-1]
            raise WorkerFailed(f"the worker ended with code {code}: {said[:500]}")
        return True

    def _wants_kill(self) -> bool:
        if self.job.kills is None:
            return False
        in_flight = sum(1 for kill in kills_of(self.job.state) if kill["in_flight"])
        return in_flight < (self.job.kills or KILLS_MAX)

    def _kill(self, worker: subprocess.Popen[bytes]) -> None:
        worker.kill()
        worker.wait()
        held = self._holds(worker)
        self._kills.write(pid=worker.pid, in_flight=held)
        self.view.say(f"kill -9 {worker.pid}: {held} {'run' if held == 1 else 'runs'} in flight")

    # ---- looking -------------------------------------------------------------------------------------

    def _read(self, fn: Callable[..., Any], *args: object, otherwise: Any) -> Any:
        """`otherwise`: there is no database yet, or it is being made this moment."""
        try:
            if self._look is None:
                if not (self.job.state / LOG_FILE).exists():
                    return otherwise  # a reader must not stand in the way of the one who makes it
                self._look = self._stack.enter_context(looking_at(self.job.state))
            return self._look(fn, *args)
        except StoreError:
            return otherwise

    def _is_at_work(self, worker: subprocess.Popen[bytes]) -> bool:
        return bool(self._read(figures.is_registered, worker.pid, otherwise=False))

    def _holds(self, worker: subprocess.Popen[bytes]) -> int:
        return int(self._read(figures.held, worker.pid, otherwise=0))

    def _draw(self) -> None:
        root = self._read(queries.session_id, SESSION, otherwise=None)
        if root is not None:
            tree = self._read(queries.tree, root, otherwise=[])
            timeline = self._read(queries.timeline, root, otherwise=[])
            results = self._read(figures.frozen_results, root, otherwise={})
            self.view.show(Picture(time.time(), tree, timeline, results))


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
