"""`page`: is the dashboard smooth with 1,000 running tasks and 200 events a second, and what does it cost the gateway?

A gateway in a process of its own has the tasks, each of which calls its model and a tool again and again. A Chromium
opens the dashboard, follows it for a while, and reports its frames, its heap and what the stream has sent. The
gateway's CPU per model call is taken with the page open and, before and after that, without it: transcripts grow
meanwhile, so the mean of both sides is what it compares with.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from playwright.async_api import CDPSession, Page, async_playwright

from benchmarks.load import beside, next_line
from benchmarks.load_client import Client
from benchmarks.load_watchers import key
from benchmarks.machine import cpu_s
from benchmarks.places import Place
from benchmarks.report import Report, Row, at_least, at_most, say
from clutch.surfaces.discovery import read_private

TASKS: Final = 1000
CHILDREN_PER_ROOT: Final = 100
EVENTS_PER_S: Final = 200.0
SECONDS: Final = 30.0
FRAME_P99_MS_MAX: Final = 50.0  #: a longer frame is noticed as a jerk
HEAP_MB_MAX: Final = 60.0
FIRST_LIST_MS_MAX: Final = 500.0
CPU_RATIO_MAX: Final = 1.3
FOREVER: Final = 100_000  #: calls of a child: more than it can make in this time
WARM_S: Final = 5.0

CHROMIUM: Final = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
QUIET: Final = (
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

#: Runs before the scripts of the page: it notes when the first row is drawn.
FIRST_ROW = """
window.firstRowMs = new Promise((done) => new MutationObserver((_, observer) => {
  if (!document.querySelector(".row")) return;
  observer.disconnect();
  requestAnimationFrame(() => requestAnimationFrame(done));
}).observe(document, { childList: true, subtree: true }));
"""
#: Waits until so many rows are drawn. The policy of the page allows no text that is run, as `wait_for_function` does.
ALL_ROWS = """(count) => new Promise((done) => {
  const look = () => document.querySelectorAll(".row").length >= count ? done() : requestAnimationFrame(look);
  look();
})"""
#: Counts events and frames for so many seconds.
FOLLOW = """async (seconds) => {
  const { connection } = await import("/web/connection.js");
  let events = 0;
  connection.on(["lifecycle:start", "lifecycle:end", "lifecycle:error"], () => { events += 1; });
  connection.on(["phase", "announce", "question", "progress", "overview"], () => { events += 1; });
  const frames = [];
  await new Promise((done) => {
    const began = performance.now();
    let last = began;
    const frame = (now) => {
      frames.push(now - last);
      last = now;
      if (now - began < seconds * 1000) requestAnimationFrame(frame); else done();
    };
    requestAnimationFrame(frame);
  });
  frames.sort((a, b) => a - b);
  const at = (share) => frames[Math.min(frames.length - 1, Math.floor(share * frames.length))];
  return { events, frames: frames.length, p50: at(0.5), p99: at(0.99), max: frames.at(-1),
    rows: document.querySelectorAll(".row").length, state: connection.state };
}"""


async def run(report: Report, places: Sequence[Place], reps: int, sizes: Sequence[int]) -> None:
    del places
    report.config["page"] = {"seconds": SECONDS, "events_per_s": EVENTS_PER_S}
    for count in sizes or (TASKS,):
        for rep in range(reps):
            say(f"page: {count} tasks, rep {rep}")
            report.add(await measured(count, rep))
        where = {"bench": "page", "n": count}
        report.targets += [
            at_least(f"page {count}: events a second", report.median("events_per_s", **where), EVENTS_PER_S),
            at_most(f"page {count}: frame p99 ms", report.median("frame_p99_ms", **where), FRAME_P99_MS_MAX),
            at_most(f"page {count}: heap MB", report.median("heap_mb", **where), HEAP_MB_MAX),
            at_most(
                f"page {count}: first list ms", report.median("first_list_ms", **where), FIRST_LIST_MS_MAX
            ),
            at_most(
                f"page {count}: gateway CPU per call", report.median("cpu_ratio", **where), CPU_RATIO_MAX
            ),
        ]


async def measured(count: int, rep: int, seconds: float = SECONDS) -> Row:
    began = time.perf_counter()
    if CHROMIUM is None:
        why = "no Chromium here (Debian, Ubuntu: apt install chromium)"
        return Row("page", "clutch", "sqlite", count, rep, False, None, 0.0, why=why)
    call_s = count / EVENTS_PER_S  # each call is one event of its task, at least
    with TemporaryDirectory(prefix="clutch-page-") as directory:
        state = Path(directory) / "state"
        given = ("--state", str(state), "--call-s", str(call_s), "--calls", str(FOREVER))
        async with beside("load_server", *given) as gateway:
            client = Client(await next_line(gateway), read_private(state / "token"))
            await _spawn(client, count)
            await asyncio.sleep(min(WARM_S, seconds))
            before = await _cost(client, gateway.pid, seconds / 2)
            async with _page() as (page, tools):
                code = (await client.ask("POST", "/v1/browser/code", {}))["code"]
                stream = Stream(tools)
                figures = await _opened(page, tools, f"{client.url}/#{code}", count)
                stream.bytes = 0
                during, seen = await asyncio.gather(
                    _cost(client, gateway.pid, seconds), page.evaluate(FOLLOW, seconds)
                )
                figures |= await _followed(tools, seen, seconds)
                figures["bytes_per_event"] = round(stream.bytes / max(1, seen["events"]))
            after = await _cost(client, gateway.pid, seconds / 2)
            used = cpu_s(gateway.pid)
            client.close()
    alone = (before + after) / 2
    figures |= {"cpu_ms_per_call": round(during, 3), "cpu_ratio": round(during / alone, 3)}
    is_ok = seen["state"] == "live" and seen["rows"] >= count
    wrong = None if is_ok else f"the page was {seen['state']} with {seen['rows']} rows"
    took = round(time.perf_counter() - began, 3)
    return Row("page", "clutch", "sqlite", count, rep, is_ok, used, took, figures, wrong)


async def _spawn(client: Client, count: int) -> None:
    for number in range(count):
        root = number // CHILDREN_PER_ROOT
        if number % CHILDREN_PER_ROOT == 0:
            await client.ask("POST", f"/v1/sessions/{key(root)}/messages", {"text": "hello"})
        body = {"task": f"load-child {number}", "requester": key(root), "label": f"task {number}"}
        await client.ask("POST", "/v1/tasks", body)


async def _cost(client: Client, pid: int, seconds: float) -> float:
    """Return the CPU of the gateway per model call, in milliseconds."""
    calls, used = await _calls(client), cpu_s(pid)
    await asyncio.sleep(seconds)
    return 1000 * (cpu_s(pid) - used) / max(1, await _calls(client) - calls)


async def _calls(client: Client) -> int:
    for line in (await client.read("GET", "/metrics")).decode().splitlines():
        if line.startswith('clutch_model_calls_total{model="load"}'):
            return int(float(line.rpartition(" ")[2]))
    return 0


@asynccontextmanager
async def _page() -> AsyncIterator[tuple[Page, CDPSession]]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, chromium_sandbox=os.geteuid() != 0, args=list(QUIET)
        )
        page = await browser.new_page(viewport={"width": 1280, "height": 800})
        await page.add_init_script(FIRST_ROW)
        yield page, await page.context.new_cdp_session(page)
        await browser.close()


class Stream:
    """Counts the bytes of the event stream of a page."""

    def __init__(self, tools: CDPSession) -> None:
        self.bytes = 0
        self._requests: set[str] = set()
        tools.on("Network.requestWillBeSent", self._note)
        tools.on("Network.dataReceived", self._add)

    def _note(self, sent: dict[str, Any]) -> None:
        if "/v1/events" in sent["request"]["url"]:
            self._requests.add(sent["requestId"])

    def _add(self, received: dict[str, Any]) -> None:
        if received["requestId"] in self._requests:
            self.bytes += received["dataLength"]


async def _opened(page: Page, tools: CDPSession, address: str, count: int) -> dict[str, Any]:
    """Sign in, then open the page as a user does who comes back, and wait for all rows."""
    await page.goto(address)
    await page.evaluate("() => window.firstRowMs")
    await tools.send("Network.enable")
    await page.goto(address.partition("#")[0])
    first_ms = await page.evaluate("() => window.firstRowMs")
    await page.evaluate(ALL_ROWS, count)
    return {"first_list_ms": round(first_ms, 1)}


async def _followed(tools: CDPSession, seen: dict[str, Any], seconds: float) -> dict[str, Any]:
    await tools.send("HeapProfiler.collectGarbage")
    heap = await tools.send("Runtime.getHeapUsage")
    return {
        "events_per_s": round(seen["events"] / seconds, 1),
        "frames": seen["frames"],
        "frame_p50_ms": round(seen["p50"], 1),
        "frame_p99_ms": round(seen["p99"], 1),
        "frame_max_ms": round(seen["max"], 1),
        "heap_mb": round(heap["usedSize"] / 2**20, 1),
    }
