"""`load`: many watch and many work, for minutes. What does a spawn take meanwhile, and does memory stay flat?

A gateway in a process of its own has so many roots, each with a few children that are always at work: as one ends, the
next is spawned over HTTP, and that answer is timed. Each root is watched by several streams of events, which another
process reads. Here is only what is timed, so that nothing else is: `client_lag_p99_ms` says how late this process
itself was, `gateway_waited_s` how long others kept the gateway from running. Beside it, for as long, another process
times a synced write on the same disk, because a spawn cannot be quicker than that.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.load_client import Client
from benchmarks.load_server import CALLS, RAISED
from benchmarks.load_watchers import key
from benchmarks.machine import cpu_s, resident_kb, waited_s
from benchmarks.places import Place
from benchmarks.report import Report, Row, at_most, percentile, say
from clutch.surfaces.discovery import read_private

WATCHERS: Final = 500
SECONDS: Final = 600.0
CHILDREN_PER_WATCHER: Final = 0.4  #: 200 for 500
CHILDREN_PER_ROOT: Final = 4
CALL_S: Final = 5.0
SPAWN_TIMES_FSYNC_MAX: Final = 5.0
SLOPE_KB_PER_MIN_MAX: Final = 512.0  #: of some 150 MB; what a day of it would show is not for ten minutes
LAG_EVERY_S: Final = 0.02
RSS_SAMPLES: Final = 60
WARM_SHARE: Final = 1 / 3  #: of the time: caches fill, and the allocator finds its size


@dataclass(slots=True)
class Seen:
    spawn_ms: list[float] = field(default_factory=list)
    fsync_ms: list[float] = field(default_factory=list)
    lag_ms: list[float] = field(default_factory=list)  #: of this process
    cpu_s: float | None = None  #: of the gateway
    waited_s: float | None = None  #: ... for a core that others had
    rss_kb: list[tuple[float, int, int]] = field(
        default_factory=list
    )  #: when, after how many spawns, how much
    running: list[int] = field(default_factory=list)
    events: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    watchers: int
    roots: int
    seconds: float
    life_s: float  #: of one child, about

    @property
    def children(self) -> int:
        return self.roots * CHILDREN_PER_ROOT


async def run(
    report: Report, places: Sequence[Place], reps: int, sizes: Sequence[int], seconds: float = SECONDS
) -> None:
    del places, reps  # one long run on one file
    report.config["load"] = {"raised": RAISED, "seconds": seconds, "call_s": CALL_S, "calls": CALLS}
    for watchers in sizes or (WATCHERS,):
        say(f"load: {watchers} watchers for {seconds:.0f} s")
        row = await _row(watchers, seconds)
        report.add(row)
        figures = row.figures
        times = figures["spawn_p99_ms"] / figures["fsync_p99_ms"] if figures["fsync_p99_ms"] else None
        report.targets += [
            at_most(f"load {watchers}: spawn p99 over fsync p99", times, SPAWN_TIMES_FSYNC_MAX),
            at_most(
                f"load {watchers}: rss KB a minute", figures["rss_slope_kb_per_min"], SLOPE_KB_PER_MIN_MAX
            ),
            at_most(f"load {watchers}: dropped watchers", figures["dropped_watchers"], 0),
        ]


async def _row(watchers: int, seconds: float) -> Row:
    seen, began = Seen(), time.perf_counter()
    call_s = min(CALL_S, seconds / 20)
    roots = max(1, int(watchers * CHILDREN_PER_WATCHER) // CHILDREN_PER_ROOT)
    load = Load(watchers, roots, seconds, life_s=call_s * CALLS)
    with TemporaryDirectory(prefix="clutch-load-") as directory:
        state = Path(directory) / "state"
        async with beside("load_server", "--state", str(state), "--call-s", str(call_s)) as gateway:
            url = await next_line(gateway)
            await _lean(seen, load, url, state, gateway.pid)
            seen.cpu_s, seen.waited_s = cpu_s(gateway.pid), round(waited_s(gateway.pid), 2)
    running = int(median(seen.running)) if seen.running else 0
    why = None if seen.spawn_ms and seen.fsync_ms and running else "nothing ran, or nothing was measured"
    figures: dict[str, Any] = {
        "watchers": watchers,
        "running": running,
        "spawns": len(seen.spawn_ms),
        "events_heard": seen.events,
        "spawn_p50_ms": _at(seen.spawn_ms, 0.5),
        "spawn_p99_ms": _at(seen.spawn_ms, 0.99),
        "fsync_p50_ms": _at(seen.fsync_ms, 0.5),
        "fsync_p99_ms": _at(seen.fsync_ms, 0.99),
        "client_lag_p99_ms": _at(seen.lag_ms, 0.99),
        "gateway_waited_s": seen.waited_s,
        "rss_mb": [round(kb / 1024, 1) for _, _, kb in seen.rss_kb],
        "rss_slope_kb_per_min": round(60 * _slope([(at, kb) for at, _, kb in seen.rss_kb]), 1),
        "rss_slope_kb_per_task": round(_slope([(spawns, kb) for _, spawns, kb in seen.rss_kb]), 3),
        "dropped_watchers": seen.dropped,
    }
    took = round(time.perf_counter() - began, 3)
    return Row("load", "clutch", "sqlite", watchers, 0, why is None, seen.cpu_s, took, figures, why)


def _at(values: list[float], share: float) -> float | None:
    return round(percentile(sorted(values), share), 3) if values else None


@asynccontextmanager
async def beside(module: str, *arguments: str) -> AsyncIterator[Process]:
    """Run a program of this package that works until its stdin is closed."""
    command = (sys.executable, "-m", f"benchmarks.{module}", *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    try:
        yield process
    finally:
        assert process.stdin is not None, "it was asked for"
        process.stdin.close()
        await process.wait()


async def next_line(process: Process) -> str:
    """Return the next line that the process prints."""
    assert process.stdout is not None, "it was asked for"
    return (await process.stdout.readline()).decode().strip()


async def _lean(seen: Seen, load: Load, url: str, state: Path, pid: int) -> None:
    client = Client(url, read_private(state / "token"))
    for root in range(load.roots):  # so that there is something to watch
        await client.ask("POST", f"/v1/sessions/{key(root)}/messages", {"text": "hello"})
    told = ("--state", str(state), "--url", url)
    sizes = ("--watchers", str(load.watchers), "--roots", str(load.roots))
    async with (
        beside("load_watchers", *told, *sizes) as watchers,
        beside("load_sync", "--place", str(state.parent)) as syncing,
    ):
        await next_line(watchers)
        ended: list[asyncio.Queue[None]] = [asyncio.Queue() for _ in range(load.roots)]
        work: list[Awaitable[None]] = [
            _employ(seen, client, number % load.roots, ended, load.life_s * number / load.children, load)
            for number in range(load.children)
        ]
        work += [_lag(seen), _weigh(seen, client, pid, load.seconds)]
        listening = asyncio.create_task(_listen(seen, watchers, ended))
        await _for(load.seconds, [asyncio.ensure_future(one) for one in work])
        seen.fsync_ms = [float(line) for line in (await syncing.communicate(b""))[0].split()]
        assert watchers.stdin is not None, "it was asked for"
        watchers.stdin.close()
        await listening
    client.close()


async def _for(seconds: float, tasks: Sequence[asyncio.Future[None]]) -> None:
    done, left = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    for task in done:
        task.result()


async def _listen(seen: Seen, watchers: Process, ended: Sequence[asyncio.Queue[None]]) -> None:
    """Which root has one child less; at the end what there was."""
    while line := await next_line(watchers):
        if line.isdigit():
            ended[int(line)].put_nowait(None)
        else:
            said = json.loads(line)
            seen.events, seen.dropped = said["events"], said["dropped"]


async def _employ(
    seen: Seen, client: Client, root: int, ended: Sequence[asyncio.Queue[None]], after_s: float, load: Load
) -> None:
    """One child after the other; whoever of the root ends makes room for the next. They do not begin all at once."""
    began_at, number = time.monotonic(), 0
    await asyncio.sleep(after_s)
    while True:
        number += 1
        body = {"task": f"load-child {number}", "requester": key(root)}
        began = time.perf_counter()
        await client.ask("POST", "/v1/tasks", body)
        if time.monotonic() - began_at >= load.life_s:
            seen.spawn_ms.append((time.perf_counter() - began) * 1000)
        await ended[root].get()


async def _lag(seen: Seen) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(LAG_EVERY_S)
        seen.lag_ms.append((time.perf_counter() - began - LAG_EVERY_S) * 1000)


async def _weigh(seen: Seen, client: Client, pid: int, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds / RSS_SAMPLES)
        seen.rss_kb.append((time.monotonic(), len(seen.spawn_ms), resident_kb(pid)))
        seen.running.append((await client.ask("GET", "/v1/health"))["running"])


def _slope(samples: Sequence[tuple[float, int]]) -> float:
    """Of the line nearest to all samples after the warm-up."""
    warm = samples[int(len(samples) * WARM_SHARE) :]
    mean_x = sum(x for x, _ in warm) / max(1, len(warm))
    mean_y = sum(y for _, y in warm) / max(1, len(warm))
    spread = sum((x - mean_x) ** 2 for x, _ in warm)
    return sum((x - mean_x) * (y - mean_y) for x, y in warm) / spread if spread else 0.0
