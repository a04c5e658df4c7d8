"""Keeps a worker running until the work is done, and kills it about every second if the job says so.

A kill counts as *in flight* when the dead process still owned sessions, read from the database after its death."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from clutch.core import ids
from clutch.core.model import REASONS, Delivery, Outcome, Phase, Reason
from clutch.core.status import delivery_text, status_of
from clutch.core.text import format, results
from clutch.core.views import DeliveryView
from clutch.demo.job import SESSION, DemoJob, Log, lines
from clutch.errors import ClutchError, StoreError
from clutch.offline_reader import DATABASE_FILE, looking_at
from clutch.transactions.read import timeline, transcripts
from clutch.transactions.read.transcripts import TimelineRow, TreeRow

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.tree import Tree

# --------------------------------------------------------------------------------------------------
# The progress of a demo on stderr: a live tree on a terminal, else one line per event.

SUMMARY_CHARS_MAX = 160


@dataclass(frozen=True, slots=True)
class Picture:
    at: float
    tree: Sequence[TreeRow]
    timeline: Sequence[TimelineRow]
    results: Mapping[int, str]  #: of ended tasks, by task


class View(Protocol):
    def show(self, picture: Picture) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


class Silent:
    def show(self, picture: Picture) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


def view_on(stream: TextIO) -> View:
    return LiveTree(stream) if stream.isatty() else Lines(stream)


def news(picture: Picture, seen: int) -> Iterator[str]:
    """Yield the timeline after the first `seen` entries, without internal steps."""
    labels = {row.task_id: row.label for row in picture.tree}
    for line in picture.timeline[seen:]:
        if text := _happened(line, picture.results.get(line.task_id, "")):
            yield f"{labels.get(line.task_id, '')} ({ids.task_id(line.task_id)}): {text}"


def _happened(line: TimelineRow, result: str) -> str | None:
    if line.from_phase == line.to_phase:
        return line.reason
    match line.to_phase:
        case "ending" | "completed":
            return None
        case "queued" if line.from_phase == "spawning":
            return "accepted"
        case "announcing":
            return f"reports {line.reason}: {_summary(result)}"
        case "cleanup_pending":
            return f"was heard ({line.reason})"
        case phase:
            return f"{phase} ({line.reason})"


def _summary(result: str) -> str:
    return format.visible(" ".join(results.summary(result).split()), SUMMARY_CHARS_MAX)


class Lines:
    def __init__(self, stream: TextIO) -> None:
        self._stream, self._seen = stream, 0
        self._started_at: float | None = None

    def show(self, picture: Picture) -> None:
        if self._started_at is None:
            self._started_at = picture.at
        for text in news(picture, self._seen):
            self.say(f"{picture.at - self._started_at:5.1f}s  {text}")
        self._seen = len(picture.timeline)

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None: ...


class LiveTree:
    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._live = Live(console=self._console, auto_refresh=False)
        self._live.start()
        self._seen = 0

    def show(self, picture: Picture) -> None:
        for text in news(picture, self._seen):
            # The tree shows the rest.
            if "): reports " in text:
                self.say(text)
        self._seen = len(picture.timeline)
        self._live.update(drawn(picture), refresh=True)

    def say(self, text: str) -> None:
        self._console.print(text)

    def close(self) -> None:
        self._live.stop()


def drawn(picture: Picture) -> RenderableType:
    from rich.text import Text
    from rich.tree import Tree

    top = Tree(Text("main agent", style="bold"))
    nodes: dict[int, Tree] = {}
    for row in picture.tree:
        parent = nodes.get(row.requester_id, top)
        nodes[row.task_id] = parent.add(Text(one_line(row, picture), style=_style(row)))
    return top


def one_line(row: TreeRow, picture: Picture) -> str:
    """`phase · label · age · tokens · tool · resumed`"""
    end = picture.at if row.ended_at is None else row.ended_at
    resumed = [
        line.reason
        for line in picture.timeline
        if line.task_id == row.task_id and line.cause == Reason.RESUMED
    ]
    parts = [
        _phase(row, picture.at),
        row.label,
        format.duration(max(0.0, end - row.created_at)),
        f"{format.tokens(row.tokens)} tok",
        row.current_tool or "",
        resumed[-1] if resumed else "",
    ]
    return " · ".join(part for part in parts if part)


def _phase(row: TreeRow, at: float) -> str:
    is_due = row.parked_until is not None and row.parked_until <= at
    outcome = None if row.outcome is None else Outcome(row.outcome)
    status = status_of(Phase(row.phase), REASONS[row.cause], outcome, is_due=is_due)
    return status if outcome is None else f"{status} {delivery_text(DeliveryView(Delivery(row.delivery)))}"


def _style(row: TreeRow) -> str:
    if row.outcome not in (None, "ok"):
        return "red"
    return {"running": "bold cyan", "completed": "green", "announcing": "yellow", "queued": "dim"}.get(
        row.phase, ""
    )


KILLS, WORKER_LOG = "kills.jsonl", "worker.log"
LOG_FILE = f"{DATABASE_FILE}-wal"  #: exists as soon as a process has the database open

LOOK_S = 0.1
LIFE_S = (0.4, 1.0)  #: of a worker to be killed, from its first work
KILLS_MAX = 60  #: a bound for "until the work is done" on a machine that is too slow
STOP_S = 5.0  #: then a worker that was asked to stop is killed; it loses nothing

Look = Callable[..., Any]


class WorkerFailed(ClutchError):
    """The worker ended by itself before the work was done."""


class Supervisor:
    def __init__(self, job: DemoJob, view: View) -> None:
        self.job, self.view = job, view
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
        """Read from the database. Return `otherwise` while it does not exist or is being created."""
        try:
            if self._look is None:
                if not (self.job.state / LOG_FILE).exists():
                    # A reader must not block the process that creates it.
                    return otherwise
                self._look = self._stack.enter_context(looking_at(self.job.state))
            return self._look(fn, *args)
        except StoreError:
            return otherwise

    def _is_at_work(self, worker: subprocess.Popen[bytes]) -> bool:
        return bool(self._read(timeline.is_registered, worker.pid, otherwise=False))

    def _holds(self, worker: subprocess.Popen[bytes]) -> int:
        return int(self._read(timeline.held, worker.pid, otherwise=0))

    def _draw(self) -> None:
        root = self._read(transcripts.session_id, SESSION, otherwise=None)
        if root is not None:
            tree = self._read(transcripts.tree, root, otherwise=[])
            events = self._read(transcripts.timeline, root, otherwise=[])
            results = self._read(timeline.frozen_results, root, otherwise={})
            self.view.show(Picture(time.time(), tree, events, results))


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
