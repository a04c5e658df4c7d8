"""The four workloads, each one row of one system: processes are started, told what to do, and counted from outside.

`w1` is a fan-out, `w2` the same with kill -9 in the middle, `fanin` children that end at once, `history` one run with
many model calls. Counts of calls come from the model server, side effects from a file, and CPU from the process itself.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Final
from urllib.parse import quote

from benchmarks import w_job
from benchmarks.peers.environment import NotInstalled, environ, python_of
from benchmarks.peers.registry import Peer
from benchmarks.report import Row
from benchmarks.w_process import Process, started

SESSION: Final = "main"
_SQLITE: Final = b"SQLite format 3\x00"
_STARTS_S: Final = 300.0  # on a busy machine the imports alone take a minute
_PATIENCE_S: Final = 120.0
_PATIENCE_PER_CALL_S: Final = 0.5
_ERROR_CHARS: Final = 300

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one run happens: the state of the system, the records of its children, what it says on standard error."""

    peer: Peer
    n: int
    state: Path
    effects: Path
    errors: IO[bytes]
    server: Process  #: the model, `benchmarks.peers.server`
    url: str

    async def play(self, *how: str) -> None:
        await self.server.order(" ".join(("play", self.peer.name, *how)))

    @asynccontextmanager
    async def worker(self, *options: str) -> AsyncIterator[Process]:
        """The adapter's process, when it is ready."""
        known = (
            "--url",
            self.url,
            "--state",
            str(self.state),
            "--children",
            str(self.n),
            "--effects",
            str(self.effects),
        )
        async with started(
            f"benchmarks.peers.{self.peer.name}",
            *known,
            *options,
            python=python_of(self.peer),
            environ=environ(self.state),
            errors=self.errors,
        ) as worker:
            await worker.line(_STARTS_S)
            yield worker


def _patience_s(calls: int) -> float:
    return _PATIENCE_S + _PATIENCE_PER_CALL_S * calls


async def w1(place: Place) -> Figures:
    server = place.server
    await place.play()
    async with place.worker() as worker:
        stored = stored_bytes(place.state)
        await server.order("reset")
        took = await worker.figures(
            f"fan_out {SESSION} {place.n}", _patience_s(w_job.expected_calls(place.n))
        )
        seen = await server.figures("report")
        stored = stored_bytes(place.state) - stored
    n = place.n
    return seen | {
        "cpu_s": took["cpu_s"],
        "makespan_s": took["makespan_s"],
        "expected_calls": w_job.expected_calls(n),
        "cpu_ms_per_child": round(1000 * took["cpu_s"] / n, 3),
        "rss_kb_per_child": round(took["rss_kb"] / n, 1),
        "stored_bytes_per_child": round(stored / n),
        "written_bytes_per_child": round(took["written_bytes"] / n),
        "request_bytes_per_child": round(seen["request_bytes"] / n),
    }


async def w2(place: Place) -> Figures:
    server = place.server
    await place.play("uneven")
    async with place.worker() as first:
        place.effects.write_bytes(b"")  # without what the warm-up did
        await server.order("reset")
        await server.order(f"watch {w_job.expected_calls(place.n) // 2}")
        first.tell(f"fan_out {SESSION} {place.n}")
        await server.line(_patience_s(w_job.expected_calls(place.n)))
        await first.kill()
        await server.order("mark")
    before = place.effects.read_text().split()
    async with place.worker("--cold") as second:
        took = await second.figures(f"resume {SESSION} {place.n}", _patience_s(w_job.expected_calls(place.n)))
    seen = await server.figures("report")
    lines = place.effects.read_text().split()
    return seen | {
        "cpu_s": took["cpu_s"],
        "resume_s": took["makespan_s"],
        "side_effects_before_kill": len(before),
        "side_effects": len(lines),
        "side_effects_repeated": len(lines) - len(set(lines)),
        "lost": place.n - seen["results"],
    }


