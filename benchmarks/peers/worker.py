"""What every adapter's process does: obey lines on standard input and say what each of them cost.

An adapter gives `serve` a context manager that opens its library on a state directory. The process prints `ready`, then
answers each order with one line of JSON: `fan_out SESSION N`, `resume SESSION N`, `walk SESSION K`. It ends with its
standard input. Only the standard library: this file runs in the environments of all peers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

from benchmarks import w_job

WARM: Final = "warm"  #: the session of the work that is not measured
_WARM_CHILDREN: Final = 3


@dataclass(frozen=True, slots=True)
class Job:
    """Where the model answers, where to keep state, how many children there may be, and whom to tell of records."""

    url: str
    state: Path
    children: int
    effects: Path | None = None

    def tools(self) -> w_job.Work:
        return w_job.Work(self.effects)


class Adapter(Protocol):
    """One library at work. Each method returns what the parent said last."""

    async def fan_out(self, session: str, count: int) -> str:
        """Give `w_job.fan_out(count)` to the parent of this session; return when it has read all results."""
        ...

    async def resume(self, session: str, count: int) -> str:
        """Do after a crash what the library documents for it; return when nothing more will happen."""
        ...

    async def walk(self, session: str, steps: int) -> str:
        """Give `job.walk(steps)` to one agent with the tool `look_up`."""
        ...


Opening = Callable[[Job], AbstractAsyncContextManager[Adapter]]


def serve(opening: Opening) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--children", type=int, required=True)
    parser.add_argument("--effects", type=Path)
    parser.add_argument("--cold", action="store_true", help="do nothing before the first order")
    options = parser.parse_args()
    job = Job(options.url, options.state, options.children, options.effects)
    answers = _answers()
    asyncio.run(_obey(opening(job), answers, warm=not options.cold))
    answers.flush()
    os._exit(0)  # threads that a library leaves behind do not keep a measured process alive


def _answers() -> IO[str]:
    """Only figures go to standard output; what libraries print there goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


async def _obey(opening: AbstractAsyncContextManager[Adapter], answers: IO[str], *, warm: bool) -> None:
    async with opening as adapter:
        if warm:
            await adapter.fan_out(WARM, _WARM_CHILDREN)
        print("ready", file=answers)
        while line := await asyncio.to_thread(sys.stdin.readline):
            order, session, number = line.split()
            orders = {"fan_out": adapter.fan_out, "resume": adapter.resume, "walk": adapter.walk}
            print(json.dumps(await _measured(orders[order](session, int(number)))), file=answers)


async def _measured(work: Awaitable[str]) -> dict[str, object]:
    _forget_peak()
    rss_kb, written, cpu_s, started = _memory_kb("VmRSS"), _written(), _cpu_s(), time.time()
    answer = await work
    return {
        "makespan_s": round(time.time() - started, 4),
        "cpu_s": round(_cpu_s() - cpu_s, 4),
        "rss_kb": max(0, _memory_kb("VmHWM") - rss_kb),
        "written_bytes": _written() - written,
        "answer": answer,
    }


def _cpu_s() -> float:
    """Of all threads, and of processes that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def _written() -> int:
    """Bytes that this process has sent to storage, in whole pages."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))


def _forget_peak() -> None:
    with suppress(OSError):  # not allowed: then the peak of the imports counts too
        Path("/proc/self/clear_refs").write_text("5")


def _memory_kb(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
