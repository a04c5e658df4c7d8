"""`clutch demo`: find or create the job, run it to its end, print the report."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from clutch.cli import INTERRUPTED
from clutch.core.model import Phase
from clutch.core.text.format import counted, plain_json
from clutch.core.views import TaskView
from clutch.demo import job as jobs
from clutch.demo.job import FRESH, KILLS_MAX, REPORT, DemoJob, Log, lines, write_private
from clutch.demo.report import (
    ANSWER,
    SCHEMA,
    Picture,
    command,
    news,
    people_text,
    picture_of,
    report,
    tree_lines,
)
from clutch.errors import ClutchError, InvalidInput, StoreError
from clutch.offline_reader import DATABASE_FILE, Look, looking_at
from clutch.surfaces import discovery
from clutch.transactions.read import timeline

if TYPE_CHECKING:
    from rich.live import Live


# --------------------------------------------------------------------------------------------------
# Keeps a worker running until the work is done, draws its tasks, and kills it as the job says.
#
# A kill counts as *in flight* when the dead process still owned sessions, read from the database after its death.

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


ERROR, USAGE = 1, 2  #: exit codes
PLAIN = "without-chaos"  #: the state directory of the comparison, inside that of a chaos run


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of the command line."""

    folder: str | None = None
    seed: int = 0
    state: str | None = None
    chaos: bool = False
    kills: int | None = None
    resume: bool = False
    as_json: bool = False

    @property
    def is_for_people(self) -> bool:
        """Whether stdout is a terminal. Elsewhere its last line is the summary, for programs."""
        return sys.stdout.isatty() and not self.as_json


def run(options: DemoOptions) -> int:
    """Run the command and return its exit code."""
    with ExitStack() as held:
        try:
            job = find_job(options) if options.resume else new_job(options)
            held.enter_context(jobs.alone(job.state))
        except InvalidInput as error:
            return _failed(options, "invalid_input", error, USAGE)
        except OSError as error:
            return _failed(options, "internal", error, ERROR)
        screen = DemoScreen(None if options.as_json else sys.stderr)
        try:
            made, picture = see_through(job, screen)
        except KeyboardInterrupt:
            screen.close()
            finish = command("demo", "--resume", "--state", str(job.state), is_anywhere=True)
            print(f"Interrupted. Nothing is lost; finish it with:\n  {finish}", file=sys.stderr)
            return INTERRUPTED
        except ClutchError as error:
            return _failed(options, "internal", error, ERROR)
        finally:
            screen.close()
        if not options.as_json:
            tree = [] if screen.has_tree else ["", *(line for line, _ in tree_lines(picture))]
            words = "\n".join([*tree, "", people_text(made, picture.used)])
            print(words, file=sys.stdout if options.is_for_people else sys.stderr)
        if not options.is_for_people:
            print(plain_json(json.dumps(made, ensure_ascii=False)), flush=True)
        return 0 if made["ok"] else ERROR


def _failed(options: DemoOptions, code: str, error: Exception, exit_code: int) -> int:
    print(f"clutch demo: {error}", file=sys.stderr)
    about: dict[str, Any] = {"code": code, "message": str(error)}
    if isinstance(error, InvalidInput):
        about |= {"field": error.field, "rule": error.rule}
    if not options.is_for_people:
        print(plain_json(json.dumps({"schema": SCHEMA, "ok": False, "error": about}, ensure_ascii=False)))
    return exit_code


# --- which job --------------------------------------------------------------------------------------------


def new_job(options: DemoOptions) -> DemoJob:
    folder = _path("--dir", "." if options.folder is None else options.folder)
    if not folder.is_dir():
        raise InvalidInput("--dir", f"{folder} is not a directory")
    if options.kills is not None and not options.chaos:
        raise InvalidInput("--kills", "requires --chaos")
    if options.state is None:
        _remove_finished()
    state = _fresh_state(folder) if options.state is None else _named_state(options.state, folder)
    job = DemoJob(state, folder, options.seed, is_fresh=options.state is None)
    if options.chaos:
        pace_s = jobs.chaos_pace_s(options.kills)
        job = replace(job, is_chaos=True, kills=options.kills or KILLS_MAX, pace_s=pace_s, slow=1.0)
    job.save()
    return job


def _path(option: str, given: str) -> Path:
    if not given.strip():
        raise InvalidInput(option, "must name a directory")
    return Path(given).resolve()


def _named_state(name: str, folder: Path) -> Path:
    state = _path("--state", name)
    if state.is_relative_to(folder):
        raise InvalidInput("--state", f"{state} is inside the surveyed folder; name one outside of it")
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_empty = not any(state.iterdir())
    except OSError as error:
        why = "is not a directory" if state.is_file() else f"cannot be used: {error.strerror}"
        raise InvalidInput("--state", f"{state} {why}") from error
    if not is_empty:
        raise InvalidInput("--state", f"{state} is not empty; --resume finishes a demo that is kept there")
    return state


def _remove_finished() -> None:
    """Remove finished demos, which were kept until the next one, except where a gateway shows one."""
    for job in jobs.kept():
        if job.is_finished and discovery.find(job.state) is None:
            shutil.rmtree(job.state, ignore_errors=True)


def _fresh_state(folder: Path) -> Path:
    """Create a state directory outside of the surveyed folder, which may be the folder of temporary files."""
    for place in jobs.places():
        if not place.is_relative_to(folder):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix=FRESH, dir=place))
    raise InvalidInput("--state", f"is required: name a directory outside of {folder}")


def find_job(options: DemoOptions) -> DemoJob:
    if options.folder is not None or options.chaos or options.kills is not None:
        raise InvalidInput("--resume", "continues the demo as it was started; add --state only")
    if options.state is None:
        if job := next(iter(jobs.kept()), None):
            return job
        raise InvalidInput("--resume", "found no demo; name its directory with --state")
    state = _path("--state", options.state)
    if job := jobs.load(state):
        return job
    raise InvalidInput("--state", f"there is no demo in {state}")


# --- doing it ---------------------------------------------------------------------------------------------


def see_through(job: DemoJob, screen: DemoScreen) -> tuple[dict[str, Any], Picture]:
    """Run the job to its end, unless that was done before, and return its summary."""
    started_at = time.monotonic()
    if job.is_finished:
        screen.say("This demo is finished. Its report:")
        return json.loads((job.state / REPORT).read_text()), _picture(job.state)
    screen.say(f"A main agent surveys {job.folder} with the demo model (no API key).")
    screen.say(f"State: {job.state}. Ctrl-C stops it; nothing is lost.")
    Supervisor(job, screen).run()
    picture = _picture(job.state)
    plain = _without_chaos(job) if job.is_chaos else None
    made = report(job, picture, kills_of(job.state), plain)
    made["wall_s"] = round(time.monotonic() - started_at, 2)
    write_private(job.state / ANSWER, f"{made['answer']}\n")
    write_private(job.state / REPORT, json.dumps(made, ensure_ascii=False, indent=1))
    return made, picture


def _picture(state: Path) -> Picture:
    with looking_at(state) as look:
        return picture_of(look)


def _without_chaos(job: DemoJob) -> Picture:
    """Run the same survey without kills and without delays."""
    state = job.state / PLAIN
    state.mkdir(mode=0o700, exist_ok=True)
    plain = DemoJob(state, job.folder, job.seed, kills=0, pace_s=0.0)
    plain.save()
    Supervisor(plain, DemoScreen(None)).run()
    return _picture(state)
