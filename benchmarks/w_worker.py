"""The process that `w1` and `w2` measure: the floor, or Clutch with one of its adapters.

It does a little of the same work first, so that imports, connections and caches are there; says `ready`; waits for
a line; works; and prints what that took. With `--resume` it only goes on where a dead one left off.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import apsw

from benchmarks import w_floor, w_job
from benchmarks.floor import SqliteWriter
from clutch.api.slash import MAIN_SESSION
from clutch.core.compaction import ContextLimits
from clutch.core.model import Lane
from clutch.core.policy import Announcing, Life, Limits, Policy, Work
from clutch.models.provider import AdapterKind, Provider
from clutch.tools.registry import Tools
from clutch.wiring import DATABASE_FILE, Clutch

FLOOR: Final = "floor"
_PROVIDER: Final = "bench"
_WARM: Final = 3  # children of the work that is not measured
_WARM_SESSION: Final = "agent:main:chat:warm"
_MANY: Final = 100_000
POLICY: Final = Policy(
    limits=Limits(children_max=_MANY, descendants_max=_MANY, retained_max=_MANY),
    announcing=Announcing(debounce_s=0.0, cap=_MANY),
    work=Work(sessions_max=2 * _MANY),
    context=ContextLimits(window_tokens=100 * _MANY),
    life=Life(steps_max=_MANY),
)
RAISED: Final = {
    "agents.defaults.subagents": dict.fromkeys(
        ("maxChildrenPerAgent", "maxDescendants", "maxRetained", "maxSteps"), _MANY
    ),
    "announce.queue": {"debounceMs": 0, "cap": _MANY},
    "worker.lanes": {"main": _MANY, "subagent": _MANY},
    "worker.sessionsMax": 2 * _MANY,
    "context.windowTokens": 100 * _MANY,
}

FanOut = Callable[[str, int], Awaitable[str]]


async def floor(said: argparse.Namespace) -> None:
    path = said.state / DATABASE_FILE
    w_floor.make_table(path)
    async with w_floor.client() as session, SqliteWriter(str(path)) as writer:
        await _measured(w_floor.Floor(session, said.url, writer, w_job.Work()).fan_out, said)


def clutch_of(said: argparse.Namespace) -> Clutch:
    lanes = {Lane.MAIN: _MANY, Lane.SUBAGENT: said.lane}
    return Clutch(
        state=said.state,
        policy=replace(POLICY, work=replace(POLICY.work, lanes=lanes)),
        model=f"{_PROVIDER}:{w_job.MODEL}",
        providers=[Provider(_PROVIDER, said.url, adapter=said.system, speaks="openai-chat")],
        tools=_tools(said.effects),
        workspace=said.state,
    )


async def clutch(said: argparse.Namespace) -> None:
    async with clutch_of(said) as c:

        async def fan_out(session: str, count: int) -> str:
            await c.say(w_job.fan_out(count), session=session)
            return await c.reply(session=session)

        await _measured(fan_out, said)


async def resume(said: argparse.Namespace) -> None:
    async with clutch_of(said) as c:
        answer = await c.reply()
        await c.wait_idle()
        print(json.dumps({"answer": answer, "cpu_s": round(time.process_time(), 4)}), flush=True)


def _tools(effects: Path | None) -> Tools:
    work, tools = w_job.Work(effects), Tools(POLICY.limits)

    @tools.tool(replay_safe=True, read_only=True)
    async def look_up(item: int) -> str:
        """What is known of an item."""
        return work.look_up(item)

    @tools.tool()
    async def record(item: int, text: str) -> str:
        """Keep a note on an item."""
        return work.record(item, text)

    return tools


async def _measured(fan_out: FanOut, said: argparse.Namespace) -> None:
    database = said.state / DATABASE_FILE
    await fan_out(_WARM_SESSION, _WARM)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    _forget_peak()
    rss_kb, disk, cpu_s, started = _memory_kb("VmRSS"), _bytes(database), time.process_time(), time.time()
    answer = await fan_out(MAIN_SESSION, said.children)
    measured = {
        "makespan_s": round(time.time() - started, 4),
        "cpu_s": round(time.process_time() - cpu_s, 4),
        "disk_bytes": _bytes(database) - disk,
        "rss_kb": None if rss_kb is None else (_memory_kb("VmHWM") or 0) - rss_kb,
        "answer": answer,
    }
    print(json.dumps(measured), flush=True)


def _bytes(database: Path) -> int:
    """With what is still in the log."""
    connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    ((pages, size),) = connection.execute(
        "SELECT page_count, page_size FROM pragma_page_count, pragma_page_size"
    )
    connection.close()
    return int(pages * size)


def _forget_peak() -> None:
    with suppress(OSError):  # not this system, or not allowed: then the peak of the imports counts too
        Path("/proc/self/clear_refs").write_text("5")


def _memory_kb(name: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _system(name: str) -> str:
    return FLOOR if name == FLOOR else AdapterKind(name)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.w_worker", description=__doc__)
    parser.add_argument("--system", type=_system, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--children", type=int, default=0)
    parser.add_argument("--lane", type=int, default=_MANY, help="children at work at once")
    parser.add_argument("--effects", type=Path)
    parser.add_argument("--resume", action="store_true")
    said = parser.parse_args()
    work = floor if said.system == FLOOR else resume if said.resume else clutch
    asyncio.run(work(said))


if __name__ == "__main__":
    main()
