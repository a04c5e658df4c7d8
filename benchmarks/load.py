"""`load`: many watch and many work, for minutes. What does a spawn take meanwhile, and does memory stay flat?

A gateway in a process of its own has so many roots, each with a few children that are always at work: as one ends, the
next is spawned over HTTP, and that answer is timed. Each root is watched by several streams of events. Beside it a
synced write is timed on the same disk, because a spawn cannot be quicker than that.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, Final

import aiohttp

from benchmarks.load_server import CALLS, RAISED
from benchmarks.machine import cpu_s, resident_kb, synced_write_ms
from benchmarks.places import Place
from benchmarks.report import Report, Row, at_most, percentile, say
from clutch.surfaces.address import read_token

WATCHERS: Final = 500
SECONDS: Final = 600.0
CHILDREN_PER_WATCHER: Final = 0.4  #: 200 for 500
CHILDREN_PER_ROOT: Final = 4
CALL_S: Final = 5.0
SPAWN_TIMES_FSYNC_MAX: Final = 5.0
SLOPE_KB_PER_MIN_MAX: Final = 512.0  #: of some 150 MB; what a day of it would show is not for ten minutes
COMING_MAX: Final = (
    16  #: at the door at once: a gateway holds few connections that have not said anything yet
)
ENDINGS: Final = (b"lifecycle:end", b"lifecycle:error")
FSYNC_EVERY_S: Final = 0.1
RSS_SAMPLES: Final = 60
WARM_SHARE: Final = 1 / 3  #: of the time: caches fill, and the allocator finds its size


@dataclass(slots=True)
class Seen:
    spawn_ms: list[float] = field(default_factory=list)
    fsync_ms: list[float] = field(default_factory=list)
    cpu_s: float | None = None  #: of the gateway
    rss_kb: list[tuple[float, int]] = field(default_factory=list)  #: when, how much
    running: list[int] = field(default_factory=list)
    events: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    watchers: int
    children: int
    seconds: float
    life_s: float  #: of one child, about


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
    children = max(CHILDREN_PER_ROOT, int(watchers * CHILDREN_PER_WATCHER))
    with TemporaryDirectory(prefix="clutch-load-") as directory:
        call_s = min(CALL_S, seconds / 20)
        async with _gateway(Path(directory) / "state", call_s) as (pid, url, token):
            load = Load(watchers, children, seconds, life_s=call_s * CALLS)
            await _lean(seen, load, url, token, pid, Path(directory))
            seen.cpu_s = cpu_s(pid)
    spawns, syncs = sorted(seen.spawn_ms), sorted(seen.fsync_ms)
    running = int(median(seen.running)) if seen.running else 0
    why = None if spawns and syncs and running else "nothing ran, or nothing was measured"
    figures: dict[str, Any] = {
        "watchers": watchers,
        "running": running,
        "spawns": len(spawns),
        "events_heard": seen.events,
        "spawn_p50_ms": round(percentile(spawns, 0.5), 3) if spawns else None,
        "spawn_p99_ms": round(percentile(spawns, 0.99), 3) if spawns else None,
        "fsync_p99_ms": round(percentile(syncs, 0.99), 3) if syncs else None,
        "rss_mb": [round(kb / 1024, 1) for _, kb in seen.rss_kb],
        "rss_slope_kb_per_min": round(_slope_kb_per_min(seen.rss_kb), 1),
        "dropped_watchers": seen.dropped,
    }
    took = round(time.perf_counter() - began, 3)
    return Row("load", "clutch", "sqlite", watchers, 0, why is None, seen.cpu_s, took, figures, why)


@asynccontextmanager
async def _gateway(state: Path, call_s: float) -> AsyncIterator[tuple[int, str, str]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.load_server", "--state", str(state), "--call-s", str(call_s),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None, "it was asked for"
    assert process.stdout is not None, "it was asked for"
    try:
        url = (await process.stdout.readline()).decode().strip()
        yield process.pid, url, read_token(state / "token")
    finally:
        process.stdin.close()
        await process.wait()


async def _lean(seen: Seen, load: Load, url: str, token: str, pid: int, place: Path) -> None:
    roots = max(1, load.children // CHILDREN_PER_ROOT)
    ended: list[asyncio.Queue[str]] = [asyncio.Queue() for _ in range(roots)]
    headers = {"Authorization": f"Bearer {token}"}
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=1)  # a server lets idle ones go after 5 s
    patience = aiohttp.ClientTimeout(total=None, sock_connect=60)
    door = asyncio.Semaphore(COMING_MAX)
    async with aiohttp.ClientSession(url, headers=headers, connector=connector, timeout=patience) as client:
        for root in range(roots):  # so that there is something to watch
            async with client.post(f"/v1/sessions/{_key(root)}/messages", json={"text": "hello"}) as said:
                said.raise_for_status()
        work = [
            _watch(seen, client, door, number % roots, ended[number % roots] if number < roots else None)
            for number in range(load.watchers)
        ]
        children = roots * CHILDREN_PER_ROOT
        work += [
            _employ(
                seen, client, number % roots, ended[number % roots], load.life_s * number / children, load
            )
            for number in range(children)
        ]
        work += [_sync(seen, place), _weigh(seen, client, pid, load.seconds)]
        tasks = [asyncio.create_task(one) for one in work]
        done, left = await asyncio.wait(tasks, timeout=load.seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for task in done:
            task.result()


def _key(root: int) -> str:
    return f"agent:main:chat:load-{root}"


async def _watch(
    seen: Seen,
    client: aiohttp.ClientSession,
    door: asyncio.Semaphore,
    root: int,
    ended: asyncio.Queue[str] | None,
) -> None:
    """`ended`: the first of each root says which of its children have."""
    async with door:
        stream = await client.get("/v1/events", params={"root": _key(root)})
    async with stream:
        stream.raise_for_status()
        name = b""
        async for line in stream.content:
            if line.startswith(b"event: "):
                name = line[7:].strip()
                seen.events += 1
            elif ended is not None and line.startswith(b"data: ") and name.startswith(ENDINGS):
                ended.put_nowait(json.loads(line[6:])["taskId"])
    seen.dropped += 1


async def _employ(
    seen: Seen,
    client: aiohttp.ClientSession,
    root: int,
    ended: asyncio.Queue[str],
    after_s: float,
    load: Load,
) -> None:
    """One child after the other; whoever of the root ends makes room for the next. They do not begin all at once."""
    began_at, number = time.monotonic(), 0
    await asyncio.sleep(after_s)
    while True:
        number += 1
        body = {"task": f"load-child {number}", "requester": _key(root)}
        began = time.perf_counter()
        async with client.post("/v1/tasks", json=body) as said:
            said.raise_for_status()
            await said.read()
        if time.monotonic() - began_at >= load.life_s:
            seen.spawn_ms.append((time.perf_counter() - began) * 1000)
        await ended.get()


async def _sync(seen: Seen, place: Path) -> None:
    with TemporaryFile(dir=place) as file:
        while True:
            seen.fsync_ms.append(await asyncio.to_thread(synced_write_ms, file.fileno()))
            os.lseek(file.fileno(), 0, os.SEEK_SET)
            await asyncio.sleep(FSYNC_EVERY_S)


async def _weigh(seen: Seen, client: aiohttp.ClientSession, pid: int, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds / RSS_SAMPLES)
        seen.rss_kb.append((time.monotonic(), resident_kb(pid)))
        async with client.get("/v1/health") as said:
            seen.running.append((await said.json())["running"])


def _slope_kb_per_min(samples: Sequence[tuple[float, int]]) -> float:
    """Of the line nearest to all samples after the warm-up."""
    warm = samples[int(len(samples) * WARM_SHARE) :]
    if len(warm) < 2:
        return 0.0
    mean_at = sum(at for at, _ in warm) / len(warm)
    mean_kb = sum(kb for _, kb in warm) / len(warm)
    spread = sum((at - mean_at) ** 2 for at, _ in warm)
    return 60 * sum((at - mean_at) * (kb - mean_kb) for at, kb in warm) / spread