async def fanin(place: Place) -> Figures:
    server = place.server
    await place.play("together")
    async with place.worker() as worker:
        await server.order("reset")
        took = await worker.figures(
            f"fan_out {SESSION} {place.n}", _patience_s(w_job.expected_calls(place.n))
        )
        seen = await server.figures("report")
    return {
        "cpu_s": took["cpu_s"],
        "children": place.n,
        "parent_turns": seen["parent_calls"] - 1,  # without the one that asked for the children
        "results_shown": seen["results"],
        "shown_twice": seen["twice"],
        "makespan_s": took["makespan_s"],
    }


async def history(place: Place) -> Figures:
    server = place.server
    await place.play()
    async with place.worker() as worker:
        stored = stored_bytes(place.state)
        await server.order("reset")
        took = await worker.figures(f"walk {SESSION} {place.n}", _patience_s(place.n))
        seen = await server.figures("report")
        stored = stored_bytes(place.state) - stored
    n = place.n
    if seen["llm_calls"] != n:
        raise RuntimeError(f"{seen['llm_calls']} model calls instead of {n}: {took['answer']}")
    return {
        "cpu_s": took["cpu_s"],
        "llm_calls": seen["llm_calls"],
        "cpu_ms_per_call": round(1000 * took["cpu_s"] / n, 3),
        "stored_bytes_per_call": round(stored / n),
        "written_bytes_per_call": round(took["written_bytes"] / n),
        "request_bytes_per_call": round(seen["request_bytes"] / n),
        "makespan_s": took["makespan_s"],
    }


Workload = Callable[[Place], Awaitable[Figures]]
WORKLOADS: Final[Mapping[str, Workload]] = {"w1": w1, "w2": w2, "fanin": fanin, "history": history}


@asynccontextmanager
async def model() -> AsyncIterator[tuple[Process, str]]:
    """The model server of a whole run, and its address."""
    async with started("benchmarks.peers.server") as server:
        yield server, await server.line()


async def measured(bench: str, peer: Peer, n: int, rep: int, server: Process, url: str) -> Row:
    """A system that breaks is a failed row that says why."""
    began = time.perf_counter()
    figures: Figures = {}
    with TemporaryDirectory(prefix="clutch-peers-", ignore_cleanup_errors=True) as directory:
        base = Path(directory)
        (base / "state").mkdir(mode=0o700)
        with (base / "errors").open("wb") as errors:
            place = Place(peer, n, base / "state", base / "effects", errors, server, url)
            try:
                figures, why = await WORKLOADS[bench](place), None
                why = problem(figures, n) if bench in ("w1", "fanin") else None
            except TimeoutError:
                why = f"not done in time{_last_line(base)}".replace(directory, "…")
            except (NotInstalled, RuntimeError, OSError, ValueError) as error:
                why = f"{type(error).__name__}: {error}{_last_line(base)}".replace(directory, "…")
    wall_s = round(time.perf_counter() - began, 4)
    cpu_s = figures.pop("cpu_s", None)
    return Row(bench, peer.name, peer.backend, n, rep, why is None, cpu_s, wall_s, figures, why)


def _last_line(base: Path) -> str:
    lines = (base / "errors").read_text(errors="replace").strip().splitlines()
    return f" ({lines[-1][:_ERROR_CHARS]})" if lines else ""


def problem(figures: Mapping[str, Any], n: int) -> str | None:
    """Without a crash, every result comes to the parent and no call of a child is repeated."""
    results = figures.get("results", figures.get("results_shown"))
    if results != n:
        return f"{results} of {n} results came to the parent"
    if figures.get("repeated_calls"):
        return f"{figures['repeated_calls']} calls were repeated"
    return None


def stored_bytes(state: Path) -> int:
    """Of all files below it. A SQLite database counts with its log folded in, so the log itself counts nothing."""
    files = (file for file in state.rglob("*") if file.is_file() and not file.name.endswith(("-wal", "-shm")))
    return sum(_pages(file) if _is_sqlite(file) else file.stat().st_size for file in files)


def _is_sqlite(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(_SQLITE)) == _SQLITE


def _pages(file: Path) -> int:
    with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True)) as connection:
        ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
        ((size,),) = connection.execute("PRAGMA page_size").fetchall()
    return int(pages * size)
